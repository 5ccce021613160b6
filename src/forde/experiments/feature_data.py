"""Features of a pretrained network as data sets of a cell.

A folder of features is named after the backbone and holds a folder for each data set, as `forde features` fills it,
with safetensors files of `features [N, D]` and `labels [N]`:

    train.safetensors, test.safetensors
    corrupted/fog-3.safetensors     corrupted test images, by corruption and severity
    shifted/cinic10.safetensors     other images of the same classes
    foreign/cifar100.safetensors    images of other classes; labels are not looked at
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from forde.corruptions import NAMES
from forde.data.catalogue import CATALOGUE
from forde.errors import FordeError
from forde.experiments.cells import Cell
from forde.experiments.places import Place

Pair = tuple[Tensor, Tensor]


class FeatureSets(NamedTuple):
    """Inputs `[N, D]` and labels `[N]` of a cell."""

    train: Pair
    test: Pair
    corrupted: dict[tuple[str, int], Pair]
    shifted: dict[str, Pair]
    foreign: dict[str, Pair]
    source: str

    @property
    def n_classes(self) -> int:
        """Of the training labels."""
        return int(self.train[1].max()) + 1


def feature_sets(cell: Cell, place: Place) -> FeatureSets:
    """The features of a cell's data set; the digits' pixels for `digits`."""
    if cell.data == "digits":
        return _digits()
    if place.features is None:
        raise FordeError(
            f"features of {cell.data} are needed; make them with `forde features`, and give their folder as --features."
        )
    folder = place.features / cell.data.partition("@")[0]
    sets = _sets(folder)
    _refuse_parts(sets, folder)
    return sets


def _refuse_parts(sets: FeatureSets, folder: Path) -> None:
    """A cell's name says which data set it is, so its features must be those of all images."""
    known = CATALOGUE.get(folder.name)
    found = {"train": sets.train, "test": sets.test}
    found |= {f"corrupted/{name}-{level}": pair for (name, level), pair in sets.corrupted.items()}
    for part, (features, _) in found.items():
        whole = known.splits["train" if part == "train" else "test"] if known else len(features)
        if len(features) != whole:
            raise FordeError(
                f"'{folder / part}.safetensors' holds features of {len(features):,} images, but {folder.name} has "
                f"{whole:,}; make all of them, or name the folder otherwise."
            )


@lru_cache(maxsize=2)
def _sets(folder: Path) -> FeatureSets:
    for split in ("train", "test"):
        if not (folder / f"{split}.safetensors").exists():
            raise FordeError(
                f"'{folder / split}.safetensors' is missing; put the features of the {split} images there, as "
                "`forde features` makes them."
            )
    corrupted = {}
    for path in _files(folder / "corrupted"):
        corruption, _, level = path.stem.rpartition("-")
        if corruption not in NAMES or not level.isdecimal():
            raise FordeError(f"'{path}' is named after no corruption and severity; 'fog-3.safetensors' was expected.")
        corrupted[corruption, int(level)] = _read(path)
    shifted, foreign = ({p.stem: _read(p) for p in _files(folder / kind)} for kind in ("shifted", "foreign"))
    return FeatureSets(
        _read(folder / "train.safetensors"),
        _read(folder / "test.safetensors"),
        corrupted,
        shifted,
        foreign,
        f"features in '{folder.name}'",
    )


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _read(path: Path) -> Pair:
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
        features = tensors["features"].float()
        labels = tensors["labels"].long() if "labels" in tensors else torch.zeros(len(features), dtype=torch.long)
    except Exception as error:  # a damaged file can raise anything
        raise FordeError(f"'{path}' holds no features; make it again.") from error
    if features.dim() != 2 or len(features) != len(labels) or not bool(features.isfinite().all()):
        raise FordeError(f"'{path}' does not hold finite features [N, D] with one label each; make it again.")
    return features, labels


@lru_cache(maxsize=1)
def _digits() -> FeatureSets:
    """A stand-in without files: pixels of scikit-learn's digits, upside down as shift, noise as foreign data."""
    from forde.corruptions import corrupt
    from forde.data.digits import digits

    data = digits()
    noise = torch.randn(200, 64, generator=torch.Generator().manual_seed(0))
    test, labels = data.test_images[:128], data.test_labels[:128]
    return FeatureSets(
        (data.scaled(data.train_images[:256]), data.train_labels[:256]),
        (data.scaled(test), labels),
        {("contrast", level): (data.scaled(corrupt(test, "contrast", level)), labels) for level in (1, 5)},
        {"upside-down": (data.scaled(test[:, ::-1].copy()), labels)},
        {"noise": (noise, torch.zeros(200, dtype=torch.long))},
        "scikit-learn",
    )
