"""Studies end where they would have ended, whatever happens to them on the way."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forde
from forde.data import Table
from forde.errors import FordeError
from forde.tuning import Tuning, tune
from forde.tuning.study import WHERE, open_study, quiet_optuna

SMALL: dict[str, Any] = {"epochs": 2, "hidden": [4], "members": 2, "engine": "eager", "device": "cpu"}


@pytest.fixture(scope="module")
def digits() -> forde.data.Images:
    images = forde.data.load("digits")
    return replace(images, images=images.images[:200], labels=images.labels[:200])


def found(tuning: Tuning) -> list[tuple[Any, ...]]:
    return [(dict(one.values), one.clean.tobytes(), one.corrupted.tobytes()) for one in tuning.candidates]


def test_a_study_that_is_taken_up_ends_like_one_in_one_go(digits: Any, tmp_path: Path) -> None:
    whole = tune(digits, tmp_path / "whole", trials=4, **SMALL)
    tune(digits, tmp_path / "parts", trials=2, **SMALL)
    parts = tune(digits, tmp_path / "parts", trials=4, **SMALL)
    assert found(parts) == found(whole) and parts.counts["finished"] + parts.counts["pruned"] == 4
    assert parts.candidates[0].is_baseline and parts.candidates[1].values == {"strength": 10.0, "alpha": 1.0}
    assert not list((tmp_path / "parts" / "trials").iterdir())


def test_the_deep_ensemble_is_that_of_fit(digits: Any, tmp_path: Path) -> None:
    """Trained and judged by hand on the same split."""
    from forde.training.splitting import held_out
    from forde.tuning.perturbations import IMAGE_PERTURBATIONS, perturbed

    deep = tune(digits, tmp_path, trials=2, **SMALL).candidates[0]
    part, held = held_out(digits, 0.2, seed=0, by_class=True)
    ensemble = forde.Ensemble(lambda: forde.models.MLP(64, [4], 10), 2, seed=0)
    forde.fit(ensemble, "deep-ensemble", part, epochs=2, lr=0.1, engine="eager", verbose=False)

    def nll(images: np.ndarray) -> np.ndarray:
        probs = ensemble.predict(replace(held, images=images)).probs.double().numpy()
        return -np.log(probs[np.arange(len(held)), held.labels])

    np.testing.assert_allclose(deep.clean[0], nll(held.images), rtol=1e-4)
    corrupted = [nll(perturbed(held.images, name, level, seed=0)) for name in IMAGE_PERTURBATIONS for level in (1, 2)]
    np.testing.assert_allclose(deep.corrupted[0], np.mean(corrupted, axis=0), rtol=1e-4)


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")  # of `ask` below, which no study of forde calls
def test_a_trial_whose_process_died_is_done_again(digits: Any, tmp_path: Path) -> None:
    first = tune(digits, tmp_path, trials=2, **SMALL)
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    with quiet_optuna():
        study = open_study(None, tmp_path, "forde", first.settings)
        lost = study.ask()
        lost.suggest_float("strength", 0.3, 100, log=True)
        host = __import__("socket").gethostname()
        lost.set_user_attr(WHERE, {"host": host, "process": int(gone.stdout)})
    again = tune(digits, tmp_path, trials=3, **SMALL)
    assert again.counts["lost"] == 1 and again.counts["running"] == 0
    assert found(again)[:2] == found(first)
    with quiet_optuna():
        retry = next(one for one in study.get_trials() if one.user_attrs.get("retry_of") == lost.number)
    assert retry.params["strength"] == lost.params["strength"]


def test_what_diverges_is_noted_and_the_study_goes_on(digits: Any, tmp_path: Path) -> None:
    search = "strength=1,lr=1e18:1e19"
    tuning = tune(digits, tmp_path, trials=3, search=search, **SMALL)
    assert tuning.counts["diverged"] == 2 and tuning.choice.chosen.is_baseline


def test_other_settings_are_another_study(digits: Any, tmp_path: Path) -> None:
    tune(digits, tmp_path, trials=2, **SMALL)
    with pytest.raises(FordeError, match=r"begun with epochs 2, but 3 was given; give the same, or another --out"):
        tune(digits, tmp_path, trials=2, **{**SMALL, "epochs": 3})
    other = replace(digits, labels=digits.labels[::-1].copy())
    with pytest.raises(FordeError, match="begun with content"):
        tune(other, tmp_path, trials=2, **SMALL)
    tune(digits, tmp_path, trials=2, name="second", **{**SMALL, "epochs": 1})


@pytest.mark.parametrize("task", ["classification-2d", "regression-1d"])
def test_tables(task: str, tmp_path: Path) -> None:
    table = forde.data.load(task)
    assert isinstance(table, Table)
    tuning = tune(table, tmp_path, trials=2, seeds=2, **SMALL)
    deep, repulsive = tuning.candidates
    assert deep.clean.shape[0] == 2 and np.isfinite(deep.corrupted).all()
    assert (repulsive.clean != deep.clean).any() and (deep.clean[0] != deep.clean[1]).any()
    assert (deep.accuracy is None) == (task == "regression-1d")
    assert str(tuning.choice.chosen.number) in tuning.why and "perturbed" in str(tuning)


def test_without_optuna_it_is_named(digits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(FordeError, match=r"run: pip install 'forde\[tune\]'"):
        tune(digits, tmp_path, trials=2, **SMALL)
