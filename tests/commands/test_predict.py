"""`forde predict`: the numbers are those of the library, and what is not to be trusted is what the rule says."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from executable import done, refused
from PIL import Image
from small_runs import SMALL, Result, quantities, written

import forde
from forde.evaluation.runs.reference import Reference, reference_of, uncertainty_of
from forde.training.splitting import drawn

Call = Callable[..., Result]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on digits and one on a table, by the executable."""
    folder = tmp_path_factory.mktemp("runs")
    written(folder / "t.csv", quantities().assign(y=lambda frame: frame.y + 100))
    done("train", "--data", "digits", "--out", "digits", "--validation", 0.2, *SMALL, "--epochs", 15, cwd=folder)
    done("train", "--data", "t.csv", "--out", "table", *SMALL, cwd=folder)
    return folder


def read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype={"label": str})


class TestClasses:
    def test_numbers_and_trust(self, runs: Path, tmp_path: Path) -> None:
        said = done("predict", runs / "digits", "digits", "--out", tmp_path / "p.csv", "--doubt", 0.1)
        found, run = read(tmp_path / "p.csv"), forde.load_run(runs / "digits")
        prediction = run.predict(forde.data.load("digits", "test"))
        assert isinstance(prediction, forde.ClassificationPrediction)
        assert found["label"].tolist() == [str(label) for label in prediction.labels.tolist()]
        probs = found[[f"p_{place}" for place in range(10)]].to_numpy()
        np.testing.assert_allclose(probs, prediction.probs.numpy(), atol=1e-6)
        np.testing.assert_allclose(found["total"], prediction.total.numpy(), atol=1e-5)
        np.testing.assert_allclose(found["probability"], probs.max(1), atol=1e-6)
        # The reference, by hand: the entropies of the fifth that training held out.
        train = forde.data.load("digits")
        assert isinstance(train, forde.data.Images)
        held = drawn(len(train), 179, seed=0, labels=train.labels)[1]
        entropies = uncertainty_of(run.predict(train.images[held])).numpy()
        share = [(1 + (entropies >= value - 1e-6).sum()) / 180 for value in prediction.total.numpy()]
        np.testing.assert_allclose(found["share_as_uncertain"], share, atol=2.1 / 180)
        assert ((found["share_as_uncertain"] <= 0.1) == (found["do_not_trust"] == "yes")).all()
        marked = int((found["do_not_trust"] == "yes").sum())
        assert (
            0.02 < marked / 899 < 0.25
            and f"{marked} of 899 (" in said
            and "are not to be trusted: more uncertain than all but" in said
        )
        assert "all but 10.0% of 179 validation samples" in said

    def test_what_is_marked_is_more_often_wrong_and_noise_is_marked(self, runs: Path) -> None:
        run, data = forde.load_run(runs / "digits"), forde.data.load("digits", "test")
        assert isinstance(data, forde.data.Images)
        reference = reference_of(run)
        assert reference is not None
        prediction = run.predict(data)
        wrong = prediction.labels.numpy() != data.labels
        marked = (reference.share(uncertainty_of(prediction)) <= 0.05).numpy()
        assert wrong[marked].mean() > 3 * wrong[~marked].mean()
        noise = np.random.default_rng(0).integers(256, size=(300, 8, 8, 1)).astype(np.uint8)
        assert (reference.share(uncertainty_of(run.predict(noise))) <= 0.05).double().mean() > 0.5

    def test_images_in_files_folders_and_arrays(self, call: Call, runs: Path, tmp_path: Path) -> None:
        images = forde.data.load_images("digits", "test").images[:6]
        for place, image in enumerate(images):
            (tmp_path / "new" / str(place % 2)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[..., 0]).save(tmp_path / "new" / str(place % 2) / f"{place}.png")
        np.savez(tmp_path / "new.npz", images=images)
        for name in ("new", "new.npz", "new/0/0.png"):
            assert call("predict", runs / "digits", tmp_path / name, "--out", tmp_path / f"{len(name)}.csv").code == 0
        folder, arrays, one = (read(tmp_path / f"{size}.csv") for size in (3, 7, 11))
        assert folder["file"].tolist() == [f"{place % 2}/{place}.png" for place in (0, 2, 4, 1, 3, 5)]
        assert arrays["row"].tolist() == [1, 2, 3, 4, 5, 6] and one["file"].tolist() == ["0.png"]
        pd.testing.assert_frame_equal(
            folder.drop(columns="file"), arrays.drop(columns="row").iloc[[0, 2, 4, 1, 3, 5]].reset_index(drop=True)
        )
        assert one["p_3"][0] == pytest.approx(folder["p_3"][0], rel=1e-3)


class TestQuantities:
    def test_mean_and_interval_in_units_of_the_file(self, call: Call, runs: Path, tmp_path: Path) -> None:
        new = quantities()[["b", "a"]].assign(note="x")  # no target, another order, another column
        options = ("--out", tmp_path / "p.parquet", "--interval", 0.5, "--json", tmp_path / "p.json")
        result = call("predict", runs / "table", written(tmp_path / "new.csv", new), *options)
        assert result.code == 0 and "60 training samples, which members know" in result.out
        found = pd.read_parquet(tmp_path / "p.parquet")
        prediction = forde.load_run(runs / "table").predict(new)
        assert isinstance(prediction, forde.RegressionPrediction)
        np.testing.assert_allclose(found["mean"], prediction.mean.numpy(), rtol=1e-9)
        np.testing.assert_allclose(found["epistemic_std"], prediction.epistemic.sqrt().numpy(), rtol=1e-9)
        below = torch.distributions.Normal(prediction.member_means, prediction.member_variances.sqrt())
        for end, level in (("low", 0.25), ("high", 0.75)):
            inside = below.cdf(torch.tensor(found[end].to_numpy())).mean(0)
            np.testing.assert_allclose(inside.numpy(), level, atol=1e-9)
        assert found["mean"].mean() > 90 and set(found["do_not_trust"]) <= {"yes", "no"}
        told = json.loads((tmp_path / "p.json").read_text())
        assert told["reference"] == {"kind": "training", "samples": 60}
        assert told["not_trusted"] == (found["do_not_trust"] == "yes").sum()

    def test_to_stdout(self, call: Call, runs: Path) -> None:
        result = call("predict", runs / "table", runs / "t.csv", "--out", "-")
        rows = [*csv.DictReader(io.StringIO(result.out))]
        assert len(rows) == 60 and result.err == "" and float(rows[0]["low"]) < float(rows[0]["mean"])


class TestReference:
    def test_share_is_a_p_value_of_exchangeable_samples(self) -> None:
        draw = torch.Generator().manual_seed(0)
        marked = []
        for _ in range(400):
            values = torch.rand(100, generator=draw)
            marked.append(float(Reference("test", values[:99].sort().values).share(values[99:])))
        # Uniform on {0.01, …, 1}: each level is exceeded as often as it says, within three standard errors.
        for level in (0.05, 0.2, 0.5):
            error = (level * (1 - level) / 400) ** 0.5
            assert np.mean(np.array(marked) <= level) == pytest.approx(level, abs=3 * error)

    def test_held_out_data_come_before_data_that_members_know(self, call: Call, runs: Path, tmp_path: Path) -> None:
        run = shutil.copytree(runs / "digits", tmp_path / "r")
        (run / "reference.json").write_text(json.dumps({"kind": "training", "uncertainty": [0.0, 1.0]}))
        assert (
            "2 training samples, which members know; these are too few for --doubt 0.05"
            in call("predict", run, "digits", "--out", tmp_path / "a.csv").out
        )
        assert call("evaluate", run).code == 0
        assert "899 test samples" in call("predict", run, "digits", "--out", tmp_path / "b.csv").out
        shutil.rmtree(run / "evaluation")
        (run / "reference.json").write_text("{")
        result = call("predict", run, "digits", "--out", tmp_path / "c.csv")
        assert "there is no do_not_trust" in result.out and "do_not_trust" not in read(tmp_path / "c.csv").columns


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (("{runs}/nothing", "digits"), "expected the folder of a run"),
            (("{runs}/digits", "digitz.csv"), "'digitz.csv' does not exist; give a file, a folder of images"),
            (("{runs}/digits", "{runs}/t.csv"), "is a table, but the run was trained on images"),
            (("{runs}/digits", "{tmp}/large.png"), "16 x 16 pixels, but 8 x 8 were expected"),
            (("{runs}/digits", "{tmp}"), "16 x 16 pixels, but 8 x 8 were expected"),
            (("{runs}/digits", "{tmp}/other.npz"), "holds the arrays z, but x or images was expected"),
            (("{runs}/digits", "{tmp}/broken.npz"), "is truncated, not a .npz file"),
            (("{runs}/table", "{tmp}/large.png"), "holds images, but the run was trained on a table"),
            (("{runs}/table", "{tmp}/column.csv"), "has no column 'b', as the training data has; did you mean 'bb'?"),
            (("{runs}/table", "{tmp}/gap.csv"), "'b'"),
            (("{runs}/table", "{tmp}/empty.csv"), "empty.csv"),
            (("{runs}/table", "{runs}/t.csv", "--out", "{runs}/t.csv"), "is there already; name another file as --out"),
            (("{runs}/table", "{runs}/t.csv", "--out", "p.txt"), "a file ending in .csv or .parquet was expected"),
            (("{runs}/table", "{runs}/t.csv", "--interval", "90"), "a probability between 0 and 1 was expected"),
            (("{runs}/table", "{runs}/t.csv", "--out", "-", "--json", "-"), "would both write to stdout"),
        ],
    )  # fmt: skip
    def test_one_sentence_and_nothing_written(
        self, call: Call, runs: Path, tmp_path: Path, arguments: tuple[str, ...], complaint: str
    ) -> None:
        Image.new("L", (16, 16)).save(tmp_path / "large.png")
        np.savez(tmp_path / "other.npz", z=np.zeros(3))
        (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04")
        (tmp_path / "column.csv").write_text("a,bb\n1,2\n")
        (tmp_path / "gap.csv").write_text("a,b\n1,\n2,3\n")
        (tmp_path / "empty.csv").touch()
        words = [word.format(runs=runs, tmp=tmp_path) for word in arguments]
        given = words if "--out" in words else [*words, "--out", str(tmp_path / "p.csv")]
        before = (runs / "t.csv").read_bytes()
        result: Any = call("predict", *given)
        assert result.code == 1 and result.err.count("\n") == 1 and complaint in result.err, result.err
        assert not (tmp_path / "p.csv").exists() and (runs / "t.csv").read_bytes() == before

    def test_replacing_is_asked_for(self, runs: Path, tmp_path: Path) -> None:
        (tmp_path / "p.csv").write_text("mine")
        assert "is there already" in refused("predict", runs / "table", runs / "t.csv", "--out", tmp_path / "p.csv")
        assert (tmp_path / "p.csv").read_text() == "mine"
        done("predict", runs / "table", runs / "t.csv", "--out", tmp_path / "p.csv", "--replace")
        assert len(read(tmp_path / "p.csv")) == 60
