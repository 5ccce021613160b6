"""Corrupted copies: published where they are there, else generated once."""

from __future__ import annotations

from pathlib import Path

import data_files as files
import numpy as np
import pytest

import forde.data
from forde.corruptions import VERSION, corrupt, frost_name
from forde.data import corrupted
from forde.errors import FordeError


def write_cifar_c(folder: Path, corruption: str = "fog", n_classes: int = 10) -> np.ndarray:
    """A published file with one pixel per image set, the rest a hole in the file; returns the pixels `[50000]`."""
    folder.mkdir(parents=True, exist_ok=True)
    levels = (np.arange(50_000) // 10_000 + 1).astype(np.uint8)
    array = np.lib.format.open_memmap(folder / f"{corruption}.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    array[::1_000, 0, 0, 0] = levels[::1_000]
    array.flush()
    np.save(folder / "labels.npy", np.tile(np.arange(10_000) % n_classes, 5).astype(np.uint8))
    return levels


@pytest.mark.parametrize(
    ("name", "place", "n_classes"), [("cifar10", "CIFAR-10-C", 10), ("cifar100", "cifar100-c/CIFAR-100-C", 100)]
)
def test_published_cifar_is_mapped_and_cut_by_severity(tmp_path: Path, name: str, place: str, n_classes: int) -> None:
    write_cifar_c(tmp_path / place, n_classes=n_classes)
    for severity in range(1, 6):
        data = corrupted(name, "fog", severity, data_dir=tmp_path)
        assert data.source == "published" and isinstance(data.images, np.memmap)
        assert data.images.shape == (10_000, 32, 32, 3) and (data.images[::1_000, 0, 0, 0] == severity).all()
        assert data.labels.dtype == np.int64 and data.labels[n_classes - 1] == n_classes - 1


def test_a_type_that_is_not_published_is_generated(tmp_path: Path) -> None:
    write_cifar_c(tmp_path / "CIFAR-10-C")
    files.write_cifar10_batches(tmp_path / "cifar10")
    assert corrupted("cifar10", "contrast", 1, data_dir=tmp_path).source == f"generated (seed 0, v{VERSION})"


def test_broken_published_files(tmp_path: Path) -> None:
    folder = tmp_path / "CIFAR-10-C"
    write_cifar_c(folder)
    np.save(folder / "snow.npy", files.noise(5, (32, 32, 3)))
    with pytest.raises(FordeError, match=r"snow\.npy.* shape \(5, 32, 32, 3\)"):
        corrupted("cifar10", "snow", 1, data_dir=tmp_path)
    (folder / "frost.npy").write_bytes((folder / "snow.npy").read_bytes()[:200])
    with pytest.raises(FordeError, match=r"frost\.npy.* truncated"):
        corrupted("cifar10", "frost", 1, data_dir=tmp_path)
    np.save(folder / "zoom_blur.npy", np.array([files.Malicious(Path.touch, tmp_path / "ran")], object))
    with pytest.raises(FordeError, match=r"zoom_blur\.npy"):
        corrupted("cifar10", "zoom_blur", 1, data_dir=tmp_path)
    assert not (tmp_path / "ran").exists()
    np.save(folder / "labels.npy", np.full(50_000, 11))
    with pytest.raises(FordeError, match=r"label 11 in row 0 of .*labels\.npy"):
        corrupted("cifar10", "fog", 1, data_dir=tmp_path)
    (folder / "labels.npy").unlink()
    with pytest.raises(FordeError, match=r"labels\.npy' is missing"):
        corrupted("cifar10", "fog", 1, data_dir=tmp_path)


def write_tiny_c(folder: Path, corruption: str, classes: list[str], level: int) -> None:
    for number, name in enumerate(classes):
        pixels = np.full((64, 64, 3), level + number, np.uint8)
        files.write_image(folder / corruption / "3" / name / "test_1.JPEG", pixels, "JPEG")


def test_published_tinyimagenet_and_its_extra_archive(tmp_path: Path) -> None:
    write_tiny_c(tmp_path / "Tiny-ImageNet-C", "fog", ["n02", "n01"], 100)
    write_tiny_c(tmp_path / "Tiny-ImageNet-C-extra", "saturate", ["n01", "n02"], 50)
    fog = corrupted("tinyimagenet", "fog", 3, data_dir=tmp_path)
    assert fog.source == "published" and fog.labels.tolist() == [0, 1]  # in sorted order of the ids
    assert fog.images[:, 0, 0, 0].tolist() == [101, 100]
    assert corrupted("tinyimagenet", "saturate", 3, data_dir=tmp_path).images[0, 0, 0, 0] == 50


def test_frost_with_a_thousand_class_folders(tmp_path: Path) -> None:
    folder = tmp_path / "Tiny-ImageNet-C"
    everything = [f"n{number:04d}" for number in range(1000)]
    for name in everything:
        (folder / "frost" / "3" / name).mkdir(parents=True)
    write_tiny_c(folder, "frost", everything[10:13], 10)
    with pytest.raises(FordeError, match=r"frost.* 1000 class folders.*known defect"):
        corrupted("tinyimagenet", "frost", 3, data_dir=tmp_path)
    write_tiny_c(folder, "fog", everything[10:13], 100)
    frost = corrupted("tinyimagenet", "frost", 3, data_dir=tmp_path)
    assert frost.labels.tolist() == [0, 1, 2] and frost.images[:, 0, 0, 0].tolist() == [10, 11, 12]
    files.write_file(tmp_path / "tiny-imagenet-200" / "wnids.txt", "\n".join(everything[10:12]).encode())
    assert corrupted("tinyimagenet", "frost", 3, data_dir=tmp_path).labels.tolist() == [0, 1]


def test_generated_images_are_those_of_corrupt_and_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = corrupted("digits", "gaussian_noise", 3, data_dir=tmp_path, seed=5)
    clean = forde.data.load_images("digits", "test")
    np.testing.assert_array_equal(first.images, corrupt(clean.images, "gaussian_noise", 3, seed=5))
    np.testing.assert_array_equal(first.labels, clean.labels)
    assert first.source == f"generated (seed 5, v{VERSION})"
    (kept,) = (tmp_path / "generated").iterdir()
    assert kept.name.startswith("digits-") and kept.name.endswith(f"-gaussian_noise-3-seed5-v{VERSION}.npy")

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("generated again")

    monkeypatch.setattr("forde.data.corrupted_sets.corrupt", fail)
    again = corrupted("digits", "gaussian_noise", 3, data_dir=tmp_path, seed=5)
    assert isinstance(again.images, np.memmap)
    np.testing.assert_array_equal(again.images, first.images)


def test_seeds_severities_and_sets_have_files_of_their_own(tmp_path: Path) -> None:
    for seed, severity in ((0, 1), (1, 1), (0, 2)):
        corrupted("digits", "shot_noise", severity, data_dir=tmp_path, seed=seed)
    assert len(list((tmp_path / "generated").iterdir())) == 3
    for seed in range(2):  # two sets of one name with different images
        x = files.noise(4, (8, 8), seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        np.savez(folder / "own.npz", x_train=x, y_train=np.arange(4), x_test=x, y_test=np.arange(4))
        corrupted(str(folder / "own.npz"), "fog", 1, data_dir=tmp_path)
    assert len(list((tmp_path / "generated").glob("own-*.npy"))) == 2


def test_synthetic_frost_says_so(tmp_path: Path) -> None:
    data = corrupted("digits", "frost", 2, data_dir=tmp_path)
    remark = "" if frost_name() == "frost" else ", frost (synthetic)"
    assert data.source == f"generated (seed 0, v{VERSION}{remark})"
    (kept,) = (tmp_path / "generated").iterdir()
    assert ("synthetic" in kept.name) == bool(remark)


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("forde.data.corrupted_sets.np.save", stop)
    with pytest.raises(KeyboardInterrupt):
        corrupted("digits", "contrast", 1, data_dir=tmp_path)
    assert not list((tmp_path / "generated").iterdir())


def test_a_read_only_data_folder_is_replaced_by_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forde.data.corrupted_sets.cache_folder", lambda: tmp_path / "cache")
    mkdir = Path.mkdir

    def read_only(self: Path, *arguments: object, **options: object) -> None:
        if self.is_relative_to(tmp_path / "data"):
            raise PermissionError(13, "Permission denied", str(self))
        mkdir(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", read_only)
    data = corrupted("digits", "pixelate", 1, data_dir=tmp_path / "data")
    assert len(data) == 899 and len(list((tmp_path / "cache" / "generated").iterdir())) == 1


def test_a_damaged_kept_file_is_named(tmp_path: Path) -> None:
    corrupted("digits", "brightness", 1, data_dir=tmp_path)
    (kept,) = (tmp_path / "generated").iterdir()
    kept.write_bytes(kept.read_bytes()[:500])
    with pytest.raises(FordeError, match=r"brightness.*\.npy.* delete it"):
        corrupted("digits", "brightness", 1, data_dir=tmp_path)


@pytest.mark.parametrize(
    ("corruption", "severity", "complaint"),
    [("fogg", 1, "did you mean 'fog'"), ("fog", 6, "1 to 5"), ("fog", 0, "1 to 5")],
)
def test_mistakes(tmp_path: Path, corruption: str, severity: int, complaint: str) -> None:
    with pytest.raises(FordeError, match=complaint):
        corrupted("digits", corruption, severity, data_dir=tmp_path)
    with pytest.raises(FordeError, match="table"):
        corrupted("classification-2d", "fog", 1, data_dir=tmp_path)
