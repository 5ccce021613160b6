"""`check`: read a whole data set and compare it with its description."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forde.data.catalogue import describe
from forde.data.checks import channel_statistics
from forde.data.description import Images
from forde.data.loading import load
from forde.data.locating import Folder
from forde.hashing import content_key

STATISTICS_TOLERANCE = 0.01
"""By how much channel statistics may differ from the description's, on the scale 0..1."""


@dataclass(frozen=True)
class SplitReport:
    """What one split of a data set holds."""

    split: str
    size: int
    smallest_class: int
    largest_class: int
    repeated: int
    """Images that are copies of an earlier one of the same split."""
    relabelled: int
    """Those of them whose label is another one."""
    problems: tuple[str, ...]
    """What does not fit the description, a sentence each."""


def check(name: str, data_dir: Folder | None = None) -> list[SplitReport]:
    """Read every split of a data set known by name; unreadable files raise, the rest is reported.

    >>> [(report.split, report.size, report.problems) for report in check("digits")]
    [('train', 898, ()), ('test', 899, ())]
    """
    return [_report(name, split, data_dir) for split in describe(name).splits]


def _report(name: str, split: str, data_dir: Folder | None) -> SplitReport:
    wanted = describe(name)
    data = load(name, split, data_dir)
    problems = []
    if len(data) != wanted.splits[split]:
        problems.append(f"{split} has {len(data):,} samples, but {wanted.splits[split]:,} were expected.")
    labels = data.labels if isinstance(data, Images) else data.y
    counts = np.bincount(labels, minlength=wanted.n_classes) if wanted.n_classes else np.array([len(data)])
    if not counts.all():
        problems.append(f"{split} has no sample of class {int(np.flatnonzero(counts == 0)[0])}.")
    rows = data.images if isinstance(data, Images) else data.x
    if isinstance(data, Images) and split == "train":
        found = np.array(channel_statistics(data.images))
        if np.abs(found - np.array([wanted.mean, wanted.std])).max() > STATISTICS_TOLERANCE:
            problems.append(f"{split} has the channel statistics {found.round(4).tolist()}, unlike the published set.")
    repeated, relabelled = _copies(rows, labels)
    return SplitReport(split, len(data), int(counts.min()), int(counts.max()), repeated, relabelled, tuple(problems))


def _copies(rows: np.ndarray, labels: np.ndarray) -> tuple[int, int]:
    seen: dict[bytes, int] = {}
    repeated = relabelled = 0
    for position, row in enumerate(rows):
        digest = content_key(row)
        earlier = seen.setdefault(digest, position)
        repeated += earlier != position
        relabelled += bool(labels[earlier] != labels[position])
    return repeated, relabelled
