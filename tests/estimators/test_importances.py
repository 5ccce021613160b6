"""Feature importances: mean absolute input gradients, through preprocessing back to the table's columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError

from forde import Ensemble, FordeClassifier, FordeRegressor
from forde.estimators.importances import mean_gradients
from forde.models import MLP

QUICK: dict[str, Any] = {
    "n_estimators": 3, "hidden": (16,), "epochs": 15, "batch_size": 32, "method": "deep-ensemble", "random_state": 0,
}  # fmt: skip


def smooth(n_inputs: int, n_outputs: int) -> torch.nn.Module:
    """A network without kinks, so that differences tell its gradient."""
    return torch.nn.Sequential(torch.nn.Linear(n_inputs, 8), torch.nn.Tanh(), torch.nn.Linear(8, n_outputs))


def rows(n: int = 90, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(5, [1.0, 10.0, 0.1], size=(n, 3))


def differences(f: Any, X: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Mean |f(x + ε s_d e_d) − f(x − ε s_d e_d)| / 2ε for each column d and output: `[Q, D]`."""
    found = []
    for d, scale in enumerate(std):
        step = np.zeros_like(X)
        step[:, d] = 1e-5 * scale
        found.append(np.abs((f(X + step) - f(X - step)) / 2e-5).mean(0))
    return np.stack(found, -1)


def test_those_of_probabilities_are_their_differences() -> None:
    X = rows()
    y = np.digitize(X[:, 0], [4.6, 5.4])
    model = FordeClassifier(**QUICK, network=smooth).fit(X, y)
    assert model.temperature_ != 1
    new = rows(20, seed=1)
    expected = differences(model.predict_proba, new, X.std(0))
    np.testing.assert_allclose(model.feature_importances(new), expected, rtol=1e-5, atol=1e-9)
    assert expected.shape == (3, 3) and expected[:, 0].min() > 2 * expected[:, 1:].max()


@pytest.mark.parametrize("shape", [(), (1,), (2,)], ids=["y [N]", "y [N, 1]", "y [N, 2]"])
def test_those_of_means_are_their_differences_in_units_of_the_target(shape: tuple[int, ...]) -> None:
    X = rows()
    y = (1000 * np.stack([X[:, 0], X[:, 2]])[: max(1, sum(shape))]).T.reshape(-1, *shape)
    model = FordeRegressor(**QUICK, network=smooth).fit(X, y)
    expected = differences(lambda x: model.predict(x).reshape(len(x), -1), X, X.std(0))
    np.testing.assert_allclose(model.feature_importances(X), expected.reshape(*shape, 3), rtol=1e-5)
    of_columns = (expected / model.target_scale_.reshape(-1, 1)).mean(0)
    np.testing.assert_allclose(model.feature_importances_, of_columns / of_columns.sum(), rtol=1e-5)


def test_members_one_by_one() -> None:
    """ReLU and BatchNorm too, against a loop over members, rows and classes."""
    X = rows()
    model = FordeClassifier(**QUICK, batch_norm=True, calibration=None).fit(X, X[:, 1] > 5)
    x = torch.from_numpy(model.input_scaler_.transform(X)).requires_grad_()
    total = torch.zeros(len(X), 2, 3, dtype=torch.float64)
    for member in model.ensemble_.members:
        probs = member(x).softmax(-1)
        for row in range(len(X)):
            for c in range(2):
                total[row, c] += torch.autograd.grad(probs[row, c], x, retain_graph=True)[0][row] / 3
    np.testing.assert_allclose(model.feature_importances(X), total.abs().mean(0), rtol=1e-8)


def test_weights_and_parts() -> None:
    ensemble = Ensemble(lambda: MLP(3, (8,), 2).double(), 2).eval()
    X, weights = np.random.default_rng(0).normal(size=(9000, 3)), np.random.default_rng(1).integers(0, 3, 9000)
    found = mean_gradients(ensemble, X, lambda p: p.probs, np.arange(3), weights.astype(float))
    repeated = mean_gradients(ensemble, np.repeat(X, weights, axis=0), lambda p: p.probs, np.arange(3))
    np.testing.assert_allclose(found, repeated)


def test_columns_of_text_and_gaps_are_those_of_the_table() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "noise": rng.normal(size=300),
            "city": rng.choice([f"city {i}" for i in range(12)], 300),
            "gaps": np.where(rng.random(300) < 0.4, np.nan, rng.normal(size=300)),
            "kind": rng.choice(["a", "b"], 300),
        }
    )
    decides = table["kind"].eq("a") ^ table["gaps"].isna()
    model = FordeClassifier(**{**QUICK, "epochs": 40}).fit(table, decides)
    names = np.array(model.feature_names_in_)[np.argsort(model.feature_importances_)[::-1]]
    assert set(names[:2]) == {"kind", "gaps"}
    assert model.feature_importances_.shape == (4,) and model.feature_importances_.sum() == pytest.approx(1)
    # The length of the gradient by the columns that each became.
    x = torch.from_numpy(model.input_scaler_.transform(model.preprocessor_.transform(table))).requires_grad_()
    probs = model.ensemble_.likelihood.prediction(model.ensemble_(x) / model.temperature_).probs
    (gradient,) = torch.autograd.grad(probs[:, 0].sum(), x)
    of_columns = {name: [i for i, n in enumerate(model.preprocessor_.get_feature_names_out()) if name in n]
                  for name in table}  # fmt: skip
    assert [len(of) for of in of_columns.values()] == [1, 12, 2, 2]
    expected = [gradient[:, of].norm(dim=1).mean().item() for of in of_columns.values()]
    np.testing.assert_allclose(model.feature_importances(table)[0], expected, rtol=1e-8)


def test_rows_without_weight_and_constant_predictions() -> None:
    X = rows()
    weights = np.r_[np.ones(45), np.zeros(45)]
    model = FordeRegressor(**QUICK, calibration=None).fit(X, X[:, 0], weights)
    found = model.feature_importances(X[:45])
    np.testing.assert_allclose(model.feature_importances_, found / found.sum(), rtol=1e-8)
    for network in (nothing, Rounding):
        constant = FordeRegressor(**QUICK, network=network).fit(X, X[:, 0])
        np.testing.assert_array_equal(constant.feature_importances_, np.zeros(3))


def nothing(n_inputs: int, n_outputs: int) -> torch.nn.Module:
    layer = torch.nn.Linear(n_inputs, n_outputs)
    layer.weight.requires_grad_(False).zero_()
    return layer


class Rounding(torch.nn.Module):
    """Looks its answer up, so that there is no gradient by the inputs."""

    def __init__(self, n_inputs: int, n_outputs: int) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(2, n_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table((x[:, 0] > 0).long())


def test_they_follow_partial_fit_and_need_a_fit() -> None:
    X = rows()
    with pytest.raises(NotFittedError):
        FordeClassifier().feature_importances(X)
    assert not hasattr(FordeRegressor(), "feature_importances_")
    model = FordeRegressor(**QUICK).partial_fit(X, X[:, 0])
    first = model.feature_importances_
    assert not np.array_equal(model.partial_fit(X, X[:, 0]).feature_importances_, first)
