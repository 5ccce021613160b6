"""Where frost textures come from."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from corruption_images import photographs

from forde.corruptions import corrupt, frost_folder, frost_name
from forde.corruptions.textures import _shrink, load_textures
from forde.errors import FordeError


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    image_module = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for number in range(6):
        pixels = rng.integers(0, 256, (300, 350, 3), np.uint8)
        image_module.fromarray(pixels).save(tmp_path / f"frost{number + 1}.png")
    (tmp_path / "notes.txt").write_text("not an image")
    return tmp_path


@pytest.mark.usefixtures("nothing_installed")
def test_without_photographs_the_name_says_so() -> None:
    assert frost_folder() is None and frost_name() == "frost (synthetic)"
    textures = load_textures(None, 0.2)
    assert len(textures) == 5 and (textures[1] == textures[2]).all()
    assert [texture.shape for texture in textures[:2]] == [(120, 180, 3), (63, 112, 3)]


@pytest.mark.usefixtures("nothing_installed")
def test_a_given_folder_is_used(photos: Path) -> None:
    images = photographs(8)
    assert frost_name(photos) == "frost"
    assert len(load_textures(photos, 0.2)) == 5  # the sixth is never used
    assert (corrupt(images, "frost", 3, frost=photos) != corrupt(images, "frost", 3)).any()


def test_an_installed_package_is_found_without_being_imported(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = photos / "site" / "imagecorruptions"
    (package / "frost").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('cannot be imported')")
    monkeypatch.syspath_prepend(photos / "site")
    assert frost_folder() == package / "frost" and frost_name() == "frost"
    assert "imagecorruptions" not in sys.modules


def test_a_folder_without_images_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(FordeError, match="holds no image"):
        corrupt(photographs(1), "frost", 1, frost=tmp_path)


def test_a_fifth_of_the_size_is_every_fifth_pixel() -> None:
    photo = np.random.default_rng(0).integers(0, 256, (103, 61, 3), np.uint8)
    assert (_shrink(photo, 0.2) == photo[2::5, 2::5][: round(103 / 5), : round(61 / 5)]).all()


@pytest.mark.parametrize("scale", [0.2, 0.3])
def test_scaling_is_bit_exact_with_opencv(scale: float) -> None:
    cv2 = pytest.importorskip("cv2")
    photo = np.random.default_rng(0).integers(0, 256, (110, 63, 3), np.uint8)
    assert (_shrink(photo, scale) == cv2.resize(photo, (0, 0), fx=scale, fy=scale)).all()


@pytest.mark.usefixtures("nothing_installed")
def test_images_larger_than_a_texture_are_covered() -> None:
    images = np.zeros((3, 150, 40, 3), np.uint8)
    result = corrupt(images, "frost", 5, preset="cifar")
    assert result.shape == images.shape and (result > 0).mean() > 0.9


def test_photographs_are_opened_in_plain_formats_only(tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    image_module.new("RGB", (8, 8)).save(tmp_path / "frost1.tiff")
    (tmp_path / "frost1.tiff").rename(tmp_path / "frost1.png")  # Pillow goes by the content
    with pytest.raises(FordeError, match=r"frost1\.png' cannot be read"):
        corrupt(photographs(1), "frost", 1, frost=tmp_path)


def test_a_photograph_that_would_fill_the_memory(tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    image_module.new("1", (7_000, 7_000)).save(tmp_path / "frost1.png")
    with pytest.raises(FordeError, match=r"frost1\.png' would take .* bytes of memory"):
        corrupt(photographs(1), "frost", 1, frost=tmp_path)
