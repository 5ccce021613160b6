"""A forward pass that changes its input in place is the network's own affair: nobody else sees the change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forde
from forde.errors import FordeError
from forde.evaluation import evaluate_robustness, gradient_cosine_distance

METHODS = ["deep-ensemble", "function-rde", "forde-pca"]


class Shifting(nn.Module):
    """Writes to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x -= 1
        return self.last(torch.tanh(self.first(x)))


class Careful(Shifting):
    """The same function, written out of place."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x - 1)))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(32, 4, dtype=torch.float64, generator=generator), torch.arange(32) % 3


def ensemble(network: type[nn.Module], members: int = 3) -> forde.Ensemble:
    return forde.Ensemble(network, members, seed=0).double()


@pytest.mark.parametrize("memory", ["speed", "low"])
@pytest.mark.parametrize("engine", ["eager", "vectorized", "compiled", "auto"])
@pytest.mark.parametrize("method", [*METHODS, "forde on half of the batch"])
def test_training(method: str, engine: str, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forde.compile.step.can_fuse", lambda device: False)
    if engine == "vectorized" and memory == "low":
        pytest.skip("stacked members have no graphs to save")
    fraction: dict[str, Any] = {"repulsion_fraction": 0.5} if "half" in method else {}
    chosen = forde.method("forde-pca" if fraction else method, **fraction)
    x, y = data()
    before = x.clone()
    options: dict[str, Any] = {"epochs": 2, "batch_size": 16, "verbose": False, "memory": memory}
    found, expected = ensemble(Shifting), ensemble(Careful)
    history = forde.fit(found, chosen, (x, y), engine=engine, **options)
    reference = forde.fit(expected, chosen, (x, y), engine="eager", **options)
    assert torch.equal(x, before)
    assert history["loss"] == pytest.approx(reference["loss"], rel=1e-9)
    assert history["gradient_cosine"] == pytest.approx(reference["gradient_cosine"], rel=1e-9)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], tensor, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_predictions(precision: Any) -> None:
    x, y = data()
    before = x.clone()
    found, expected = ensemble(Shifting), ensemble(Careful)
    if precision == "bf16":
        found, expected, x, before = found.float(), expected.float(), x.float(), before.float()
    prediction = found.predict(x, batch_size=10, precision=precision)
    assert torch.equal(x, before)
    torch.testing.assert_close(prediction.probs, expected.predict(x, batch_size=10, precision=precision).probs)
    torch.testing.assert_close(found(x), expected(x))
    assert gradient_cosine_distance(found, x, y) == pytest.approx(gradient_cosine_distance(expected, x, y))
    assert torch.equal(x, before)


def test_evaluation() -> None:
    class Images(nn.Module):
        def __init__(self, write: bool) -> None:
            super().__init__()
            self.last, self.write = nn.Linear(3 * 32 * 32, 3), write

        def forward(self, x: Tensor) -> Tensor:
            if self.write:
                x -= 1
            else:
                x = x - 1
            return self.last(x.flatten(1))

    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(6) % 3
    results = [
        evaluate_robustness(
            forde.Ensemble(lambda write=write: Images(write), 3, seed=0), (images.float(), labels), verbose=False,
            transform=lambda images: images,
        )
        for write in (True, False)
    ]  # fmt: skip
    assert results[0].clean["nll"].value == pytest.approx(results[1].clean["nll"].value)


def test_a_change_that_comes_later_is_a_sentence() -> None:
    class Sometimes(Careful):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 5:
                x -= 1
            return super().forward(x)

    x, y = data()
    with pytest.raises(FordeError, match=r"changed its input in place.*x = x - 1"):
        forde.fit(
            ensemble(Sometimes), "deep-ensemble", (x[:21], y[:21]), epochs=2, batch_size=16, drop_last=False,
            engine="eager", verbose=False,
        )  # fmt: skip
