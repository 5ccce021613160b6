"""A loss function of the user's is written for one member, and what members are compared by is what he means by it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import forde
from forde.engine import make_engine
from forde.errors import FordeError
from forde.evaluation import gradient_cosine_distance
from forde.kernels import RBF
from forde.kernels.metric import PCA
from forde.likelihoods import Custom, Likelihood
from forde.prediction import ClassificationPrediction, RawPrediction
from forde.priors import TrainingData
from forde.spaces import InputGradients, Space, View
from forde.step import Step

ENGINES = ["eager", "vectorized", "compiled"]


def engine_for(name: str, ensemble: forde.Ensemble, method: forde.Method) -> Step:
    # Traced operations run one by one: no C++ compiler at work.
    return make_engine(name, ensemble.train(), method, fuse=False)


def gradients(name: str, ensemble: forde.Ensemble, method: forde.Method, x: Tensor, y: Tensor) -> list[Tensor]:
    """Of each member's first weight after a step, `[M, ...]`."""
    engine = engine_for(name, ensemble, method)
    for _ in range(2):  # the second one is compiled
        engine.update(x, y)
    stacked = [p.grad for group in engine.runner.groups for p in group.values() if p.grad is not None]
    engine.close()
    return stacked


class Grid(nn.Module):
    """Outputs `[B, 4, 2]`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).view(-1, 4, 2)


def squared(output: Tensor, y: Tensor) -> Tensor:
    return (output - y).square().mean()


@pytest.mark.parametrize("engine", ENGINES)
def test_outputs_of_three_dimensions_are_trained_as_by_plain_torch(engine: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 5, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        y = Grid().double()(x)
    ensemble = forde.Ensemble(Grid, 2, seed=1, likelihood=squared).double()
    plain = [Grid().double() for _ in range(2)]
    for network, member in zip(plain, ensemble.members, strict=True):
        network.load_state_dict(member.state_dict())
    forde.fit(
        ensemble, forde.method("deep-ensemble", weight_decay=0.0), (x, y), epochs=20, batch_size=64, engine=engine,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.5), verbose=False,
    )  # fmt: skip
    for network, member in zip(plain, ensemble.members, strict=True):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
        for _ in range(20):
            optimizer.zero_grad()
            squared(network(x), y).backward()
            optimizer.step()
        for expected, found in zip(network.parameters(), member.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_losses_are_one_for_each_member(engine: str) -> None:
    x, y = torch.randn(32, 5), torch.randn(32, 4, 2)
    ensemble = forde.Ensemble(Grid, 2, likelihood=squared)
    expected = [squared(member(x), y).item() for member in ensemble.members]
    report = engine_for(engine, ensemble, forde.method("deep-ensemble")).update(x, y)
    assert report.losses.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("output", ["logit", "log_prob"])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_cross_entropy_as_a_function_repels_the_same(engine: str, output: str) -> None:
    x, y = torch.randn(16, 5, dtype=torch.float64), torch.arange(16) % 3

    def make(likelihood: object) -> forde.Ensemble:
        factory = lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))  # noqa: E731
        return forde.Ensemble(factory, 3, seed=0, likelihood=likelihood).double()

    method = forde.method("forde-identity", output=output, repulsion_weight=10.0)
    named = gradients("eager", make("classification"), method, x, y)
    own = gradients(engine, make(F.cross_entropy), method, x, y)
    flat = [torch.cat([g.reshape(-1) for g in found]) for found in (named, own)]
    assert float(flat[0].square().sum()) == pytest.approx(float(flat[1].square().sum()), rel=1e-12)
    if engine == "eager":
        torch.testing.assert_close(flat[1], flat[0], rtol=1e-12, atol=1e-14)


def test_own_cross_entropy_gives_probabilities_also_after_loading(tmp_path: object) -> None:
    x, y = torch.randn(32, 5), torch.arange(32) % 3
    ensemble = forde.Ensemble(lambda: nn.Linear(5, 3), 2, likelihood=F.cross_entropy)
    forde.fit(ensemble, "deep-ensemble", (x, y), epochs=1, verbose=False)
    prediction = ensemble.predict(x)
    assert isinstance(prediction, ClassificationPrediction)
    torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(32))
    ensemble.save(f"{tmp_path}/e")
    for likelihood in (None, F.cross_entropy):
        loaded = forde.Ensemble.load(f"{tmp_path}/e", lambda: nn.Linear(5, 3), likelihood=likelihood)
        assert torch.equal(loaded.predict(x).probs, prediction.probs)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("shape", "y"),
    [((2,), torch.randn(16, 2)), ((1,), torch.randn(16)), ((2,), torch.arange(16)), ((4, 2), torch.arange(16) % 4)],
    ids=["two quantities", "one quantity", "counts", "labels of [B, 4, 2]"],
)
def test_an_own_loss_without_scalar_is_refused_by_gradient_methods_only(
    engine: str, shape: tuple[int, ...], y: Tensor
) -> None:
    size = int(torch.tensor(shape).prod())

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(5, size), nn.Unflatten(1, shape))

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return output.flatten(1).mean(-1) - y.reshape(len(y), -1).to(output.dtype).mean(-1)

    x = torch.randn(16, 5)
    step = engine_for(engine, forde.Ensemble(network, 2, likelihood=loss), forde.method("function-rde")).update
    assert step(x, y).losses.shape == (2,)
    repelled = engine_for(engine, forde.Ensemble(network, 2, likelihood=loss), forde.method("forde-identity"))
    with pytest.raises(FordeError, match=r"Custom\(loss, scalar="):
        repelled.update(x, y)
    named = Custom(loss, scalar=lambda output, y: output.flatten(1)[:, 0])
    report = engine_for(engine, forde.Ensemble(network, 2, likelihood=named), forde.method("forde-identity")).update(
        x, y
    )
    # ∂/∂x of the first output is the first row of the weight, the same for every sample.
    expected = F.normalize(
        torch.stack([m[0].weight[0] for m in forde.Ensemble(network, 2, likelihood=named).members]), dim=-1
    )
    torch.testing.assert_close(report.z, expected[:, None].expand(2, 16, 5).detach())


def test_a_named_prediction_is_used() -> None:
    def absolute(output: Tensor, y: Tensor) -> Tensor:
        return (output.squeeze(-1) - y).abs()

    def median(outputs: Tensor) -> RawPrediction:
        return RawPrediction(outputs.median(0, keepdim=True).values)

    ensemble = forde.Ensemble(lambda: nn.Linear(2, 1), 3, likelihood=Custom(absolute, prediction=median))
    x = torch.randn(4, 2)
    torch.testing.assert_close(ensemble.predict(x).mean, ensemble(x).median(0).values)
    with pytest.raises(FordeError, match="classification"):
        Custom(absolute, prediction="clasification")


def test_diagnostics_do_without_a_scalar() -> None:
    data = torch.randn(32, 5), torch.randn(32, 4, 2)
    history = forde.fit(forde.Ensemble(Grid, 2, likelihood=squared), "deep-ensemble", data, epochs=1, verbose=False)
    assert history.records[0]["gradient_cosine"] != history.records[0]["gradient_cosine"]  # NaN
    assert history.records[0]["disagreement"] > 0


class Doubled(Space):
    """A user's own space: input gradients of the sum of all outputs."""

    mixes = "weights"
    needs_input_gradient = True

    def scalar(self, view: View) -> Tensor:
        return view.output.sum()

    def represent(self, view: View) -> Tensor:
        assert view.input_gradient is not None
        return view.input_gradient


def test_an_own_space_of_input_gradients_may_have_a_pca_metric() -> None:
    x, y = torch.randn(16, 5), torch.arange(16) % 3
    method = forde.Method(space=Doubled(), kernel=RBF(metric=PCA()))
    ensemble = forde.Ensemble(lambda: nn.Linear(5, 3), 3)
    fitted = method.prepare(ensemble.members[0], TrainingData(lambda: iter([x]), len(x)))
    report = engine_for("eager", ensemble, fitted).update(x, y)
    assert report.z is not None and float(report.repulsion.abs().sum()) > 0
    with pytest.raises(FordeError, match="PCA metric"):
        forde.Method(space=forde.spaces.Outputs(), kernel=RBF(metric=PCA()))
    assert InputGradients().needs_input_gradient


class TestMistakesInOwnLosses:
    x, y = torch.randn(16, 4), torch.arange(16) % 3
    options: dict[str, Any] = {"epochs": 1, "verbose": False}  # noqa: RUF012

    def fit(self, loss: Any, y: Tensor | None = None, *, method: str = "deep-ensemble", end: int = 3) -> forde.Ensemble:
        ensemble = forde.Ensemble(lambda: nn.Linear(4, end), 2, likelihood=loss)
        forde.fit(ensemble, method, (self.x, self.y if y is None else y), **self.options)
        return ensemble

    def test_probabilities_are_not_taken_for_logits(self) -> None:
        def network() -> nn.Module:
            return nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))

        def nll(p: Tensor, y: Tensor) -> Tensor:
            return F.nll_loss(p.log(), y)

        with pytest.raises(FordeError, match=r"outputs are probabilities.*return logits"):
            forde.fit(forde.Ensemble(network, 2, likelihood=nll), "deep-ensemble", (self.x, self.y), **self.options)
        said = Custom(nll, prediction="raw")
        trained = forde.Ensemble(network, 2, likelihood=said)
        forde.fit(trained, "deep-ensemble", (self.x, self.y), **self.options)
        torch.testing.assert_close(trained.predict(self.x).mean.sum(-1), torch.ones(16))

    def test_log_probabilities_give_their_probabilities(self) -> None:
        ensemble = forde.Ensemble(lambda: nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(-1)), 2, likelihood=F.nll_loss)
        forde.fit(ensemble, "deep-ensemble", (self.x, self.y), **self.options)
        torch.testing.assert_close(ensemble.predict(self.x).probs, ensemble(self.x).exp().mean(0).detach())

    @pytest.mark.parametrize(("loss", "words"), [
        (lambda output, y: 1.0, "returned a float"),
        (lambda output, y: F.cross_entropy(output.detach(), y), "differentiable"),
    ])  # fmt: skip
    def test_a_loss_that_trains_nothing(self, loss: Any, words: str) -> None:
        with pytest.raises(FordeError, match=words):
            self.fit(loss)

    @pytest.mark.parametrize("scalar", [lambda output, y: output, lambda output, y: output.sum()])
    def test_a_scalar_of_another_shape(self, scalar: Any) -> None:
        with pytest.raises(FordeError, match=r"one value per sample, \[16\]"):
            self.fit(Custom(F.cross_entropy, scalar=scalar), method="forde-identity")

    def test_every_output_against_every_target_is_said(self, caplog: pytest.LogCaptureFixture) -> None:
        y = torch.randn(16)
        self.fit(lambda output, y: (output.squeeze(-1) - y).square().mean(), y, end=1)
        self.fit(lambda output, y: (output - y[:, None]).square().mean(), y, end=1)
        assert "every output against every target" not in caplog.text
        self.fit(lambda output, y: (output - y).square().mean(), y, end=1)
        assert caplog.text.count("every output against every target") == 1
        with pytest.warns(UserWarning, match="Using a target size"):
            self.fit(F.mse_loss, y, end=1)
        assert caplog.text.count("every output against every target") == 2


class Labels(Likelihood):
    """One that shares no code with the built-in one."""

    name = "labels"
    takes_labels = True

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return -output.log_softmax(-1)[torch.arange(len(y)), y].mean()

    def scalar(self, output: Tensor, y: Tensor) -> Tensor:
        return output[torch.arange(len(y)), y]

    def prediction(self, outputs: Tensor) -> ClassificationPrediction:
        return ClassificationPrediction(outputs)


@pytest.mark.parametrize("engine", ["eager", "vectorized"])
def test_own_likelihoods_of_labels_are_given_labels(engine: str) -> None:
    """Labels reach it as int64, whatever integers they were, and the metrics of classification know it."""
    x, y = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), (torch.arange(24) % 3).to(torch.int16)
    found = {}
    for likelihood in (Labels(), "classification"):
        ensemble = forde.Ensemble(lambda: nn.Linear(4, 3), 2, seed=0, likelihood=likelihood)
        history = forde.fit(ensemble, "forde-identity", (x, y), epochs=2, batch_size=8, verbose=False, engine=engine)
        found[type(likelihood).__name__] = history["loss"], gradient_cosine_distance(ensemble, x, y.long())
    own, built_in = found.values()
    assert own[0] == pytest.approx(built_in[0], rel=1e-5) and own[1] == pytest.approx(built_in[1], rel=1e-5)
    ensemble = forde.Ensemble(lambda: nn.Linear(4, 3), 2, likelihood=Labels())
    with pytest.raises(FordeError, match="all 24 labels are class 1"):
        forde.fit(ensemble, "lit", (x, torch.ones_like(y)), epochs=1)
