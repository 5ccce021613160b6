"""`engine="auto"`: what it chooses, that it says so in one line, and that choosing leaves no trace."""

from __future__ import annotations

import logging
import random
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

import forde
from forde import stacked_layers
from forde.benchmarks import by_hand
from forde.compile.worth import FEWEST_STEPS, SECONDS_PER_LAYER, Worth, numbers_written, worth
from forde.engine import make_engine
from forde.models import MLP
from forde.step import MemberLoop, MemberStack
from forde.training.diagnostics import probe

MEMBERS = 3


class Own(nn.Module):
    """A user's class around layers that are known."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


class Branching(Own):
    """Looks at the values of its batch, which stacked members cannot."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if bool(x.mean() > 100) else super().forward(2 * x)


class Counting(Own):
    """Counts how often it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * (1 + 0.1 * self.calls)


class Drawing(Own):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.3))


class DrawingFromPython(Own):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + random.random())


class MovingAverage(Own):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return super().forward(x - self.mean)


UNLIKE: dict[type[nn.Module], str] = {
    Branching: "stacked it fails",
    Counting: "calls = 1 instead of 0",
    Drawing: "they draw random numbers",
    DrawingFromPython: "it draws Python's random numbers",
}


def batch(n: int = 12) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(1)), torch.arange(n) % 3


def trained(make: Callable[[], nn.Module], engine: Any, method: str = "forde-identity", **options: Any) -> dict:
    random.seed(0)
    ensemble = forde.Ensemble(make, MEMBERS)
    forde.fit(ensemble, method, batch(48), epochs=3, batch_size=12, engine=engine, verbose=False, **options)
    return ensemble.state_dict()


def said(caplog: pytest.LogCaptureFixture) -> str:
    """The one line about the engine."""
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("engine: ")]
    return line


@pytest.mark.parametrize("method", ["deep-ensemble", "forde-identity", "feature-rde"])
@pytest.mark.parametrize("make", [Own, MovingAverage])
def test_networks_of_a_users_class_are_stacked(
    make: type[nn.Module], method: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forde")
    found = trained(make, "auto", method)
    assert said(caplog).startswith("engine: vectorized (3 members stacked), because ")
    for name, tensor in trained(make, "eager", method).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("make", UNLIKE)
def test_where_a_stack_is_unlike_a_loop_the_loop_runs_as_if_nothing_had_happened(
    make: type[nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    """Weights come out equal to the last bit, so nothing had moved before: weights, buffers, numbers, attributes."""
    caplog.set_level(logging.INFO, "forde")
    found = trained(make, "auto")
    assert said(caplog).startswith("engine: eager (a loop over 3 members), because ") and UNLIKE[make] in said(caplog)
    expected = trained(make, "eager")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("make", [Branching, Counting, DrawingFromPython])
def test_stacking_that_was_asked_for_stays_an_error(make: type[nn.Module]) -> None:
    with pytest.raises(forde.FordeError, match="engine='vectorized'"):
        trained(make, "vectorized")


@pytest.mark.parametrize("make", [Own, *UNLIKE])
def test_choosing_leaves_no_trace(make: type[nn.Module]) -> None:
    ensemble = forde.Ensemble(make, MEMBERS).train()
    before = {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}
    attributes = [vars(member).get("calls") for member in ensemble.members]
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    engine = make_engine("auto", ensemble, forde.method("forde-identity"), example=batch())
    now = random.random(), np.random.rand(), float(torch.rand(1))
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    assert now == (random.random(), np.random.rand(), float(torch.rand(1)))
    assert isinstance(engine.runner, MemberStack if make is Own else MemberLoop)
    for name, tensor in ensemble.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert attributes == [vars(member).get("calls") for member in ensemble.members]
    assert all(p.grad is None for p in ensemble.parameters())
    if make is not Own:  # each member has memory of its own again
        assert len({p.untyped_storage().data_ptr() for p in ensemble.parameters()}) == len(list(ensemble.parameters()))
    engine.close()


def test_without_an_example_a_users_class_is_looped_over() -> None:
    assert isinstance(make_engine("auto", forde.Ensemble(Own, 2), forde.method("lit")).runner, MemberLoop)


@pytest.mark.parametrize(
    ("make", "options", "why"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout()), {}, "Dropout layers are not stacked"),
        (lambda: MLP(4, [1500, 1500], 3), {}, "more than 2,000,000 parameters"),
        (lambda: MLP(4, [5], 3), {"memory": "low"}, "memory='low'"),
        (lambda: MLP(4, [5], 3), {"engine": "eager"}, "that was asked for"),
    ],
)
def test_the_line_says_why(
    make: Callable[[], nn.Module], options: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forde")
    trained(make, **{"engine": "auto", **options})
    assert why in said(caplog)


def make_perceptron(layer: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), layer(), nn.Linear(5, 3, bias=False), nn.Identity())


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "relu in place": lambda: nn.ReLU(inplace=True), "tanh": nn.Tanh, "gelu": nn.GELU,
    "gelu by tanh": lambda: nn.GELU("tanh"), "silu": nn.SiLU, "elu": lambda: nn.ELU(0.7),
    "leaky relu": lambda: nn.LeakyReLU(0.3), "sigmoid": nn.Sigmoid, "softplus": lambda: nn.Softplus(2.0),
    "perceptron": lambda: MLP(5, [7], 5),
}  # fmt: skip


def test_batches_of_ones_own_are_for_a_loop(caplog: pytest.LogCaptureFixture) -> None:
    """Other engines are refused, and the line in the log does not say that a loop was asked for."""
    data = torch.randn(12, 4), torch.randint(3, (12,))
    make = lambda: forde.Ensemble(lambda: MLP(4, [5], 3), MEMBERS)  # noqa: E731
    for name in ("vectorized", "compiled"):
        with pytest.raises(forde.FordeError, match=f"engine='{name}' cannot run this, because each member has batches"):
            forde.fit(make(), "deep-ensemble", data, epochs=1, engine=name, independent_data=True)
    with caplog.at_level(logging.INFO):
        forde.fit(make(), "deep-ensemble", data, epochs=1, independent_data=True)
    (line,) = [message for message in caplog.messages if message.startswith("engine:")]
    assert line.endswith("because each member has batches of its own (independent_data)")


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_all_members_at_once(layer: str) -> None:
    """Outputs, and their second derivatives through the inputs, are those of each member by itself."""
    members = [make_perceptron(LAYERS[layer]).double() for _ in range(MEMBERS)]
    assert stacked_layers.can_run(members)
    names = [name for name, _ in members[0].named_parameters()]
    tensors = {
        n: torch.stack([dict(m.named_parameters())[n].detach() for m in members]).requires_grad_() for n in names
    }
    x = batch()[0].double()
    inputs = x.expand(MEMBERS, *x.shape).clone().requires_grad_()
    found = stacked_layers.run(members[0], tensors, inputs.clone())
    (gradient,) = torch.autograd.grad(found.square().sum(), inputs, create_graph=True)
    gradient.square().sum().backward()
    for i, member in enumerate(members):
        own = x.clone().requires_grad_()
        expected = member(own.clone())
        torch.testing.assert_close(found[i], expected)
        (by_input,) = torch.autograd.grad(expected.square().sum(), own, create_graph=True)
        by_input.square().sum().backward()
        for name, parameter in member.named_parameters():
            torch.testing.assert_close(tensors[name].grad[i], parameter.grad)


def test_linear_layers_over_sequences_at_once() -> None:
    members = [nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(15, 2)) for _ in range(2)]
    x = torch.randn(6, 3, 4)
    names = [name for name, _ in members[0].named_parameters()]
    tensors = {n: torch.stack([dict(m.named_parameters())[n].detach() for m in members]) for n in names}
    found = stacked_layers.run(members[0], tensors, x.expand(2, *x.shape))
    torch.testing.assert_close(found, torch.stack([member(x) for member in members]))


def with_hook() -> nn.Module:
    network = make_perceptron(nn.ReLU)
    network[1].register_forward_hook(lambda layer, inputs, output: 2 * output)
    return network


def patched() -> nn.Module:
    network = make_perceptron(nn.ReLU)
    network[1].forward = lambda x: torch.zeros(len(x), 5)
    return network


def tied() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(
    "make",
    [
        with_hook, patched, tied,
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))),
        lambda: prune.identity(nn.Linear(4, 3), "weight"),
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
        lambda: nn.Sequential(nn.Flatten(0), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout()),
    ],
)  # fmt: skip
def test_what_is_more_than_its_layers_is_not_run_by_layers(make: Callable[[], nn.Module]) -> None:
    assert not stacked_layers.can_run([make(), make()])


def test_a_layer_that_changes_during_training_is_followed() -> None:
    """The layers are read in each step, and a hook that is added takes effect."""

    def train(engine: Any) -> dict[str, Tensor]:
        ensemble = forde.Ensemble(lambda: nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.1), nn.Linear(6, 3)), MEMBERS)

        def change(record: Any) -> None:
            for member in ensemble.members:
                member[1].negative_slope = 0.8
                if record["epoch"] == 1:
                    member[2].register_forward_hook(lambda layer, inputs, output: 2 * output)

        options = {"epochs": 4, "batch_size": 12, "verbose": False, "diagnostics_every": 0}
        forde.fit(ensemble, "forde-identity", batch(48), engine=engine, callback=change, **options)
        return ensemble.state_dict()

    found, expected = train("auto"), train("eager")
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("likelihood", ["classification", "regression"])
def test_diagnostics_at_once(likelihood: str) -> None:
    ensemble = forde.Ensemble(lambda: MLP(4, [6], 3 if likelihood == "classification" else 1), MEMBERS)
    ensemble.likelihood = forde.Ensemble(lambda: MLP(1, [], 2), 1, likelihood=likelihood).likelihood
    x, y = batch()
    y = y if likelihood == "classification" else y.float()
    engine = make_engine("auto", ensemble.train(), forde.method("deep-ensemble"))
    assert engine.runner.at_once is not None
    found, expected = probe(ensemble, x, y, at_once=engine.runner.at_once), probe(ensemble, x, y)
    assert found == pytest.approx(expected, rel=1e-5) and expected["gradient_cosine"] == expected["gradient_cosine"]
    engine.close()


class TestPrediction:
    @pytest.mark.parametrize("members", [2, 10])
    def test_many_small_batches_are_predicted_at_once(self, members: int, monkeypatch: pytest.MonkeyPatch) -> None:
        ensemble = forde.Ensemble(lambda: MLP(4, [20, 20], 3), members)
        x = torch.randn(100, 4)
        calls = []
        run = stacked_layers.run
        monkeypatch.setattr(stacked_layers, "run", lambda *arguments: calls.append(1) or run(*arguments))
        found = ensemble.predict(x, batch_size=16)
        assert calls
        calls.clear()
        expected = ensemble.predict(x, batch_size=100)
        assert not calls, "one batch is not worth a copy of the weights"
        torch.testing.assert_close(found.member_probs, expected.member_probs, rtol=1e-6, atol=1e-6)
        assert torch.equal(found.probs.argsort(-1), expected.probs.argsort(-1))

    @pytest.mark.parametrize("make", [with_hook, Own, lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))])
    def test_others_are_predicted_one_by_one(self, make: Callable[[], nn.Module]) -> None:
        ensemble, x = forde.Ensemble(make, 2).train(), batch(40)[0]
        found = ensemble.predict(x, batch_size=8).member_probs
        assert all(member.training for member in ensemble.members)
        expected = torch.stack([member.eval()(x).softmax(-1) for member in ensemble.members])
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


class TestCompilingOnACpu:
    def test_numbers_written_are_those_of_layers_with_parameters(self) -> None:
        network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 4 * 4, 3))
        counting, before = Counting(), torch.get_rng_state()
        assert numbers_written(network, torch.zeros(7, 1, 6, 6)) == 2 * 4 * 4 + 3
        assert numbers_written(network, torch.zeros(7, 1, 5, 5)) is None
        assert numbers_written(counting, torch.zeros(7, 4)) == 6 + 3 and counting.calls == 0
        assert torch.equal(torch.get_rng_state(), before)

    def test_counts_decide(self) -> None:
        x, network = torch.zeros(100, 4), MLP(4, [97], 3)
        assert worth(network, 10, x, FEWEST_STEPS - 1) is None
        assert worth(network, 10, x, 10**4) == Worth(2 * SECONDS_PER_LAYER, pytest.approx(1e4 * 10 * 100 * 100 * 1e-9))
        assert not worth(network, 10, x, 10**4).pays and worth(network, 10, x, 10**6).pays

    @pytest.mark.parametrize(
        ("steps", "make", "compiles"),
        [
            (10**9, lambda: MLP(4, [6], 3), True),
            (10**4, lambda: MLP(4, [6], 3), False),
            (None, lambda: MLP(4, [6], 3), False),
            (10**9, lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 4), nn.Flatten()), False),
        ],
    )
    def test_only_perceptrons_in_long_runs_are_compiled(
        self, steps: int | None, make: Callable[[], nn.Module], compiles: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("forde.engine.can_fuse", lambda device: True)
        ensemble = forde.Ensemble(make, 2).train()
        engine = make_engine("auto", ensemble, forde.method("lit"), steps=steps, example=batch(), fuse=False)
        assert (type(engine).__name__ == "CompiledStep") == compiles
        x, y = batch(12)
        for number, rows in enumerate((5, 12, 12)):  # a run may be taken up at a smaller batch
            engine.update(x[:rows], y[:rows], step=number)
        if compiles:
            assert [key.shape for key in engine.kinds] == [(12, 4)]
        engine.close()

    def test_without_a_compiler_nothing_is_compiled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("forde.engine.can_fuse", lambda device: False)
        ensemble = forde.Ensemble(lambda: MLP(4, [6], 3), 2)
        engine = make_engine("auto", ensemble, forde.method("lit"), steps=10**9, example=batch())
        assert type(engine).__name__ == "PlainStep"
        engine.close()


@pytest.mark.parametrize("how", ["loop", "vmap"])
def test_by_hand_and_by_forde_come_to_the_same(how: str) -> None:
    x, y = batch()
    ensemble = forde.Ensemble(lambda: MLP(4, [6], 3), MEMBERS).double().train()
    engine = make_engine(
        "auto", forde.Ensemble(lambda: MLP(4, [6], 3), MEMBERS).double(), forde.method("deep-ensemble")
    )
    optimizer = torch.optim.SGD(engine.runner.parameters(), lr=by_hand.LR, momentum=0.9, nesterov=True)
    step = getattr(by_hand, how)(list(ensemble.members))
    for number in range(5):
        report = engine.update(x.double(), y, optimizer, step=number)
        torch.testing.assert_close(step(x.double(), y), report.losses, rtol=1e-9, atol=1e-12)
    engine.close()


def test_by_hand_nothing_of_forde_is_used() -> None:
    code = f"import sys; sys.path.insert(0, {str(by_hand.__file__).rpartition('/')[0]!r}); import by_hand; " + (
        "print(sorted(name for name in sys.modules if name.startswith('forde')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.sub(r"\s", "", found.stdout) == "[]"
