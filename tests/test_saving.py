"""Folders written by `Ensemble.save`: complete, safe to read, and clear about what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import forde
from forde.models import MLP


def make() -> nn.Module:
    return MLP(4, [8], 3, batch_norm=True)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return forde.Ensemble(make, 2, seed=7).save(tmp_path / "deep" / "folder")


def test_files_and_round_trip(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", "model.safetensors"]
    loaded = forde.Ensemble.load(saved, make)
    original = forde.Ensemble(make, 2, seed=7)
    assert loaded.seed == 7 and loaded.n_members == 2
    for name, tensor in original.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def test_precision_and_likelihood_come_back(tmp_path: Path) -> None:
    likelihood = forde.likelihoods.Regression(noise=0.25)
    ensemble = forde.Ensemble(lambda: MLP(4, [8], 1), 2, likelihood=likelihood).double()
    loaded = forde.Ensemble.load(ensemble.save(tmp_path), lambda: MLP(4, [8], 1))
    assert loaded.likelihood == likelihood
    x = torch.randn(5, 4, dtype=torch.float64)
    assert torch.equal(loaded.predict(x).mean, ensemble.predict(x).mean)


def test_loaded_ensemble_trains_on(saved: Path) -> None:
    loaded = forde.Ensemble.load(saved, make)
    x, y = torch.randn(32, 4), torch.arange(32) % 3
    assert len(forde.fit(loaded, "forde-pca", (x, y), epochs=1, verbose=False)) == 1


def test_own_loss_predicts_but_asks_for_the_loss_to_train(tmp_path: Path) -> None:
    ensemble = forde.Ensemble(make, 2, likelihood=lambda output, y: output.sum(-1) - y)
    loaded = forde.Ensemble.load(ensemble.save(tmp_path), make)
    x, y = torch.randn(32, 4), torch.zeros(32)
    assert loaded.predict(x).mean.shape == (32, 3)
    with pytest.raises(forde.FordeError, match="not stored in files"):
        forde.fit(loaded, "deep-ensemble", (x, y), epochs=1, verbose=False)


def test_a_prediction_by_a_function_is_missed_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Loaded without it, outputs are raw ones, and a line says so; with it nothing is said."""
    own = forde.likelihoods.Custom(lambda output, y: output.sum(-1) - y, prediction=forde.ClassificationPrediction)
    ensemble, x = forde.Ensemble(make, 2, likelihood=own), torch.randn(5, 4)
    folder = ensemble.save(tmp_path)
    loaded = forde.Ensemble.load(folder, make, likelihood=own)
    assert torch.equal(loaded.predict(x).probs, ensemble.predict(x).probs) and not caplog.messages
    assert isinstance(forde.Ensemble.load(folder, make).predict(x), forde.prediction.RawPrediction)
    assert "was said by a function, which files do not hold, so predictions are raw outputs" in caplog.text


def test_saving_twice_replaces(saved: Path) -> None:
    forde.Ensemble(make, 2, seed=8).save(saved)
    assert forde.Ensemble.load(saved, make).seed == 8
    assert not list(saved.glob("*.tmp"))


def test_other_architecture(saved: Path) -> None:
    with pytest.raises(forde.FordeError, match=r"another architecture: 'members\.0\.body\.0\.weight' has shape"):
        forde.Ensemble.load(saved, lambda: MLP(5, [8], 3, batch_norm=True))
    with pytest.raises(forde.FordeError, match="only in the file"):
        forde.Ensemble.load(saved, lambda: MLP(4, [], 3))
    with pytest.raises(forde.FordeError, match="only in the network"):
        forde.Ensemble.load(saved, lambda: MLP(4, [8, 8], 3, batch_norm=True))


def test_missing_files(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(forde.FordeError, match=r"config\.json' cannot be read"):
        forde.Ensemble.load(tmp_path / "nowhere", make)
    (saved / "model.safetensors").unlink()
    with pytest.raises(forde.FordeError, match=r"model\.safetensors' is missing"):
        forde.Ensemble.load(saved, make)


def test_the_folder_of_a_run_is_told_from_its_ensemble(tmp_path: Path) -> None:
    x, y = torch.randn(16, 4), torch.arange(16) % 3
    ensemble = forde.Ensemble(make, 2)
    forde.fit(ensemble, "deep-ensemble", (x, y), epochs=1, run=tmp_path, verbose=False)
    with pytest.raises(forde.FordeError, match=f"that of a run is in '{tmp_path / 'ensemble'}'"):
        forde.Ensemble.load(tmp_path, make)
    loaded = forde.Ensemble.load(tmp_path / "ensemble", make)
    assert torch.equal(loaded.predict(x).probs, ensemble.predict(x).probs)


@pytest.mark.parametrize("keep", [0, 4, 100, 1000])
def test_truncated_weights(saved: Path, keep: int) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(forde.FordeError, match="truncated or damaged"):
        forde.Ensemble.load(saved, make)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "format None"),
        ('{"format": 99}', "format 99"),
        ('{"format": 1}', "'n_members'"),
        ('{"format": 1, "n_members": "2", "seed": 0, "likelihood": {}}', "'n_members'"),
        ('{"format": 1, "n_members": 2, "seed": 0, "likelihood": {"name": "x"}}', "unknown likelihood"),
        (
            '{"format": 1, "n_members": 2, "seed": 0, "likelihood": {"name": "regression", "evil": 1}}',
            "do not fit",
        ),
    ],
)
def test_damaged_config(saved: Path, text: str, message: str) -> None:
    (saved / "config.json").write_text(text)
    with pytest.raises(forde.FordeError, match=message):
        forde.Ensemble.load(saved, make)


def test_config_is_readable_by_others(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    network = {"inputs": 4, "hidden": [8], "outputs": 3, "batch_norm": True, "activation": "ReLU"}
    assert config == {
        "format": 1, "n_members": 2, "seed": 7, "likelihood": {"name": "classification"},
        "networks": {"name": "mlp", **network},
    }  # fmt: skip


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(forde.FordeError, match="choose a writable folder"):
        forde.Ensemble(make, 2).save(tmp_path / "file" / "folder")
