"""What a network is beside its weights: each module with its settings, the code of its classes, and what is frozen."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from forde.hashing import SHORT, sha256
from forde.training.code_prints import code_print, is_library
from forde.training.plain import described

PLAIN = (bool, int, float, str, torch.dtype)


def describe_network(network: nn.Module) -> dict[str, Any]:
    """Modules by name with their settings, code of classes that are no library's, and parameters that are not trained.

    Neither weights nor devices, modes or hooks show in it.

    >>> describe_network(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.2)))["modules"]["1"]
    'Dropout(p=0.2, inplace=False)'
    """
    modules = dict(network.named_modules())
    classes = {type(module).__qualname__: type(module) for module in modules.values() if not is_library(type(module))}
    code = {name: code_print(cls) for name, cls in sorted(classes.items())}
    for name, module in modules.items():
        held = {key: value for key, value in vars(module).items() if _is_function(value) and not key.startswith("_")}
        code |= {f"{name}.{key}": code_print(value) for key, value in held.items()}
    return {
        "modules": {name or "(whole)": _settings(module) for name, module in modules.items()},
        "code": {name: text for name, text in code.items() if text is not None},
        "frozen": [name for name, parameter in network.named_parameters() if not parameter.requires_grad],
    }


def _settings(module: nn.Module) -> str:
    """`Dropout(p=0.2, inplace=False)`: as torch shows it, and what it does not show.

    Of a library's module these are the arguments that it keeps; of any other module all that is plain, so that a number
    that was set after it was built counts as well.
    """
    shown = module.extra_repr().replace("\n", " ")
    own = vars(module)
    names = own if not is_library(type(module)) else [name for name in _arguments(type(module)) if name in own]
    more = [
        f"{name}={_shown(own[name])}"
        for name in names
        if not name.startswith("_") and name not in ("training", "device") and f"{name}=" not in shown
        and _is_setting(own[name])
    ]  # fmt: skip
    return f"{type(module).__name__}({', '.join([*([shown] if shown else []), *more, *_script(module)])})"


def _script(module: nn.Module) -> list[str]:
    """What a scripted module computes; it has no Python code."""
    if not isinstance(module, torch.jit.ScriptModule):
        return []
    with suppress(RuntimeError, AttributeError):  # a container has no forward pass
        return [sha256(str(module.code).encode())[:SHORT]]
    return []


def _shown(value: Any) -> str:
    """A setting in words; of a function its name, as its code is noted apart."""
    found = described(value)
    return repr(found.get("function", found) if isinstance(found, dict) else found)


def _arguments(cls: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(cls.__init__).parameters)
    except (TypeError, ValueError):  # not written in Python
        return ()


def _is_setting(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_setting(each) for each in value)
    return value is None or isinstance(value, PLAIN) or _is_function(value)


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, nn.Module)
