"""Inputs that were not prepared as in training are remarked on, once, where a user predicts and nowhere else."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import forde
from forde.data import Inputs, Standardisation
from forde.data.scale import Scale
from forde.evaluation import evaluate_robustness, generated_cells
from forde.evaluation.runs.inputs import predicted
from forde.models import MLP

QUIET: dict[str, Any] = {"epochs": 1, "engine": "eager", "verbose": False, "diagnostics_every": 0}
REMARK = "were they prepared in the same way"


def make() -> nn.Module:
    return MLP(64, [8], 10)


def digits(split: str = "train") -> tuple[Tensor, Tensor]:
    """Pixels `[N, 1, 8, 8]` in 0..1, and labels."""
    data = forde.data.load("digits", split)
    return torch.from_numpy(data.images).permute(0, 3, 1, 2) / 255, torch.from_numpy(data.labels)


def prepared(pixels: Tensor) -> Tensor:
    mean, std = (statistics[0] for statistics in own_statistics())
    return (pixels - mean) / std


def own_statistics() -> tuple[tuple[float, ...], tuple[float, ...]]:
    told = forde.data.load("digits").description
    return tuple(told.mean), tuple(told.std)


def trained(data: Any = None, **options: Any) -> forde.Ensemble:
    ensemble = forde.Ensemble(make, 2, **options)
    pixels, y = digits()
    forde.fit(ensemble, "deep-ensemble", (prepared(pixels), y) if data is None else data, **QUIET)
    return ensemble


@pytest.fixture(scope="module")
def module_ensemble() -> forde.Ensemble:
    return trained()


@pytest.fixture
def ensemble(module_ensemble: forde.Ensemble) -> forde.Ensemble:
    return copy.deepcopy(module_ensemble)


class TestForgotten:
    @pytest.mark.parametrize(
        "given",
        [
            lambda x: x, lambda x: x.double(), lambda x: x.half(), lambda x: x.numpy(), lambda x: 255 * x,
            lambda x: DataLoader(TensorDataset(x, x[:, 0, 0, 0]), 32), TensorDataset,
        ],
        ids=["tensor", "double", "half", "array", "bytes as floats", "loader", "data set"],
    )  # fmt: skip
    def test_is_said_once(
        self, ensemble: forde.Ensemble, given: Callable[[Tensor], Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        pixels, _ = digits("test")
        ensemble.predict(prepared(pixels))
        assert not caplog.text
        for _ in range(2):
            ensemble.predict(given(pixels))
        assert caplog.text.count(REMARK) == 1
        assert "but those of training had 0 and 1;" in caplog.text

    def test_changes_no_numbers(self, ensemble: forde.Ensemble) -> None:
        pixels, _ = digits("test")
        found = ensemble.predict(pixels).probs
        ensemble.input_scale = None
        assert torch.equal(ensemble.predict(pixels).probs, found)

    @pytest.mark.parametrize(("mean", "std"), [(0.5, 0.5), (0.3, 0.38)])
    def test_either_way(self, mean: float, std: float, caplog: pytest.LogCaptureFixture) -> None:
        """Trained on pixels and given normalised ones, as well."""
        pixels, _ = digits("test")
        normalised = (pixels - mean) / std
        for first, other in ((pixels, normalised), (normalised, pixels)):
            scale = Scale.of(first)
            assert scale is not None and scale.remark(first) is None and REMARK in str(scale.remark(other))

    def test_of_rows_with_few_columns(self) -> None:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(200, 4, generator=generator)
        scale = Scale.of(rows)
        assert scale is not None
        assert REMARK in str(scale.remark(50 + 10 * rows))
        for part in (0.01 * rows, rows.sort(0).values[-16:], 5 * rows):  # a gap, an edge, a wider grid
            assert scale.remark(part) is None

    @pytest.mark.parametrize("frozen", [nn.Flatten(), nn.Sequential(nn.Flatten(), nn.Tanh())], ids=["plain", "bounded"])
    @pytest.mark.parametrize("loader", [False, True])
    def test_under_a_backbone(self, frozen: nn.Module, loader: bool, caplog: pytest.LogCaptureFixture) -> None:
        """The inputs are compared, not the features."""
        pixels, y = digits()
        pair = prepared(pixels), y
        own = trained(DataLoader(TensorDataset(*pair), 64) if loader else pair, backbone=frozen)
        own.predict(pair[0])
        assert not caplog.text
        own.predict(pixels)
        assert caplog.text.count(REMARK) == 1

    def test_in_a_new_process(self, ensemble: forde.Ensemble, tmp_path: Path) -> None:
        folder = ensemble.save(tmp_path / "saved")
        pixels, _ = digits("test")
        np.save(tmp_path / "pixels.npy", pixels.numpy())
        np.save(tmp_path / "prepared.npy", prepared(pixels).numpy())
        code = (
            "import sys, numpy, forde; ensemble = forde.Ensemble.load(sys.argv[1])\n"
            "for file in sys.argv[2:]: ensemble.predict(numpy.load(file))"
        )
        said = [
            subprocess.run(
                [sys.executable, "-c", code, str(folder), *(str(tmp_path / f"{name}.npy") for name in names)],
                capture_output=True, text=True, check=True,
            ).stderr.count(REMARK)
            for names in (["prepared"], ["prepared", "pixels", "pixels"])
        ]  # fmt: skip
        assert said == [0, 1]


class TestSilent:
    @pytest.fixture(autouse=True)
    def nothing_is_said(self, caplog: pytest.LogCaptureFixture) -> Any:
        yield
        assert REMARK not in caplog.text

    def test_on_test_data(self, ensemble: forde.Ensemble) -> None:
        pixels, y = digits("test")
        x = prepared(pixels)
        for part in (x, x[:16], *(x[y == k] for k in range(10)), x + 0.3 * torch.randn_like(x)):
            ensemble.predict(part)

    def test_on_few_samples_and_constant_ones(self, ensemble: forde.Ensemble) -> None:
        pixels, _ = digits("test")
        for part in (pixels[:15], torch.zeros(64, 64), torch.full((64, 64), float("nan"))):
            ensemble.predict(part)

    @pytest.mark.parametrize("kind", ["by a transform", "by inputs"])
    def test_in_the_robustness_evaluation(self, kind: str) -> None:
        data, (mean, std) = forde.data.load("digits", "test"), own_statistics()
        known = Inputs(mean=mean, std=std) if kind == "by inputs" else None
        ensemble = trained(inputs=known)
        assert ensemble.input_scale is not None
        transform = None if known else forde.data.normalise(mean, std)
        images, labels = data.images[:32], data.labels[:32]
        cells = generated_cells(images, labels, ["contrast"], severities=[5])
        evaluate_robustness(ensemble, (images, labels), cells, transform=transform, n_bootstrap=2, verbose=False)

    def test_where_runs_are_evaluated_on_other_data(self, ensemble: forde.Ensemble) -> None:
        predicted(ensemble, 100 * torch.randn(64, 64))
        ensemble.predict(iter([100 * torch.randn(64, 64)]))

    def test_in_validation(self) -> None:
        pixels, y = digits()
        forde.fit(
            forde.Ensemble(make, 2), "deep-ensemble", (prepared(pixels), y), validation=(100 * pixels, y), **QUIET
        )

    def test_by_estimators(self) -> None:
        x = np.random.default_rng(0).normal(size=(60, 20)).astype(np.float32)
        model = forde.FordeRegressor(n_estimators=2, random_state=0, epochs=2).fit(x, x[:, 0])
        model.predict(1e3 + 1e3 * x, return_std=True)
        assert model.ensemble_.input_scale is None

    def test_on_what_the_ensemble_prepares(self) -> None:
        """Bytes, images and tables have no scale of their own."""
        data, (mean, std) = forde.data.load("digits"), own_statistics()
        raw, y = torch.from_numpy(data.images), torch.from_numpy(data.labels)
        for ensemble in (trained(data), trained((raw, y), inputs=Inputs(mean=mean, std=std))):
            assert ensemble.input_scale is None
            ensemble.predict(data)
        table = forde.data.load("regression-1d")
        for rows in (table, Standardisation.of(table).apply(table)):
            of_rows = forde.Ensemble(lambda: MLP(2, [8], 2), 2, likelihood="learned-noise-regression")
            forde.fit(of_rows, "deep-ensemble", rows, lr=1e-3, **QUIET)
            assert of_rows.input_scale is None

    def test_on_tokens_and_several_inputs(self) -> None:
        class Named(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.head = nn.Linear(4, 3)

            def forward(self, a: Tensor) -> Tensor:
                return self.head(a)  # type: ignore[no-any-return]

        y = torch.arange(32) % 3
        of_tokens = forde.Ensemble(lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 3)), 2)
        forde.fit(of_tokens, "deep-ensemble", (torch.arange(64).view(32, 2) % 9, y), **QUIET)
        of_names = forde.Ensemble(Named, 2)
        forde.fit(of_names, "deep-ensemble", {"a": torch.randn(32, 4), "labels": y}, **QUIET)
        assert of_tokens.input_scale is None and of_names.input_scale is None


class TestKept:
    @pytest.mark.parametrize("kind", ["tensors", "arrays", "loader", "data set"])
    def test_of_whatever_holds_the_tensors(self, kind: str) -> None:
        pixels, y = digits()
        x = prepared(pixels)
        own = TensorDataset(x, y)
        given = {"tensors": (x, y), "arrays": (x.double().numpy(), y.numpy()), "loader": DataLoader(own, 64)}
        scale = trained(given.get(kind, own)).input_scale
        assert scale is not None
        assert scale.mean == pytest.approx(0, abs=0.1) and scale.std == pytest.approx(1, abs=0.1)

    def test_of_sorted_data_it_is_of_all(self) -> None:
        scale = Scale.of(torch.arange(10_000.0).view(-1, 1))
        assert scale is not None
        assert scale.mean == pytest.approx(5_000, rel=0.01) and scale.std == pytest.approx(10_000 / 12**0.5, rel=0.01)

    def test_of_the_last_training(self, ensemble: forde.Ensemble) -> None:
        forde.fit(ensemble, "deep-ensemble", digits(), **QUIET)
        scale = ensemble.input_scale
        assert scale is not None and scale.std == pytest.approx(float(digits()[0].std()), rel=1e-3)
        forde.fit(ensemble, "deep-ensemble", forde.data.load("digits"), **QUIET)
        assert ensemble.input_scale is None

    def test_comes_back_with_the_ensemble(self, ensemble: forde.Ensemble, tmp_path: Path) -> None:
        loaded = forde.Ensemble.load(ensemble.save(tmp_path))
        assert loaded.input_scale == ensemble.input_scale is not None

    def test_folders_of_before_still_load(self, ensemble: forde.Ensemble, tmp_path: Path) -> None:
        path = ensemble.save(tmp_path) / "config.json"
        config = json.loads(path.read_text())
        del config["input_scale"]
        path.write_text(json.dumps(config))
        loaded, (pixels, _) = forde.Ensemble.load(tmp_path), digits("test")
        assert loaded.input_scale is None
        assert torch.equal(loaded.predict(pixels).probs, ensemble.predict(pixels).probs)

    @pytest.mark.parametrize("extreme", [(1e308, 5e-324), (-1e308, 1e308), (5e-324, 1.7e308)], ids=str)
    def test_extreme_numbers_in_a_file_do_no_harm(
        self, ensemble: forde.Ensemble, extreme: tuple[float, float], tmp_path: Path
    ) -> None:
        ensemble.input_scale = replace(Scale(0, 1), mean=extreme[0], std=extreme[1])
        loaded, (pixels, _) = forde.Ensemble.load(ensemble.save(tmp_path)), digits("test")
        assert torch.isfinite(loaded.predict(pixels).probs).all()
