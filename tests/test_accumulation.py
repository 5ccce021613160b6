"""Batches in parts have the gradient of the whole batch: every method, on every engine, and in whole trainings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import forde
from forde import kernels, rules, spaces
from forde.engine import make_engine
from forde.likelihoods import Classification, Custom, DenseClassification, Likelihood, MultiLabel, Regression
from forde.priors import Prior
from forde.spaces import Space, View

NAMES = ("deep-ensemble", "forde-identity", "forde-pca", "forde-tuned", "forde", "weight-rde", "function-rde",
         "feature-rde", "lit")  # fmt: skip
ONE_MEDIAN = kernels.RBF(bandwidth="global")
METHODS: dict[str, Callable[[], forde.Method]] = {
    **{name: (lambda name=name: forde.method(name)) for name in NAMES},
    "empcov": lambda: forde.method("forde-identity", prior="empcov"),
    "projected features": lambda: forde.method("feature-rde", shared_head=True),
    "svgd of weights": lambda: forde.Method(space=spaces.Weights(), kernel=ONE_MEDIAN, rule=rules.SVGD()),
    "svgd of outputs": lambda: forde.Method(space=spaces.Outputs(), kernel=ONE_MEDIAN, rule=rules.SVGD()),
    "svgd of gradients": lambda: forde.Method(space=spaces.InputGradients(), kernel=ONE_MEDIAN, rule=rules.SVGD()),
    "sge": lambda: forde.Method(space=spaces.Outputs(), kernel=ONE_MEDIAN, rule=rules.SGE()),
    "median of each sample": lambda: forde.Method(
        space=spaces.InputGradients(), kernel=kernels.RBF(bandwidth="per_sample"), repulsion_weight=3.0
    ),
    "one median": lambda: forde.Method(
        space=spaces.InputGradients(normalise=False), kernel=ONE_MEDIAN, repulsion_weight=3.0
    ),
    "gradients of the loss": lambda: forde.method("lit", output="ce", reduction="sum", eps=1e-6, strength=0.01),
    "lit with sums": lambda: forde.method("lit", reduction="sum"),
    "a fraction": lambda: forde.method("forde-identity", repulsion_fraction=0.6, repulsion_weight=5.0),
    "few samples": lambda: forde.method("forde-identity", repulsion_fraction=0.2, repulsion_weight=5.0),
}


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced operations run one by one: the same program, and no C++ compiler at work."""
    monkeypatch.setattr("forde.compile.step.can_fuse", lambda device: False)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))


def data(n: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 5, dtype=torch.float64, generator=generator), torch.randint(3, (n,), generator=generator)


def double(make: Callable[[], nn.Module] = network, **options: Any) -> forde.Ensemble:
    return forde.Ensemble(make, 3, seed=1, **options).double().train()


def fitted(method: forde.Method, ensemble: forde.Ensemble, x: Tensor) -> forde.Method:
    from forde.priors import TrainingData

    return method.prepare(ensemble.members[0], TrainingData(lambda: iter([x]), len(x)))


def gradients(
    method: forde.Method, x: Tensor, y: Tensor, *, engine: Any = "eager", accumulate: int = 1, steps: int = 1,
    make: Callable[[], nn.Module] = network, memory: Any = "speed", **options: Any,
) -> tuple[dict[str, Tensor], Any, forde.Ensemble]:  # fmt: skip
    ensemble = double(make, **options)
    method = fitted(method, ensemble, x)
    step = make_engine(engine, ensemble, method, memory=memory, example=(x, y), accumulate=accumulate, fuse=False)
    for number in range(steps):
        report = step.update(x, y, data_size=40, step=number)
    step.settle()
    leaves = {}
    for unit, group in enumerate(step.runner.leaves):
        for name, leaf in group.items():
            if leaf.grad is None:
                continue
            rows = leaf.grad if step.runner.sample_axis == 1 else [leaf.grad]
            leaves.update({f"{unit + row}.{name}": gradient.detach().clone() for row, gradient in enumerate(rows)})
    step.close()
    return leaves, report, ensemble


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys() and len(found) == 18
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("engine", ["eager", "vectorized", "compiled"])
@pytest.mark.parametrize("name", METHODS)
def test_four_parts_are_the_whole_batch(name: str, engine: str) -> None:
    x, y = data()
    expected, whole, _ = gradients(METHODS[name](), x, y)
    found, report, _ = gradients(METHODS[name](), x, y, engine=engine, accumulate=4)
    assert_same(found, expected)
    torch.testing.assert_close(report.losses, whole.losses, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(report.repulsion, whole.repulsion, rtol=1e-9, atol=1e-9)
    assert (report.z is None) == (whole.z is None)


LOSSES: dict[str, tuple[Likelihood, Tensor]] = {
    "class weights": (Classification(class_weights=[0.5, 2.0, 1.0]), torch.tensor([0, 2, 1, 1, 2, 0, 0, 1])),
    "ignored labels": (Classification(ignore_index=2), torch.tensor([2, 2, 0, 1, 2, 0, 1, 1])),
    "both, smoothed": (
        Classification(class_weights=[0.5, 2.0, 1.0], ignore_index=-100, label_smoothing=0.1),
        torch.tensor([0, 2, 1, 1, -100, 0, -100, -100]),
    ),
    "no label": (Classification(ignore_index=2), torch.full((8,), 2)),
    "soft labels, class weights": (
        Classification(class_weights=[0.5, 2.0, 1.0]), torch.eye(3).double()[[0, 2, 1, 1, 2, 0, 0, 1]] * 0.9 + 0.1 / 3
    ),
    "several labels": (MultiLabel(pos_weight=[1.0, 2.0, 3.0]), torch.arange(24).view(8, 3) % 2),
    "numbers": (Regression(noise=0.5), torch.linspace(-1, 1, 24, dtype=torch.float64).view(8, 3)),
}  # fmt: skip


@pytest.mark.parametrize("engine", ["eager", "vectorized"])
@pytest.mark.parametrize("name", ["forde-identity", "deep-ensemble", "projected features"])
@pytest.mark.parametrize("loss", LOSSES)
def test_four_parts_of_any_loss(loss: str, name: str, engine: str) -> None:
    """Also of one that is divided by what its labels count together, which the parts hold unevenly, or not at all."""
    likelihood, y = LOSSES[loss]
    x, method = data()[0], METHODS[name]
    expected, whole, _ = gradients(method(), x, y, likelihood=likelihood)
    found, report, _ = gradients(method(), x, y, likelihood=likelihood, engine=engine, accumulate=4)
    assert_same(found, expected)
    torch.testing.assert_close(report.losses, whole.losses, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("engine", ["eager", "vectorized"])
def test_four_parts_of_pixels(engine: str) -> None:
    """A part without any label, and one with few."""
    x = torch.randn(8, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(72).view(8, 3, 3) % 3
    y[:2], y[2:4, 1:] = 255, 255
    likelihood = DenseClassification(class_weights=[0.5, 2.0, 1.0], ignore_index=255)

    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 1))

    method = forde.method("forde-identity", repulsion_weight=5.0)
    expected, _, _ = gradients(method, x, y, make=make, likelihood=likelihood)
    found, _, _ = gradients(method, x, y, make=make, likelihood=likelihood, engine=engine, accumulate=4)
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["forde-identity", "one median", "function-rde"])
def test_the_repulsion_of_a_part_is_another(name: str) -> None:
    """Else the test above would not see whether the exchange has the whole batch: a part by itself is not enough."""
    x, y = data()
    method = METHODS[name]()
    expected, _, _ = gradients(method, x, y)
    parts = [gradients(method, x[own], y[own])[0] for own in (slice(0, 4), slice(4, 8))]
    mean = {key: (parts[0][key] + parts[1][key]) / 2 for key in expected}
    assert any(not torch.allclose(mean[key], expected[key], rtol=1e-6) for key in expected)


@pytest.mark.parametrize("engine", ["eager", "vectorized", "compiled"])
@pytest.mark.parametrize(("n", "parts"), [(10, 4), (3, 4), (1, 2)])
def test_uneven_parts(n: int, parts: int, engine: str) -> None:
    x, y = data(n)
    method = forde.method("forde-identity", repulsion_weight=5.0)
    expected, _, _ = gradients(method, x, y)
    found, _, _ = gradients(method, x, y, engine=engine, accumulate=parts)
    assert_same(found, expected)


@pytest.mark.parametrize("memory", ["balanced", "low"])
def test_less_memory_for_each_part(memory: str) -> None:
    x, y = data()
    method = forde.method("forde-identity", repulsion_weight=5.0)
    found, _, _ = gradients(method, x, y, accumulate=2, memory=memory)
    assert_same(found, gradients(method, x, y)[0])


def train(ensemble: forde.Ensemble, given: Any = None, **options: Any) -> forde.History:
    options = {
        "epochs": 2, "batch_size": 8, "lr": 0.05, "verbose": False, "diagnostics_every": 0, "engine": "eager",
        **options,
    }  # fmt: skip
    return forde.fit(ensemble, options.pop("method", "forde-identity"), data(20) if given is None else given, **options)


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data(20)), batch_size=8)


@pytest.mark.parametrize("given", [None, loader], ids=["tensors", "loader"])
@pytest.mark.parametrize(
    "options",
    [
        {}, {"engine": "vectorized"}, {"drop_last": False}, {"clip_norm": 0.1}, {"non_finite": "skip"},
        {"method": "deep-ensemble", "independent_data": True},
        {"method": forde.method("forde-identity", repulsion_every=2)},
        {"optimizer": lambda p: torch.optim.Adam(p, lr=1e-2)},
    ],
    ids=["plain", "vectorized", "last batch", "clipped", "skip", "independent", "every other", "Adam"],
)  # fmt: skip
def test_trainings_are_the_same(options: dict[str, Any], given: Any) -> None:
    lrs = {"lr": None} if "optimizer" in options else {}
    whole, parts = double(), double()
    one = train(whole, given and given(), **options, **lrs)
    two = train(parts, given and given(), accumulate=4, **options, **lrs)
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-9)
    for name, tensor in whole.member_tensors().items():
        torch.testing.assert_close(parts.member_tensors()[name], tensor, rtol=1e-9, atol=1e-9)


def test_swag_in_parts() -> None:
    found = []
    for parts in (1, 2):
        ensemble = double()
        train(ensemble, method=forde.method("swag", start=0.0), epochs=4, accumulate=parts)
        found.append(ensemble.member_tensors())
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-7, atol=1e-7)


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.parametrize("engine", ["eager", "vectorized"])
def test_batch_norm_sees_each_part_once(engine: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its statistics move as in a loop over the parts by hand, though most passes are made twice; a line says so."""
    x, y = data()
    method = forde.method("forde-identity", repulsion_weight=5.0)
    _, _, ensemble = gradients(method, x, y, make=with_norm, accumulate=4, engine=engine)
    by_hand = double(with_norm)
    for member, other in zip(by_hand.members, ensemble.members, strict=True):
        for part in x.split(2):
            member(part)
        for name, buffer in member.named_buffers():
            torch.testing.assert_close(dict(other.named_buffers())[name], buffer)
    assert "accumulate=4: BatchNorm ('1') normalises each part of a batch by itself" in caplog.text


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3))


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_dropout_is_the_same_when_a_pass_is_made_again(engine: str) -> None:
    """With a repulsion of next to nothing, gradients and random numbers are those of members that do not repel."""
    x, y = data()
    found, after = [], []
    for method in (forde.method("deep-ensemble"), forde.method("forde-identity", repulsion_weight=1e-300)):
        torch.manual_seed(3)
        found.append(gradients(method, x, y, make=with_dropout, accumulate=4, engine=engine)[0])
        after.append(torch.rand(1))
    assert torch.equal(*after)
    for key, gradient in found[0].items():
        torch.testing.assert_close(found[1][key], gradient, rtol=1e-9, atol=1e-12)


def test_a_resumed_run_may_not_change_it(tmp_path: Any) -> None:
    train(double(), run=tmp_path / "run", accumulate=2)
    with pytest.raises(forde.FordeError, match=r"training.accumulate = 2, but null"):
        train(double(), run=tmp_path / "run", resume=True)


class Coupled(Space):
    """One number for the whole batch."""

    def represent(self, view: View) -> Tensor:
        return view.output.mean(0, keepdim=True)


class Counting(nn.Module):
    """Another function at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(5, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) * self.calls


class Spread(Prior):
    """Of outputs over a batch."""

    def energy(self, view: View) -> Tensor:
        return view.output.var(0).sum()


def summed(output: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, y, reduction="sum")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no parts": ({"accumulate": 0}, "accumulate is 0, but a whole number of at least 1"),
    "half a part": ({"accumulate": 2.5}, "accumulate is 2.5"),
    "parts of several sizes": ({"accumulate": 3}, "8 samples have no 3 parts of one size; choose a batch_size that 3"),
    "more parts than samples": ({"accumulate": 16}, "8 samples have no 16 parts"),
    "class weights, compiled": (
        {"likelihood": Classification(class_weights=[1.0, 2.0, 3.0]), "engine": "compiled"},
        "its parts count differently in every step, which engine='compiled' cannot run",
    ),
    "class weights, and loss gradients of a fraction": (
        {
            "likelihood": Classification(ignore_index=2),
            "method": forde.method("feature-rde", shared_head=False, repulsion_fraction=0.5),
        },
        "leave accumulate or repulsion_fraction out",
    ),
    "a sum": ({"likelihood": Custom(summed)}, "the loss of Custom is not a mean over the samples"),
    "a prior over the batch": (
        {"method": forde.method("deep-ensemble", prior=Spread())}, "the prior Spread is not a mean over the samples",
    ),
    "a space over the batch": (
        {"method": forde.Method(space=Coupled())}, "its z .* does not hold 4 samples there, so accumulate cannot",
    ),
    "another loss each time": ({"make": Counting}, "gives something else each time.*leave accumulate out"),
    "a group and a shorthand": (
        {"optimization": forde.Optimization(accumulate=2)}, r"as Optimization\(accumulate=2\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_split_is_said_in_a_sentence(case: str) -> None:
    options, message = BAD[case]
    options = {"accumulate": 2, **options}
    likelihood = {"likelihood": options.pop("likelihood")} if "likelihood" in options else {}
    ensemble = double(options.pop("make", network), **likelihood)
    with pytest.raises(forde.FordeError, match=message):
        train(ensemble, **options)


class Kept:
    """A tensor that a graph keeps, counted while it does."""

    alive = peak = 0

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()  # with its graph it would keep itself alive
        Kept.alive += tensor.numel()
        Kept.peak = max(Kept.peak, Kept.alive)

    def __del__(self) -> None:
        Kept.alive -= self.tensor.numel()


def peak(name: str, parts: int) -> int:
    """Most numbers that graphs keep at once in a step."""
    x, y = data(512)
    Kept.alive = Kept.peak = 0
    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        gradients(forde.method(name), x, y, accumulate=parts)
    return Kept.peak


@pytest.mark.parametrize("name", ["deep-ensemble", "forde-identity", "function-rde"])
def test_no_more_than_the_graph_of_a_part_is_alive(name: str) -> None:
    """Nearly: the exchange looks at the representations of the whole batch."""
    assert peak(name, 8) < 0.4 * peak(name, 1)


def test_one_line_says_nothing_without_batch_norm(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "forde"):
        train(double(), accumulate=4)
    assert not caplog.records
