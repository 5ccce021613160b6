"""What a run was started with: settings that decide its result, how it is carried out, and what it runs on."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from forde.engine.mesh import Mesh
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.methods import Method
from forde.training.feed import Feed
from forde.training.git_state import git_state
from forde.training.plain import canonical, content_hash, described


def decisive_settings(
    ensemble: Ensemble,
    feed: Feed,
    method: Method,
    optimizer: Optimizer,
    scheduler: LRScheduler | None,
    *,
    about: Mapping[str, Any] | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Settings that decide the result, in JSON: a run that is resumed must have the same.

    Of functions (a weight that depends on the epoch, say) only the name is known, and of a scheduler its class; the
    learning rates that it makes show in the records.
    """
    training = {
        "method": method,
        "optimizer": {"type": type(optimizer).__name__, **optimizer.defaults},
        "scheduler": None if scheduler is None else type(scheduler).__name__,
        **others,
    }
    own = {} if about is None else {"about": _as_json(about)}
    return {
        "training": described(training), "ensemble": describe_ensemble(ensemble), "data": describe_data(feed), **own
    }  # fmt: skip


def _as_json(about: Mapping[str, Any]) -> Any:
    try:
        return json.loads(json.dumps(about))
    except (TypeError, ValueError) as error:
        raise FordeError(f"about cannot be written as JSON ({error}); give text, numbers, lists and dicts.") from None


def describe_ensemble(ensemble: Ensemble) -> dict[str, Any]:
    """Size, seed, likelihood and a fingerprint of the architecture.

    >>> from torch import nn
    >>> describe_ensemble(Ensemble(lambda: nn.Linear(2, 2), 3))["n_members"]
    3
    """
    config = {"n_members": ensemble.n_members, "seed": ensemble.seed, "likelihood": ensemble.likelihood.config()}
    return {**described(config), "architecture": architecture(ensemble)}


def architecture(ensemble: Ensemble) -> str:
    """A short name for the kinds of modules and the shapes and types of tensors of all members."""
    parts = [
        [[[name, type(module).__name__] for name, module in member.named_modules()],
         [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in member.state_dict().items()]]
        for member in ensemble.members
    ]  # fmt: skip
    return hashlib.sha256(canonical(parts)).hexdigest()[:16]


def describe_data(feed: Feed) -> dict[str, Any]:
    """Number of samples, and a fingerprint of some of them; none for a loader, whose samples may be augmented."""
    sample = feed.sample()
    return {"size": feed.size, "content": None if sample is None else content_hash(*sample)}


def first_difference(old: Any, new: Any, field: str = "") -> tuple[str, Any, Any] | None:
    """Where two settings differ, by dotted name, and both values; None where they are equal.

    >>> first_difference({"training": {"lr": 0.1}}, {"training": {"lr": 0.2}})
    ('training.lr', 0.1, 0.2)
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(key for key in old if key not in new)]:
            found = first_difference(old.get(key), new.get(key), f"{field}.{key}" if field else key)
            if found is not None:
                return found
        return None
    return None if old == new else (field, old, new)


def refuse_different_processes(settings: dict[str, Any], mesh: Mesh) -> None:
    """Stop where processes of one training were started with different settings."""
    for number, other in enumerate(mesh.each(settings)):
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
    import forde

    device = ensemble.device
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "forde": forde.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "engine": type(engine).__name__,
        "git": git_state(),
    }
