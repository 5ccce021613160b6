"""Whole benchmark sets: every corruption at every severity, on one core, many cores or a GPU."""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from forde.corruptions.blocks import Folder, corrupt_rows, prepare, rows_by_block
from forde.corruptions.checks import Images, as_batch, checked_ids, like_input
from forde.corruptions.constants import NAMES, SEVERITIES
from forde.corruptions.textures import frost_folder
from forde.errors import FordeError


def corrupt_all(
    images: Images,
    names: Iterable[str] = NAMES,
    severities: Iterable[int] = SEVERITIES,
    *,
    seed: int = 0,
    preset: str | None = None,
    ids: Sequence[int] | np.ndarray | None = None,
    frost: Folder | None = None,
    workers: int = 1,
) -> Iterator[tuple[str, int, Images]]:
    """Every corruption at every severity, one (name, severity, images) after the other.

    The results are those of corrupt, whatever the number of workers. With more than one, images on the CPU
    are shared among that many processes (a DataLoader's, so what holds for its workers holds here) and images
    on a GPU among that many threads.

    >>> import numpy as np
    >>> images = np.full((4, 32, 32, 3), 128, np.uint8)
    >>> [(n, s) for n, s, _ in corrupt_all(images, ["fog", "contrast"], [1, 5])]
    [('fog', 1), ('fog', 5), ('contrast', 1), ('contrast', 5)]
    """
    batch = as_batch(images)
    numbers = checked_ids(ids, len(batch))
    kinds = list(itertools.product(names, severities))
    folder = frost_folder(frost)
    for name, severity in kinds:  # mistakes are found now, not in a worker
        prepare(batch, name, severity, seed=seed, preset=preset, frost=folder)
    if workers < 1:
        raise FordeError(f"workers was {workers}; give the number of workers, at least 1.")
    tasks = _Tasks(batch, numbers, kinds, {"seed": seed, "preset": preset, "frost": folder})
    return _assembled(tasks, images, workers)


class _Tasks:
    """The pieces of all sets in order: a sequence that computes a piece when asked for it.

    A class because worker processes need one thing to send, with a length and a way to get an item.
    """

    def __init__(
        self, images: Tensor, numbers: np.ndarray, kinds: list[tuple[str, int]], options: dict[str, object]
    ) -> None:
        self.images, self.numbers, self.kinds, self.options = images, numbers, kinds, options
        self.pieces = rows_by_block(numbers, images, 8)

    def __len__(self) -> int:
        return len(self.kinds) * len(self.pieces)

    def __getitem__(self, position: int) -> Tensor:
        kind, piece = divmod(position, len(self.pieces))
        work = prepare(self.images, *self.kinds[kind], **self.options)  # type: ignore[arg-type]
        rows = self.pieces[piece]
        parts = rows_by_block(self.numbers[rows], self.images)
        return torch.cat([corrupt_rows(work, rows[part], self.numbers) for part in parts])


def _assembled(tasks: _Tasks, images: Images, workers: int) -> Iterator[tuple[str, int, Images]]:
    """Put the pieces together to whole sets."""
    results = _in_order(tasks, workers)
    for name, severity in tasks.kinds:
        out = torch.empty_like(tasks.images)
        for rows in tasks.pieces:
            out[rows] = next(results)
        yield name, severity, like_input(out, images)


def _in_order(tasks: _Tasks, workers: int) -> Iterator[Tensor]:
    """The tasks' results in order, computed by that many workers a few tasks ahead."""
    if workers == 1 or not len(tasks):
        yield from (tasks[position] for position in range(len(tasks)))
    elif tasks.images.is_cuda:
        # Threads: numpy draws and torch launches without holding the interpreter's lock for long.
        with ThreadPoolExecutor(workers) as pool:
            waiting = deque(pool.submit(tasks.__getitem__, k) for k in range(min(2 * workers, len(tasks))))
            for position in range(len(tasks)):
                result = waiting.popleft().result()
                if position + 2 * workers < len(tasks):
                    waiting.append(pool.submit(tasks.__getitem__, position + 2 * workers))
                yield result
    else:
        # Processes: on a CPU an operation on a piece takes microseconds, and threads would spend their time
        # passing the interpreter's lock around. The generator keeps the loader off torch's global seed.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on more workers than cores, and on forking beside threads
            loader: DataLoader[Tensor] = DataLoader(
                tasks,  # type: ignore[arg-type]
                batch_size=None,
                num_workers=workers,
                generator=torch.Generator(),
            )
            results = iter(loader)
        yield from results
