"""Callbacks: when they are called, with what, how they end a training, and what is safe when they fail."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forde
from forde.training import Training
from forde.training.loop import Loop
from forde.training.outcome import Outcome

EPOCHS, STEPS = 4, 3


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced operations run one by one: the same program, and no C++ compiler at work."""
    monkeypatch.setattr("forde.compile.step.can_fuse", lambda device: False)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def frozen_body() -> nn.Module:
    made = network()
    made[0].requires_grad_(False)
    return made


def data(n: int = 8 * STEPS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=generator), torch.randint(3, (n,), generator=generator)


def train(*callbacks: Any, ensemble: forde.Ensemble | None = None, **options: Any) -> forde.History:
    ensemble = forde.Ensemble(network, 2, seed=1) if ensemble is None else ensemble
    options = {"epochs": EPOCHS, "batch_size": 8, "verbose": False, "engine": "eager", "lr": 0.1, **options}
    return forde.fit(ensemble, options.pop("method", "forde-identity"), data(), callbacks=callbacks, **options)


def weights(ensemble: forde.Ensemble) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in ensemble.state_dict().values()])


class Told:
    """Notes all that it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, int]] = []
        self.losses: list[float] = []

    def on_start(self, training: Training) -> None:
        assert training.epochs == EPOCHS and (training.record is None) == (not training.records)
        self.events.append(("start", training.epoch, training.step))

    def on_step(self, training: Training) -> None:
        assert training.losses is not None and training.losses.shape == (2,)
        self.losses.append(float(training.losses.mean()))
        self.events.append(("step", training.epoch, training.step))

    def on_epoch(self, training: Training) -> None:
        assert training.record is not None and training.record["epoch"] == training.epoch
        self.events.append(("epoch", training.epoch, training.step))

    def on_end(self, training: Training) -> None:
        assert not training.ensemble.training
        self.events.append(("end", training.epoch, training.step))


def expected(first: int = 0, last: int = EPOCHS) -> list[tuple[str, int, int]]:
    events = [("start", first, first * STEPS)]
    for epoch in range(first, last):
        events += [("step", epoch, epoch * STEPS + step + 1) for step in range(STEPS)]
        events += [("epoch", epoch, (epoch + 1) * STEPS)]
    return [*events, ("end", last - 1, last * STEPS)]


@pytest.mark.parametrize("engine", ["eager", "vectorized", "compiled"])
@pytest.mark.parametrize("saved", [True, False])
def test_each_is_called_at_its_time(engine: str, saved: bool, tmp_path: Path) -> None:
    told, ensemble = Told(), forde.Ensemble(network, 2, seed=1)
    history = train(told, ensemble=ensemble, engine=engine, **({"run": tmp_path / "run"} if saved else {}))
    assert told.events == expected()
    means = torch.tensor(told.losses).view(EPOCHS, STEPS).mean(1)
    assert means.tolist() == pytest.approx(history["loss"], rel=1e-5)
    plain = forde.Ensemble(network, 2, seed=1)
    train(ensemble=plain, engine=engine)
    assert torch.equal(weights(plain), weights(ensemble))


def test_functions_of_a_record_and_writers_are_told_first() -> None:
    order: list[str] = []

    class Later:
        def on_epoch(self, training: Training) -> None:
            order.append("object")

    train(Later(), epochs=2, callback=lambda record: order.append(f"function {record['epoch']:.0f}"))
    assert order == ["function 0", "object", "function 1", "object"]


def test_one_network_and_then_its_members() -> None:
    seen: list[tuple[int, bool]] = []
    ensemble = forde.Ensemble(network, 3)

    class Watch:
        def on_epoch(self, training: Training) -> None:
            seen.append((training.ensemble.n_members, training.ensemble is ensemble))

        on_end = on_epoch

    train(Watch(), ensemble=ensemble, method="swag", epochs=2)
    assert seen == [(1, False), (1, False), (3, True)]


class StopAt:
    """In a step, or after the epoch in which it is."""

    def __init__(self, step: int, *, within: bool) -> None:
        self.at, self.within = step, within

    def on_step(self, training: Training) -> None:
        if self.within and training.step == self.at:
            training.stop("enough")

    def on_epoch(self, training: Training) -> None:
        if not self.within and training.step >= self.at:
            training.stop("enough")


class TestStop:
    @pytest.mark.parametrize("validation", [None, 0.25])
    def test_after_an_epoch(self, validation: Any) -> None:
        history = train(StopAt(4, within=False), validation=validation)
        assert len(history) == 2 and history.stopped == "enough"

    @pytest.mark.parametrize("engine", ["eager", "vectorized"])
    def test_within_an_epoch(self, engine: str) -> None:
        """The epoch is closed after that step; what was trained is as in a run until there."""
        told, ensemble, other = Told(), forde.Ensemble(network, 2, seed=1), forde.Ensemble(network, 2, seed=1)
        history = train(StopAt(4, within=True), told, ensemble=ensemble, engine=engine)
        assert len(history) == 2 and history.stopped == "enough"
        assert told.events[-3:] == [("step", 1, 4), ("epoch", 1, 4), ("end", 1, 4)]
        moved: list[Tensor] = []

        class Look:
            def on_step(self, training: Training) -> None:
                moved.append(weights(training.ensemble))

        train(Look(), ensemble=other, engine=engine)
        assert torch.equal(weights(ensemble), moved[3])

    def test_before_the_first_step(self) -> None:
        class Never:
            def on_start(self, training: Training) -> None:
                training.stop("never")

        ensemble = forde.Ensemble(network, 2, seed=1)
        before = weights(ensemble)
        history = train(Never(), ensemble=ensemble)
        assert len(history) == 0 and history.stopped == "never" and torch.equal(before, weights(ensemble))

    @pytest.mark.parametrize("within", [True, False])
    def test_a_stopped_run_has_finished(self, within: bool, tmp_path: Path) -> None:
        ensemble, again = forde.Ensemble(network, 2, seed=1), forde.Ensemble(network, 2, seed=1)
        first = train(StopAt(4, within=within), ensemble=ensemble, run=tmp_path / "run")
        told = Told()
        second = train(told, ensemble=again, run=tmp_path / "run", resume=True)
        assert torch.equal(weights(ensemble), weights(again)) and not told.events
        assert (second.stopped, len(second)) == (first.stopped, len(first)) == ("enough", 2)
        outcome = Outcome.read(tmp_path / "run")
        assert outcome is not None and outcome.epochs == 2 and outcome.stopped == "enough"

    def test_killed_between_the_stop_and_the_end(self, tmp_path: Path) -> None:
        """The checkpoint of that step knows of the stop, and the epoch is closed when it is taken up."""
        whole, broken = forde.Ensemble(network, 2, seed=1), forde.Ensemble(network, 2, seed=1)
        expected = train(StopAt(4, within=True), ensemble=whole, run=tmp_path / "a", validation=0.25)

        class Dies:
            def on_epoch(self, training: Training) -> None:
                if training.epoch == 1:
                    raise RuntimeError("killed")

        class DiesInStep:
            def on_step(self, training: Training) -> None:
                if training.step == 4:
                    raise RuntimeError("killed")

        for killer in (DiesInStep(), Dies()):
            run = tmp_path / type(killer).__name__
            broken = forde.Ensemble(network, 2, seed=1)
            with pytest.raises(RuntimeError, match="killed"):
                train(StopAt(4, within=True), killer, ensemble=broken, run=run, validation=0.25)
            found = train(Told(), ensemble=broken, run=run, validation=0.25, resume=True)
            assert torch.equal(weights(whole), weights(broken))
            assert found.stopped == "enough" and found["validation_nll"] == expected["validation_nll"]


class FailsAt:
    def __init__(self, event: str, step: int) -> None:
        self.step = step
        setattr(self, event, self.fail)

    def fail(self, training: Training) -> None:
        if training.step >= self.step:
            raise ZeroDivisionError("mine")


@pytest.mark.parametrize(
    ("event", "step"), [("on_start", 0), ("on_step", 1), ("on_step", 5), ("on_epoch", 3), ("on_end", 0)]
)
def test_nothing_is_lost_where_one_fails(event: str, step: int, tmp_path: Path) -> None:
    """Though no checkpoint was due: the run goes on behind that step, and ends as one that nothing went wrong in."""
    whole, broken = forde.Ensemble(network, 2, seed=1), forde.Ensemble(network, 2, seed=1)
    history = train(ensemble=whole, run=tmp_path / "whole")
    with pytest.raises(ZeroDivisionError, match="mine"):
        train(FailsAt(event, step), ensemble=broken, run=tmp_path / "run", checkpoint_minutes=None)
    told = Told()
    resumed = train(told, ensemble=broken, run=tmp_path / "run", resume=True)
    assert torch.equal(weights(whole), weights(broken)) and resumed["loss"] == history["loss"]
    steps = {("on_start", 0): 12, ("on_step", 1): 11, ("on_step", 5): 7, ("on_epoch", 3): 9, ("on_end", 0): 0}
    assert len(told.losses) == steps[event, step]


class UnfreezeAfter:
    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_epoch(self, training: Training) -> None:
        if training.epoch + 1 == self.epochs:
            for member in training.ensemble.members:
                member[0].requires_grad_(True)


class TestUnfreezing:
    @pytest.mark.parametrize("engine", ["eager", "vectorized", "compiled", "auto"])
    @pytest.mark.parametrize("accumulate", [1, 2])
    def test_after_some_epochs(self, engine: str, accumulate: int) -> None:
        bodies: list[Tensor] = []

        class Look:
            def on_epoch(self, training: Training) -> None:
                bodies.append(training.ensemble.members[1][0].weight.detach().clone())

        ensemble = forde.Ensemble(frozen_body, 2, seed=1)
        before = ensemble.members[1][0].weight.detach().clone()
        train(UnfreezeAfter(2), Look(), ensemble=ensemble, engine=engine, accumulate=accumulate)
        assert torch.equal(bodies[0], before) and torch.equal(bodies[1], before)
        assert not torch.equal(bodies[2], before) and not torch.equal(bodies[3], bodies[2])

    def test_a_checkpoint_of_that_epoch_knows_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is written after the callback, which is not called again for that epoch."""
        whole, broken = forde.Ensemble(frozen_body, 2, seed=1), forde.Ensemble(frozen_body, 2, seed=1)
        train(UnfreezeAfter(2), ensemble=whole)
        step, options = Loop._step, {"run": tmp_path / "run", "checkpoint_every": 1, "checkpoint_minutes": None}

        def dies(loop: Loop, *batch: Any) -> None:
            assert loop.steps < 2 * STEPS, "killed"
            step(loop, *batch)

        with monkeypatch.context() as patched, pytest.raises(AssertionError, match="killed"):
            patched.setattr(Loop, "_step", dies)
            train(UnfreezeAfter(2), ensemble=broken, **options)
        again = forde.Ensemble(frozen_body, 2, seed=1)
        train(UnfreezeAfter(2), ensemble=again, resume=True, **options)
        assert torch.equal(weights(whole), weights(again))

    def test_what_the_optimizer_does_not_hold_is_an_error(self, tmp_path: Path) -> None:
        def head_only(named_parameters: Any) -> torch.optim.Optimizer:
            return torch.optim.SGD([p for name, p in named_parameters if name.startswith("2.")], lr=0.1)

        options: dict[str, Any] = {"optimizer": head_only, "lr": None}
        with pytest.raises(forde.FordeError, match=r"unfroze '0.weight' of member 0, but the optimizer does not hold"):
            train(UnfreezeAfter(2), ensemble=forde.Ensemble(frozen_body, 2), **options)
        assert len(train(Told(), ensemble=forde.Ensemble(frozen_body, 2), **options)) == EPOCHS

    def test_a_shared_backbone_stays_frozen(self) -> None:
        class Thaw:
            def on_epoch(self, training: Training) -> None:
                training.ensemble.backbone.requires_grad_(True)

        backbone = nn.Linear(4, 6)
        ensemble = forde.Ensemble(lambda: nn.Linear(6, 3), 2, backbone=backbone)
        with pytest.raises(forde.FordeError, match="unfroze the backbone, which all members share"):
            train(Thaw(), ensemble=ensemble)


class Misspelt:
    def on_epoch(self, training: Training) -> None: ...
    def on_epochs_end(self, training: Training) -> None: ...


class Lightning:
    def on_train_epoch_end(self, trainer: Any, module: Any) -> None: ...


BAD: dict[str, tuple[Any, str]] = {
    "nothing to be called": ([Lightning()], "callbacks holds a Lightning, which has nothing to be called; give an"),
    "a function": ([print], r"callbacks holds a function .*; pass it as callback=, or give an object"),
    "a class": ([Told], r"callbacks holds the class Told, but an object was expected; write Told\(\)"),
    "one object": (Told(), "callbacks is a Told, but a list of objects was expected"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_called_is_said_in_a_sentence(case: str) -> None:
    given, message = BAD[case]
    with pytest.raises(forde.FordeError, match=message):
        forde.fit(forde.Ensemble(network, 2), "deep-ensemble", data(), epochs=1, callbacks=given)


def test_a_list_of_functions_is_refused_before_training() -> None:
    with pytest.raises(forde.FordeError, match=r"callback is a list, but a function of each epoch's record"):
        train(callback=[print])


def test_a_method_that_is_never_called_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "forde"):
        train(Misspelt(), epochs=1)
    assert "Misspelt has on_epochs_end, which is never called; known are on_start, on_step" in caplog.text
