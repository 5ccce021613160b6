"""A folder of features, filled set by set."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from forde.data.features.backbones import Backbone
from forde.data.features.extracting import Watcher
from forde.data.features.files import read_about
from forde.data.features.reading import SUFFIX, different_backbone, feature_parts
from forde.data.features.sets import FeatureSet
from forde.data.features.sources import Source
from forde.data.features.storing import Extractor, Settings, finished, opened, store
from forde.errors import FordeError

THREADS = 8
"""Sets whose images are made ahead while a GPU works; on a CPU they would only be in its way."""


class Step(NamedTuple):
    """What became of a set."""

    set: FeatureSet
    path: Path
    done: bool
    """False where a stop was asked for."""
    was_there: bool


def fill(
    folder: str | os.PathLike[str],
    backbone: Backbone,
    sets: Sequence[FeatureSet],
    settings: Settings | None = None,
    *,
    watch: Callable[[FeatureSet], Watcher] = lambda _: Watcher(),
) -> Iterator[Step]:
    """Complete each set's file in turn; the last step is not done where a stop was asked for.

    >>> import tempfile
    >>> from torch import nn
    >>> from forde.data.features import Preprocessing, feature_sets
    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    >>> own = Backbone("own", network, Preprocessing((8, 8), (0.5,), (0.5,)))
    >>> [step.set.part for step in fill(tempfile.mkdtemp(), own, feature_sets("digits", limit=4))]
    ['train', 'test']
    """
    place, settings = Path(folder).expanduser(), settings or Settings()
    with opened(backbone, settings) as extractor:
        _check_folder(place, extractor)
        for each, source in _prepared(place, sets, extractor):
            path = path_of(place, each)
            done = source is None or store(path, source, each.about(), extractor, watch(each))
            yield Step(each, path, done, source is None)
            if not done:
                return


def path_of(folder: Path, one: FeatureSet) -> Path:
    """The file of a set."""
    return folder / f"{one.part}{SUFFIX}"


def _check_folder(folder: Path, extractor: Extractor) -> None:
    """Features of two networks in one folder would be taken for comparable."""
    parts = feature_parts(folder)
    wanted = extractor.describe({})
    if parts and (found := different_backbone(read_about(folder / f"{parts[0]}{SUFFIX}"), wanted)):
        raise FordeError(
            f"'{folder}' holds features of another network: {found[0]} is {found[1]!r} there, and {found[2]!r} is "
            "given; choose another folder."
        )


def _prepared(
    folder: Path, sets: Sequence[FeatureSet], extractor: Extractor
) -> Iterator[tuple[FeatureSet, Source | None]]:
    """Each set with its images, or None if its file is there; on a GPU several are made ahead."""

    def prepare(one: FeatureSet) -> Source | None:
        if finished(path_of(folder, one), extractor.describe(one.about())):
            return None
        return one.source(extractor.settings.images_per_batch)

    if extractor.settings.kind == "cpu":
        yield from ((one, prepare(one)) for one in sets)
        return
    pool = ThreadPoolExecutor(THREADS)
    waiting: deque[tuple[FeatureSet, Future[Source | None]]] = deque()
    try:
        for one in sets:
            waiting.append((one, pool.submit(prepare, one)))
            if len(waiting) > THREADS:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
