"""`forde.load_run`: predictions in the units of the file, from a run's files alone; what `fit` keeps about a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from small_runs import SMALL, Forde, quantities, written

import forde
from forde.errors import FordeError


class TestLoadRun:
    @pytest.fixture
    def run(self, train: Forde, tmp_path: Path) -> Path:
        assert (
            train(
                written(tmp_path / "t.csv", quantities().assign(y=lambda frame: frame.y + 100)), tmp_path / "r", *SMALL
            ).code
            == 0
        )
        return tmp_path / "r"

    def test_columns_are_found_by_name(self, run: Path, tmp_path: Path) -> None:
        trained, frame = forde.load_run(run), quantities()
        expected = trained.predict(frame[["a", "b"]].to_numpy())
        assert float(expected.mean.mean()) > 90
        shuffled = frame[["y", "b", "a"]]
        table = forde.data.load(written(tmp_path / "new.csv", shuffled), target="y")
        for given in (frame, shuffled, table, frame.assign(note="x"), torch.tensor(frame[["a", "b"]].to_numpy())):
            found = trained.predict(given)
            assert torch.equal(found.member_means, expected.member_means)
            assert torch.equal(found.member_variances, expected.member_variances)
        assert torch.equal(trained.predict(frame, batch_size=7).mean.round(decimals=3), expected.mean.round(decimals=3))

    @pytest.mark.parametrize(
        ("given", "complaint"),
        [
            (pd.DataFrame({"a": [1.0], "bb": [2.0]}), "has no column 'b'.*; did you mean 'bb'"),
            (pd.DataFrame({"a": [1.0], "other": [2.0]}), "given table has no column 'b', as .*It has: a, other"),
            (np.zeros((2, 3)), r"shape \[2, 3\], but \[N, 2\]"),
            (np.zeros(2), r"shape \[2\], but \[N, 2\] was expected; reshape a single row to \[1, 2\]"),
            (np.zeros(3), r"shape \[3\], but \[N, 2\] was expected; give the features"),
            ([[1.0, 2.0], [1.0, np.nan]], r"column 'b' in the given rows has a missing .* value in row 2 \(counted"),
            (pd.DataFrame({"b": [1, 2.0], "a": [np.inf] * 2}), "column 'a' .* has 2 missing or infinite.* in row 1"),
            ([[1.0, 1e300]], "column 'b' in the given rows has a missing or infinite value in row 1"),
            (pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, None]}, dtype=object), "column 'b' .* has a missing .* row 2"),
            (pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, "x"]}), "column 'b' in the given rows has 'x' in row 2"),
            ([["1", "2"], ["x", "3"]], "column 'a' in the given rows has 'x' in row 2"),
            ("x", "column .a. in the given rows has .x. in row 1"),
            ([[1.0, 2.0], [1.0]], "differ in their number of values"),
            (np.zeros((2, 2), "datetime64[s]"), "hold datetime64.s., but numbers"),
            (forde.data.load("digits", "test"), "images were given"),
        ],
        ids=[
            "names",
            "missing column",
            "width",
            "one row",
            "one row of another width",
            "NaN",
            "infinite",
            "too large",
            "None",
            "text",
            "only text",
            "a word",
            "ragged",
            "times",
            "images",
        ],
    )
    def test_other_rows_are_refused(self, run: Path, given: Any, complaint: str) -> None:
        with pytest.raises(FordeError, match=complaint):
            forde.load_run(run).predict(given)

    def test_images(self, train: Forde, tmp_path: Path) -> None:
        assert train("digits", tmp_path / "r", *SMALL, "--epochs", 3).code == 0
        test = forde.data.load("digits", "test")
        prediction = forde.load_run(tmp_path / "r").predict(test)
        assert isinstance(prediction, forde.ClassificationPrediction)
        assert float((prediction.labels.numpy() == test.labels).mean()) > 0.6

    @pytest.mark.parametrize(
        "change",
        [
            {"model": "os.system"},
            {"model": ["mlp"]},
            {"hidden": [10**9]},
            {"hidden": [2**30, 2**30]},
            {"hidden": [10**30]},
            {"hidden": [-1]},
            {"hidden": "8"},
            {"hidden": [9]},
            {"shape": [3]},
            {"shape": []},
            {"n_classes": -1},
            {"n_classes": True},
            {"classes": [1]},
            {"features": ["a"]},
            {"target": None},
            {"standardisation": None},
            {"standardisation": {}},
            {"standardisation": {"mean": [1.0], "scale": [1.0]}},
            {"more": 1},
        ],
        ids=str,
    )
    def test_an_altered_recipe_is_one_sentence(self, run: Path, change: dict[str, Any]) -> None:
        path = run / "config.json"
        settings = json.loads(path.read_text())
        settings["about"]["recipe"].update(change)
        path.write_text(json.dumps(settings))
        with pytest.raises(FordeError, match=r"train again|another architecture"):
            forde.load_run(run)

    @pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, '{"about": 3}', "{}"], ids=lambda text: text[:9])
    def test_settings_that_are_none(self, run: Path, content: str) -> None:
        (run / "config.json").write_text(content)
        with pytest.raises(FordeError, match=r"config\.json' (is damaged|has format None)"):
            forde.load_run(run)

    def test_no_run_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(FordeError, match="expected the folder of a run"):
            forde.load_run(tmp_path)

    def test_a_run_of_fit(self, tmp_path: Path) -> None:
        data = (torch.randn(12, 2), torch.arange(12) % 3)
        for name, make in (("library", lambda: forde.models.MLP(2, [4], 3)), ("own", lambda: torch.nn.Linear(2, 3))):
            ensemble = forde.Ensemble(make, 2)
            forde.fit(ensemble, "deep-ensemble", data, epochs=1, run=tmp_path / name, verbose=False)
            loaded = forde.load_run(tmp_path / name, None if name == "library" else make)
            assert torch.equal(loaded.predict(data[0]).probs, ensemble.predict(data[0]).probs)
            assert len(loaded.records) == 1 and loaded.settings == {}
        with pytest.raises(FordeError, match=r"does not say how its networks are built; .*Ensemble\.load\("):
            forde.load_run(tmp_path / "own")

    def test_a_saved_ensemble(self, tmp_path: Path) -> None:
        digits = forde.data.load("digits")
        ensemble = forde.Ensemble(lambda: forde.models.MLP(64, [4], 10), 2, inputs=forde.data.Inputs.of(digits))
        loaded = forde.load_run(ensemble.save(tmp_path / "e"))
        assert loaded.inputs == ensemble.inputs and loaded.records == []
        assert torch.equal(loaded.predict(digits).probs, ensemble.predict(digits).probs)
        with pytest.raises(FordeError, match="does not say what it was trained on"):
            loaded.test_data()
        assert np.array_equal(loaded.test_data("digits").labels, forde.data.load("digits", "test").labels)


class TestAbout:
    """What a user keeps with a run of his own."""

    def fit(self, run: Path | None, **options: Any) -> forde.History:
        ensemble = forde.Ensemble(lambda: forde.models.MLP(2, [4], 3), 2)
        data = (torch.zeros(12, 2), torch.arange(12) % 3)
        return forde.fit(ensemble, "deep-ensemble", data, epochs=1, run=run, verbose=False, **options)

    def test_kept_and_compared(self, tmp_path: Path) -> None:
        self.fit(tmp_path / "r", about={"scale": (1, 2.5)})
        assert json.loads((tmp_path / "r" / "config.json").read_text())["about"] == {"scale": [1, 2.5]}
        self.fit(tmp_path / "r", about={"scale": [1, 2.5]}, resume=True)
        with pytest.raises(FordeError, match=r"about\.scale = \[1, 2\.5\], but \[1, 2\.6\] was given"):
            self.fit(tmp_path / "r", about={"scale": [1, 2.6]}, resume=True)

    def test_refused(self, tmp_path: Path) -> None:
        with pytest.raises(FordeError, match="give one as run="):
            self.fit(None, about={})
        with pytest.raises(FordeError, match="about cannot be written as JSON"):
            self.fit(tmp_path / "r", about={"scale": torch.ones(2)})
