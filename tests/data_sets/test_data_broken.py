"""Broken files get one sentence that names the file."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import data_files as files
import numpy as np
import pytest

import forde.data
from forde.errors import FordeError

CASES: list[Callable[[Path], tuple[str | Path, str, str, str]]] = []


def case(
    make: Callable[[Path], tuple[str | Path, str, str, str]],
) -> Callable[[Path], tuple[str | Path, str, str, str]]:
    """Register a maker of a broken data set: it returns what to load, the split, the file's name, and the complaint."""
    CASES.append(make)
    return make


def cut(path: Path, keep: float = 0.6) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


@case
def truncated_batch(folder: Path) -> tuple[str, str, str, str]:
    files.write_cifar10_batches(folder)
    cut(folder / "data_batch_3")
    return "cifar10", "train", "data_batch_3", "truncated"


@case
def missing_batch(folder: Path) -> tuple[str, str, str, str]:
    files.write_cifar10_batches(folder)
    (folder / "data_batch_2").unlink()
    return "cifar10", "train", "data_batch_2", "missing"


@case
def batch_of_another_set(folder: Path) -> tuple[str, str, str, str]:
    files.write_file(folder / "test_batch", files.cifar_batch(files.noise(1, (32, 32, 3)), [1], b"fine_labels"))
    return "cifar10", "test", "test_batch", "no entry 'labels'"


@case
def batch_of_another_size(folder: Path) -> tuple[str, str, str, str]:
    files.write_file(folder / "test_batch", files.cifar_batch(files.noise(1, (16, 16, 3)), [1]))
    return "cifar10", "test", "test_batch", "3072"


@case
def label_outside_in_batch(folder: Path) -> tuple[str, str, str, str]:
    files.write_file(folder / "test_batch", files.cifar_batch(files.noise(2, (32, 32, 3)), [1, 10]))
    return "cifar10", "test", "test_batch", "label 10 in row 1"


@case
def fewer_labels_than_images(folder: Path) -> tuple[str, str, str, str]:
    files.write_file(folder / "test_batch", files.cifar_batch(files.noise(2, (32, 32, 3)), [1]))
    return "cifar10", "test", "test_batch", "2 images but 1 labels"


@case
def truncated_parquet(folder: Path) -> tuple[str, str, str, str]:
    cut(files.write_parquet(folder / "test.parquet", [files.encoded(files.noise(1, (32, 32, 3))[0])], label=[0]))
    return "cifar10", "test", "test.parquet", "truncated"


@case
def unreadable_image_in_parquet(folder: Path) -> tuple[str, str, str, str]:
    good = files.encoded(files.noise(1, (32, 32, 3))[0])
    files.write_parquet(folder / "test.parquet", [good, good[:60]], label=[0, 1])
    return "cifar10", "test", "test.parquet, row 1", "cannot be read"


@case
def label_outside_in_parquet(folder: Path) -> tuple[str, str, str, str]:
    files.write_parquet(folder / "test.parquet", [files.encoded(files.noise(1, (32, 32, 3))[0])], label=[-1])
    return "cifar10", "test", "test.parquet", "label -1 in row 0"


@case
def wrong_label_column(folder: Path) -> tuple[str, str, str, str]:
    files.write_parquet(folder / "test.parquet", [files.encoded(files.noise(1, (32, 32, 3))[0])], fine_labels=[0])
    return "cifar100", "test", "test.parquet", "did you mean 'fine_labels'"


@case
def mixed_sizes_in_parquet(folder: Path) -> tuple[str, str, str, str]:
    content = [files.encoded(files.noise(1, (side, side, 3))[0]) for side in (32, 31)]
    files.write_parquet(folder / "test.parquet", content, label=[0, 1])
    return "cifar10", "test", "test.parquet, row 1", "31 x 31"


@case
def wrong_magic(folder: Path) -> tuple[str, str, str, str]:
    files.write_idx_set(folder, compressed=False)
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(b"\0\0\x0d\3" + path.read_bytes()[4:])
    return "mnist", "train", path.name, "00000d03"


@case
def truncated_idx(folder: Path) -> tuple[str, str, str, str]:
    files.write_idx_set(folder, compressed=False)
    cut(folder / "train-images-idx3-ubyte")
    return "mnist", "train", "train-images-idx3-ubyte", "truncated"


@case
def truncated_gzip(folder: Path) -> tuple[str, str, str, str]:
    files.write_idx_set(folder, compressed=True)
    cut(folder / "train-images-idx3-ubyte.gz")
    return "mnist", "train", "train-images-idx3-ubyte.gz", "truncated"


@case
def longer_than_the_header_says(folder: Path) -> tuple[str, str, str, str]:
    files.write_idx_set(folder, compressed=True)
    path = folder / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + bytes(1_000_000)))
    return "mnist", "train", path.name, "longer"


@case
def missing_idx(folder: Path) -> tuple[str, str, str, str]:
    files.write_idx_set(folder, compressed=True)
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    return "mnist", "train", "train-labels-idx1-ubyte", "missing"


@case
def label_outside_in_idx(folder: Path) -> tuple[str, str, str, str]:
    files.write_idx_set(folder, compressed=False)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(files.idx(np.array([0, 1, 2, 3, 200], np.uint8)))
    return "fashion-mnist", "test", "t10k-labels-idx1-ubyte", "label 200 in row 4"


@case
def mixed_sizes(folder: Path) -> tuple[Path, str, str, str]:
    files.write_class_folders(folder, ["a", "b"])
    files.write_image(folder / "b" / "odd.png", files.noise(1, (9, 8, 3))[0])
    return folder, "train", "odd.png", f"9 x 8 pixels, but '{sorted((folder / 'a').iterdir())[0]}' has 8 x 8"


@case
def grey_among_colour(folder: Path) -> tuple[Path, str, str, str]:
    files.write_class_folders(folder, ["a", "b"])
    files.write_image(folder / "b" / "grey.png", files.noise(1, (8, 8, 1))[0])
    return folder, "train", "grey.png", "is grey"


@case
def sixteen_bits(folder: Path) -> tuple[Path, str, str, str]:
    files.write_class_folders(folder, ["a", "b"])
    files.write_image(folder / "b" / "deep.png", np.full((8, 8), 40_000, np.uint16))
    return folder, "train", "deep.png", "8 bits"


@case
def unreadable_image(folder: Path) -> tuple[Path, str, str, str]:
    files.write_class_folders(folder, ["a", "b"])
    files.write_file(folder / "a" / "text.png", b"this is not an image")
    return folder, "train", "text.png", "cannot be read"


@case
def truncated_image(folder: Path) -> tuple[Path, str, str, str]:
    files.write_class_folders(folder, ["a", "b"])
    cut(files.write_image(folder / "a" / "half.jpg", files.noise(1, (8, 8, 3))[0], "JPEG"), 0.9)
    return folder, "train", "half.jpg", "cannot be read"


@case
def image_that_would_fill_the_memory(folder: Path) -> tuple[Path, str, str, str]:
    files.write_class_folders(folder, ["a", "b"])
    files.write_image(folder / "a" / "huge.png", np.zeros((8_000, 8_000), bool))
    return folder, "train", "huge.png", "8000 x 8000"


@case
def duplicate_under_another_class(folder: Path) -> tuple[Path, str, str, str]:
    files.write_class_folders(folder, ["a", "b"])
    (folder / "b" / "copy.png").write_bytes((folder / "a" / "0.png").read_bytes())
    return folder, "train", "copy.png", "same content"


@case
def missing_class_folder(folder: Path) -> tuple[Path, str, str, str]:
    files.write_class_folders(folder / "train", ["a", "b"])
    files.write_class_folders(folder / "test", ["a"], seed=1)
    return folder, "test", "test/b", "missing"


@case
def class_that_training_lacks(folder: Path) -> tuple[Path, str, str, str]:
    files.write_class_folders(folder / "train", ["a", "b"])
    files.write_class_folders(folder / "test", ["a", "b", "c"], seed=1)
    return folder, "test", "test/c", "no counterpart"


@case
def empty_class_folder(folder: Path) -> tuple[Path, str, str, str]:
    files.write_class_folders(folder, ["a", "b"])
    (folder / "c").mkdir()
    return folder, "train", "/c", "no images"


@case
def empty_folder(folder: Path) -> tuple[Path, str, str, str]:
    (folder / "nothing").mkdir()
    return folder / "nothing", "train", "nothing", "no class folders"


@case
def cinic_without_a_class(folder: Path) -> tuple[str, str, str, str]:
    for name in forde.data.describe("cinic10").classes[:9]:
        files.write_image(folder / "test" / name / "n1.png", np.zeros((32, 32, 3), np.uint8))
    return "cinic10", "test", "test/truck", "missing"


@case
def tinyimagenet_without_an_image(folder: Path) -> tuple[str, str, str, str]:
    files.write_tiny_imagenet(folder)
    (folder / "val" / "images" / "val_1.JPEG").unlink()
    return "tinyimagenet", "test", "val_1.JPEG", "missing"


@case
def tinyimagenet_without_annotations(folder: Path) -> tuple[str, str, str, str]:
    files.write_tiny_imagenet(folder)
    (folder / "val" / "val_annotations.txt").unlink()
    return "tinyimagenet", "test", "val_annotations.txt", "missing"


@case
def tinyimagenet_with_a_path_that_leads_out(folder: Path) -> tuple[str, str, str, str]:
    files.write_tiny_imagenet(folder)
    (folder / "val" / "val_annotations.txt").write_text("../../secret.JPEG\tn01\n")
    return "tinyimagenet", "test", "val_annotations.txt", "line 1"


@case
def tinyimagenet_with_an_unknown_class(folder: Path) -> tuple[str, str, str, str]:
    files.write_tiny_imagenet(folder)
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn99\n")
    return "tinyimagenet", "test", "val_annotations.txt", "'n99'"


@case
def truncated_npz(folder: Path) -> tuple[Path, str, str, str]:
    np.savez(folder / "set.npz", x=files.noise(4, (8, 8)), y=np.arange(4))
    cut(folder / "set.npz")
    return folder / "set.npz", "train", "set.npz", "truncated"


@case
def array_file_named_npz(folder: Path) -> tuple[Path, str, str, str]:
    with (folder / "set.npz").open("wb") as file:
        np.save(file, np.arange(3))
    return folder / "set.npz", "train", "set.npz", "not a .npz file"


@case
def npz_of_objects(folder: Path) -> tuple[Path, str, str, str]:
    np.savez(folder / "set.npz", x=np.array([files.Malicious(Path.touch, folder / "ran")], object), y=np.arange(1))
    return folder / "set.npz", "train", "set.npz", "Python objects"


@case
def npz_without_labels(folder: Path) -> tuple[Path, str, str, str]:
    np.savez(folder / "set.npz", picture=files.noise(4, (8, 8)))
    return folder / "set.npz", "train", "set.npz", "picture"


@case
def npz_with_negative_label(folder: Path) -> tuple[Path, str, str, str]:
    np.savez(folder / "set.npz", x=files.noise(2, (8, 8)), y=np.array([0, -3]))
    return folder / "set.npz", "train", "set.npz", "label -3 in row 1"


@case
def npz_with_channels_first(folder: Path) -> tuple[Path, str, str, str]:
    np.savez(folder / "set.npz", x=files.noise(2, (3, 8, 8)), y=np.arange(2))
    return folder / "set.npz", "train", "set.npz", "channels last"


@case
def npz_with_decimals(folder: Path) -> tuple[Path, str, str, str]:
    np.savez(folder / "set.npz", x=np.zeros((2, 8, 8, 3), np.float32), y=np.arange(2))
    return folder / "set.npz", "train", "set.npz", "uint8"


@case
def unknown_ending(folder: Path) -> tuple[Path, str, str, str]:
    return files.write_file(folder / "set.xyz", b""), "train", "set.xyz", "not of a known kind"


@case
def missing_file(folder: Path) -> tuple[Path, str, str, str]:
    return folder / "gone.npz", "train", "gone.npz", "does not exist"


@case
def set_that_is_not_there(folder: Path) -> tuple[str, str, str, str]:
    return "cifar10", "train", folder.name, "forde data download cifar10"


@case
def split_that_is_not_there(folder: Path) -> tuple[Path, str, str, str]:
    files.write_class_folders(folder, ["a", "b"])
    return folder, "test", folder.name, "unknown split"


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_one_sentence_names_the_file(make: Callable[[Path], tuple[str | Path, str, str, str]], tmp_path: Path) -> None:
    what, split, file, complaint = make(tmp_path)
    with pytest.raises(FordeError) as raised:
        forde.data.load(what, split, tmp_path)
    sentence = str(raised.value)
    assert file in sentence and complaint in sentence, sentence
    assert "\n" not in sentence and sentence.endswith(".")
    assert not (tmp_path / "ran").exists()


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(FordeError, match="did you mean 'cifar10'"):
        forde.data.load("cifar-10")
    with pytest.raises(FordeError, match=re.escape("did you mean 'train'")):
        forde.data.load("digits", "trian")
    with pytest.raises(FordeError, match="a table"):
        forde.data.load_images("regression-1d")
