"""`forde train` on tables: units, targets, options that reach the run, and what is said about the outcome."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, ClassVar

import data_files as files
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_wine
from small_runs import SMALL, Forde, quantities, recipe_of, written

import forde
from forde.errors import FordeError
from forde.training.constant import constant_loss


class TestTrainsWell:
    @pytest.mark.parametrize("seed", range(4))
    def test_regression_1d_with_default_options(self, train: Forde, tmp_path: Path, seed: int) -> None:
        result = train("regression-1d", tmp_path / "r", "--epochs", 20, "--seed", seed)
        assert result.code == 0 and result.err == ""
        # Noise of 0.05 in a target of deviation 0.55: no prediction is better than ln(0.05/0.55) + 1.42 = -0.98.
        assert -0.98 < result.loss < -0.5
        data = forde.data.load("regression-1d")
        prediction = forde.load_run(tmp_path / "r").predict(data)
        assert isinstance(prediction, forde.RegressionPrediction)
        assert float((prediction.mean - torch.as_tensor(data.y)).square().mean().sqrt()) < 0.1
        assert 0.04 < float(prediction.aleatoric.mean().sqrt()) < 0.15

    def test_wine_as_csv(self, train: Forde, tmp_path: Path) -> None:
        wine = load_wine(as_frame=True).frame
        result = train(written(tmp_path / "wine.csv", wine), tmp_path / "r", "--epochs", 20, "--batch-size", 64)
        assert result.code == 0 and result.err == "" and result.loss < 0.05
        assert "13 features, standardised; the target 'target' is a class, one of 3" in result.out
        prediction = forde.load_run(tmp_path / "r").predict(wine)
        assert isinstance(prediction, forde.ClassificationPrediction)
        assert float((prediction.labels.numpy() == wine["target"]).mean()) > 0.97


class TestOneNetwork:
    """Methods that make all members of one network are asked for, resumed and loaded like any other."""

    @pytest.mark.parametrize("method", ["swag", "node-bnn"])
    def test_digits(self, train: Forde, tmp_path: Path, method: str) -> None:
        options = ("--method", method, "--members", 4, "--hidden", 32, "--epochs", 12, "--device", "cpu")
        result = train("digits", tmp_path / "r", *options)
        assert result.code == 0 and result.err == "" and f"{method}, 4 × mlp on digits" in result.out
        test = forde.data.load("digits", "test")
        prediction = forde.load_run(tmp_path / "r").predict(test)
        assert prediction.member_logits.shape == (4, len(test), 10)
        assert float((prediction.labels == torch.as_tensor(test.labels)).float().mean()) > 0.8
        weights = (tmp_path / "r" / "ensemble" / "model.safetensors").read_bytes()
        again = train("digits", tmp_path / "r", *options, "--resume")
        assert again.code == 0 and again.loss == result.loss
        assert (tmp_path / "r" / "ensemble" / "model.safetensors").read_bytes() == weights

    def test_a_quantity_keeps_the_learning_rate_that_swag_wants(self, train: Forde, tmp_path: Path) -> None:
        result = train("regression-1d", tmp_path / "r", *SMALL, "--method", "swag", "--epochs", 10)
        assert result.code == 0
        rates = [json.loads(line)["lr"] for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
        assert rates[0] == 0.003 and rates[-1] == pytest.approx(0.0015)


class TestUnits:
    def test_other_units_give_the_same_network_and_predictions_in_those_units(
        self, train: Forde, tmp_path: Path
    ) -> None:
        """Powers of two change no digit, so the runs must agree to the last bit."""
        frame = quantities()
        other = frame * [1024.0, 2.0**-7, 8.0]
        results = [
            train(written(tmp_path / f"{name}.csv", given), tmp_path / name, *SMALL)
            for name, given in (("one", frame), ("other", other))
        ]
        assert results[0].loss == results[1].loss
        one, two = (forde.load_run(tmp_path / name) for name in ("one", "other"))
        first, second = one.predict(frame), two.predict(other)
        assert torch.equal(8 * first.member_means, second.member_means)
        assert torch.equal(64 * first.member_variances, second.member_variances)
        assert torch.equal(one.ensemble.members[0].head.weight, two.ensemble.members[0].head.weight)

    def test_statistics_are_those_of_the_file_and_stay_when_resumed(self, train: Forde, tmp_path: Path) -> None:
        frame = quantities() * [100.0, 1.0, 7.0] + [5.0, -3.0, 1000.0]
        path = written(tmp_path / "t.csv", frame)
        train(path, tmp_path / "r", *SMALL)
        stored = recipe_of(tmp_path / "r")
        units = stored["standardisation"]
        assert units["mean"] == pytest.approx([frame["a"].mean(), frame["b"].mean()], rel=1e-5)
        assert units["scale"] == pytest.approx([frame["a"].std(ddof=0), frame["b"].std(ddof=0)], rel=1e-5)
        assert units["target_mean"] == pytest.approx(frame["y"].mean(), rel=1e-6)
        assert units["target_scale"] == pytest.approx(frame["y"].std(ddof=0), rel=1e-4)
        assert stored["features"] == ["a", "b"] and stored["target"] == "y"
        before = (tmp_path / "r" / "config.json").read_bytes()
        again = train(path, tmp_path / "r", *SMALL, "--resume")
        assert again.code == 0 and (tmp_path / "r" / "config.json").read_bytes() == before

    def test_changed_data_is_refused(self, train: Forde, tmp_path: Path) -> None:
        frame = quantities(2000)
        path = written(tmp_path / "t.csv", frame)
        train(path, tmp_path / "r", *SMALL)
        frame.loc[2, "b"] += 1  # one row, that no thinned-out sample of 1,024 holds
        result = train(written(path, frame), tmp_path / "r", *SMALL, "--resume")
        assert result.code == 1 and "was started with" in result.err and result.err.count("\n") == 1

    def test_interrupted_and_resumed_ends_as_the_run_that_was_not(
        self, train: Forde, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = written(tmp_path / "t.csv", quantities())
        train(path, tmp_path / "whole", *SMALL)
        real = forde.fit

        def dying(*given: Any, **options: Any) -> Any:
            def die(record: Any) -> None:
                raise FordeError("the machine fell over.")

            return real(*given, **{**options, "callback": die})

        monkeypatch.setattr(forde, "fit", dying)
        assert train(path, tmp_path / "r", *SMALL, "--checkpoint-every", 1).err == "Error: the machine fell over.\n"
        with pytest.raises(FordeError, match=r"has not finished; go on with forde train .*--resume"):
            forde.load_run(tmp_path / "r")
        monkeypatch.setattr(forde, "fit", real)
        assert train(path, tmp_path / "r", *SMALL, "--checkpoint-every", 1, "--resume").code == 0
        assert recipe_of(tmp_path / "r") == recipe_of(tmp_path / "whole")
        weights = [(tmp_path / name / "ensemble" / "model.safetensors").read_bytes() for name in ("r", "whole")]
        assert weights[0] == weights[1]

    def test_that_a_finished_run_is_not_trained_again_is_said(self, train: Forde, tmp_path: Path) -> None:
        path = written(tmp_path / "t.csv", quantities())
        said = [train(path, tmp_path / "r", *SMALL, "--resume").out for _ in range(2)]
        assert ["had finished already, so nothing was trained" in out for out in said] == [False, True]

    def test_a_constant_column_does_no_harm(self, train: Forde, tmp_path: Path) -> None:
        frame = quantities().assign(b=3.3)
        result = train(written(tmp_path / "t.csv", frame), tmp_path / "r", *SMALL)
        assert result.code == 0 and math.isfinite(result.loss)
        assert torch.isfinite(forde.load_run(tmp_path / "r").predict(frame).mean).all()

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [({"a": 1.5, "b": 2.5}, "every feature in 't' is constant"), ({"y": 0.5}, "target 'y' in 't' is 0.5 in every")],
    )
    def test_nothing_to_learn(self, train: Forde, tmp_path: Path, change: dict[str, float], complaint: str) -> None:
        result = train(written(tmp_path / "t.csv", quantities().assign(**change)), tmp_path / "r", *SMALL)
        assert result.code == 1 and complaint in result.err and not (tmp_path / "r").exists()


class TestTarget:
    def test_by_name_and_by_number_are_the_same(self, train: Forde, tmp_path: Path) -> None:
        path = written(tmp_path / "t.csv", quantities())
        for name, target in (("name", "a"), ("number", "0")):
            result = train(path, tmp_path / name, *SMALL, "--target", target)
            assert "2 features, standardised; the target 'a' is a quantity, standardised" in result.out
        weights = [load_file(tmp_path / name / "ensemble" / "model.safetensors") for name in ("name", "number")]
        assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
        assert recipe_of(tmp_path / "name")["features"] == ["b", "y"]

    def test_parquet(self, train: Forde, tmp_path: Path) -> None:
        quantities().to_parquet(tmp_path / "t.parquet", index=False)
        assert (
            "the target 'b' is a quantity" in train(tmp_path / "t.parquet", tmp_path / "r", *SMALL, "--target", "b").out
        )

    def test_task_decides_what_whole_numbers_are(self, train: Forde, tmp_path: Path) -> None:
        frame = quantities().assign(n=np.arange(60) % 5)
        path = written(tmp_path / "t.csv", frame)
        assert "the target 'n' is a class, one of 5" in train(path, tmp_path / "r", *SMALL).out
        result = train(path, tmp_path / "q", *SMALL, "--task", "regression")
        assert "the target 'n' is a quantity" in result.out

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (("--target", "yy"), "did you mean 'y'?"),
            (("--target", "3"), "has no column 3"),
            (("--task", "regresion"), "did you mean 'regression'?"),
            (("--augment",), "--augment needs images"),
            (("--model", "resnet18"), "resnet18 needs images"),
            (("--model", "mpl"), "did you mean 'mlp'?"),
            (("--hidden", "8;8"), "--hidden is '8;8'"),
            (("--method", "forde-pcs"), "did you mean 'forde-pca'?"),
        ],
    )
    def test_mistakes_are_one_sentence_before_anything_is_made(
        self, train: Forde, tmp_path: Path, arguments: tuple[str, ...], complaint: str
    ) -> None:
        result = train(written(tmp_path / "t.csv", quantities()), tmp_path / "r", *SMALL, *arguments)
        assert result.code == 1 and result.err.startswith("Error: ") and result.err.count("\n") == 1
        assert complaint in result.err and not (tmp_path / "r").exists()

    def test_no_target_among_images(self, train: Forde, tmp_path: Path) -> None:
        result = train("digits", tmp_path / "r", *SMALL, "--target", "label")
        assert result.code == 1 and "leave target out" in result.err


class TestOutcome:
    def test_a_loss_far_above_a_constant_prediction_is_said(self, train: Forde, tmp_path: Path) -> None:
        result = train(written(tmp_path / "t.csv", quantities()), tmp_path / "r", *SMALL, "--lr", "1e-9")
        better = train(tmp_path / "t.csv", tmp_path / "s", *SMALL, "--lr", "0.01", "--epochs", 40)
        assert result.loss > 1.4189 + 0.5 > better.loss
        assert result.code == better.code == 0 and better.err == ""
        assert result.err.startswith("Warning: the loss ") and result.err.count("\n") == 1
        assert f"{result.loss:.4f} is far above 1.4189" in result.err
        assert "for the standardised target" in result.out and "alone would give 1.4189" in result.out
        assert (tmp_path / "r" / "ensemble" / "model.safetensors").exists()

    def test_the_loss_is_that_of_the_last_record(self, train: Forde, tmp_path: Path) -> None:
        result = train(written(tmp_path / "t.csv", quantities()), tmp_path / "r", *SMALL)
        records = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
        assert f"loss {records[-1]['loss']:.4f} after 2 epochs" in result.out and len(records) == 2
        assert records[0]["loss"] != records[1]["loss"]

    def test_loss_of_a_constant_prediction(self) -> None:
        """Against torch's own losses of the class frequencies, and of the mean and the variance."""
        generator = np.random.default_rng(0)
        labels = generator.choice(4, 500, p=[0.6, 0.3, 0.1, 0.0])
        logits = torch.log(torch.bincount(torch.as_tensor(labels), minlength=4) / 500 + 1e-300)
        expected = torch.nn.functional.cross_entropy(logits.expand(500, 4), torch.as_tensor(labels))
        assert constant_loss(labels, 4) == pytest.approx(float(expected), rel=1e-6)
        y = torch.as_tensor(generator.normal(3, 2, 500))
        normal = torch.distributions.Normal(y.mean(), y.std(correction=0))
        assert constant_loss(y.numpy(), 0) == pytest.approx(float(-normal.log_prob(y).mean()))


class TestOptionsReachTheRun:
    """Against `fit` called with the same settings, to the last bit; and no option is without effect."""

    OPTIONS: ClassVar[dict[str, Any]] = {
        "lr": 0.02,
        "weight_decay": 0.3,
        "seed": 5,
        "batch_size": 16,
        "members": 3,
        "epochs": 3,
    }

    def weights(self, train: Forde, tmp_path: Path, data: str | Path, **changes: Any) -> dict[str, torch.Tensor]:
        options = {
            **self.OPTIONS,
            "method": "forde-identity",
            "hidden": "8",
            "engine": "eager",
            "device": "cpu",
            **changes,
        }
        folder = tmp_path / "-".join(map(str, changes.values() or ["plain"]))
        given = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
        assert train(data, folder, *given).code == 0
        return load_file(folder / "ensemble" / "model.safetensors")

    def expected(self, kind: str, x: np.ndarray, y: np.ndarray, **fitting: Any) -> dict[str, torch.Tensor]:
        likelihood = "classification" if kind == "classes" else "learned-noise-regression"
        outputs = 5 if kind == "classes" else 2
        ensemble = forde.Ensemble(lambda: forde.models.MLP(2, [8], outputs), 3, seed=5, likelihood=likelihood)
        method = forde.method("forde-identity", weight_decay=0.3)
        forde.fit(ensemble, method, (x, y), epochs=3, batch_size=16, seed=5, engine="eager", verbose=False, **fitting)
        return ensemble.state_dict()

    def test_classes_by_sgd(self, train: Forde, tmp_path: Path) -> None:
        data = forde.data.load("classification-2d")
        x = ((data.x - data.x.mean(0, np.float64)) / data.x.std(0, np.float64)).astype(np.float32)
        expected = self.expected("classes", x, data.y, lr=0.02)
        found = self.weights(train, tmp_path, "classification-2d")
        assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)

    def test_a_quantity_by_adam(self, train: Forde, tmp_path: Path) -> None:
        frame = quantities()
        values = frame.to_numpy(np.float64)
        standard = ((values - values.mean(0)) / values.std(0)).astype(np.float32)
        expected = self.expected(
            "quantity", standard[:, :2], standard[:, 2],
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.02),
            # Constant to half of 3 epochs, then linear to 1 % at 90 %.
            scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda epoch: (1.0, 1.0, 1 - 0.99 * (2 / 3 - 0.5) / 0.4)[min(epoch, 2)]
            ),
        )  # fmt: skip
        found = self.weights(train, tmp_path, written(tmp_path / "t.csv", frame))
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(
        "change",
        [
            {"lr": 0.01}, {"weight_decay": 0.1}, {"seed": 6}, {"batch_size": 32}, {"epochs": 2},
            {"method": "deep-ensemble"}, {"precision": "bf16"},
        ],
        ids=lambda change: next(iter(change)),
    )  # fmt: skip
    def test_none_is_without_effect(self, train: Forde, tmp_path: Path, change: dict[str, Any]) -> None:
        plain = self.weights(train, tmp_path, "classification-2d")
        changed = self.weights(train, tmp_path, "classification-2d", **change)
        assert not torch.equal(plain["members.0.head.weight"], changed["members.0.head.weight"])

    def test_the_seed_is_that_of_the_members_and_of_the_order(self, train: Forde, tmp_path: Path) -> None:
        train("classification-2d", tmp_path / "r", *SMALL, "--seed", 9)
        settings = json.loads((tmp_path / "r" / "config.json").read_text())
        assert settings["ensemble"]["seed"] == settings["training"]["seed"] == 9

    def test_options_of_how_it_is_run(self, train: Forde, tmp_path: Path) -> None:
        train(
            "classification-2d", tmp_path / "r", *SMALL, "--memory", "low", "--checkpoint-every", 3, "--keep", 4,
            "--checkpoint-minutes", 7, "--non-finite", "skip",
        )  # fmt: skip
        how = json.loads((tmp_path / "r" / "config.json").read_text())["how"]
        expected = {
            "memory": "low", "checkpoint_every": 3, "keep": 4, "checkpoint_minutes": 7.0, "non_finite": "skip",
            "engine": "eager", "device": "cpu",
        }  # fmt: skip
        assert {name: how[name] for name in expected} == expected

    @pytest.mark.parametrize("arguments", [(), ("--augment",)], ids=["plain", "augmented"])
    def test_augmentation(self, train: Forde, tmp_path: Path, arguments: tuple[str, ...]) -> None:
        train("digits", tmp_path / "r", *SMALL, *arguments)
        settings = json.loads((tmp_path / "r" / "config.json").read_text())
        assert (settings["training"]["augmentation"] is not None) == bool(arguments)

    def test_widths_of_all_hidden_layers(self, train: Forde, tmp_path: Path) -> None:
        train("classification-2d", tmp_path / "r", *SMALL, "--hidden", "7,5,3")
        weights = load_file(tmp_path / "r" / "ensemble" / "model.safetensors")
        shapes = [tuple(weights[f"members.0.{name}.weight"].shape) for name in ("body.0", "body.2", "body.4", "head")]
        assert shapes == [(7, 2), (5, 7), (3, 5), (5, 3)]

    def test_tensorboard(self, train: Forde, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folders, records = [], []

        class Recorder:
            def __init__(self, folder: Path) -> None:
                folders.append(folder)

            def record(self, record: dict[str, float]) -> None:
                records.append(record["epoch"])

            def close(self) -> None:
                records.append("closed")

        monkeypatch.setattr("forde.training.writers.TensorBoard", Recorder)
        train("classification-2d", tmp_path / "r", *SMALL)
        assert folders == []
        assert train("classification-2d", tmp_path / "s", *SMALL, "--tensorboard").code == 0
        assert folders == [tmp_path / "s" / "tensorboard"] and len(records) == 3 and records[-1] == "closed"

    def test_data_folder(self, train: Forde, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FORDE_DATA", str(tmp_path / "empty"))
        files.write_idx_set(tmp_path / "mnist", compressed=False)
        assert "forde data download mnist" in train("mnist", tmp_path / "r", *SMALL).err
        assert "12 images of 10 classes" in train("mnist", tmp_path / "r", *SMALL, "--data-dir", tmp_path).out

    def test_what_torchrun_tells(self, train: Forde, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first process speaks for all, and after a restart each goes on with what is there."""
        assert train("classification-2d", tmp_path / "r", *SMALL).out.count("\n") == 6  # two of them for epochs
        assert "is not empty" in train("classification-2d", tmp_path / "r", *SMALL).err
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
        monkeypatch.setenv("RANK", "1")
        assert train("classification-2d", tmp_path / "r", *SMALL) == (0, "", "")


def test_every_row_of_a_table_is_trained_on() -> None:
    """Which rows an epoch leaves out is drawn anew each time, so that none is always left out."""
    frame = quantities(rows=11)
    data = forde.data.from_arrays(frame[["a", "b"]].to_numpy(), frame["y"].to_numpy())
    ensemble = forde.Ensemble(lambda: forde.models.MLP(2, [4], 2), 1, likelihood="learned-noise-regression")
    seen: list[float] = []
    ensemble.members[0].body[0].register_forward_pre_hook(lambda _, given: seen.extend(given[0][:, 0].tolist()))
    forde.fit(ensemble, "deep-ensemble", data, epochs=40, batch_size=4, lr=1e-4, engine="eager", diagnostics_every=0)
    counts = pd.Series(seen).value_counts()
    assert set(counts.index) == set(frame["a"].tolist())
    assert counts.min() > 10  # each is in 29 of 40 epochs on average


class TestMistakes:
    """Of a first user: each is one sentence, and nothing is left behind."""

    @pytest.mark.parametrize("seed", [-1, 2**63])
    def test_seeds_that_no_generator_takes(self, train: Forde, tmp_path: Path, seed: int) -> None:
        result = train("regression-1d", tmp_path / "r", *SMALL, "--seed", seed)
        assert result.code == 1 and result.err.startswith(f"Error: --seed is {seed}, but a whole number from 0 to")
        assert result.err.count("\n") == 1 and not (tmp_path / "r").exists()

    def test_the_highest_seed(self, train: Forde, tmp_path: Path) -> None:
        assert train("regression-1d", tmp_path / "r", *SMALL, "--seed", 2**63 - 1).code == 0

    def test_a_single_class_is_named(self, train: Forde, tmp_path: Path) -> None:
        table = written(tmp_path / "t.csv", quantities().assign(y="k"))
        result = train(table, tmp_path / "r", *SMALL)
        assert result.code == 1 and "all 60 labels in 't' are of one class, 'k'" in result.err
