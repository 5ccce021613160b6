"""Standardised tables: the statistics, their way back, and their way through a file."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

import forde.data
from forde.data import Standardisation, Table
from forde.errors import FordeError
from forde.prediction import ClassificationPrediction, RegressionPrediction


def table(x: Any, y: Any) -> Table:
    made = forde.data.from_arrays(np.asarray(x, np.float32), np.asarray(y))
    assert isinstance(made, Table)
    return made


def random_table(rows: int = 50) -> Table:
    generator = np.random.default_rng(0)
    x = generator.normal([1e4, -3.0, 0.0], [100.0, 1e-3, 1.0], (rows, 3))
    return table(x, (1e3 + 50 * generator.normal(size=rows)).astype(np.float32))


def test_features_and_quantities_as_scikit_learn_standardises_them() -> None:
    raw = random_table()
    found = Standardisation.of(raw).apply(raw)
    expected = StandardScaler().fit_transform(raw.x.astype(np.float64))
    np.testing.assert_allclose(found.x, expected, atol=1e-6)
    target = StandardScaler().fit_transform(raw.y.astype(np.float64)[:, None])[:, 0]
    np.testing.assert_allclose(found.y, target, atol=1e-6)
    assert found.x.dtype == found.y.dtype == np.float32 and found.feature_names == raw.feature_names


def test_classes_stay_classes() -> None:
    raw = table([[1, 2], [3, 4], [5, 9]], [0, 1, 0])
    units = Standardisation.of(raw)
    assert units.target_mean is None and units.apply(raw).y.tolist() == [0, 1, 0]
    prediction = ClassificationPrediction(torch.randn(2, 3, 2))
    assert units.undo(prediction) is prediction


@pytest.mark.parametrize("value", [0.0, 0.1, 1e8, -3e38, 1e-38])
def test_a_constant_column_becomes_zero(value: float) -> None:
    # The mean of many equal numbers is rounded, so that their deviation from it is not 0.
    raw = table(np.stack([np.full(999, value), np.arange(999)], 1), np.full(999, 7.3, np.float32))
    units = Standardisation.of(raw)
    found = units.apply(raw)
    assert (found.x[:, 0] == 0).all() and (found.y == 0).all() and np.isfinite(found.x).all()
    assert units.scale[0] == 1 and units.target_scale == 1


def test_new_rows_get_the_statistics_of_the_training_rows() -> None:
    units = Standardisation.of(table([[0.0], [2.0]], [0, 1]))
    assert units.inputs(np.array([[4.0], [1.0]])).tolist() == [[3.0], [0.0]]
    with pytest.raises(FordeError, match=r"shape \[1, 2\], but \[N, 1\] was expected"):
        units.inputs(np.zeros((1, 2)))


def test_a_prediction_comes_back_in_units_of_the_target() -> None:
    """By hand: y = 100 + 5 y', so that means move and variances grow 25-fold, in every source of uncertainty."""
    units = Standardisation((0.0,), (1.0,), target_mean=100.0, target_scale=5.0)
    standard = RegressionPrediction(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.25], [0.75]]))
    found = units.undo(standard)
    assert isinstance(found, RegressionPrediction)
    assert found.member_means.tolist() == [[105.0], [115.0]] and found.mean.tolist() == [110.0]
    assert found.aleatoric.tolist() == [12.5] and found.epistemic.tolist() == [25.0] and found.total.tolist() == [37.5]


def test_the_way_back_keeps_the_digits_of_a_large_mean() -> None:
    far = Standardisation((0.0,), (1.0,), target_mean=1e9, target_scale=1e-3)
    found = far.undo(RegressionPrediction(torch.ones(1, 1), torch.ones(1, 1)))
    assert isinstance(found, RegressionPrediction)
    assert float(found.mean) - 1e9 == pytest.approx(1e-3, rel=1e-3)


def test_the_same_to_the_last_bit_through_json() -> None:
    units = Standardisation.of(random_table())
    assert Standardisation.from_json(json.loads(json.dumps(units.to_json()))) == units


@pytest.mark.parametrize(
    "change",
    [
        {"mean": [1.0]},
        {"scale": [0.0, 1.0, 1.0]},
        {"scale": [1.0, -1.0, 1.0]},
        {"scale": [1.0, float("nan"), 1.0]},
        {"scale": None},
        {"mean": ["1", "2", "3"]},
        {"target_scale": 0.0},
        {"target_scale": None},
        {"target_mean": True},
    ],
)
def test_damaged_statistics_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FordeError, match="damaged"):
        Standardisation.from_json({**Standardisation.of(random_table()).to_json(), **change})
