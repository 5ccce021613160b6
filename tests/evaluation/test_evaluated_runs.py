"""Evaluation of runs: the same numbers as `score` gives, kept, reused for the same members and data only, compared."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import forde
from forde.data import from_arrays
from forde.data.description import Images, Table
from forde.errors import FordeError
from forde.evaluation import interval_coverage, saved_evaluation, score
from forde.evaluation.robustness import CellDone
from forde.evaluation.runs import RunScores, compare_runs, evaluate_run
from forde.evaluation.runs.foreign import as_images_of
from forde.evaluation.runs.table_shifts import MISSING, NOISE, shifted
from forde.training.recipe import Recipe
from forde.training.trained import TrainedRun


def quantities(rows: int = 80) -> Table:
    draw = np.random.default_rng(0)
    x = draw.normal(3, 2, size=(rows, 3)).astype(np.float32)
    table = from_arrays(x, (100 + 5 * x[:, 0] + draw.normal(size=rows)).astype(np.float32), name="q")
    assert isinstance(table, Table)
    return table


def untrained(data: Images | Table, seed: int = 0) -> TrainedRun:
    recipe = Recipe.of(data, "mlp", [8])
    return TrainedRun(forde.Ensemble(recipe.make_network, 3, seed=seed, likelihood=recipe.likelihood).eval(), recipe)


def evaluated(run: TrainedRun, data: Images | Table, folder: Path, **options: Any) -> tuple[RunScores, list[CellDone]]:
    cells: list[CellDone] = []
    scores = evaluate_run(run, data, folder, n_bootstrap=20, verbose=False, on_cell=cells.append, **options)
    return scores, cells


@pytest.fixture(scope="module")
def digits() -> Images:
    data = forde.data.load_images("digits", "test")
    return replace(data, images=data.images[:120], labels=data.labels[:120])


class TestScores:
    def test_images(self, digits: Images, tmp_path: Path) -> None:
        run = untrained(digits)
        scores, _ = evaluated(run, digits, tmp_path, corruptions=["fog", "contrast"], severities=[1, 5])
        expected = score(run.ensemble.predict(digits), digits.labels)
        assert {name: found.value for name, found in scores.result.clean.items()} == pytest.approx(expected, abs=1e-9)
        assert scores.result.types.keys() == {"fog", "contrast"} and scores.result.severities.keys() == {1, 5}
        corrupted = forde.corruptions.corrupt(digits.images, "fog", 5, seed=0)
        foggy = score(run.ensemble.predict(replace(digits, images=corrupted)), digits.labels)
        assert scores.result.cells["fog"][5]["nll"].value == pytest.approx(foggy["nll"], abs=1e-9)
        assert saved_evaluation(tmp_path / "evaluation")[1].keys() >= {("clean", 0), ("fog", 1)}

    def test_quantities_in_units_of_the_file(self, tmp_path: Path) -> None:
        data = quantities()
        run = untrained(data)
        scores, _ = evaluated(run, data, tmp_path)
        prediction = run.predict(data)
        assert isinstance(prediction, forde.RegressionPrediction)
        clean, expected = scores.result.clean, score(prediction, data.y.astype(np.float64))
        for name in ("rmse", "nll", "crps"):
            assert clean[name].value == pytest.approx(expected[name], rel=1e-6), name
        for level in (50, 80, 90, 95):
            inside = interval_coverage(
                prediction.member_means, prediction.member_variances, torch.as_tensor(data.y), level / 100
            )
            assert clean[f"coverage_{level}"].value == pytest.approx(inside, abs=1e-12)
        assert clean["rmse"].value > 1 and scores.task == "regression"

    def test_rows_get_harder_with_severity(self, tmp_path: Path) -> None:
        data = quantities()
        run = untrained(data)
        scores, cells = evaluated(run, data, tmp_path, corruptions=["all"])
        assert [cell.name for cell in cells][:2] == ["clean", "gaussian_noise-1"] and len(cells) == 11
        rows = run.recipe.standardisation.inputs(shifted_rows := data.x)  # type: ignore[union-attr]
        noisy = shifted(rows, "gaussian_noise", 5)
        assert (noisy - rows).std() == pytest.approx(NOISE[4], rel=0.1) and len(shifted_rows) == 80
        found = scores.result.cells["gaussian_noise"][5]["rmse"].value
        mean = run.recipe.standardisation.undo(run.ensemble.predict(noisy)).mean  # type: ignore[union-attr]
        assert found == pytest.approx(float((mean - torch.as_tensor(data.y)).square().mean().sqrt()), rel=1e-6)

    def test_missing_values_stay_missing(self) -> None:
        rows = np.ones((500, 6), np.float32)
        gone = [shifted(rows, "missing_values", severity) == 0 for severity in (1, 2, 3, 4, 5)]
        assert [each.mean() for each in gone] == pytest.approx(MISSING, abs=0.03)
        assert all((more | less == more).all() for less, more in pairwise(gone))


class TestKept:
    def test_read_again_as_written(self, digits: Images, tmp_path: Path) -> None:
        scores, _ = evaluated(untrained(digits), digits, tmp_path, corruptions=["fog"], severities=[2])
        assert RunScores.load(tmp_path).to_dict() == scores.to_dict()

    @pytest.mark.parametrize("kind", ["images", "quantities"])
    def test_what_is_there_is_reused_for_the_same_members_and_data_only(
        self, kind: str, digits: Images, tmp_path: Path
    ) -> None:
        data: Images | Table = digits if kind == "images" else quantities()
        names = ["fog", "contrast"] if kind == "images" else ["gaussian_noise", "missing_values"]
        run = untrained(data)
        _, first = evaluated(run, data, tmp_path, corruptions=names[:1], severities=[1])
        scores, second = evaluated(run, data, tmp_path, corruptions=names, severities=[1])
        assert [cell.reused for cell in first] == [False, False]
        assert [cell.reused for cell in second] == [True, True, False]
        fresh, _ = evaluated(run, data, tmp_path / "fresh", corruptions=names, severities=[1])
        assert fresh.result.to_dict() == scores.result.to_dict()
        _, other = evaluated(untrained(data, seed=1), data, tmp_path, corruptions=names, severities=[1])
        assert not any(cell.reused for cell in other)

    def test_damage_is_one_sentence(self, digits: Images, tmp_path: Path) -> None:
        with pytest.raises(FordeError, match="has not been evaluated; run: forde evaluate"):
            RunScores.load(tmp_path)
        evaluated(untrained(digits), digits, tmp_path)
        path = tmp_path / "evaluation" / "scores.json"
        for content, complaint in (("{", "is damaged"), ('{"format": 9}', "has format 9")):
            path.write_text(content)
            with pytest.raises(FordeError, match=complaint):
                RunScores.load(tmp_path)


class TestForeign:
    def test_noise_is_told_from_digits_if_members_say_so(self, digits: Images, tmp_path: Path) -> None:
        run = untrained(digits)
        noise = np.random.default_rng(0).integers(256, size=(50, 16, 16, 3)).astype(np.uint8)
        foreign = from_arrays(noise, np.arange(50) % 10, name="noise")
        assert isinstance(foreign, Images)
        scores, _ = evaluated(run, digits, tmp_path, foreign=foreign)
        assert scores.foreign is not None and scores.foreign["remark"].startswith("resized from 16 x 16")
        seen = run.ensemble.predict(replace(digits, images=as_images_of(foreign, (8, 8, 1))[0].images))
        assert isinstance(seen, forde.ClassificationPrediction)
        assert scores.foreign["epistemic"]["value"] == pytest.approx(float(seen.epistemic.mean()), abs=1e-6)
        assert 0 <= scores.foreign["auroc"]["epistemic"]["value"] <= 1
        assert "foreign" not in scores.result.types
        saved = saved_evaluation(tmp_path / "evaluation")[1]["clean", 0]()  # still the file that the manifest names
        assert np.array_equal(saved.labels.numpy(), digits.labels)

    def test_rows(self, tmp_path: Path) -> None:
        data = quantities()
        far = replace(data, x=data.x + 100)
        scores, _ = evaluated(untrained(data), data, tmp_path, foreign=far)
        assert scores.foreign is not None and scores.foreign["auroc"]["total_std"]["value"] > 0.9


class TestComparison:
    def test_quantities_are_paired_by_row(self, tmp_path: Path) -> None:
        data = quantities()
        for seed in (0, 1):
            evaluated(untrained(data, seed), data, tmp_path / str(seed), corruptions=["gaussian_noise"], severities=[2])
        forth = compare_runs(tmp_path / "0", tmp_path / "1", n_resamples=50)
        back = compare_runs(tmp_path / "1", tmp_path / "0", n_resamples=50)
        a, b = (RunScores.load(tmp_path / name).result for name in "01")
        assert forth.clean["rmse"].value == pytest.approx(b.clean["rmse"].value - a.clean["rmse"].value)
        assert back.clean["nll"].value == pytest.approx(-forth.clean["nll"].value)
        assert forth.cells["gaussian_noise"][2]["crps"].error > 0 and "clean rmse" in str(forth)

    def test_a_run_is_no_better_than_itself(self, digits: Images, tmp_path: Path) -> None:
        evaluated(untrained(digits), digits, tmp_path)
        same = compare_runs(tmp_path, tmp_path, n_resamples=20)
        assert all(found.value == found.error == 0 and found.p_value == 1 for found in same.clean.values())

    def test_tasks_do_not_mix(self, digits: Images, tmp_path: Path) -> None:
        evaluated(untrained(digits), digits, tmp_path / "a")
        evaluated(untrained(quantities()), quantities(), tmp_path / "b")
        with pytest.raises(FordeError, match="compare runs of one task"):
            compare_runs(tmp_path / "a", tmp_path / "b")


class TestMistakes:
    def test_each_is_one_sentence(self, digits: Images, tmp_path: Path) -> None:
        table = quantities()
        for run, data, options, complaint in (
            (untrained(digits), digits, {"corruptions": ["fgo"]}, "did you mean 'fog'"),
            (untrained(table), table, {"corruptions": ["fog"]}, "unknown shift of tables 'fog'"),
            (untrained(digits), digits, {"severities": [6]}, "integer from 1 to 5"),
            (untrained(digits), table, {}, "the run predicts a class"),
            (untrained(table), digits, {}, "the run predicts a quantity"),
            (untrained(digits), replace(digits, images=digits.images[:, :4]), {}, r"shape \[4, 8, 1\]"),
            (untrained(table), replace(table, feature_names=("a", "b", "c")), {}, "has no column"),
        ):
            with pytest.raises(FordeError, match=complaint):
                evaluate_run(run, data, tmp_path, verbose=False, **options)  # type: ignore[arg-type]
        assert not list(tmp_path.rglob("*.safetensors"))
