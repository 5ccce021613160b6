"""The one place where the zoo calls the library: steps of an engine in the shape of `independent_step.Step`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from independent_step import Recipe, Step, buffers_of, movement, parameters_of, same_random_numbers
from torch import Tensor, nn

import forde
from forde.engine import make_engine
from forde.errors import FordeError
from forde.priors import TrainingData


class Taken(NamedTuple):
    """Steps that were made, or the sentence that was said instead."""

    steps: list[Step]
    refused: str | None
    log: list[str]
    """What the library logged meanwhile."""

    @property
    def plainly(self) -> bool:
        """Whether members were looped over although something else was asked for, which the log must say."""
        return any("after all" in line or "one by one" in line for line in self.log)


def forde_steps(
    engine_name: str,
    make: Callable[[], nn.Module] | Sequence[Callable[[], nn.Module]],
    n_members: int,
    recipe: Recipe,
    batches: Sequence[tuple[Tensor, Tensor]],
    *,
    memory: str,
    data_size: int,
    lr: float,
    between: Callable[[nn.Module], None] | None = None,
) -> Taken:
    """Steps of gradient descent by an engine, one on each batch; everything but a `FordeError` is passed on.

    Args:
        between: called with each member after the first step.
    """
    steps: list[Step] = []
    with _Listening() as listening, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's advice on vmap, TorchScript and its compiler
        try:
            ensemble = members_of(make, n_members)
            method = _method(recipe, ensemble, [x for x, _ in batches])
            example = ensemble.as_input(batches[0][0]), batches[0][1]
            engine = make_engine(
                engine_name,
                ensemble,
                method,
                memory=memory,
                example=example,
                fuse=False,  # type: ignore[arg-type]
            )
            optimizer = torch.optim.SGD(engine.runner.parameters(), lr=lr)
            for number, (x, y) in enumerate(batches):
                if number == 1 and between is not None:
                    for member in ensemble.members:
                        between(member)
                same_random_numbers(number)
                before = parameters_of(ensemble.members)
                report = engine.update(ensemble.as_input(x), y, optimizer, step=number, data_size=data_size)
                engine.settle()
                moved = movement(before, parameters_of(ensemble.members), lr)
                steps.append(Step(report.losses.detach().clone(), moved, buffers_of(ensemble.members)))
            engine.close()
        except FordeError as error:
            return Taken(steps, str(error), listening.lines)
    return Taken(steps, None, listening.lines)


def members_of(
    make: Callable[[], nn.Module] | Sequence[Callable[[], nn.Module]], n_members: int, seed: int = 0
) -> forde.Ensemble:
    """The same members each time."""
    return forde.Ensemble(make, n_members, seed=seed)


def _method(recipe: Recipe, ensemble: forde.Ensemble, inputs: Sequence[Tensor]) -> forde.Method:
    name, options = recipe.method, {}
    if name == "forde":
        name, options = "forde-pca" if recipe.pca else "forde-identity", {"output": recipe.output}
    elif name == "function-rde":
        options = {"cauchy": recipe.cauchy}
    if recipe.fraction < 1:
        options["repulsion_fraction"] = recipe.fraction
    method = forde.method(name, weight_decay=recipe.weight_decay, **options)
    return method.prepare(ensemble.members[0], TrainingData(lambda: iter(inputs), sum(map(len, inputs))))


class _Listening(logging.Handler):
    """Lines that the library logs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> _Listening:
        self.logger = logging.getLogger("forde")
        self.level = self.logger.level
        self.logger.addHandler(self)
        self.logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *raised: object) -> None:
        self.logger.removeHandler(self)
        self.logger.setLevel(self.level)
