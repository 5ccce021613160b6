"""An ensemble knows its inputs: raw data is prepared as in training, in this process and after loading."""

from __future__ import annotations

import json
import logging
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import forde
from forde.data import Images, Inputs, Standardisation, Table
from forde.evaluation import evaluate_robustness
from forde.models import MLP, preact_resnet18, resnet18, wrn16_4
from forde.models.building import build, description

QUIET: dict[str, Any] = {"epochs": 1, "engine": "eager", "verbose": False, "diagnostics_every": 0}


@pytest.fixture(scope="module")
def test_images() -> Images:
    data = forde.data.load("digits", "test")
    return replace(data, images=data.images[:64], labels=data.labels[:64])


@pytest.fixture(scope="module")
def on_digits() -> forde.Ensemble:
    ensemble = forde.Ensemble(lambda: MLP(64, [8], 10), 2)
    forde.fit(ensemble, "deep-ensemble", forde.data.load("digits"), **QUIET)
    return ensemble


def by_hand(images: Images) -> torch.Tensor:
    """(v/255 − mean)/std of the training images, channels first."""
    told = forde.data.load("digits").description
    x = torch.from_numpy(images.images).double().permute(0, 3, 1, 2) / 255
    return ((x - told.mean[0]) / told.std[0]).float()


class TestImages:
    def test_bytes_in_any_wrapping_are_normalised_as_in_training(
        self, on_digits: forde.Ensemble, test_images: Images, tmp_path: Path
    ) -> None:
        expected = on_digits.predict(by_hand(test_images)).probs
        raw = torch.from_numpy(test_images.images)
        loaded = forde.Ensemble.load(on_digits.save(tmp_path))
        for ensemble in (on_digits, loaded, pickle.loads(pickle.dumps(on_digits))):
            loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(raw, raw[:, 0, 0, 0]), 16)
            for given in (test_images, test_images.images, raw, raw[..., 0], loader):
                torch.testing.assert_close(ensemble.predict(given).probs, expected, rtol=0, atol=1e-5)

    def test_statistics_of_new_images_do_not_count(self, on_digits: forde.Ensemble, test_images: Images) -> None:
        other = replace(test_images, description=replace(test_images.description, mean=(0.9,), std=(0.1,)))
        assert torch.equal(on_digits.predict(other).probs, on_digits.predict(test_images).probs)

    def test_evaluation_needs_no_transform(self, on_digits: forde.Ensemble, test_images: Images) -> None:
        pair = (test_images.images, test_images.labels)
        accuracy = float((on_digits.predict(by_hand(test_images)).labels.numpy() == test_images.labels).mean())
        assert evaluate_robustness(on_digits, pair).clean["accuracy"].value == pytest.approx(accuracy)

    def test_a_transform_beside_it(
        self, on_digits: forde.Ensemble, test_images: Images, caplog: pytest.LogCaptureFixture
    ) -> None:
        pair, told = (test_images.images, test_images.labels), test_images.description
        with caplog.at_level(logging.INFO, "forde"):
            same = evaluate_robustness(on_digits, pair, transform=forde.data.normalise(told.mean, told.std))
        assert same.clean == evaluate_robustness(on_digits, pair).clean
        assert "transform is used" in caplog.text
        with pytest.raises(forde.FordeError, match="transform gives other inputs than those"):
            evaluate_robustness(on_digits, pair, transform=forde.data.normalise())

    def test_given_by_hand_it_holds_in_training_too(self, test_images: Images) -> None:
        """`Inputs(mean, std)` and bytes are what normalised floats are without."""
        raw, y = torch.from_numpy(test_images.images), torch.from_numpy(test_images.labels)
        states = []
        for data, inputs in (
            ((raw, y), Inputs(mean=(0.3,), std=(0.4,))),
            ((forde.data.normalise(0.3, 0.4)(raw), y), None),
        ):
            ensemble = forde.Ensemble(lambda: MLP(64, [8], 10), 2, inputs=inputs)
            forde.fit(ensemble, "forde-identity", data, **QUIET)
            states.append(ensemble.state_dict())
        for name, tensor in states[0].items():
            torch.testing.assert_close(tensor, states[1][name], rtol=1e-5, atol=1e-6)

    def test_training_on_keeps_the_normalisation(self, test_images: Images) -> None:
        ensemble = forde.Ensemble(lambda: MLP(64, [8], 10), 2, inputs=Inputs(mean=(0.1,), std=(0.9,)))
        forde.fit(ensemble, "deep-ensemble", test_images, **QUIET)
        assert ensemble.inputs is not None
        assert (ensemble.inputs.mean, ensemble.inputs.std) == ((0.1,), (0.9,))
        assert ensemble.inputs.classes == test_images.description.classes

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (np.zeros((2, 28, 28, 1), np.uint8), r"shape \[28, 28, 1\], but bytes of shape \[8, 8, 1\]"),
            (np.zeros((2, 1, 8, 8), np.uint8), r"shape \[1, 8, 8\], but bytes"),
            (np.zeros((2, 8, 8, 3), np.uint8), r"shape \[8, 8, 3\], but bytes"),
            (pd.DataFrame({"a": [1.0]}), "trained on images, but a table was given"),
        ],
        ids=["size", "channels first", "colour", "table"],
    )
    def test_other_inputs(self, on_digits: forde.Ensemble, given: Any, message: str) -> None:
        with pytest.raises(forde.FordeError, match=message):
            on_digits.predict(given)


@pytest.fixture(scope="module")
def rows() -> Table:
    generator = np.random.default_rng(0)
    x = generator.normal(5, 3, (60, 2)).astype(np.float32)
    made = forde.data.from_arrays(x, (100 + x[:, 0]).astype(np.float32))
    return replace(made, feature_names=("a", "b"))


@pytest.fixture(scope="module")
def on_rows(rows: Table) -> forde.Ensemble:
    ensemble = forde.Ensemble(lambda: MLP(2, [8], 2), 2, likelihood="learned-noise-regression")
    forde.fit(ensemble, "deep-ensemble", Standardisation.of(rows).apply(rows), lr=1e-3, **QUIET)
    return ensemble


class TestTables:
    def test_named_columns_in_their_own_units(self, on_rows: forde.Ensemble, rows: Table, tmp_path: Path) -> None:
        units = Standardisation.of(rows)
        expected = units.undo(on_rows.predict(torch.from_numpy(units.inputs(rows.x))))
        frame = pd.DataFrame({"b": rows.x[:, 1], "note": "x", "a": rows.x[:, 0]})
        for ensemble in (on_rows, forde.Ensemble.load(on_rows.save(tmp_path))):
            for given in (rows, frame[["b", "a"]], frame):
                found = ensemble.predict(given)
                torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=1e-5)
                torch.testing.assert_close(found.std, expected.std, rtol=0, atol=1e-5)
        assert 90 < float(expected.mean.mean()) < 120

    def test_standard_units_stay_so(
        self, on_rows: forde.Ensemble, rows: Table, caplog: pytest.LogCaptureFixture
    ) -> None:
        units = Standardisation.of(rows)
        by_table = on_rows.predict(units.apply(rows))
        assert abs(float(by_table.mean.mean())) < 5 and not caplog.text
        assert torch.equal(on_rows.predict(torch.from_numpy(units.inputs(rows.x))).mean, by_table.mean)
        assert "taken to be standardised already" in caplog.text

    def test_other_units_are_refused(self, on_rows: forde.Ensemble, rows: Table) -> None:
        other = Standardisation.of(replace(rows, x=2 * rows.x))
        with pytest.raises(forde.FordeError, match="other statistics than those of the training data"):
            on_rows.predict(other.apply(rows))
        with pytest.raises(forde.FordeError, match="standardised already"):
            other.apply(other.apply(rows))

    def test_other_columns(self, on_rows: forde.Ensemble, rows: Table) -> None:
        with pytest.raises(forde.FordeError, match="has no column 'a', as the training data has"):
            on_rows.predict(pd.DataFrame({"b": [1.0]}))
        with pytest.raises(forde.FordeError, match="trained on a table, but images were given"):
            on_rows.predict(forde.data.load("digits"))


class TestNetworks:
    @pytest.mark.parametrize(
        "network",
        [
            MLP(4, [], 3), MLP(4, [5, 6], 2, activation=nn.GELU), MLP(4, [5], 2, batch_norm=True),
            resnet18(3, channels=1), preact_resnet18(3), wrn16_4(7),
        ],
        ids=["linear", "gelu", "batch norm", "resnet18", "preact_resnet18", "wrn16_4"],
    )  # fmt: skip
    def test_description_and_back(self, network: nn.Module) -> None:
        words = description(network)
        assert words is not None and json.loads(json.dumps(words)) == words
        same = build(words)
        assert repr(same) == repr(network)
        same.load_state_dict(network.state_dict())
        size = (2, 4) if words["name"] == "mlp" else (2, words["channels"], 8, 8)
        x = torch.randn(size)
        assert torch.equal(same.eval()(x), network.eval()(x))

    @pytest.mark.parametrize("change", ["activation", "head", "forward", "hook", "subclass"])
    def test_what_was_altered_has_none(self, change: str) -> None:
        class Own(MLP):
            pass

        network = Own(4, [5], 3) if change == "subclass" else MLP(4, [5], 3)
        if change == "activation":
            network.body[1] = nn.LeakyReLU(0.3)
        elif change == "head":
            network.head = nn.Sequential(network.head)
        elif change == "forward":
            network.forward = lambda x: 2 * MLP.forward(network, x)  # type: ignore[method-assign]
        elif change == "hook":
            network.head.register_forward_hook(lambda *_: None)
        assert description(network) is None

    def test_members_of_different_kinds(self, tmp_path: Path) -> None:
        ensemble = forde.Ensemble([lambda: MLP(4, [5], 3), lambda: MLP(4, [6, 7], 3)])
        x = torch.randn(3, 4)
        assert torch.equal(forde.Ensemble.load(ensemble.save(tmp_path)).predict(x).probs, ensemble.predict(x).probs)

    def test_own_code_is_named_and_never_imported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        package = tmp_path / "own_network_for_this_test.py"
        package.write_text(
            "from pathlib import Path\nfrom torch import nn\nPath('imported').touch()\n"
            "def make():\n    return nn.Sequential(nn.Linear(4, 3))\n"
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        import own_network_for_this_test as own  # type: ignore[import-not-found]

        folder = forde.Ensemble(own.make, 2).save(tmp_path / "e")
        del sys.modules["own_network_for_this_test"]
        Path("imported").unlink()
        with pytest.raises(forde.FordeError, match=r"built by 'own_network_for_this_test:make', which is code and not"):
            forde.Ensemble.load(folder)
        assert not Path("imported").exists()
        assert forde.Ensemble.load(folder, own.make).n_members == 2

    @pytest.mark.parametrize(
        "words",
        [
            3, {}, {"name": "os"}, {"name": "mlp"}, {"name": "mlp", "inputs": 4, "hidden": [8], "outputs": 3, "x": 1},
            {"name": "mlp", "inputs": 4, "hidden": [2**30, 2**30], "outputs": 3},
            {"name": "mlp", "inputs": 4, "hidden": [10**6], "outputs": 3},
            {"name": "mlp", "inputs": 4, "hidden": [8], "outputs": 3, "activation": "Module"},
            {"name": "mlp", "inputs": 4, "hidden": "8", "outputs": 3}, {"name": ["mlp"]},
            [], [{"name": "mlp", "inputs": 4, "hidden": [8], "outputs": 3}] * 3,
        ],
        ids=str,
    )  # fmt: skip
    def test_altered_words_are_one_sentence(self, tmp_path: Path, words: Any) -> None:
        folder = forde.Ensemble(lambda: MLP(4, [8], 3), 2).save(tmp_path)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "networks": words}))
        with pytest.raises(forde.FordeError):
            forde.Ensemble.load(folder)
        assert forde.Ensemble.load(folder, lambda: MLP(4, [8], 3)).n_members == 2


@pytest.mark.parametrize(
    "change",
    [
        {"mean": [0.1, 0.2]}, {"std": [0.0]}, {"std": ["1"]}, {"shape": [8, 8]}, {"shape": [-8, 8, 1]},
        {"classes": [1]}, {"n_classes": True}, {"features": ["a"]}, {"standardisation": {}}, {"more": 1},
        {"mean": [1e400]},
    ],
    ids=str,
)  # fmt: skip
def test_altered_inputs_are_one_sentence(on_digits: forde.Ensemble, tmp_path: Path, change: dict[str, Any]) -> None:
    folder = on_digits.save(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["inputs"].update(change)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(forde.FordeError):
        forde.Ensemble.load(folder)


def test_folders_of_before_still_load(tmp_path: Path, test_images: Images) -> None:
    """Without a word on networks and inputs; what is not known is done as it was."""
    ensemble = forde.Ensemble(lambda: MLP(64, [8], 10), 2, inputs=Inputs.of(test_images))
    folder = ensemble.save(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["networks"], config["inputs"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(forde.FordeError, match="does not say how its networks are built"):
        forde.Ensemble.load(folder)
    loaded = forde.Ensemble.load(folder, lambda: MLP(64, [8], 10))
    assert loaded.inputs is None
    assert torch.equal(loaded.predict(test_images).probs, ensemble.predict(test_images).probs)
