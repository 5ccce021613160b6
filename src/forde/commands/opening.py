"""What commands that work with a run have in common: open it, with a network of the user's own where it has one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from forde.commands.options import chosen_device
from forde.errors import FordeError, first_line, unknown_name

if TYPE_CHECKING:
    from torch import nn

    from forde.training import TrainedRun


def opened(run: Path, *, model: str | None = None, device: str | None = None) -> TrainedRun:
    """A run or a saved ensemble, on a device.

    Args:
        model: `module:function` as it was typed; never what a file says.
    """
    from forde.models import MODELS
    from forde.training import load_run

    make = imported(model) if model is not None and model not in MODELS else None
    return load_run(run, make, device=chosen_device(device))


def imported(name: str) -> Callable[[], nn.Module]:
    """The function behind `package.module:function`, which is looked for where Python finds modules, and here.

    >>> imported("torch.nn:Identity")()
    Identity()
    """
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise FordeError(f"--model is '{name}', but package.module:function was expected.")
    here = str(Path.cwd())
    sys.path.insert(0, here)  # the executable, unlike python -m, does not look there
    try:
        found = importlib.import_module(module)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise FordeError(f"--model {name}: the module could not be imported: {first_line(error)}.") from None
    finally:
        sys.path.remove(here)
    if not hasattr(found, function):
        raise unknown_name(f"function of {module}", function, [one for one in vars(found) if not one.startswith("_")])
    make: Callable[[], nn.Module] = getattr(found, function)
    return make
