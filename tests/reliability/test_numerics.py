"""Numbers that are not finite, and cases at the edge of what is defined."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from short_runs import EPOCHS, STEPS, crash, data, ensemble, metrics, result, train
from torch import Tensor, nn

import forde
from forde.errors import NonFiniteError
from forde.models import MLP

ENGINES = ["eager", "vectorized"]


class Explodes(torch.autograd.Function):
    """The identity, with a gradient that is infinite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * float("inf")


class Faulty(nn.Module):
    """A network that goes wrong in some of its steps: in its output, or only in its gradient."""

    def __init__(self, steps: set[int], kind: str = "output") -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.steps, self.kind, self.calls = steps, kind, 0

    def forward(self, x: Tensor) -> Tensor:
        bad = self.training and self.calls in self.steps
        self.calls += self.training
        hidden = self.body(x)
        if bad and self.kind == "output":
            hidden = hidden * float("nan")
        if bad and self.kind == "gradient":
            hidden = Explodes.apply(hidden)
        return self.head(torch.tanh(self.norm(hidden)))


def faulty(steps: set[int], kind: str = "output") -> forde.Ensemble:
    """Two members, of which the second goes wrong."""
    return forde.Ensemble([lambda: Faulty(set()), lambda: Faulty(steps, kind)])


def finite(trained: forde.Ensemble) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in trained.state_dict().values())


class TestStop:
    def test_loss_stops_before_the_weights_are_touched(self, tmp_path: Path) -> None:
        trained = faulty({3})
        with pytest.raises(NonFiniteError, match="the loss of member 1 is nan at step 3"):
            train(tmp_path / "run", trained, method="deep-ensemble")
        assert all(bool(p.isfinite().all()) for p in trained.parameters())

    def test_gradient_is_found_before_it_reaches_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(NonFiniteError, match="weights of member 1 are not finite in epoch 0"):
            train(tmp_path / "run", faulty({3}, "gradient"), method="deep-ensemble")
        train(tmp_path / "run", faulty(set(), "gradient"), method="deep-ensemble", resume=True)

    def test_gradient_is_found_at_the_end_of_the_epoch(self) -> None:
        with pytest.raises(NonFiniteError, match="weights of member 1"):
            train(None, faulty({STEPS - 1}, "gradient"), method="deep-ensemble", epochs=1)

    def test_resumed_with_another_reaction(self, tmp_path: Path) -> None:
        with pytest.raises(NonFiniteError):
            train(tmp_path / "run", faulty({3}), method="deep-ensemble")
        history = train(
            tmp_path / "run", faulty({0}), method="deep-ensemble", resume=True, non_finite="skip"
        )  # in a new process the fault is met in the first step
        assert history["skipped"] == [1.0, 0.0, 0.0]


class TestSkip:
    @pytest.mark.parametrize("kind", ["output", "gradient"])
    def test_counts_and_goes_on(self, kind: str) -> None:
        trained = faulty({1, 2, STEPS + 1}, kind)
        history = train(None, trained, method="deep-ensemble", non_finite="skip")
        assert history["skipped"] == [2.0, 1.0, 0.0]
        assert finite(trained) and all(math.isfinite(loss) for loss in history["loss"])
        assert int(trained.members[0].norm.num_batches_tracked) == EPOCHS * STEPS - 3, "statistics are as before"

    def test_changes_nothing_where_all_is_finite(self) -> None:
        for engine in ENGINES:
            found = [ensemble(), ensemble()]
            for trained, reaction in zip(found, ("stop", "skip"), strict=True):
                train(None, trained, engine=engine, non_finite=reaction)
            for a, b in zip(*(trained.state_dict().values() for trained in found), strict=True):
                assert torch.equal(a, b)

    def test_nothing_but_skipped_steps_stops(self) -> None:
        with pytest.raises(NonFiniteError, match="every step of epoch 1 was skipped"):
            train(None, faulty(set(range(STEPS, 2 * STEPS))), method="deep-ensemble", non_finite="skip")

    def test_survives_an_interruption(self, tmp_path: Path) -> None:
        train(tmp_path / "whole", faulty({1, 4}), method="deep-ensemble", non_finite="skip")
        options: dict[str, Any] = {"method": "deep-ensemble", "non_finite": "skip"}
        crash(tmp_path / "run", 3, trained=faulty({1}), **options)
        train(tmp_path / "run", faulty({1}), resume=True, **options)
        assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
        assert result(tmp_path / "run") == result(tmp_path / "whole")


class TestRollBack:
    def test_goes_back_with_half_the_learning_rate(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        history = train(
            tmp_path / "run", faulty({STEPS + 2}), method="deep-ensemble", non_finite="roll_back",
            checkpoint_minutes=None, checkpoint_every=1,
        )  # fmt: skip
        assert history["lr"][:2] == [0.1, 0.05] and history["roll_backs"] == [0.0, 1.0, 1.0]
        assert history["lr"][2] == pytest.approx(0.05 * forde.training.schedule.paper_factor(2, EPOCHS))
        assert "back to epoch 1, step 0 with lr 0.05" in caplog.text
        assert [record["epoch"] for record in metrics(tmp_path / "run")] == [0.0, 1.0, 2.0]

    def test_epochs_since_the_checkpoint_are_recorded_once(self, tmp_path: Path) -> None:
        train(
            tmp_path / "run", faulty({STEPS + 2}), method="deep-ensemble", non_finite="roll_back",
            checkpoint_minutes=None,
        )  # fmt: skip
        assert [record["epoch"] for record in metrics(tmp_path / "run")] == [0.0, 1.0, 2.0]

    def test_gives_up_in_the_end(self, tmp_path: Path) -> None:
        trained = faulty(set(range(3, 1000)))
        with pytest.raises(NonFiniteError, match="after 10 returns to a checkpoint") as raised:
            train(tmp_path / "run", trained, method="deep-ensemble", non_finite="roll_back")
        assert "\n" not in str(raised.value) and finite(trained)

    def test_too_large_a_step_is_found_by_itself(self, tmp_path: Path) -> None:
        """The point of it: a learning rate that diverges becomes one that does not."""
        x, y = data()
        trained = forde.Ensemble(lambda: MLP(5, [16, 16], 1), 2, likelihood="regression")
        history = train(
            tmp_path / "run", trained, (x, y.float() * 10), method="deep-ensemble", lr=1.0, non_finite="roll_back",
            checkpoint_minutes=None, epochs=5, diagnostics_every=0,
        )  # fmt: skip
        assert history["roll_backs"][-1] >= 1 and math.isfinite(history["loss"][-1])


@pytest.mark.parametrize("engine", ENGINES)
class TestDegenerate:
    """Nothing to compare, nothing to learn from, nothing to divide by: training goes on, and all numbers are finite."""

    def assert_stays_finite(
        self, engine: str, given: Any = None, trained: forde.Ensemble | None = None, **options: Any
    ) -> None:
        trained = ensemble() if trained is None else trained
        for method in options.pop("methods", ("forde-pca", "forde-tuned", "feature-rde", "lit")):
            history = train(None, trained, given, method=method, engine=engine, **options)
            assert finite(trained), method
            assert all(math.isfinite(value) for value in history["loss"] + history["repulsion"]), method

    def test_identical_members(self, engine: str) -> None:
        trained = forde.Ensemble(lambda: MLP(5, [8], 3), 3)
        for member in trained.members[1:]:
            member.load_state_dict(trained.members[0].state_dict())
        self.assert_stays_finite(engine, trained=trained)

    def test_constant_features(self, engine: str) -> None:
        x, y = data()
        x[:, 2:] = torch.tensor([0.0, 1.0, -3.0])
        self.assert_stays_finite(engine, (x, y))

    def test_zero_features(self, engine: str) -> None:
        x, y = data()
        x[:, 1:] = 0
        self.assert_stays_finite(engine, (x, y))

    def test_zero_gradients_of_some_samples(self, engine: str) -> None:
        """A dead ReLU network for most inputs."""
        trained = forde.Ensemble(lambda: MLP(5, [4], 3), 2)
        with torch.no_grad():
            for member in trained.members:
                member.body[0].bias.fill_(-3.0)
        self.assert_stays_finite(engine, trained=trained)

    def test_batch_of_one(self, engine: str) -> None:
        self.assert_stays_finite(engine, data(6), forde.Ensemble(lambda: MLP(5, [8], 3), 3), batch_size=1)

    @pytest.mark.parametrize("members", [1, 2])
    def test_few_members(self, engine: str, members: int) -> None:
        self.assert_stays_finite(engine, trained=ensemble(members))

    def test_classes_missing_from_a_batch(self, engine: str) -> None:
        x, y = data()
        self.assert_stays_finite(engine, (x, (y == 2).long() * 2), batch_size=4)  # class 1 of 3 is never seen
