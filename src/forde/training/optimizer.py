"""The optimizer: built from the parameters that an engine trains, and checked before the first step."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from forde.ensemble import Ensemble
from forde.errors import FordeError, number_from_0
from forde.methods import Method
from forde.methods.plan import Group, Plan
from forde.step import Step
from forde.training.schedule import method_factor

DEFAULT_LR = 0.1
NESTEROV_LIMIT = 1.36
"""Largest lr × curvature for which SGD with Nesterov momentum 0.9 converges on a quadratic."""
SCHEDULER_EXAMPLE = "lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 30)"
EXAMPLE = "lambda parameters: torch.optim.Adam(parameters, lr=1e-3)"


def make_optimizer(
    engine: Step,
    method: Method,
    *,
    epochs: int,
    lr: float | None,
    optimizer: Callable[[Iterable[Tensor]], Optimizer] | None,
    scheduler: Callable[[Optimizer], LRScheduler] | None,
    plan: Plan | None = None,
) -> tuple[Optimizer, LRScheduler | None]:
    """The optimizer of what an engine trains, and its scheduler; the paper's where nothing else was asked for.

    Args:
        plan: says how the default optimizer treats which parameters, where one network is trained.
    """
    if scheduler is not None:
        refuse_finished("scheduler", scheduler, SCHEDULER_EXAMPLE)
    if optimizer is not None and lr is not None:
        raise FordeError(
            f"lr={lr} is for the default optimizer, but another was given; give it the learning rate, as in {EXAMPLE}, "
            "and leave lr out."
        )
    if optimizer is None:
        lr = number_from_0("lr", DEFAULT_LR if lr is None else lr)
        one = plan is not None and plan.makes_members
        groups = plan.groups(engine.runner.leaves[0]) if plan and one else [Group(engine.runner.parameters())]
        settings = [{"params": g.parameters, "momentum": g.momentum, "nesterov": g.nesterov} for g in groups]
        tuner: Optimizer = torch.optim.SGD(settings, lr=lr, momentum=0.9, nesterov=groups[0].nesterov)
        for prior in method.priors:
            if lr * (curvature := prior.max_curvature) >= NESTEROV_LIMIT:
                raise FordeError(
                    f"the curvature {curvature:.3g} of the {type(prior).__name__} prior times lr={lr} must be below "
                    f"{NESTEROV_LIMIT}, or SGD would diverge; lower lr or the prior's weight_decay (of EmpCov, a "
                    "larger epsilon does it too)."
                )
        factor = method_factor(method, epochs, lr)
        factors = [factor if group.falls else (lambda epoch: 1.0) for group in groups]
        factory = scheduler or (lambda o: LambdaLR(o, factors))
        return tuner, factory(tuner)
    tuner = build_optimizer(optimizer, engine.runner.parameters())
    if any(group.get("weight_decay") for group in tuner.param_groups) and any(p.on_weights for p in method.priors):
        warnings.warn(
            "Both the optimizer and the method's prior decay the weights; pass weight_decay=0 to one of them.",
            stacklevel=4,
        )
    return tuner, scheduler(tuner) if scheduler is not None else None


def build_optimizer(factory: Callable[[Iterable[Tensor]], Optimizer], parameters: Sequence[Tensor]) -> Optimizer:
    """What `factory(parameters)` returns, if it can train them.

    >>> type(build_optimizer(lambda p: torch.optim.SGD(p, lr=0.1), [torch.zeros(1)])).__name__
    'SGD'
    """
    refuse_finished("optimizer", factory, EXAMPLE)
    optimizer = factory(parameters)
    name = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        raise FordeError(
            f"optimizer(parameters) returned a {name}, but a torch.optim.Optimizer was expected; pass {EXAMPLE}."
        )
    step = inspect.signature(optimizer.step).parameters.values()
    if any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in step):
        raise FordeError(
            f"{name} evaluates the loss several times in a step, but repulsion gives it one gradient; use an "
            "optimizer whose step() needs no closure, such as torch.optim.Adam."
        )
    held = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
    if not any(id(parameter) in held for parameter in parameters):
        raise FordeError(
            f"the {name} that optimizer(parameters) returned holds none of these parameters, so it would train "
            f"nothing; build it from its argument, as {EXAMPLE} does."
        )
    return optimizer


def refuse_finished(option: str, given: Any, example: str) -> None:
    """Stop where a name or a finished object was given in place of a function that builds one."""
    if not callable(given):
        what = repr(given) if isinstance(given, str) else f"of type {type(given).__name__}"
        raise FordeError(
            f"{option} is {what}, but a function that builds one was expected, because engines may hold the members' "
            f"parameters stacked; pass {example}."
        )


def refuse_nothing_to_train(ensemble: Ensemble) -> None:
    """Stop where a member has no parameter that a step could change."""
    for index, member in enumerate(ensemble.members):
        parameters = list(member.parameters())
        if not any(parameter.requires_grad for parameter in parameters):
            why = f"all {len(parameters)} of its tensors are frozen" if parameters else "it has no parameters at all"
            raise FordeError(
                f"member {index} has nothing to train, for {why}; set requires_grad=True on those that are to be "
                "trained."
            )
