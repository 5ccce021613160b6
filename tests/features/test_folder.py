"""A folder of features: its layout, corrupted and foreign sets, reading it, and damage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_backbones import HALF, small

import forde
from forde.corruptions import corrupt
from forde.data import Images, load_images
from forde.data.features import (
    Backbone,
    Settings,
    feature_parts,
    feature_sets,
    features,
    fill,
    load_features,
    sets,
)
from forde.errors import FordeError

LIMIT = 40
PARTS = ["corrupted/fog-1", "corrupted/fog-5", "corrupted/snow-1", "corrupted/snow-5", "foreign/noise", "test", "train"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "features"
    wanted = feature_sets("digits", corruptions=["fog", "snow"], severities=[1, 5], foreign=["noise"], limit=LIMIT)
    steps = list(fill(out, small(), wanted))
    assert [step.done and not step.was_there for step in steps] == [True] * 7
    return out


def test_the_layout_is_as_described(folder: Path) -> None:
    assert feature_parts(folder) == PARTS
    for part in PARTS:
        path = folder / f"{part}.safetensors"
        tensors = load_file(path)
        assert set(tensors) == {"features", "labels"}
        assert tensors["features"].shape == (LIMIT, 5) and tensors["features"].dtype == torch.float32
        assert tensors["labels"].shape == (LIMIT,) and tensors["labels"].dtype == torch.int64
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["forde.features"])
        assert about["backbone"]["name"] == "small" and about["data"]["rows"] == LIMIT
    assert not list(folder.glob("**/*.parts"))


def test_each_set_has_the_features_of_its_images(folder: Path) -> None:
    train, test = (load_images("digits", split) for split in ("train", "test"))
    expected = {
        "train": (train.images, train.labels),
        "test": (test.images, test.labels),
        "corrupted/fog-5": (corrupt(test.images, "fog", 5), test.labels),
        "corrupted/snow-1": (corrupt(test.images, "snow", 1), test.labels),
    }
    for part, (pixels, labels) in expected.items():
        found = load_features(folder, part)
        by_hand = features(small(), (pixels[:LIMIT], labels[:LIMIT]))
        assert torch.allclose(found.x, by_hand.x, atol=1e-5), part
        assert found.y.tolist() == labels[:LIMIT].tolist()
    about = load_features(folder, "corrupted/fog-5").about["data"]
    assert (about["corruption"], about["severity"], about["source"]) == ("fog", 5, "generated (seed 0, v1)")


def test_noise_depends_on_the_seed_alone_and_has_no_labels(folder: Path, tmp_path: Path) -> None:
    found = load_features(folder, "foreign/noise")
    assert set(found.y.tolist()) == {-1} and found.about["data"]["name"] == "noise"
    test = load_images("digits", "test")
    one, same, other = (sets.noise(test, seed).images for seed in (0, 0, 1))
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    assert one.shape == test.images.shape and abs(one.mean() - 127.5) < 1


def test_a_foreign_set_keeps_its_own_labels_and_size(tmp_path: Path) -> None:
    pixels, labels = np.random.default_rng(0).integers(0, 256, (9, 12, 10, 3), np.uint8), np.arange(9) % 3
    np.savez(tmp_path / "pets.npz", x_train=pixels, y_train=labels, x_test=pixels[:5], y_test=labels[:5])
    wanted = feature_sets("digits", splits=["test"], foreign=[str(tmp_path / "pets.npz"), "digits"], limit=7)
    list(fill(tmp_path / "out", small(), wanted))
    assert feature_parts(tmp_path / "out") == ["foreign/digits", "foreign/pets", "test"]
    found = load_features(tmp_path / "out", "foreign/pets")
    assert found.y.tolist() == [0, 1, 2, 0, 1]
    assert torch.allclose(found.x, features(small(), pixels[:5]).x, atol=1e-5)


def test_published_corrupted_images_are_used_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = load_images("digits", "test")
    published = Images(255 - test.images, test.labels, test.description, "published")
    monkeypatch.setattr(sets, "read_published", lambda name, kind, *_: published if kind == "fog" else None)
    wanted = feature_sets("digits", splits=[], corruptions=["fog", "snow"], severities=[2], limit=LIMIT)
    list(fill(tmp_path, small(), wanted))
    fog, snow = (load_features(tmp_path, f"corrupted/{name}-2") for name in ("fog", "snow"))
    assert torch.allclose(fog.x, features(small(), 255 - test.images[:LIMIT]).x, atol=1e-5)
    assert (fog.about["data"]["source"], snow.about["data"]["source"]) == ("published", "generated (seed 0, v1)")
    assert fog.about["data"]["corruption"] == "fog"


def test_fit_and_predict_take_them(folder: Path) -> None:
    train, test = load_features(folder), load_features(folder, "test")
    ensemble = forde.Ensemble(lambda: forde.models.MLP(5, [8], 10), n_members=2)
    forde.fit(ensemble, "forde-pca", (train.x, train.y), epochs=1, batch_size=20)
    assert ensemble.predict(test.x).probs.shape == (LIMIT, 10)


def test_other_settings_for_a_folder_are_refused(folder: Path) -> None:
    again = list(fill(folder, small(), feature_sets("digits", limit=LIMIT)))
    assert [step.was_there for step in again] == [True, True]
    with pytest.raises(FordeError, match=r"was made with data.rows 40, but 39 is given"):
        list(fill(folder, small(), feature_sets("digits", limit=LIMIT - 1)))
    with pytest.raises(FordeError, match="holds features of another network: weights"):
        list(fill(folder, small(1), feature_sets("digits", splits=[], foreign=["digits"], limit=LIMIT)))
    wanted = feature_sets("digits", splits=[], corruptions=["fog"], severities=[1], seed=1, limit=LIMIT)
    with pytest.raises(FordeError, match=r"data.source 'generated \(seed 0, v1\)', but 'generated \(seed 1, v1\)'"):
        list(fill(folder, small(), wanted))


def test_another_name_of_the_same_weights_is_no_other_network(folder: Path) -> None:
    same = small()
    renamed = Backbone("small", same.network, HALF, layer="classifier", at="input", revision="copy of a friend's")
    assert [step.was_there for step in fill(folder, renamed, feature_sets("digits", limit=LIMIT))] == [True, True]


def test_damage_is_said_in_a_sentence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FordeError, match="unknown set of features 'corrupted/fog-2'; did you mean 'corrupted/fog-5'"):
        load_features(folder, "corrupted/fog-2")
    with pytest.raises(FordeError, match=r"the folder of features '.*nowhere' is missing"):
        load_features(tmp_path / "nowhere")
    path = folder / "test.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + b"\0\0\1")
    with pytest.raises(FordeError, match="not those that were saved: the file is damaged"):
        load_features(folder, "test")
    path.write_bytes(whole[:-3])
    with pytest.raises(FordeError, match="is truncated or damaged"):
        load_features(folder, "test")
    save_file({"features": torch.zeros(2, 3)}, path)
    with pytest.raises(FordeError, match="is no file of features"):
        load_features(folder, "test")
    with pytest.raises(FordeError, match="is no file of features"):
        list(fill(folder, small(), feature_sets("digits", limit=LIMIT)))
    about = {"format": 1, "backbone": {}, "sha256": ""}
    for tensors, said in (
        ({"features": torch.zeros(2, 3), "labels": torch.zeros(3)}, r"shape \[2, 3\] and labels of shape \[3\]"),
        ({"x": torch.zeros(2, 3)}, "features and labels were expected"),
    ):
        save_file(tensors, path, metadata={"forde.features": json.dumps(about)})
        with pytest.raises(FordeError, match=said):
            load_features(folder, "test")


def test_sets_of_two_networks_are_not_mixed(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    list(fill(other, small(1), feature_sets("digits", splits=["test"], limit=LIMIT)))
    (folder / "test.safetensors").write_bytes((other / "test.safetensors").read_bytes())
    with pytest.raises(FordeError, match="are features of different networks: weights is"):
        load_features(folder, "test")


def test_types_of_stored_and_loaded_features(tmp_path: Path) -> None:
    list(fill(tmp_path, small(), feature_sets("digits", splits=["test"], limit=5), Settings(dtype="bfloat16")))
    assert load_file(tmp_path / "test.safetensors")["features"].dtype == torch.bfloat16
    assert load_features(tmp_path, "test").x.dtype == torch.float32
    assert load_features(tmp_path, "test", dtype=torch.bfloat16).x.dtype == torch.bfloat16


def test_mistakes_in_what_is_wanted() -> None:
    with pytest.raises(FordeError, match="unknown corruption 'fogg'; did you mean 'fog'"):
        feature_sets("digits", corruptions=["fogg"])
    with pytest.raises(FordeError, match="severity was 6; give whole numbers from 1 to 5"):
        feature_sets("digits", corruptions=["fog"], severities=[6])
    with pytest.raises(FordeError, match="unknown data set, file or folder 'digit'"):
        feature_sets("digits", foreign=["digit"])
    with pytest.raises(FordeError, match="limit is 0"):
        feature_sets("digits", limit=0)
    with pytest.raises(FordeError, match="is a table, but images were expected"):
        feature_sets("regression-1d", splits=["train"])
    with pytest.raises(FordeError, match="the device is 'cuda', but torch sees no GPU"):
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        Settings(device="cuda")
    with pytest.raises(FordeError, match="unknown device 'gpu'"):
        Settings(device="gpu")
    with pytest.raises(FordeError, match="unknown dtype of features 'float8'"):
        Settings(dtype="float8")
