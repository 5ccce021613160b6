"""What a run was started with: settings that decide its result, how it is carried out, and what it runs on."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from forde._version import __version__
from forde.data.features.weights import weights_name
from forde.distributed.mesh import Mesh
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.hashing import json_name
from forde.likelihoods import NAMED
from forde.likelihoods.custom import NOT_STORED
from forde.methods import Method
from forde.step import Step
from forde.torch_private import SCHEDULER_POSITION
from forde.training.code_prints import comparable
from forde.training.data_prints import describe_data
from forde.training.feed import Feed, LoaderFeed
from forde.training.git_state import git_state
from forde.training.network_prints import describe_network
from forde.training.plain import described
from forde.training.schedule import Schedule

HOW_IT_COMPUTES = {"params", "param_names", "foreach", "fused", "capturable", "differentiable"}
"""In a parameter group of an optimizer; engines may change them."""


NOT_SETTINGS = {"optimizer", "step"} | SCHEDULER_POSITION
"""In a scheduler: where it stands, and whom it serves."""


def known_by(
    ensemble: Ensemble, feeds: Mapping[str, Feed], samples: Mapping[str, int | None], mesh: Mesh
) -> dict[str, Any]:
    """What ensemble and data are known again by.

    The first process reads the data for all, and each its own if that was given as arrays. Batches of a loader that
    differ between processes are noticed when they are drawn.

    Args:
        feeds: `data`, and `validation_data` and `repel_on_data` where there are some.
        samples: of each as in `describe_data`.
    """
    known: dict[str, Any] = {"ensemble": describe_ensemble(ensemble)}
    for name, feed in feeds.items():
        first: dict[str, Any] = mesh.first(partial(describe_data, feed, samples[name]))
        own = not mesh.is_main_process and not isinstance(feed, LoaderFeed)
        known[name] = describe_data(feed, first["samples"]) if own else {**first, "size": feed.size}
    return known


def decisive_settings(
    known: dict[str, Any],
    method: Method,
    step: Step,
    optimizer: Optimizer,
    schedule: Schedule | None,
    *,
    about: Mapping[str, Any] | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Settings that decide the result, in JSON: a run that is resumed must have the same.

    Args:
        known: as `known_by` gives it.
    """
    scheduler = None if schedule is None else schedule.scheduler
    training = {
        "method": method,
        "optimizer": {"type": type(optimizer).__name__, **optimizer.defaults, "groups": groups(step, optimizer)},
        "scheduler": None if scheduler is None else type(scheduler).__name__,
        "scheduler_settings": describe_scheduler(scheduler),
        **({"scheduler_every": "step"} if schedule is not None and schedule.every == "step" else {}),
        **others,
    }
    own = {} if about is None else {"about": _as_json(about)}
    data = {name: value for name, value in known.items() if name != "ensemble"}
    return {"ensemble": known["ensemble"], "training": described(training), **data, **own}


def _as_json(about: Mapping[str, Any]) -> Any:
    try:
        return json.loads(json.dumps(about))
    except (TypeError, ValueError) as error:
        raise FordeError(f"about cannot be written as JSON ({error}); give text, numbers, lists and dicts.") from None


def groups(step: Step, optimizer: Optimizer) -> list[dict[str, Any]]:
    """Hyper-parameters of each parameter group, and which parameters of a member are in it.

    Groups in a row that agree in all are one: some engines hand over every member's parameters, others all stacked.
    """
    names = {id(leaf): name for unit in step.runner.groups for name, leaf in unit.items()}
    alike = len({tuple(name for name, _ in member.named_parameters()) for member in step.whole.members}) == 1
    found: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        # max_lr first: OneCycleLR derives the others from it, and the first difference is the one that is named.
        keys = sorted(group.keys() - HOW_IT_COMPUTES, key=lambda name: (name != "max_lr", name != "lr", name))
        own = {name: _number(group[name]) for name in keys}
        if alike:  # else processes of a mesh, which have some of the members each, would name others
            own["of"] = sorted({names.get(id(leaf), "?") for leaf in group["params"]})
        if own not in found[-1:]:
            found.append(own)
    return found


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def describe_scheduler(scheduler: Any) -> dict[str, Any] | None:
    """All that a scheduler holds before its first step: what it was made with, and functions by their code.

    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    >>> describe_scheduler(torch.optim.lr_scheduler.StepLR(optimizer, 30, gamma=0.5))["gamma"]
    0.5
    """
    if scheduler is None:
        return None
    settings: dict[str, Any] = {"type": type(scheduler).__name__}
    for name, value in sorted(vars(scheduler).items()):
        if name in NOT_SETTINGS:
            continue
        if isinstance(value, LRScheduler):
            settings[name] = describe_scheduler(value)
        elif isinstance(value, (list, tuple)) and any(isinstance(each, LRScheduler) for each in value):
            settings[name] = [describe_scheduler(each) for each in value]
        else:
            settings[name] = described(value)
    return settings


def describe_ensemble(ensemble: Ensemble) -> dict[str, Any]:
    """Size, seed, likelihood, a fingerprint of the architecture, and what the members are made of.

    >>> from torch import nn
    >>> describe_ensemble(Ensemble(lambda: nn.Linear(2, 2), 3))["n_members"]
    3
    """
    noted, settings = ensemble.likelihood.config(), described(ensemble.likelihood)
    noted = {name: value for name, value in noted.items() if value != NOT_STORED}  # the settings have its code
    if type(ensemble.likelihood) in NAMED.values():  # options that are not used were not there in older runs
        settings = {name: value for name, value in settings.items() if name in ("type", *noted)}
    likelihood = {**noted, "settings": settings}
    config: dict[str, Any] = {"n_members": ensemble.n_members, "seed": ensemble.seed, "likelihood": likelihood}
    if ensemble.backbone is not None:
        config["backbone"] = {**describe_network(ensemble.backbone), "weights": weights_name(ensemble.backbone)}
    members = [describe_network(member) for member in ensemble.members]
    network: Any = members[0] if all(member == members[0] for member in members) else members
    return {**described(config), "architecture": architecture(ensemble), "network": network}


def architecture(ensemble: Ensemble) -> str:
    """A short name for the kinds of modules and the shapes and types of tensors of all members."""
    parts = [
        [[[name, type(module).__name__] for name, module in member.named_modules()],
         [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in member.state_dict().items()]]
        for member in ensemble.members
    ]  # fmt: skip
    return json_name(parts)


def first_difference(old: Any, new: Any, field: str = "") -> tuple[str, Any, Any] | None:
    """Where two settings differ, by dotted name, and both values; None where they are equal.

    Code under different versions of Python cannot be compared and does not count.

    >>> first_difference({"groups": [{"lr": 0.1}, {"lr": 0.1}]}, {"groups": [{"lr": 0.1}, {"lr": 0.2}]})
    ('groups.1.lr', 0.1, 0.2)
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            found = first_difference(old.get(key), new.get(key), f"{field}.{key}" if field else key)
            if found is not None:
                return found
        return None
    nested = isinstance(new, list) and any(isinstance(each, (dict, list)) for each in new)
    if nested and isinstance(old, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        differences = (first_difference(*pair, f"{field}.{index}") for index, pair in pairs)
        return next((found for found in differences if found is not None), None)
    return None if old == new or not comparable(old, new) else (field, old, new)


def incomparable(old: Any, new: Any) -> bool:
    """Whether something in two settings is code under different versions of Python."""
    if isinstance(old, dict) and isinstance(new, dict):
        return any(incomparable(old[key], new[key]) for key in old.keys() & new.keys())
    if isinstance(old, list) and isinstance(new, list):
        return any(incomparable(*pair) for pair in zip(old, new, strict=False))
    return not comparable(old, new)


def as_format_1(new: Any, old: Any) -> Any:
    """Settings as format 1 noted them: what `old` lacks is left out, and functions are their names.

    >>> as_format_1({"lr": 0.1, "groups": [], "f": {"function": "mine.f", "code": "a"}}, {"lr": 0.2, "f": "mine.g"})
    {'lr': 0.1, 'f': 'mine.f'}
    """
    if isinstance(new, dict) and isinstance(old, dict):
        known = {key: as_format_1(value, old[key]) for key, value in new.items() if key in old}
        return {**known, "content": old["content"]} if "content" in known and "size" in known else known
    if isinstance(new, dict) and isinstance(old, str):
        return new.get("function", new)
    if isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        return [as_format_1(*pair) for pair in zip(new, old, strict=True)]
    return new


def refuse_different_processes(settings: dict[str, Any], mesh: Mesh) -> None:
    """Stop where processes of one training were started with different settings."""
    for number, other in enumerate(mesh.all_gather_values(settings)):
        if (difference := first_difference(settings, other)) is not None:
            field, own, given = difference
            raise FordeError(
                f"process {number} was started with {field} = {short(given)}, but process {mesh.everyone.index} with "
                f"{short(own)}; start all with the same settings."
            )


def short(value: Any) -> str:
    """A value for a message.

    >>> short("a" * 100)[-5:]
    'aa...'
    """
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def environment(ensemble: Ensemble, engine: object) -> dict[str, Any]:
    """When, where and with which versions a run is started or resumed."""
    device = ensemble.device
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "forde": __version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "engine": type(engine).__name__,
        "git": git_state(),
        "command": command(sys.argv),
    }


def command(arguments: Sequence[str]) -> str:
    """How this process was started, as one would type it: a program's name and its arguments.

    >>> command(["/bin/forde", "train", "--data", "my data"])
    "forde train --data 'my data'"
    """
    program = Path(arguments[0]) if arguments else Path()
    name = "forde" if program.parts[-2:] == ("forde", "__main__.py") else program.name  # python -m forde
    return shlex.join([name, *arguments[1:]])
