"""What `fit` hands to the step, and what it writes down: seen from outside, by networks and spaces that take notes."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import forde
from forde.data.description import Description, Images
from forde.kernels import RBF
from forde.kernels.base import Similarity
from forde.models import MLP
from forde.spaces import InputGradients
from forde.training.image_feed import Augmentation

QUIET: dict[str, Any] = {"engine": "eager", "verbose": False, "diagnostics_every": 0}
N, SIZE = 20, 7
"""Samples and batch size: two whole batches and a rest."""


class Noting(nn.Module):
    """A linear classifier that notes which rows it was trained on; the first feature is a row's number."""

    def __init__(self, notes: list[list[int]], inputs: int = 4) -> None:
        super().__init__()
        self.notes, self.linear = notes, nn.Linear(inputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.notes.append(x.flatten(1)[:, 0].round().int().tolist())
        return self.linear(x.flatten(1))


def rows(n: int = N) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    x[:, 0] = torch.arange(n)
    return x, torch.arange(n) % 3


def images(n: int = N) -> Images:
    """The first pixel of an image is its number."""
    pixels = torch.randint(0, 256, (n, 2, 2, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pixels[:, 0, 0, 0] = torch.arange(n)
    # With a standard deviation of 1/255 a normalised pixel is the byte.
    description = Description("numbers", 3, (2, 2, 1), (0.0,), (1 / 255,), {"train": n}, "made here")
    return Images(pixels.numpy(), (torch.arange(n) % 3).numpy(), description, "made here")


def loader(batch_size: int, n: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*rows(n)), batch_size=batch_size, shuffle=True, **options)


SOURCES: dict[str, Callable[..., Any]] = {
    "tensors": lambda batch_size, n=N: rows(n),
    "dataset": lambda batch_size, n=N: TensorDataset(*rows(n)),
    "loader": lambda batch_size, n=N: loader(batch_size, n),
    "loader with a generator": lambda batch_size, n=N: loader(batch_size, n, generator=torch.Generator()),
    "images": lambda batch_size, n=N: images(n),
}
"""Ways to give n rows, by default N."""
every_source = pytest.mark.parametrize("source", SOURCES)


def batches(source: Any, *, epochs: int = 1, batch_size: int = SIZE, **options: Any) -> list[list[int]]:
    """Which rows each step of a training run saw."""
    notes: list[list[int]] = []
    single = forde.Ensemble(lambda: Noting(notes), 1)
    forde.fit(single, "deep-ensemble", source, epochs=epochs, batch_size=batch_size, lr=1e-3, **{**QUIET, **options})
    return notes


class TestOrder:
    @every_source
    def test_each_epoch_sees_every_row_once_in_an_order_of_its_own(self, source: str) -> None:
        seen = batches(SOURCES[source](SIZE), epochs=4, drop_last=False)
        assert [len(batch) for batch in seen] == 4 * [7, 7, 6]
        epochs = [tuple(chain(*seen[start : start + 3])) for start in range(0, 12, 3)]
        assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
        assert len(set(epochs)) == 4

    @every_source
    def test_the_seed_alone_decides_the_order(self, source: str) -> None:
        def order(seed: int, elsewhere: int) -> list[list[int]]:
            torch.manual_seed(elsewhere)
            return batches(SOURCES[source](SIZE), seed=seed, epochs=2)

        assert order(3, elsewhere=0) == order(3, elsewhere=1) != order(4, elsewhere=0)

    def test_a_loader_that_was_used_before_gives_the_order_of_a_new_one(self) -> None:
        make = SOURCES["loader with a generator"]
        used = make(7)
        for _ in range(3):
            list(used)
        assert batches(used, epochs=2) == batches(make(7), epochs=2)

    @pytest.mark.parametrize("source", ["tensors", "dataset", "images"])
    @pytest.mark.parametrize(
        ("batch_size", "drop_last", "sizes"),
        [(7, True, [7, 7]), (7, False, [7, 7, 6]), (30, True, [20]), (30, False, [20]), (10, True, [10, 10])],
    )
    def test_the_last_batch_is_left_out_where_that_is_asked_for(
        self, source: str, batch_size: int, drop_last: bool, sizes: list[int]
    ) -> None:
        seen = batches(SOURCES[source](batch_size), batch_size=batch_size, drop_last=drop_last)
        assert [len(batch) for batch in seen] == sizes

    @every_source
    def test_what_is_left_out_changes_from_epoch_to_epoch(self, source: str) -> None:
        seen = batches(SOURCES[source](SIZE), epochs=6, drop_last=True)
        assert set(chain(*seen)) == set(range(20))


class TestRepulsion:
    def test_every_so_many_steps_are_counted_over_all_epochs(self) -> None:
        """Two epochs of three steps, and repulsion in every fifth: in steps 0 and 5, not 0 and 3."""
        steps: list[int] = []
        repelling: list[int] = []

        class Counting(Noting):
            def forward(self, x: Tensor) -> Tensor:
                steps.append(len(steps) // 2)  # two members
                return super().forward(x)

        def scalar(output: Tensor, y: Tensor) -> Tensor:
            repelling.append(steps[-1])
            return output[:, 0] * output[:, 1]

        method = forde.Method(space=InputGradients(output=scalar), repulsion_every=5)
        pair = forde.Ensemble(lambda: Counting([]), 2)
        forde.fit(pair, method, rows(18), epochs=2, batch_size=6, lr=1e-3, **QUIET)
        assert len(steps) == 12 and repelling == [0, 0, 5, 5]

    def test_weight_is_that_of_the_epoch(self) -> None:
        asked: set[int] = set()

        def weight(epoch: int) -> float:
            asked.add(epoch)
            return float(epoch == 1)

        trio = forde.Ensemble(lambda: MLP(4, [8], 3), 3)
        method = forde.method("forde-identity", repulsion_weight=weight)
        history = forde.fit(trio, method, rows(), epochs=3, lr=1e-3, **QUIET)
        assert [repulsion != 0 for repulsion in history["repulsion"]] == [False, True, False]
        assert asked == {0, 1, 2}

    @every_source
    def test_weight_rde_is_divided_by_the_number_of_samples(self, source: str) -> None:
        """R_i = (1/N) ln Σ_j exp(−‖θ_i − θ_j‖²/h), h = med/ln M, of the weights before the only step."""
        members = 4
        ensemble = forde.Ensemble(lambda: Noting([]), members)
        theta = torch.stack([torch.cat([p.detach().flatten() for p in m.parameters()]) for m in ensemble.members])
        squared = (theta[:, None] - theta[None]).double().square().sum(-1)
        h = float(squared.flatten().quantile(0.5)) / math.log(members)
        expected = (-squared / h).exp().sum(1).log().mean() / 20
        history = forde.fit(ensemble, "weight-rde", SOURCES[source](12), epochs=1, batch_size=12, lr=0.0, **QUIET)
        assert history["repulsion"][0] == pytest.approx(float(expected), rel=1e-5)

    def test_recorded_repulsion_and_bandwidth_are_means_over_steps(self) -> None:
        """Two linear members, whose input gradients are rows of their weights: with M = 2 the median heuristic gives
        h = d/(2 ln 2) and k = ¼ for every sample, so R_i = (1/B) ln(1 + ¼).
        """
        pair = forde.Ensemble(lambda: nn.Linear(4, 3), 2)
        x, y = rows()
        a, b = (F.normalize(member.weight.detach().double(), dim=-1)[y] for member in pair.members)
        h = (a - b).square().sum(-1) / (2 * math.log(2))
        history = forde.fit(pair, "forde-identity", (x, y), epochs=1, batch_size=10, lr=0.0, **QUIET)
        assert history["repulsion"] == [pytest.approx(math.log(1.25) / 10, rel=1e-5)]
        assert history["bandwidth"] == [pytest.approx(float(h.mean()), rel=1e-5)]

    def test_loss_is_the_mean_over_members_and_samples(self) -> None:
        trio = forde.Ensemble(lambda: MLP(4, [8], 3), 3)
        x, y = rows()
        with torch.no_grad():
            expected = torch.stack([F.cross_entropy(member(x), y) for member in trio.members]).mean()
        history = forde.fit(trio, "forde-identity", (x, y), epochs=1, batch_size=10, lr=0.0, **QUIET)
        assert history["loss"] == [pytest.approx(float(expected), rel=1e-5)]


@every_source
def test_a_metric_is_fitted_to_all_rows(source: str) -> None:
    """Trace of XᵀX/(N−1) over more rows than are looked at in one piece."""
    n = 1500
    data = SOURCES[source](500, n=n)
    x = torch.from_numpy(data.images).double() if source == "images" else rows(n)[0].double()
    trio = forde.Ensemble(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), 2)
    history = forde.fit(trio, "forde-pca", data, epochs=1, batch_size=500, lr=1e-9, **QUIET)
    expected = float(x.square().sum() / (n - 1))
    assert history.method.kernel.metric.pca.total_variance == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("augmentation", "left", "right"),
    [(None, {255}, {0}), (Augmentation(pad=0), {0, 255}, {0, 255}), (Augmentation(pad=1, flip=False), {0, 255}, {0})],
)
def test_images_are_augmented_where_that_is_asked_for(
    augmentation: Augmentation | None, left: set[int], right: set[int]
) -> None:
    """White on the left, black on the right: flips bring white to the right edge, crops bring black to the left one."""
    seen: dict[str, set[int]] = {"left": set(), "right": set()}

    class Looking(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen["left"] |= set(x[..., 0].flatten().round().int().tolist())
                seen["right"] |= set(x[..., 3].flatten().round().int().tolist())
            return super().forward(x)

    pixels = np.zeros((60, 4, 4, 1), dtype=np.uint8)
    pixels[:, :, :2] = 255
    description = Description("halves", 2, (4, 4, 1), (0.0,), (1 / 255,), {"train": 60}, "made here")
    single = forde.Ensemble(lambda: Looking(nn.Flatten(), nn.Linear(16, 2)), 1)
    data = Images(pixels, np.arange(60) % 2, description, "made here")
    forde.fit(single, "deep-ensemble", data, epochs=1, batch_size=20, lr=1e-6, augmentation=augmentation, **QUIET)
    assert seen == {"left": left, "right": right}


class TestDiagnostics:
    def test_values_by_hand(self) -> None:
        """Of linear members, whose input gradients are rows of their weights, on the last batch's first 128 rows."""
        x, y = rows(200)
        y = (torch.arange(200) % 7 == 0).long() + (torch.arange(200) % 11 == 0).long()
        x[:, 0] = torch.arange(200)
        notes: list[list[int]] = []
        trio = forde.Ensemble(lambda: Noting(notes), 3)
        with torch.no_grad():
            for member in trio.members:
                member.linear.weight[:, 0] /= 100  # the row's number would outweigh the rest
        history = forde.fit(
            trio, "deep-ensemble", (x, y), epochs=1, batch_size=200, lr=0.0, **{**QUIET, "diagnostics_every": 1}
        )
        chosen = notes[-1][:128]
        with torch.no_grad():
            votes = [member.linear(x[chosen]).argmax(-1) for member in trio.members]
            gradients = [member.linear.weight[y[chosen]] for member in trio.members]
            pairs = [(0, 1), (0, 2), (1, 2)]
            cosine = torch.stack([F.cosine_similarity(gradients[i], gradients[j], dim=-1) for i, j in pairs]).mean()
            different = torch.stack([(votes[i] != votes[j]).double() for i, j in pairs]).mean()
        assert 0 < float(different) < 1
        assert history["gradient_cosine"][0] == pytest.approx(float(cosine), abs=1e-5)
        assert history["disagreement"][0] == pytest.approx(float(different), abs=1e-9)

    def test_every_step_is_in_training_mode(self) -> None:
        """Measuring is in evaluation mode, and must not last."""
        notes: list[list[int]] = []
        pair = forde.Ensemble(lambda: Noting(notes), 2)
        forde.fit(pair, "deep-ensemble", rows(), epochs=3, batch_size=10, lr=1e-3, **{**QUIET, "diagnostics_every": 1})
        assert len(notes) == 3 * 2 * 2, "epochs, steps and members; the network notes what it does in training mode"


@pytest.mark.parametrize("engine", ["eager", "vectorized"])
def test_gradients_are_not_left_behind(engine: Any) -> None:
    """The user's own backward pass would add to them."""
    pair = forde.Ensemble(lambda: MLP(4, [8], 3), 2)
    forde.fit(pair, "forde-identity", rows(), epochs=1, lr=1e-3, **{**QUIET, "engine": engine})
    assert all(parameter.grad is None for parameter in pair.parameters())


def test_no_member_shares_its_start_with_another_of_any_seed() -> None:
    starts = [
        tuple(member.weight.detach().flatten().tolist())
        for seed in range(4)
        for member in forde.Ensemble(lambda: nn.Linear(2, 2), 4, seed=seed).members
    ]
    assert len(set(starts)) == 16


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.tanh(self.first(x))))


def equal_rows() -> tuple[Tensor, Tensor]:
    """Whatever their order, they are the same data."""
    return torch.ones(16, 4), torch.ones(16)


class TestDropout:
    @pytest.mark.parametrize("engine", ["eager", "vectorized"])
    def test_the_seed_alone_decides_what_is_dropped(self, engine: str) -> None:
        def trained(seed: int, elsewhere: int) -> Tensor:
            torch.manual_seed(elsewhere)
            pair = forde.Ensemble(Masked, 2, likelihood="regression")
            options = {**QUIET, "engine": engine}
            forde.fit(pair, "forde-identity", equal_rows(), epochs=2, batch_size=8, lr=0.01, seed=seed, **options)
            return torch.cat([p.detach().flatten() for p in pair.parameters()])

        first = trained(0, elsewhere=1)
        assert torch.equal(first, trained(0, elsewhere=2))
        assert not torch.allclose(first, trained(1, elsewhere=1), atol=1e-4)

    @pytest.mark.parametrize("engine", ["eager", "vectorized"])
    def test_members_drop_different_units(self, engine: str) -> None:
        """Equal weights and equal data: what differs between members is what is dropped."""

        def after_a_step(rate: float) -> list[Tensor]:
            trio = forde.Ensemble(Masked, 3, likelihood="regression")
            for member in trio.members:
                member.load_state_dict(trio.members[0].state_dict())
                member.drop.p = rate
            options = {**QUIET, "engine": engine}
            forde.fit(trio, "deep-ensemble", equal_rows(), epochs=1, batch_size=16, lr=0.1, **options)
            return [member.first.weight.detach() for member in trio.members]

        a, b, c = after_a_step(0.5)
        assert not torch.allclose(a, b) and not torch.allclose(b, c) and not torch.allclose(a, c)
        a, b, c = after_a_step(0.0)
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a, c)


class _Tracked(torch.autograd.Function):
    """The identity, whose node in the graph holds a token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: object) -> Tensor:
        ctx.token = token
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        return cotangents[0], None


class _Token:
    """Something that a weak reference can point to."""


@pytest.mark.parametrize(("memory", "expected"), [("speed", 4), ("balanced", 2), ("low", 0)])
def test_graphs_that_wait_while_members_are_compared(memory: Any, expected: int) -> None:
    tokens: list[weakref.ref[_Token]] = []
    waiting: list[int] = []

    class Tracked(MLP):
        def forward(self, x: Tensor) -> Tensor:
            token = _Token()
            tokens.append(weakref.ref(token))
            return super().forward(_Tracked.apply(x, token))

    class Looking(RBF):
        def __call__(self, live: Tensor, frozen: Tensor) -> Similarity:
            waiting.append(sum(token() is not None for token in tokens))
            return super().__call__(live, frozen)

    method = forde.Method(space=InputGradients(), kernel=Looking())
    ensemble = forde.Ensemble(lambda: Tracked(4, [8], 3), 4)
    forde.fit(ensemble, method, rows(), epochs=1, batch_size=20, lr=1e-3, memory=memory, **QUIET)
    assert waiting == [expected]


class TestModes:
    def test_fit_and_load_leave_the_ensemble_ready_to_predict(self, tmp_path: Path) -> None:
        make = lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))  # noqa: E731
        pair = forde.Ensemble(make, 2)
        x, y = rows()
        forde.fit(pair, "forde-identity", (x, y), epochs=1, batch_size=10, lr=1e-3, verbose=False)
        loaded = forde.Ensemble.load(pair.save(tmp_path), make)
        for each in (pair, loaded):
            assert not any(module.training for module in each.modules())
        # The ensemble as a plain module: dropout and batch statistics would show.
        with torch.no_grad():
            expected = pair(x)
            torch.testing.assert_close(pair(x), expected)
            torch.testing.assert_close(loaded(x[:1]), expected[:, :1])
