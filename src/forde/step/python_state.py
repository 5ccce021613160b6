"""What networks hold besides tensors: attributes, modes and hooks. Members that share a program must agree in it.

Stacked members run the first one's Python, and a compiled step runs no Python at all. Both are right only while the
Python of all members does the same, and goes on doing so: `difference` compares two networks, `Watch` notices changes.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from forde.ensemble import named_tensors
from forde.random_state import SOURCES
from forde.torch_private import (
    RECURRENT,
    batch_norms,
    hooks_of_layer,
    hooks_of_tensors,
    layers_in,
    parameters_in,
    untold,
    version_of,
)

INTERNAL = frozenset(vars(nn.Module())) - {"training"}


def hooks_of(network: nn.Module) -> str | None:
    """Where code of the user's is hooked into a network, in words; None where nowhere.

    >>> network = nn.Sequential(nn.Linear(2, 2))
    >>> hooks_of(network), network[0].register_forward_hook(print) is None, hooks_of(network)
    (None, False, "layer '0' has hooks")
    """
    if untold() is not None:  # torch does not say, so there may be some
        return untold()
    for name, module in network.named_modules():
        if any(hooks_of_layer(module)):
            return f"{_layer(name)} has hooks"
    for name, parameter in network.named_parameters():
        if has_tensor_hooks(parameter):
            return f"parameter '{name}' has gradient hooks"
    return None


def has_tensor_hooks(tensor: Tensor) -> bool:
    """Whether code of the user's runs when a tensor's gradient is there."""
    return any(hooks(tensor) for hooks in hooks_of_tensors())


def difference(networks: Sequence[nn.Module]) -> str | None:
    """The first thing besides values of tensors in which networks differ from the first one, in words; None if nothing.

    >>> difference([nn.Dropout(0.1), nn.Dropout(0.5)])
    'the network of member 1 has p = 0.5, that of member 0 has 0.1'
    """
    for index, other in enumerate(networks[1:], start=1):
        found = _difference(networks[0], other, index)
        if found is not None:
            return found
    return None


def _difference(first: nn.Module, other: nn.Module, index: int) -> str | None:
    modules, others = dict(first.named_modules()), dict(other.named_modules())
    if list(modules) != list(others):
        return f"member {index} has other layers than member 0"
    for name, module in modules.items():
        if type(module) is not type(others[name]):
            return f"{_layer(name)} is a {type(others[name]).__name__} of its own in member {index}"
        own, its = attributes(module), attributes(others[name])
        key = _first_other(own, its)
        if key is not None:
            values = [_short(values.get(key, "missing")) for values in (its, own)]
            return f"{_layer(name)} of member {index} has {key} = {values[0]}, that of member 0 has {values[1]}"
    tensors, its_tensors = named_tensors(first), named_tensors(other)
    for name in [*tensors, *(name for name in its_tensors if name not in tensors)]:
        if name not in tensors or name not in its_tensors:
            return f"only one of members 0 and {index} has a tensor '{name}'"
        for what in ("shape", "dtype", "device", "requires_grad"):
            mine, that = getattr(tensors[name], what), getattr(its_tensors[name], what)
            if mine != that:
                return f"'{name}' of member {index} has {what} {_short(that)}, that of member 0 {_short(mine)}"
    return None


def unstackable(networks: Sequence[nn.Module]) -> str | None:
    """Why one program cannot serve for all networks, in words; None where it can."""
    own = {id(parameter) for parameter in networks[0].parameters()}
    if any(id(parameter) in own for network in networks[1:] for parameter in network.parameters()):
        return "members share parameters"
    for index, network in enumerate(networks):
        found = hooks_of(network)
        if found is not None:
            return f"{found} in member {index}"
    for name, module in networks[0].named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            return f"{_layer(name)} is scripted or traced"
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            return f"{_layer(name)} has sparse gradients"
        if isinstance(module, batch_norms()) and module.momentum is None and module.track_running_stats:
            return f"{_layer(name)} has momentum=None, for which Python must know a number of batches"
    return difference(networks)


def attributes(module: nn.Module) -> dict[str, Any]:
    """What a module holds besides tensors, layers and hooks; its mode included.

    >>> attributes(nn.Dropout(0.1))
    {'training': True, 'p': 0.1, 'inplace': False}
    """
    hidden = INTERNAL | RECURRENT if isinstance(module, nn.RNNBase) else INTERNAL
    return {key: value for key, value in vars(module).items() if key not in hidden}


PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, type, slice)


DEEP = 8


def same(a: Any, b: Any, depth: int = 0) -> bool:
    """Whether two values certainly mean the same; False where one cannot tell.

    >>> same([1, "a", torch.ones(2)], [1, "a", torch.ones(2)]), same(object(), object())
    (True, False)
    """
    if a is b:
        return not isinstance(a, SOURCES)  # shared: what one draws the other does not
    if type(a) is not type(b) or depth > DEEP:
        return False
    if isinstance(a, PLAIN):
        return bool(a == b)
    if isinstance(a, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and bool(torch.equal(a, b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, depth + 1) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key], depth + 1) for key in a)
    if isinstance(a, (set, frozenset)):
        return a == b and all(isinstance(item, PLAIN) for item in a)
    if isinstance(a, types.FunctionType):
        return a.__code__ is b.__code__ and same(_bound_to(a), _bound_to(b), depth + 1)
    return _is_settings(a) and same(vars(a), vars(b), depth + 1)


def _bound_to(function: types.FunctionType) -> list[Any]:
    """The values that a function carries."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [function.__defaults__, function.__kwdefaults__, *cells]


def _first_other(one: Mapping[str, Any], two: Mapping[str, Any]) -> str | None:
    """The first name under which two layers, or one before and after, hold different values; None if there is none."""
    names = [*one, *(name for name in two if name not in one)]
    return next((n for n in names if n not in one or n not in two or not same(one[n], two[n])), None)


def _layer(name: str) -> str:
    return f"layer '{name}'" if name else "the network"


def _short(value: Any) -> str:
    if " at 0x" in repr(value):  # an address tells nobody anything
        return f"a {type(value).__name__} of its own"
    text = " ".join((repr(value) if not isinstance(value, torch.Size) else str(list(value))).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def random_sources_of(network: nn.Module) -> list[Any]:
    """Sources of random numbers that a network has for itself: in attributes, lists, dictionaries and functions."""
    functions = functions_of(list(network.modules()))
    held = [value for module in network.modules() for value in vars(module).values()]
    held += [cell.cell_contents for function in functions for cell in function.__closure__ or ()]
    held += [value.__self__ for value in held if hasattr(value, "__self__")]  # a method of a source
    for value in list(held):
        held += value if isinstance(value, (list, tuple)) else value.values() if isinstance(value, dict) else []
    return list({id(each): each for each in held if isinstance(each, SOURCES)}.values())


def functions_of(modules: Sequence[nn.Module]) -> list[types.FunctionType]:
    """Functions that modules hold as attributes."""
    return [value for module in modules for value in vars(module).values() if isinstance(value, types.FunctionType)]


STATELESS = (nn.Linear, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.Sequential, nn.ModuleList, nn.Identity)
"""Modules whose output depends on no attribute, and so on none that could change."""
_REQUIRES_GRAD = attrgetter("requires_grad")


class Watch:
    """Notices when something changes that networks hold besides the values of tensors.

    Made to be asked in every step: where nothing was assigned, it only compares identities.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
    >>> watch = Watch([network])
    >>> watch.change()
    >>> network[1].p = 0.5
    >>> watch.change()
    "layer '1' of member 0 has p = 0.5 instead of 0.1"
    >>> network[1].p = 0.1
    >>> watch.change()
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self._networks = networks
        self._look()

    def _look(self) -> None:
        networks = self._networks
        modules = [module for network in networks for module in network.modules()]
        hooks: list[Any] = [each for module in modules for each in hooks_of_layer(module)]
        self._hooks = hooks if untold() is None else [UNSEEN]  # torch does not tell hooks: look closer each time
        self._tensor_hooks = hooks_of_tensors()
        self._parameters = [parameter for network in networks for parameter in network.parameters()]
        self._trained = [parameter.requires_grad for parameter in self._parameters]
        held = [(vars(module), list(attributes(module))) for module in modules if type(module) not in STATELESS]
        held += [(inner, list(inner)) for inner in map(layers_in, modules) if inner]
        held += [(each, list(each)) for each in _inner_dicts(modules)]
        self._dicts = [each for each, keys in held if keys]
        self._all_dicts = [*self._dicts, *(vars(module) for module in modules if type(module) in STATELESS)]
        self._sizes = list(map(len, self._all_dicts))
        self._getters = [itemgetter(*keys, keys[0]) for _, keys in held if keys]  # of two keys at least: a tuple
        self._values = [getter(each) for getter, each in zip(self._getters, self._dicts, strict=True)]
        self._lists = [value for values in self._values for value in values if type(value) is list]
        self._items = [list(each) for each in self._lists]
        self._inner = [(each, dict(each)) for each in _inner_dicts(modules)]
        self._cells = [cell for value in functions_of(modules) for cell in value.__closure__ or ()]
        self._bound = [cell.cell_contents for cell in self._cells]
        self._written = [value for values in self._values for value in values if type(value) is Tensor]
        self._versions = list(map(version_of, self._written))
        self._snapshots = [_snapshot(network) for network in networks]

    def change(self) -> str | None:
        """What is another than it was, in words; None where nothing is."""
        try:
            if (
                all(cell.cell_contents is bound for cell, bound in zip(self._cells, self._bound, strict=True))
                and not any(self._hooks)
                and list(map(_REQUIRES_GRAD, self._parameters)) == self._trained
                and list(map(version_of, self._written)) == self._versions
                and [getter(each) for getter, each in zip(self._getters, self._dicts, strict=True)] == self._values
                and list(map(len, self._all_dicts)) == self._sizes
                and self._lists == self._items
                and not any(any(map(hooks, self._parameters)) for hooks in self._tensor_hooks)
            ):
                return None
        except (RuntimeError, ValueError, TypeError, KeyError):
            pass  # comparing two different tensors raises, and so does an attribute that was deleted
        return self._look_closer()

    def _look_closer(self) -> str | None:
        for index, (network, before) in enumerate(zip(self._networks, self._snapshots, strict=True)):
            found = hooks_of(network)
            if found is not None:
                return f"{found} in member {index}"
            now = _snapshot(network)
            for name in [*now, *(name for name in before if name not in now)]:
                old, new = before.get(name, {}), now.get(name, {})
                key = _first_other(new, old)
                if key is None:
                    continue
                if isinstance(old.get(key), Tensor) or isinstance(new.get(key), Tensor):
                    return f"{_layer(name)} of member {index} keeps another tensor in {key}"
                was, given = _short(old.get(key, "missing")), _short(new.get(key, "missing"))
                return f"{_layer(name)} of member {index} has {key} = {given} instead of {was}"
        self._look()  # something was assigned, but its value is the same
        return None

    def restore(self) -> None:
        """Put back the numbers, texts, lists and dictionaries that layers held; tensors are left to `Position`."""
        for network, before in zip(self._networks, self._snapshots, strict=True):
            for name, module in network.named_modules():
                old, now = before.get(name, {}), vars(module)
                for key in [key for key in attributes(module) if key not in old]:
                    del now[key]
                now.update({k: v for k, v in old.items() if k in now and type(v) in PLAIN})
        for each, items in zip(self._lists, self._items, strict=True):
            each[:] = items
        for inner, values in self._inner:
            inner.clear()
            inner.update(values)
        for cell, bound in zip(self._cells, self._bound, strict=True):
            cell.cell_contents = bound
        self._look()


def _snapshot(network: nn.Module) -> dict[str, dict[str, Any]]:
    """For each layer what it holds, as values that stay when it changes in place."""
    found = {}
    for name, module in network.named_modules():
        trained = {f"{key}.requires_grad": p.requires_grad for key, p in parameters_in(module).items() if p is not None}
        kind = {"type": type(module), "layers": [id(child) for child in layers_in(module).values()]}
        found[name] = {**kind, **trained, **{key: _copied(value) for key, value in attributes(module).items()}}
    return found


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        try:
            return value.detach().clone()
        except RuntimeError:  # left over from inside of `torch.vmap`, where it had a meaning
            return UNSEEN
    if isinstance(value, (list, tuple)):
        return type(value)(map(_copied, value)) if type(value) in (list, tuple) else value
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if type(value) is set:
        return set(value)
    if isinstance(value, SOURCES):
        return UNSEEN  # `get_random_state` tells whether it was drawn from
    if isinstance(value, types.FunctionType) and value.__closure__:
        return [value.__code__, *(_copied(cell.cell_contents) for cell in value.__closure__)]
    if _is_settings(value):
        return {key: _copied(item) for key, item in vars(value).items()}
    return value


UNSEEN = ...
"""In place of what cannot be copied."""
LIBRARIES = ("torch", "builtins", "numpy", "functools", "_thread", "threading", "weakref")


def _is_settings(value: Any) -> bool:
    """Whether a value is an object that forward passes may read numbers from (a configuration)."""
    if isinstance(value, (nn.Module, Tensor, type, types.ModuleType, types.FunctionType, types.MethodType)):
        return False
    return hasattr(value, "__dict__") and type(value).__module__.split(".")[0] not in LIBRARIES


def _inner_dicts(modules: Sequence[nn.Module]) -> Iterator[dict[str, Any]]:
    """What attributes hold that can change in place, each once."""
    seen: set[int] = set()
    for module in modules:
        for value in attributes(module).values():
            inner = value if type(value) is dict else vars(value) if _is_settings(value) else None
            if inner is not None and id(inner) not in seen:
                seen.add(id(inner))
                yield inner
