"""What a folder of features holds: training and test images, the test images corrupted, and images of other sets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forde.corruptions import SEVERITIES, VERSION, corrupt, frost_name
from forde.corruptions.checks import checked_name
from forde.data.corrupted_files import read_published
from forde.data.description import Images
from forde.data.features.api import described
from forde.data.features.sources import ArraySource, Source
from forde.data.loading import load_images
from forde.data.locating import Folder, data_folder
from forde.errors import FordeError, whole_number
from forde.hashing import json_name

NOISE = "noise"
"""The name of the foreign set of independent uniform levels."""
WHOLE_ON_DEVICE = 2**30
"""Bytes of images up to which they are corrupted on the device."""


@dataclass(frozen=True)
class FeatureSet:
    """One file of the folder."""

    part: str
    """Its name without the ending: "train", "corrupted/fog-3", "foreign/digits"."""
    n: int
    """Images."""
    about: Callable[[], dict[str, Any]]
    """The data in JSON, without making the images."""
    source: Callable[[int], Source]
    """The images in batches of that size."""


def feature_sets(
    data: str,
    *,
    splits: Sequence[str] = ("train", "test"),
    corruptions: Sequence[str] = (),
    severities: Sequence[int] = SEVERITIES,
    foreign: Sequence[str] = (),
    data_dir: Folder | None = None,
    seed: int = 0,
    limit: int | None = None,
    device: str = "cpu",
) -> list[FeatureSet]:
    """The files for a data set of images: its splits, its corrupted test images, test images of foreign sets, noise.

    Published corrupted images are used where they are in the data folder, else they are made, on the device. `limit`
    takes the first so many images of each set.

    >>> found = feature_sets("digits", corruptions=["fog"], severities=[1, 5], foreign=["noise"])
    >>> [(each.part, each.n) for each in found]
    [('train', 898), ('test', 899), ('foreign/noise', 899), ('corrupted/fog-1', 899), ('corrupted/fog-5', 899)]
    """
    for severity in severities:
        if severity not in SEVERITIES:
            raise FordeError(f"severity was {severity!r}; give whole numbers from 1 to 5.")
    names = [checked_name(name) for name in corruptions]
    count = None if limit is None else whole_number("limit", limit, at_least=1)
    folder = data_folder(data_dir)
    loaded = {split: _first(load_images(data, split, data_dir), count) for split in splits}
    sets = [_clean(split, images, data, split) for split, images in loaded.items()]
    test = loaded.get("test")
    if (names or foreign) and test is None:
        test = _first(load_images(data, "test", data_dir), count)
    for other in foreign:
        assert test is not None
        images = noise(test, seed) if other == NOISE else _first(load_images(other, "test", data_dir), count)
        sets.append(_clean(f"foreign/{_label(other)}", images, _label(other), "test"))
    if names and test is not None:
        kinds = list(product(names, severities))
        sets += _corrupted(test, data, kinds, folder=folder, seed=seed, device=torch.device(device))
    return sets


def noise(like: Images, seed: int = 0) -> Images:
    """As many images of that size, of independent uniform levels and without labels."""
    images = np.random.default_rng(seed).integers(0, 256, like.images.shape, np.uint8)
    described = replace(like.description, name=NOISE, n_classes=0, classes=(), source="generated")
    return Images(images, np.full(len(images), -1), described, f"generated (seed {seed})")


def _first(images: Images, count: int | None) -> Images:
    return images if count is None else replace(images, images=images.images[:count], labels=images.labels[:count])


def _label(name: str) -> str:
    """A name of a file for a data set, which may be given by a path."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", Path(name).stem)


def _clean(part: str, images: Images, name: str, split: str) -> FeatureSet:
    def source(batch_size: int) -> Source:
        return ArraySource(images.images, images.labels, batch_size=batch_size)

    def about() -> dict[str, Any]:
        return {**described(images, source(1), _label(name)), "split": split}

    return FeatureSet(part, len(images), about, source)


def _corrupted(
    test: Images,
    name: str,
    kinds: Sequence[tuple[str, int]],
    *,
    folder: Path,
    seed: int,
    device: torch.device,
) -> Iterator[FeatureSet]:
    clean = _clean("test", test, name, "test").about()
    images = _on_device(test.images, device)
    for corruption, severity in kinds:
        part, kind = f"corrupted/{corruption}-{severity}", {"corruption": corruption, "severity": severity}
        published = read_published(name, corruption, severity, folder)
        if published is not None:
            copy = replace(published, images=published.images[: len(test)], labels=published.labels[: len(test)])
            whole = _clean(part, copy, name, "test")
            yield replace(whole, about=partial(_with, whole.about, {**kind, "source": published.source}))
            continue
        remark = f", {frost_name()}" if corruption == "frost" and frost_name() != "frost" else ""
        about = {**clean, **kind, "source": f"generated (seed {seed}, v{VERSION}{remark})"}
        change = partial(corrupt, name=corruption, severity=severity, seed=seed)
        source = partial(_changed, images, change, test.labels, json_name(about))
        yield FeatureSet(part, len(test), partial(dict, about), source)


def _with(about: Callable[[], dict[str, Any]], more: dict[str, Any]) -> dict[str, Any]:
    return {**about(), **more}


def _changed(
    images: Callable[[], Tensor],
    change: Callable[[Tensor], Tensor],
    labels: np.ndarray,
    fingerprint: str,
    batch_size: int,
) -> Source:
    return ArraySource(change(images()), labels, batch_size=batch_size, fingerprint=fingerprint)


def _on_device(images: np.ndarray, device: torch.device) -> Callable[[], Tensor]:
    """Images that are copied to the device when they are first asked for."""
    place = device if images.nbytes <= WHOLE_ON_DEVICE else torch.device("cpu")

    @cache
    def moved() -> Tensor:
        return torch.from_numpy(np.require(images, requirements=["C", "W"])).to(place)

    return moved
