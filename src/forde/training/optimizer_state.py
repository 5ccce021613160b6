"""An optimizer's state by member and parameter, whatever engine it ran on.

An engine hands the optimizer *units* (`Runner.leaves`): each member's parameters, or all members' stacked `[M, ...]`.
Files hold neither: `{member}.{parameter}.{key}` has the shape that this member's parameter gives it, so that what one
engine wrote another goes on with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from forde.errors import FordeError
from forde.step import Step
from forde.torch_private import schedulers_in
from forde.training.plain import like, to_plain

SCALARS = ("step", "mu_product")
"""State that is one number for a whole parameter, as torch's optimizers call it."""


def optimizer_tensors(engine: Step, optimizer: Optimizer) -> dict[str, Tensor]:
    """The state of each member's parameters, by `{member}.{parameter}.{key}`; numbers as `[]`."""
    members = engine.runner.ensemble.n_members
    tensors: dict[str, Tensor] = {}
    for unit, group in enumerate(engine.runner.leaves):
        for name, leaf in group.items():
            for key, value in optimizer.state.get(leaf, {}).items():
                if value is None:
                    continue
                tensor = _as_tensor(value, key, optimizer)
                if not _stacked(engine):
                    tensors[f"{engine.first_member + unit}.{name}.{key}"] = tensor
                    continue
                split = tensor.dim() > 0 and len(tensor) == members and key not in SCALARS
                for row in range(members):
                    tensors[f"{engine.first_member + row}.{name}.{key}"] = tensor[row] if split else tensor
    return tensors


def load_optimizer_tensors(
    engine: Step, optimizer: Optimizer, tensors: dict[str, Tensor], numbers: dict[str, str]
) -> None:
    """Inverse of `optimizer_tensors`; tensors that are there already are written in place.

    Args:
        numbers: keys that are Python numbers and not tensors, with their type, as `optimizer_numbers` gives them.
    """
    stored: dict[str, dict[str, Tensor]] = {}
    for full, value in tensors.items():
        parameter, _, key = full.rpartition(".")
        stored.setdefault(parameter, {})[key] = value
    options = {id(leaf): group for group in optimizer.param_groups for leaf in group["params"]}
    for unit, group in enumerate(engine.runner.leaves):
        for name, leaf in group.items():
            own = range(engine.runner.ensemble.n_members) if _stacked(engine) else [unit]
            rows = [stored.get(f"{engine.first_member + row}.{name}", {}) for row in own]
            if not rows[0]:
                optimizer.state.pop(leaf, None)
                continue
            state = optimizer.state[leaf]
            for key in set(state) - set(rows[0]):
                del state[key]
            for key, first in rows[0].items():
                shared = not _stacked(engine) or (first.dim() == 0 and (key in SCALARS or leaf.dim() > 1))
                value = first if shared else torch.stack([row[key] for row in rows])
                if key in numbers:
                    state[key] = {"int": int, "float": float, "bool": bool}[numbers[key]](value.item())
                    continue
                on_host = value.dim() == 0 and not any(options[id(leaf)].get(k) for k in ("capturable", "fused"))
                value = value.clone() if on_host else value.to(leaf.device, copy=True)
                current = state.get(key)
                if isinstance(current, Tensor) and current.shape == value.shape:
                    current.copy_(value)  # whoever captured it keeps seeing it
                else:
                    state[key] = value


def optimizer_numbers(optimizer: Optimizer) -> dict[str, str]:
    """Keys of the state that are Python numbers, with their type."""
    return {
        key: type(value).__name__
        for state in optimizer.state.values()
        for key, value in state.items()
        if isinstance(value, (int, float))
    }


def optimizer_settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Numbers of each parameter group (learning rate, momentum); how it computes (foreach, fused) is not among them.

    >>> optimizer_settings(torch.optim.Adam([torch.zeros(1)], lr=0.1, betas=(0.5, 0.9)))[0]["betas"]
    [0.5, 0.9]
    """
    return [
        {key: to_plain(value) for key, value in group.items() if key != "params" and _is_number(value)}
        for group in optimizer.param_groups
    ]


def load_optimizer_settings(optimizer: Optimizer, settings: list[dict[str, Any]]) -> None:
    """Inverse of `optimizer_settings`."""
    for group, stored in zip(optimizer.param_groups, settings, strict=True):
        for key, value in stored.items():
            if isinstance(group.get(key), Tensor):
                group[key].fill_(value)  # whoever captured it keeps seeing it
            else:
                group[key] = like(group.get(key), value)


def scale_learning_rate(optimizer: Optimizer, scheduler: Any, factor: float) -> None:
    """Multiply the learning rate, and all that the scheduler derives later ones from."""
    for group in optimizer.param_groups:
        for key in ("lr", "initial_lr", "max_lr", "min_lr"):
            if key in group:
                group[key] *= factor
    for each in (scheduler, *schedulers_in(scheduler)):
        if hasattr(each, "base_lrs"):
            each.base_lrs = [lr * factor for lr in each.base_lrs]


def _stacked(engine: Step) -> bool:
    return engine.runner.sample_axis == 1


def _as_tensor(value: Any, key: str, optimizer: Optimizer) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (int, float)):
        return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
    raise FordeError(
        f"{type(optimizer).__name__} keeps '{key}' as a {type(value).__name__}, which a checkpoint cannot hold; "
        "use another optimizer, or train without run=."
    )


def _is_number(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_number(item) for item in value)
    return isinstance(value, (int, float, Tensor)) and not isinstance(value, bool)
