"""Every layout is read from small files as publishers write them."""

from __future__ import annotations

import json
from pathlib import Path

import data_files as files
import numpy as np
import pytest

import forde.data
from forde.data import Images, locating
from forde.errors import FordeError


def images_of(name: str | Path, split: str = "train", data_dir: Path | None = None) -> Images:
    data = forde.data.load(name, split, data_dir)
    assert isinstance(data, Images)
    assert data.images.dtype == np.uint8 and data.labels.dtype == np.int64
    assert data.images.shape == (len(data), *data.description.shape)
    assert len(data.labels) == len(data) == data.description.splits[split]
    return data


def test_digits_are_built_in() -> None:
    train, test = images_of("digits"), images_of("digits", "test")
    assert train.images.shape == (898, 8, 8, 1) and test.images.shape == (899, 8, 8, 1)
    assert train.description.mean == test.description.mean
    assert train.description.mean[0] == pytest.approx(train.images.mean() / 255)
    assert forde.data.describe("digits").mean[0] == pytest.approx(train.description.mean[0], abs=1e-4)
    assert forde.data.describe("digits").std[0] == pytest.approx(train.description.std[0], abs=1e-4)


def test_toys_are_tables() -> None:
    line, ring = forde.data.load("regression-1d"), forde.data.load("classification-2d", "test")
    assert isinstance(line, forde.data.Table) and isinstance(ring, forde.data.Table)
    assert line.x.shape == (400, 2) and line.y.dtype == np.float32 and line.description.n_classes == 0
    assert ring.x.shape == (100, 2) and ring.y.dtype == np.int64 and ring.description.n_classes == 5
    with pytest.raises(FordeError, match="split of regression-1d"):
        forde.data.load("regression-1d", "test")


@pytest.mark.parametrize("place", ["cifar10", "cifar-10-batches-py", "cifar10/cifar-10-batches-py", "."])
def test_cifar10_published_batches(tmp_path: Path, place: str) -> None:
    images, labels = files.write_cifar10_batches(tmp_path / place)
    train = images_of("cifar10", data_dir=tmp_path)
    np.testing.assert_array_equal(train.images, images)
    np.testing.assert_array_equal(train.labels, labels)
    assert images_of("cifar10", "test", tmp_path).labels.tolist() == [7, 8, 9]
    assert train.description.classes[0] == "airplane" and "published batches" in train.source


def test_cifar100_published_batches_have_fine_labels(tmp_path: Path) -> None:
    images = files.noise(3, (32, 32, 3))
    files.write_file(tmp_path / "cifar-100-python" / "test", files.cifar_batch(images, [0, 50, 99], b"fine_labels"))
    test = images_of("cifar100", "test", tmp_path)
    np.testing.assert_array_equal(test.images, images)
    assert [test.description.classes[label] for label in test.labels] == ["apple", "mouse", "worm"]


@pytest.mark.parametrize("column", ["img", "image"])
def test_cifar10_parquet_in_two_shards(tmp_path: Path, column: str) -> None:
    images = files.noise(6, (32, 32, 3))
    content = [files.encoded(pixels) for pixels in images]
    for shard, rows in enumerate((slice(4), slice(4, 6))):
        path = tmp_path / "cifar10" / f"train-0000{shard}-of-00002.parquet"
        files.write_parquet(path, content[rows], column, label=[1, 2, 3, 4, 5, 9][rows])
    train = images_of("cifar10", data_dir=tmp_path)
    np.testing.assert_array_equal(train.images, images)
    assert train.labels.tolist() == [1, 2, 3, 4, 5, 9]


def test_cifar100_parquet_and_grey_images_become_colour(tmp_path: Path) -> None:
    content = [files.encoded(files.noise(1, (32, 32, 3))[0]), files.encoded(np.full((32, 32), 9, np.uint8))]
    path = tmp_path / "test-00000-of-00001.parquet"
    files.write_parquet(path, content, fine_label=[99, 0], coarse_label=[3, 4])
    test = images_of("cifar100", "test", tmp_path)
    assert test.labels.tolist() == [99, 0] and (test.images[1] == 9).all()


def test_images_in_parquet_files_of_a_folder(tmp_path: Path) -> None:
    content = [files.encoded(pixels) for pixels in files.noise(4, (8, 8, 1))]
    files.write_parquet(tmp_path / "train.parquet", content, "image", label=[0, 1, 2, 1])
    files.write_parquet(tmp_path / "test.parquet", content[:2], "image", label=[2, 0])
    train, test = images_of(tmp_path), images_of(tmp_path, "test")
    assert train.description.n_classes == 3 and train.description.shape == (8, 8, 1)
    assert test.labels.tolist() == [2, 0] and test.description.splits == {"train": 4, "test": 2}
    assert test.description.mean == train.description.mean
    assert images_of(tmp_path / "train.parquet").labels.tolist() == [0, 1, 2, 1]


def test_a_folder_of_another_set_is_not_taken_for_cifar100(tmp_path: Path) -> None:
    files.write_class_folders(tmp_path / "train", ["a", "b"])
    with pytest.raises(FordeError, match="forde data download cifar100"):
        forde.data.load("cifar100", data_dir=tmp_path)


def test_class_names_in_parquet_metadata(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = files.write_parquet(tmp_path / "pets.parquet", [files.encoded(files.noise(1, (8, 8, 3))[0])], label=[1])
    features = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    pq.write_table(pq.read_table(path).replace_schema_metadata({"huggingface": json.dumps(features)}), path)
    assert images_of(path).description.classes == ("cat", "dog")


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files(tmp_path: Path, name: str, compressed: bool) -> None:
    images, labels = files.write_idx_set(tmp_path / name, compressed=compressed)
    train = images_of(name, data_dir=tmp_path)
    np.testing.assert_array_equal(train.images[..., 0], images)
    np.testing.assert_array_equal(train.labels, labels)
    assert len(images_of(name, "test", tmp_path)) == 5


def test_tinyimagenet_numbers_classes_in_sorted_order(tmp_path: Path) -> None:
    files.write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    train, test = images_of("tinyimagenet", data_dir=tmp_path), images_of("tinyimagenet", "test", tmp_path)
    assert train.description.classes == ("n01", "n02", "n03") and train.description.n_classes == 3
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert train.images[:, 0, 0, 0].tolist() == [60, 70, 120, 130, 0, 10]
    assert test.labels.tolist() == [2, 0, 1]
    assert len(forde.data.load("tinyimagenet", "val", tmp_path)) == 3


def test_cinic_and_its_imagenet_part(tmp_path: Path) -> None:
    for label, name in enumerate(forde.data.describe("cinic10").classes):
        folder = tmp_path / "CINIC-10" / "test" / name
        files.write_image(folder / f"cifar10-train-{label}.png", np.full((32, 32, 3), label, np.uint8))
        files.write_image(folder / f"n0{label}.png", np.full((32, 32), 100 + label, np.uint8))  # some are grey
    both, part = images_of("cinic10", "test", tmp_path), images_of("cinic10-imagenet", "test", tmp_path)
    assert len(both) == 20 and part.images[:, 0, 0, 0].tolist() == list(range(100, 110))
    assert part.labels.tolist() == list(range(10))


def test_class_folders_without_splits_are_training_data(tmp_path: Path) -> None:
    images = files.write_class_folders(tmp_path / "pets", ["dog", "cat"])
    (tmp_path / "pets" / "cat" / ".DS_Store").write_bytes(b"not an image")
    train = images_of(tmp_path / "pets")
    np.testing.assert_array_equal(train.images, images)
    assert train.description.classes == ("cat", "dog") and train.labels.tolist() == [0, 0, 1, 1]
    assert train.description.name == "pets"
    assert train.description.mean == pytest.approx(images.mean((0, 1, 2)) / 255)
    assert train.description.std == pytest.approx(images.std((0, 1, 2)) / 255)


def test_class_folders_with_splits_share_training_statistics(tmp_path: Path) -> None:
    images = files.write_class_folders(tmp_path / "train", ["a", "b"])
    files.write_class_folders(tmp_path / "val", ["a", "b"], per_class=1, seed=1)
    valid = images_of(tmp_path, "valid")
    assert valid.description.splits == {"train": 4, "valid": 2}
    assert valid.description.mean == pytest.approx(images.mean((0, 1, 2)) / 255)
    assert len(forde.data.load(tmp_path, "val")) == 2


def test_npz_with_and_without_splits(tmp_path: Path) -> None:
    x, y = files.noise(6, (8, 8)), np.array([0, 1, 2, 0, 1, 3])
    np.savez(tmp_path / "plain.npz", images=x, labels=y)
    np.savez(tmp_path / "keras.npz", x_train=x[:4], y_train=y[:4], x_test=x[4:], y_test=y[4:])
    np.savez(tmp_path / "med.npz", train_images=x, train_labels=y[:, None], val_images=x[:1], val_labels=y[:1, None])
    assert images_of(tmp_path / "plain.npz").images.shape == (6, 8, 8, 1)
    test = images_of(tmp_path / "keras.npz", "test")
    assert test.labels.tolist() == [1, 3] and test.description.n_classes == 4
    assert test.description.mean[0] == pytest.approx(x[:4].mean() / 255)
    assert images_of(tmp_path / "med.npz", "valid").labels.tolist() == [0]


def test_plain_arrays() -> None:
    data = forde.data.from_arrays(files.noise(3, (8, 8, 3)), [0, 1, 1], classes=("cat", "dog"))
    assert isinstance(data, Images) and data.description.classes == ("cat", "dog")
    table = forde.data.from_arrays(np.eye(3), np.array([0.5, 1.5, 2.5]))
    assert isinstance(table, forde.data.Table) and table.x.dtype == np.float32 and table.description.n_classes == 0
    assert forde.data.from_arrays(np.eye(3), [0, 2, 1]).description.n_classes == 3
    for x, y in ((files.noise(2, (8, 8)), ["cat", "dog"]), (files.noise(2, (8, 8)), [0.5, 1]), (np.eye(2), [[0], [1]])):
        with pytest.raises(FordeError, match="arrays in memory"):
            forde.data.from_arrays(x, y)


def test_data_folder_is_the_argument_else_the_environment_else_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORDE_DATA", str(tmp_path / "environment"))
    assert forde.data.data_folder(tmp_path) == tmp_path
    assert forde.data.data_folder() == tmp_path / "environment"
    files.write_idx_set(tmp_path / "environment" / "mnist", compressed=True)
    assert len(images_of("mnist")) == 12
    monkeypatch.delenv("FORDE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert forde.data.data_folder().name == "forde"


def test_check_reports_sizes_copies_and_statistics(tmp_path: Path) -> None:
    files.write_cifar10_batches(tmp_path)
    train, test = forde.data.check("cifar10", tmp_path)
    assert train.size == 20 and train.repeated == 0 and "50,000 were expected" in train.problems[0]
    assert any("channel statistics" in problem for problem in train.problems)
    assert any("no sample of class 0" in problem for problem in test.problems)


def test_a_package_of_the_system_brings_fashion_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, own = tmp_path / "usr" / "share", tmp_path / "own"
    monkeypatch.setitem(locating.PACKAGES, "fashion-mnist", ("dataset-fashion-mnist", place))
    with pytest.raises(FordeError, match=r"forde data download fashion-mnist, or: apt install dataset-fashion-mnist"):
        images_of("fashion-mnist", data_dir=own)
    images, _ = files.write_idx_set(place, compressed=True)
    assert np.array_equal(images_of("fashion-mnist", data_dir=own).images[..., 0], images)
    files.write_idx_set(own / "fashion-mnist", compressed=True)
    assert str(own) in images_of("fashion-mnist", data_dir=own).source
