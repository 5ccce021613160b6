"""Stacked and compiled members do what each member's own Python does, also when that changes; or it is said."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm

import forde
from forde.engine import make_engine
from forde.errors import FordeError

EXACT = {"rtol": 1e-9, "atol": 1e-12}


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced operations run one by one: the same program, and no C++ compiler at work."""
    monkeypatch.setattr("forde.compile.step.can_fuse", lambda device: False)


def data(n: int = 24, features: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(n, features, generator=generator, dtype=torch.float64), torch.arange(n) % 3


def trained(
    factory: Callable[[], nn.Module],
    engine: str,
    method: str | forde.Method = "forde-identity",
    *,
    change: Callable[[forde.Ensemble], Any] | None = None,
    on_epoch: Callable[[forde.Ensemble, int], Any] | None = None,
    xy: tuple[Tensor, Tensor] | None = None,
    epochs: int = 4,
    **options: Any,
) -> dict[str, Tensor]:
    """Weights and buffers after training, `change` made to the ensemble before."""
    ensemble = forde.Ensemble(factory, 3, seed=0).double()
    if change is not None:
        change(ensemble)
    random.seed(0)
    np.random.seed(0)
    forde.fit(
        ensemble, method, xy or data(), epochs=epochs, batch_size=12, engine=engine, verbose=False,
        diagnostics_every=0,
        callback=None if on_epoch is None else (lambda record: on_epoch(ensemble, int(record["epoch"]))),
        **options,
    )  # fmt: skip
    return {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, **EXACT, msg=lambda text, name=name: f"{name}: {text}")


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


class Scaled(nn.Module):
    """With a number that Python knows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.t = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.t * self.first(x)))


def zero_gradient(ensemble: forde.Ensemble) -> None:
    for member in ensemble.members:
        member[0].weight.register_hook(torch.zeros_like)


def hook_of_one(ensemble: forde.Ensemble) -> None:
    ensemble.members[1][0].register_forward_hook(lambda layer, inputs, output: 3 * output)


def hook_with_float(ensemble: forde.Ensemble) -> None:
    for member in ensemble.members:
        member[0].register_forward_hook(lambda layer, inputs, output: output * (1 + float(output.detach().mean() > 0)))


def other_number(ensemble: forde.Ensemble) -> None:
    ensemble.members[1].t = 5.0


DIFFERENT: dict[str, tuple[Callable[[], nn.Module], Callable[[forde.Ensemble], Any] | None, str]] = {
    "gradient hook": (perceptron, zero_gradient, "parameter '0.weight' has gradient hooks"),
    "forward hook of one member": (perceptron, hook_of_one, "layer '0' has hooks in member 1"),
    "hook that calls float()": (perceptron, hook_with_float, "layer '0' has hooks in member 0"),
    "attribute of one member": (Scaled, other_number, "t = 5.0"),
    "BatchNorm(momentum=None)": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 3)),
        None,
        "momentum=None",
    ),
    "spectral_norm": (lambda: nn.Sequential(spectral_norm(nn.Linear(4, 6)), nn.Linear(6, 3)), None, "hooks"),
    "spectral_norm, parametrised": (
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 6)), nn.Linear(6, 3)),
        None,
        "of its own",
    ),
}


class TestMembersThatDiffer:
    @pytest.mark.parametrize("engine", ["auto", "compiled"])
    @pytest.mark.parametrize("case", DIFFERENT)
    def test_each_runs_its_own_code(self, case: str, engine: str) -> None:
        factory, change, _ = DIFFERENT[case]
        expected = trained(factory, "eager", change=change)
        assert_same(trained(factory, engine, change=change), expected)

    @pytest.mark.parametrize("case", DIFFERENT)
    def test_stacking_that_was_asked_for_is_refused_by_name(self, case: str) -> None:
        factory, change, words = DIFFERENT[case]
        with pytest.raises(FordeError, match=r"engine='vectorized'.*; use engine='eager'") as raised:
            trained(factory, "vectorized", change=change)
        assert words in str(raised.value) and str(raised.value).count("\n") == 0

    def test_a_zeroed_gradient_stays_zero(self) -> None:
        method = forde.method("forde-identity", weight_decay=0.0)
        start = forde.Ensemble(perceptron, 3, seed=0).double().state_dict()
        for engine in ("auto", "compiled", "eager"):
            found = trained(perceptron, engine, method, change=zero_gradient)
            assert torch.equal(found["members.1.0.weight"], start["members.1.0.weight"])
            assert not torch.equal(found["members.1.0.bias"], start["members.1.0.bias"])

    def test_one_line_says_why_members_are_looped_over(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "forde")
        trained(perceptron, "auto", change=hook_of_one)
        assert "engine: eager (a loop over 3 members), because layer '0' has hooks in member 1" in caplog.text


class Stochastic(nn.Module):
    """Leaves a layer out by random numbers of Python, of NumPy or of its own."""

    source = "python"
    share = 0.9
    """How often the layer is used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def draw(self) -> float:
        if self.source == "python":
            return random.random()
        if self.source == "numpy":
            return float(np.random.rand())
        return float(torch.rand((), generator=self.generator))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.middle(h)) if self.draw() < self.share else h)


class OfNumpy(Stochastic):
    source = "numpy"


class OfItsOwn(Stochastic):
    source = "own"

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)


class OfARandom(Stochastic):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = random.Random(0)

    def draw(self) -> float:
        return self.numbers.random()


class OfAGenerator(Stochastic):
    def __init__(self) -> None:
        super().__init__()
        self.sources = {"depth": np.random.default_rng(0)}

    def draw(self) -> float:
        return float(self.sources["depth"].random())


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.calls = nn.Linear(4, 6), nn.Linear(6, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.last(torch.tanh(self.first(x) / self.calls))


class TestSourcesOfRandomNumbers:
    @pytest.mark.parametrize("memory", ["speed", "low"])
    @pytest.mark.parametrize("network", [Stochastic, OfNumpy, OfItsOwn, Counting])
    def test_compiling_changes_nothing(self, network: type[nn.Module], memory: str) -> None:
        """Also in the common case that the first step leaves nothing out."""
        expected = trained(network, "eager")
        assert_same(trained(network, "compiled", memory=memory), expected)

    @pytest.mark.parametrize("network", [Stochastic, OfNumpy, OfItsOwn, OfARandom, OfAGenerator, Counting])
    def test_the_pass_that_is_made_again_is_the_same(
        self, network: type[nn.Module], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Stochastic, "share", 0.5)
        assert_same(trained(network, "eager", memory="low"), trained(network, "eager"))

    def test_one_line_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "forde")
        trained(Stochastic, "compiled")
        assert "engine: eager after all, it draws Python's random numbers" in caplog.text

    def test_stacking_is_refused(self) -> None:
        with pytest.raises(FordeError, match="it draws Python's random numbers"):
            trained(Stochastic, "vectorized")

    def test_dropout_is_compared_under_the_same_random_numbers(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "forde")

        def factory() -> nn.Module:
            return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, 3))

        assert_same(trained(factory, "compiled"), trained(factory, "eager"))
        assert "engine: compiled in" in caplog.text


def set_number(ensemble: forde.Ensemble, epoch: int) -> None:
    if epoch == 1:
        for member in ensemble.members:
            member.t = 0.0


def set_number_of_one(ensemble: forde.Ensemble, epoch: int) -> None:
    if epoch == 1:
        ensemble.members[2].t = 0.25


def add_hook(ensemble: forde.Ensemble, epoch: int) -> None:
    if epoch == 1:
        ensemble.members[1].first.register_forward_hook(lambda layer, inputs, output: 2 * output)


def evaluate_norm(ensemble: forde.Ensemble, epoch: int) -> None:
    if epoch == 1:
        for member in ensemble.members:
            member[1].eval()


def every_epoch(ensemble: forde.Ensemble, epoch: int) -> None:
    for member in ensemble.members:
        member.t = 1 / (epoch + 2)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


CHANGES: dict[str, tuple[Callable[[], nn.Module], Callable[[forde.Ensemble, int], None]]] = {
    "a number": (Scaled, set_number),
    "a number of one member": (Scaled, set_number_of_one),
    "a hook": (Scaled, add_hook),
    "a mode": (normed, evaluate_norm),
    "a number after every epoch": (Scaled, every_epoch),
}


class TestChangesDuringTraining:
    @pytest.mark.parametrize("engine", ["compiled", "vectorized", "auto"])
    @pytest.mark.parametrize("case", CHANGES)
    def test_they_count_from_the_next_step_on(self, case: str, engine: str) -> None:
        factory, on_epoch = CHANGES[case]
        expected = trained(factory, "eager", on_epoch=on_epoch, epochs=7)
        unchanged = trained(factory, "eager", epochs=7)
        assert not torch.equal(next(iter(expected.values())), next(iter(unchanged.values())))
        assert_same(trained(factory, engine, on_epoch=on_epoch, epochs=7), expected)

    def test_dropout(self, caplog: pytest.LogCaptureFixture) -> None:
        """Without units nothing but the last bias can move."""
        caplog.set_level("INFO", "forde")
        middle: list[dict[str, Tensor]] = []

        def factory() -> nn.Module:
            return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.1), nn.Linear(6, 3))

        def all_out(ensemble: forde.Ensemble, epoch: int) -> None:
            if epoch == 1:
                middle.append({name: tensor.clone() for name, tensor in ensemble.state_dict().items()})
                for member in ensemble.members:
                    member[2].p = 1.0

        method = forde.method("deep-ensemble", weight_decay=0.0)
        end = trained(factory, "compiled", method, on_epoch=all_out, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
        assert torch.equal(end["members.0.0.weight"], middle[0]["members.0.0.weight"])
        assert not torch.equal(end["members.0.3.bias"], middle[0]["members.0.3.bias"])
        assert "the step is traced again, because layer '2' of member 0 has p = 1.0 instead of 0.1" in caplog.text

    def test_what_keeps_changing_is_left_to_the_plain_engine(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "forde")
        trained(Scaled, "compiled", on_epoch=every_epoch, epochs=7)
        assert caplog.text.count("traced again") == 3
        assert "engine: eager after all, what the step depends on keeps changing" in caplog.text

    def test_one_line_says_that_members_are_no_longer_stacked(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "forde")
        trained(Scaled, "vectorized", on_epoch=set_number_of_one)
        assert "engine: members run one by one from here on, because" in caplog.text and "t = 0.25" in caplog.text


class Sorting(nn.Module):
    """Looks at its samples in the order of their first feature."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        order = x[:, 0].argsort()
        ranked = h[order] * torch.linspace(0.5, 1.5, len(x), dtype=x.dtype).unsqueeze(-1)
        return self.last(torch.tanh(self.middle(ranked[order.argsort()])))


class TestAgreement:
    @pytest.mark.parametrize("fraction", [1.0, 0.5])
    def test_a_network_that_sorts_its_samples(self, fraction: float, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "forde")
        method = forde.method("forde-identity", repulsion_fraction=fraction, repulsion_weight=5.0)
        assert_same(trained(Sorting, "compiled", method), trained(Sorting, "eager", method))
        if fraction < 1:
            assert "engine: eager after all, " in caplog.text and "differs by" in caplog.text

    def test_a_wrong_repulsion_is_seen_beside_a_large_loss(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The trace repels by the third power of what it should; in the whole gradient that is far below 2 %."""
        from forde.compile import tracing

        recorded = tracing._record

        def cubed(function: Any, arguments: Any) -> Any:
            def other(*given: Any) -> list[Tensor]:
                return function(*given[:-1], given[-1] ** 3)

            return recorded(other if len(arguments) == 6 else function, arguments)

        monkeypatch.setattr(tracing, "_record", cubed)
        method = forde.method("forde-identity", repulsion_weight=1e-3)
        expected = trained(perceptron, "eager", method)
        assert_same(trained(perceptron, "compiled", method), expected)


class Tokens(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(7, 5, **options), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.embedding(x).mean(1))


def tokens() -> tuple[Tensor, Tensor]:
    return torch.randint(0, 7, (24, 6), generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3


class TestEmbeddings:
    @pytest.mark.parametrize("engine", ["eager", "vectorized", "compiled"])
    def test_padding_stays_zero(self, engine: str) -> None:
        def factory() -> nn.Module:
            return Tokens(padding_idx=2)

        found = trained(factory, engine, "function-rde", xy=tokens())
        for member in range(3):
            assert not found[f"members.{member}.embedding.weight"][2].any()
        assert_same(found, trained(factory, "eager", "function-rde", xy=tokens()))

    @pytest.mark.parametrize("engine", ["vectorized", "compiled", "auto"])
    def test_max_norm(self, engine: str) -> None:
        def factory() -> nn.Module:
            return Tokens(max_norm=0.5)

        expected = trained(factory, "eager", "function-rde", xy=tokens())
        if engine == "vectorized":
            with pytest.raises(FordeError, match="engine='vectorized'"):
                trained(factory, engine, "function-rde", xy=tokens())
        else:
            assert_same(trained(factory, engine, "function-rde", xy=tokens()), expected)

    @pytest.mark.parametrize("engine", ["eager", "compiled", "auto"])
    def test_sparse_gradients_under_weight_decay_are_those_of_dense_ones(
        self, engine: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "forde")
        expected = trained(Tokens, "eager", "deep-ensemble", xy=tokens())
        found = trained(lambda: Tokens(sparse=True), engine, "deep-ensemble", xy=tokens())
        assert_same(found, expected)
        assert caplog.text.count("sparse gradients are made dense") == 1

    def test_sparse_gradients_stay_sparse_without_a_prior(self) -> None:
        method = forde.method("deep-ensemble", weight_decay=0.0)
        ensemble = forde.Ensemble(lambda: Tokens(sparse=True), 2, seed=0)
        engine = make_engine("eager", ensemble.train(), method)
        engine.update(*tokens())
        assert ensemble.members[0].embedding.weight.grad.is_sparse

    def test_sparse_gradients_are_not_stacked(self) -> None:
        with pytest.raises(FordeError, match="layer 'embedding' has sparse gradients"):
            trained(lambda: Tokens(sparse=True), "vectorized", "deep-ensemble", xy=tokens())


def test_a_channels_last_network_stays_so() -> None:
    def factory() -> nn.Module:
        layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 2), nn.Flatten(), nn.LazyLinear(3))
        layers(torch.zeros(1, 3, 6, 6))
        return layers.to(memory_format=torch.channels_last)

    x, y = torch.randn(16, 3, 6, 6), torch.arange(16) % 3
    ensemble = forde.Ensemble(factory, 2)
    plain = forde.Ensemble(lambda: nn.Sequential(nn.Conv2d(3, 3, 6), nn.Flatten()), 2)
    for each in (ensemble, plain):
        forde.fit(each, "forde-identity", (x, y), epochs=1, batch_size=8, engine="compiled", verbose=False)
    weight = ensemble.members[0][0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
    assert plain.members[1][0].weight.is_contiguous()
