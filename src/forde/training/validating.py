"""Validation: how good the ensemble is on data that it is not trained on, and which epoch was the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from forde.arguments import Input, shapes
from forde.ensemble import Ensemble
from forde.errors import FordeError, unknown_name
from forde.inference import running
from forde.metrics.scores import score
from forde.prediction import RawPrediction
from forde.random_state import get_random_state, set_random_state
from forde.training.feed import Feed, as_targets
from forde.training.history import Record
from forde.training.options import Validation

MEASURED = ("nll", "accuracy", "brier", "ece", "rmse", "crps")
"""What a record has, of what there is for the kind of prediction."""
PREFIX = "validation_"
ROWS = 512
"""Samples in a batch, as in `Ensemble.predict`; batches of a loader stay as they are."""


def is_better(value: float, best: float | None, *, higher: bool) -> bool:
    """Whether a value of a metric beats the best one so far; one that is not a number never does.

    >>> is_better(0.3, 0.4, higher=False), is_better(0.3, 0.4, higher=True), is_better(math.nan, None, higher=False)
    (True, False, False)
    """
    if math.isnan(value) or best is None:
        return not math.isnan(value)
    return value > best if higher else value < best


class Validator:
    """Measures an ensemble after each epoch, and remembers the best.

    Args:
        feed: the validation data.
        ensemble: all members.
        options: what is monitored, and what follows.
        keeps: whether the best epoch's members are kept.
        first: computes in one process what all shall have.
    """

    def __init__(
        self,
        feed: Feed,
        ensemble: Ensemble,
        options: Validation,
        *,
        keeps: bool,
        first: Callable[[Callable[[], dict[str, float]]], dict[str, float]] = lambda compute: compute(),
    ) -> None:
        self.feed, self.ensemble, self.options, self._first = feed, ensemble, options, first
        self._keeps = keeps
        self.best: float | None = None
        self.best_epoch: int | None = None
        self.since_best = 0
        """Epochs since the best one."""
        self.kept: dict[str, Tensor] = {}
        """The best epoch's members, on the CPU."""

    @property
    def key(self) -> str:
        """Of the monitored value in records."""
        return PREFIX + self.options.monitor

    def check(self, example: Input | None) -> None:
        """Refuse validation data or a metric that would fail after the first epoch, as far as one batch tells.

        Args:
            example: inputs as they are trained on.
        """
        try:
            measured = self._measured(most=1)
        except FordeError as error:
            own = next((x for x, _ in self._batches()), None)
            if example is not None and own is not None and shapes(own) != shapes(example):
                raise FordeError(
                    f"the validation inputs have shape {shapes(own)}, but those of the training data "
                    f"{shapes(example)}; prepare both in the same way."
                ) from error
            raise FordeError(f"of the validation data: {error}") from None
        if self.options.monitor not in measured:
            raise unknown_name("monitor", self.options.monitor, measured)

    def is_due(self, epoch: int, *, last: bool) -> bool:
        """Whether the ensemble is measured after this epoch."""
        return last or (epoch + 1) % self.options.every == 0

    def measure(self) -> Record:
        """`validation_...` of the ensemble as it is now; no random number is drawn and nothing moves."""
        return self._first(lambda: {PREFIX + name: value for name, value in self._measured().items()})

    def note(self, epoch: int, record: Record) -> str | None:
        """Take an epoch's record into account; returns why training should stop, or None."""
        value = record[self.key]
        if is_better(value, self.best, higher=self.options.higher_is_better):
            self.best, self.best_epoch, self.since_best = value, epoch, 0
            if self._keeps:
                self.kept = {
                    name: tensor.to("cpu", copy=True) for name, tensor in self.ensemble.member_tensors().items()
                }
            return None
        self.since_best = epoch + 1 if self.best_epoch is None else epoch - self.best_epoch
        patience = self.options.patience
        if patience is None or self.since_best < patience:
            return None
        at = "was never a number" if self.best is None else f"was best in epoch {self.best_epoch} ({self.best:.4g})"
        return f"{self.key} {at}, {self.since_best} epochs ago"

    def restore_best(self) -> None:
        """Give the members what they had after their best epoch."""
        _put(self.kept, self.ensemble)

    @contextmanager
    def as_it_was_best(self) -> Iterator[None]:
        """Inside, the members are those of the best epoch."""
        now = {name: tensor.clone() for name, tensor in self.ensemble.member_tensors().items()}
        self.restore_best()
        try:
            yield
        finally:
            _put(now, self.ensemble)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold beside `state`."""
        return dict(self.kept)

    def state(self) -> dict[str, Any]:
        """Numbers in JSON."""
        return {"best": self.best, "best_epoch": self.best_epoch, "since_best": self.since_best}

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Inverse of `tensors` and `state`."""
        self.kept = dict(tensors)
        self.best, self.best_epoch = state["best"], state["best_epoch"]
        self.since_best = int(state["since_best"])

    def _measured(self, most: int | None = None) -> dict[str, float]:
        """Metrics of all batches, or of the first so many."""
        outputs: list[Tensor] = []
        targets: list[Tensor] = []
        with self._undisturbed(), torch.no_grad(), running(list(self.ensemble.members)) as outputs_of:
            for x, y in self._batches():
                outputs.append(outputs_of(x).cpu())
                targets.append(y.cpu())
                if len(outputs) == most:
                    break
        if not outputs:
            raise FordeError("the validation data is empty; pass at least one sample.")
        together, y = torch.cat(outputs, dim=1), torch.cat(targets)
        if most is not None:
            self.ensemble.likelihood.check_output(together[0], y)
            self.ensemble.likelihood.check_labels(together[0], y)
        own = self.options.measures
        return scored(self.ensemble, together, y) if own is None else _as_numbers(own(together, y))

    def _batches(self) -> Iterator[tuple[Input, Tensor]]:
        """Arguments on the members' device, and targets."""
        likelihood = self.ensemble.likelihood
        for x, y in self.feed.pairs():
            likelihood.check_targets(y)
            inputs, labels = self.ensemble.as_input(x), as_targets(y, likelihood)
            yield from zip(inputs.split(ROWS), labels.split(ROWS), strict=True)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Random numbers stand afterwards where they were: the validation data does not change the training."""
        own: Sequence[torch.Generator] = self.feed.generators()
        before = get_random_state(self.ensemble.device, own)
        try:
            yield
        finally:
            set_random_state(before, own)


def scored(ensemble: Ensemble, outputs: Tensor, y: Tensor) -> dict[str, float]:
    """Metrics of the mixture of the members' predictions, from outputs `[M, N, ...]` and targets `[N, ...]`.

    Under a loss whose outputs have no meaning to forde, `loss`: the mean of the members' losses.
    """
    likelihood = ensemble.likelihood
    prediction = likelihood.prediction(outputs)
    if isinstance(prediction, RawPrediction):
        return {"loss": float(torch.stack([likelihood.loss(output, y) for output in outputs]).mean())}
    found = score(prediction, y, ignore_index=getattr(likelihood, "ignore_index", None))
    return {name: found[name] for name in MEASURED if name in found}


def _as_numbers(measured: Any) -> dict[str, float]:
    """What a function of the user's own has measured, if it can be recorded.

    >>> _as_numbers({"f1": torch.tensor(0.5)})
    {'f1': 0.5}
    """
    if not isinstance(measured, Mapping):
        raise FordeError(
            f"measures= returned a {type(measured).__name__}, but numbers by name were expected, such as "
            "{'f1': 0.5}; let it return a dict."
        )
    try:
        return {str(name): float(value) for name, value in measured.items()}
    except (TypeError, ValueError, RuntimeError):
        kinds = {str(name): type(value).__name__ for name, value in measured.items()}
        raise FordeError(
            f"measures= returned {kinds}, but one number for each name was expected; take a mean, or call float()."
        ) from None


@torch.no_grad()
def _put(tensors: Mapping[str, Tensor], ensemble: Ensemble) -> None:
    """In place, so that an engine that holds the members stacked sees it too."""
    for name, tensor in ensemble.member_tensors().items():
        tensor.copy_(tensors[name])
