"""The optimizer: built from the parameters that an engine trains, and checked before the first step."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from forde.ensemble import Ensemble
from forde.errors import FordeError, number_from_0
from forde.methods import Method
from forde.methods.plan import Group, Plan
from forde.step import Step
from forde.training.schedule import EXAMPLE as SCHEDULER_EXAMPLE
from forde.training.schedule import (
    Every,
    Length,
    Schedule,
    SchedulerFactory,
    Watched,
    make_schedule,
    method_factor,
    required_arguments,
)

DEFAULT_LR = 0.1
NESTEROV_LIMIT = 1.36
"""Largest lr × curvature for which SGD with Nesterov momentum 0.9 converges on a quadratic."""
EXAMPLE = "lambda parameters: torch.optim.Adam(parameters, lr=1e-3)"
NAMED = "named_parameters"
"""What the argument of a factory is called that wants names with the parameters."""
EXAMPLE_OF_NAMED = (
    "lambda named_parameters: torch.optim.Adam([p for n, p in named_parameters if n.startswith('head')], lr=1e-3)"
)
OptimizerFactory = Callable[[Any], Optimizer]
"""Of the parameters, or of pairs `(name, parameter)` where its argument is called `named_parameters`. Names are those
of one member's network. A name comes once for each member, or once for all where they are stacked, `[M, ...]`."""


def make_optimizer(
    engine: Step,
    method: Method,
    *,
    length: Length,
    lr: float | None,
    optimizer: OptimizerFactory | None,
    scheduler: SchedulerFactory | None,
    scheduler_every: Every | None = None,
    watched: Watched | None = None,
    plan: Plan | None = None,
) -> tuple[Optimizer, Schedule | None]:
    """The optimizer of what an engine trains, and its schedule; the paper's where nothing else was asked for.

    Args:
        watched: what the validation data is judged by, for schedulers that follow it.
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
        tuner = _default_optimizer(groups, method, lr)
        if scheduler is None:
            factor = method_factor(method, length.epochs, lr)
            factors = [factor if group.falls else (lambda epoch: 1.0) for group in groups]
            if scheduler_every == "step":
                raise FordeError(
                    "scheduler_every='step' is for a scheduler of your own, but the default one falls epoch by epoch; "
                    "give one as scheduler=, or leave scheduler_every out."
                )
            return tuner, Schedule(LambdaLR(tuner, factors), of_total=True)
    else:
        tuner = build_optimizer(optimizer, engine.runner.leaves)
        if any(group.get("weight_decay") for group in tuner.param_groups) and any(p.on_weights for p in method.priors):
            warnings.warn(
                "Both the optimizer and the method's prior decay the weights; pass weight_decay=0 to one of them.",
                stacklevel=4,
            )
    if scheduler is None:
        if scheduler_every is not None:
            raise FordeError(
                f"scheduler_every={scheduler_every!r} says when a scheduler is stepped, and there is none; give one as "
                "scheduler=, or leave scheduler_every out."
            )
        return tuner, None
    return tuner, make_schedule(scheduler, tuner, every=scheduler_every, length=length, watched=watched)


def _default_optimizer(groups: Sequence[Group], method: Method, lr: float) -> Optimizer:
    """SGD with Nesterov momentum, if it converges under the method's priors."""
    settings = [{"params": g.parameters, "momentum": g.momentum, "nesterov": g.nesterov} for g in groups]
    for prior in method.priors:
        if lr * (curvature := prior.max_curvature) >= NESTEROV_LIMIT:
            raise FordeError(
                f"the curvature {curvature:.3g} of the {type(prior).__name__} prior times lr={lr} must be below "
                f"{NESTEROV_LIMIT}, or SGD would diverge; lower lr or the prior's weight_decay (of EmpCov, a "
                "larger epsilon does it too)."
            )
    return torch.optim.SGD(settings, lr=lr, momentum=0.9, nesterov=groups[0].nesterov)


def build_optimizer(factory: OptimizerFactory, leaves: Sequence[Mapping[str, Tensor]]) -> Optimizer:
    """What `factory(parameters)` or `factory(named_parameters)` returns, if it can train them.

    Args:
        leaves: the parameters of each unit by name (`Runner.leaves`).

    >>> type(build_optimizer(lambda p: torch.optim.SGD(p, lr=0.1), [{"weight": torch.zeros(1)}])).__name__
    'SGD'
    """
    refuse_finished("optimizer", factory, EXAMPLE)
    named = [pair for unit in leaves for pair in unit.items()]
    parameters = [parameter for _, parameter in named]
    wanted = required_arguments(factory)
    if wanted is not None and len(wanted) != 1:
        raise FordeError(
            f"optimizer is a function of ({', '.join(wanted) or 'nothing'}), but one of (parameters) or "
            f"(named_parameters) was expected; pass {EXAMPLE}, or {EXAMPLE_OF_NAMED}."
        )
    by_name = wanted == [NAMED]
    optimizer = factory(named if by_name else parameters)
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
    if by_name:
        _refuse_some_of_a_name(named, held, name)
    return optimizer


def _refuse_some_of_a_name(named: Sequence[tuple[str, Tensor]], held: set[int], optimizer: str) -> None:
    """Stop where some members' parameters of a name are trained and others' are not, as a dict by name would do."""
    for name in dict.fromkeys(name for name, _ in named):
        there = [id(parameter) in held for other, parameter in named if other == name]
        if any(there) and not all(there):
            raise FordeError(
                f"the {optimizer} that optimizer(named_parameters) returned holds '{name}' of {sum(there)} members out "
                f"of {len(there)}; a name comes once for each member, so choose from the pairs without a dict, as "
                f"{EXAMPLE_OF_NAMED} does."
            )


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
