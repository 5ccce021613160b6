"""What is trained, and in which mode, may be decided by the factory or by a callback in the middle of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forde
from forde.errors import FordeError

ENGINES = ["eager", "vectorized", "compiled", "auto"]
LAST = 6


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced operations run one by one: the same program, and no C++ compiler at work."""
    monkeypatch.setattr("forde.compile.step.can_fuse", lambda device: False)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(32, 4, dtype=torch.float64, generator=generator), torch.arange(32) % 3


class Watched:
    """Trains, with something done after given epochs, and keeps the weights of all epochs."""

    def __init__(
        self,
        engine: str,
        after: dict[int, Callable[[forde.Ensemble], Any]],
        *,
        method: str = "forde-identity",
        factory: Callable[[], nn.Module] = network,
        **options: Any,
    ) -> None:
        self.ensemble = forde.Ensemble(factory, 3, seed=0).double()
        self.weights: list[dict[str, Tensor]] = []

        def callback(record: dict[str, float]) -> None:
            self.weights.append({name: value.clone() for name, value in self.ensemble.state_dict().items()})
            after.get(int(record["epoch"]), lambda ensemble: None)(self.ensemble)

        forde.fit(
            self.ensemble, method, data(), epochs=LAST, batch_size=16, engine=engine, verbose=False,
            diagnostics_every=0, callback=callback, **({} if options.get("optimizer") else {"lr": 0.05}), **options,
        )  # fmt: skip

    def moved(self, name: str, first: int, last: int) -> bool:
        return not torch.equal(self.weights[first][name], self.weights[last][name])


def freeze(ensemble: forde.Ensemble) -> None:
    for member in ensemble.members:
        member[0].requires_grad_(False)


def unfreeze(ensemble: forde.Ensemble) -> None:
    for member in ensemble.members:
        member[0].requires_grad_(True)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


@pytest.mark.parametrize("optimizer", [None, adam], ids=["momentum", "adam"])
@pytest.mark.parametrize("method", ["deep-ensemble", "forde-identity", "weight-rde", "feature-rde"])
@pytest.mark.parametrize("engine", ENGINES)
class TestCallbacks:
    def test_frozen_layers_stay_and_unfrozen_ones_move(self, engine: str, method: str, optimizer: Any) -> None:
        run = Watched(engine, {1: freeze, 3: unfreeze}, method=method, optimizer=optimizer)
        for name in ("members.0.0.weight", "members.2.0.bias"):
            assert run.moved(name, 0, 1) and not run.moved(name, 1, 3) and run.moved(name, 3, 4), name
        assert run.moved("members.0.4.weight", 1, 3)

    def test_as_in_a_loop(self, engine: str, method: str, optimizer: Any) -> None:
        expected = Watched("eager", {1: freeze, 3: unfreeze}, method=method, optimizer=optimizer)
        found = Watched(engine, {1: freeze, 3: unfreeze}, method=method, optimizer=optimizer)
        for name, value in expected.weights[-1].items():
            torch.testing.assert_close(found.weights[-1][name], value, rtol=1e-8, atol=1e-11)


def test_plain_torch_does_the_same() -> None:
    """A deep ensemble's member is trained as by a loop of one's own, with the layer frozen in between."""
    x, y = data()
    run = Watched("auto", {1: freeze, 3: unfreeze}, method="deep-ensemble", scheduler=_constant, drop_last=False)
    alone = forde.Ensemble(network, 3, seed=0).double().members[1]
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    order = torch.Generator().manual_seed(0)
    for epoch in range(LAST):
        alone[0].requires_grad_(epoch not in (2, 3))
        for chosen in torch.randperm(32, generator=order).split(16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(alone(x[chosen]), y[chosen]).backward()
            optimizer.step()
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(run.weights[-1][f"members.1.{name}"], value, rtol=1e-9, atol=1e-12)


def _constant(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_factory_froze_may_be_trained_later(engine: str) -> None:
    def factory() -> nn.Module:
        made = network()
        made[0].requires_grad_(False)
        return made

    run = Watched(engine, {2: unfreeze}, factory=factory)
    assert not run.moved("members.0.0.weight", 0, 2) and run.moved("members.0.0.weight", 2, 3)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_layer_of_one_member(engine: str) -> None:
    def freeze_one(ensemble: forde.Ensemble) -> None:
        ensemble.members[1][0].requires_grad_(False)

    run = Watched(engine, {1: freeze_one}, factory=lambda: nn.Sequential(*network(), nn.Softsign()))  # not stacked
    assert not run.moved("members.1.0.weight", 1, 5) and run.moved("members.0.0.weight", 1, 5)


@pytest.mark.parametrize("engine", ["vectorized", "compiled", "auto"])
def test_a_layer_of_one_of_stacked_members_is_a_sentence(engine: str) -> None:
    def freeze_one(ensemble: forde.Ensemble) -> None:
        ensemble.members[1][0].requires_grad_(False)

    with pytest.raises(FordeError, match=r"'0.weight'.*freeze it in all members, or use engine='eager'"):
        Watched(engine, {1: freeze_one})


@pytest.mark.parametrize("engine", ["eager", "vectorized"])
def test_a_resumed_run_knows_what_was_frozen(engine: str, tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(ensemble: forde.Ensemble) -> None:
        raise StopError

    expected = Watched(engine, {1: freeze})
    with pytest.raises(StopError):
        Watched(engine, {1: freeze, 3: stop}, run=tmp_path / "run", checkpoint_every=1)
    resumed = Watched(engine, {}, run=tmp_path / "run", resume=True)
    assert len(resumed.weights) == LAST - 4
    for name, value in expected.weights[-1].items():
        assert torch.equal(resumed.weights[-1][name], value), name


class TestModes:
    @staticmethod
    def with_norm() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6).eval(), nn.Tanh(), nn.Linear(6, 3))

    @pytest.mark.parametrize("engine", ENGINES)
    def test_layers_left_in_evaluation_mode_stay_there(self, engine: str) -> None:
        run = Watched(engine, {}, factory=self.with_norm)
        again = forde.fit(run.ensemble, "deep-ensemble", data(), epochs=1, verbose=False, engine=engine)
        for member in run.ensemble.members:
            assert not member[1].running_mean.any() and int(member[1].num_batches_tracked) == 0
        assert len(again) == 1 and run.moved("members.0.0.weight", 0, 5)
        assert not any(layer.training for layer in run.ensemble.modules())

    def test_all_other_layers_are_trained(self) -> None:
        ensemble = forde.Ensemble(self.with_norm, 2).eval().train()
        assert [layer.training for layer in ensemble.members[1]] == [True, False, True, True]

    def test_one_line_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "forde")
        Watched("eager", {}, factory=self.with_norm)
        assert "3 layers stay in evaluation mode, as make_network() left them: 0.1" in caplog.text
        Watched("eager", {}, factory=lambda: network().eval())
        assert "make_network() returned a network in evaluation mode" in caplog.text


class Backwards(nn.Module):
    """Its head is registered before its body."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(6, 3), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))


class Forwards(Backwards):
    """The same network, registered in the order of calls."""

    def __init__(self) -> None:
        super().__init__()
        head = self.head
        del self.head
        self.head = head


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("engine", ["eager", "vectorized", "compiled"])
def test_features_are_those_of_the_last_layer_that_is_called(engine: str, shared: bool) -> None:
    x, y = data()
    found = []
    for kind in (Forwards, Backwards):
        ensemble = forde.Ensemble(kind, 3, seed=0).double()
        method = forde.method("feature-rde", shared_head=shared)
        forde.fit(ensemble, method, (x, y), epochs=2, batch_size=16, engine=engine, verbose=False)
        found.append(ensemble.state_dict())
    assert list(found[0]) != list(found[1])
    for name in found[0]:
        torch.testing.assert_close(found[1][name], found[0][name], rtol=1e-9, atol=1e-12)
    equal = torch.equal(found[1]["members.0.head.weight"], found[1]["members.1.head.weight"])
    assert equal == shared
