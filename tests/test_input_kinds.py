"""How inputs reach the members: floating-point numbers in the members' precision, everything else as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import forde
from forde.models import MLP

OPTIONS = {"epochs": 2, "batch_size": 8, "verbose": False}
N = 16
Y = torch.arange(N) % 3
TYPES = [torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128]


class Noting(nn.Module):
    """Notes the inputs that it is given."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, dtype=dtype))
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        values = x.abs() if x.is_complex() else x
        scale = self.scale.abs() if self.scale.is_complex() else self.scale
        return values.to(scale.dtype).mean(1, keepdim=True) * scale


def numbers(dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(N, 4, dtype=torch.complex128 if dtype.is_complex else torch.float64, generator=generator).to(
            dtype
        )
    return torch.randint(0, 2 if dtype == torch.bool else 100, (N, 4), generator=generator).to(dtype)


@pytest.mark.parametrize("own", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("given", TYPES)
def test_precision_is_the_members_and_the_kind_is_the_inputs(own: torch.dtype, given: torch.dtype) -> None:
    x = numbers(given)
    ensemble = forde.Ensemble(lambda: Noting(own), 2)
    forde.fit(ensemble, "deep-ensemble", (x, Y), engine="eager", diagnostics_every=0, **OPTIONS)
    fitted = torch.cat(ensemble.members[0].seen[:2])
    ensemble.members[0].seen.clear()
    ensemble.predict(x)
    double = own in (torch.float64, torch.complex128)
    real, imaginary = (torch.float64, torch.complex128) if double else (torch.float32, torch.complex64)
    expected = x.to(imaginary if given.is_complex else real)
    (predicted,) = ensemble.members[0].seen
    assert predicted.dtype == fitted.dtype == expected.dtype
    assert torch.equal(predicted, expected)
    by_size = [rows[rows.abs().sum(1).argsort()] for rows in (fitted, expected)]  # fit shuffles
    assert torch.equal(*by_size)


@pytest.mark.parametrize("given", [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool])
@pytest.mark.parametrize("form", ["tensors", "dataset", "loader"])
def test_whole_numbers_stay_whole_numbers(given: torch.dtype, form: str) -> None:
    x = numbers(given)
    ensemble = forde.Ensemble(Noting, 2)
    pair = TensorDataset(x, Y)
    data = {"tensors": (x, Y), "dataset": pair, "loader": DataLoader(pair, batch_size=8)}[form]
    forde.fit(ensemble, "function-rde", data, engine="eager", **OPTIONS)
    ensemble.predict(x.numpy())
    ensemble.predict(pair)
    assert {each.dtype for each in ensemble.members[0].seen} == {given}
    assert torch.equal(ensemble.members[0].seen[-1], x)


def test_tokens_without_an_embedding_layer() -> None:
    """A table of rows that is looked up by index is a network of tokens too."""

    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Parameter(torch.randn(100, 3))

        def forward(self, tokens: Tensor) -> Tensor:
            return self.rows[tokens].mean(1)

    x = numbers(torch.int64)
    ensemble = forde.Ensemble(Lookup, 2)
    history = forde.fit(ensemble, "function-rde", (x, Y), **{**OPTIONS, "epochs": 5})
    assert history["loss"][-1] < history["loss"][0]
    expected = torch.stack([member.rows[x].mean(1) for member in ensemble.members]).softmax(-1).mean(0)
    torch.testing.assert_close(ensemble.predict(x).probs, expected.detach())


def test_a_complex_network_learns_from_the_imaginary_part() -> None:
    """The classes differ in the sign of the imaginary part alone, which no real copy of the inputs knows."""

    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 3, dtype=torch.complex64) / 2)

        def forward(self, z: Tensor) -> Tensor:
            return (z @ self.weight.T).imag

    x = numbers(torch.complex64)[:, :3].repeat(4, 1)
    y = (x[:, 0].imag > 0).long()
    ensemble = forde.Ensemble(Complex, 2)
    forde.fit(ensemble, "deep-ensemble", (x, y), epochs=60, batch_size=16, lr=0.3, verbose=False)
    assert float((ensemble.predict(x.numpy()).labels == y).float().mean()) == 1
    broken = x.clone()
    broken[3, 0] = complex(0, float("nan"))
    with pytest.raises(forde.FordeError, match="NaN or infinite"):
        forde.fit(ensemble, "deep-ensemble", (broken, y), **OPTIONS)


def test_members_of_mixed_types_take_the_first_floating_one() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.phase = nn.Parameter(torch.ones(4, dtype=torch.complex64))
            self.body, self.head = nn.Linear(4, 8).double(), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x * self.phase.abs()).float())

    x = numbers(torch.float32)
    ensemble = forde.Ensemble(Mixed, 2)
    assert ensemble.dtype == torch.float64
    forde.fit(ensemble, "forde-pca", (x, Y), **OPTIONS)
    assert torch.equal(ensemble.predict(x).probs, ensemble.predict(x.double()).probs)


def test_images_reach_a_complex_network_as_real_numbers() -> None:
    images = np.random.default_rng(0).integers(0, 256, (N, 4, 4, 1), dtype=np.uint8)
    data = forde.data.from_arrays(images, Y.numpy())

    class Spectrum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filter = nn.Parameter(torch.randn(12, 3, dtype=torch.complex64))
            self.seen: list[torch.dtype] = []

        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(x.dtype)
            return (torch.fft.rfft2(x).flatten(1) @ self.filter).abs()

    ensemble = forde.Ensemble(Spectrum, 2)
    forde.fit(ensemble, "deep-ensemble", data, engine="eager", **OPTIONS)
    ensemble.predict(data)
    assert set(ensemble.members[0].seen) == {torch.float32}


class Reversed(Dataset):  # type: ignore[type-arg]
    """Items in an order that shows if somebody shuffles; x alone or with a target."""

    def __init__(self, x: Tensor, *, pairs: bool) -> None:
        self.x, self.pairs = x, pairs

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> object:
        item = self.x[len(self.x) - 1 - index]
        return (item, 0) if self.pairs else item


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("batch_size", [5, 512])
def test_a_data_set_is_predicted_in_order(pairs: bool, batch_size: int) -> None:
    x = numbers(torch.float32)
    ensemble = forde.Ensemble(lambda: MLP(4, [8], 3), 2)
    found = ensemble.predict(Reversed(x, pairs=pairs), batch_size=batch_size)
    torch.testing.assert_close(found.probs, ensemble.predict(x.flip(0)).probs)
    with pytest.raises(forde.FordeError, match="nothing to predict"):
        ensemble.predict(Reversed(x[:0], pairs=pairs))


def test_a_table_is_predicted_as_it_is_trained() -> None:
    x = numbers(torch.float32)
    table = forde.data.from_arrays(x.numpy(), Y.numpy())
    ensemble = forde.Ensemble(lambda: MLP(4, [8], 3), 2)
    forde.fit(ensemble, "lit", table, **OPTIONS)
    assert torch.equal(ensemble.predict(table).probs, ensemble.predict(x).probs)
