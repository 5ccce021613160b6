"""Images for training at the speed of the device: kept there as bytes; normalised, cropped and flipped there.

The order, the crops and the flips of an epoch are drawn once on the host (so that a seed gives the same on every
device) and sent over in one piece; after that a batch is one gather and one affine map, and nothing waits for the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from forde.data.inputs import normalise
from forde.errors import FordeError
from forde.training.feed import INPUT_BATCH, Feed, number_of_batches, sizes_of_batches

SHARE_OF_FREE_MEMORY = 0.3
"""Images may take this much of the device's free memory; networks and their graphs need the rest."""


@dataclass(frozen=True)
class Augmentation:
    """Random crop after padding with black on all sides, and random horizontal flip: the paper's for natural images.

    >>> Augmentation().pad
    4
    """

    pad: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise FordeError(f"pad is {self.pad}, but 0 or a positive number of pixels was expected.")


@dataclass(frozen=True)
class Draws:
    """What chance decides for N images: where each is cropped `[N, 2]` (row, column), and if it is flipped `[N]`."""

    offsets: Tensor
    flips: Tensor

    def at(self, index: Tensor) -> Draws:
        return Draws(self.offsets[index], self.flips[index])


def draw(n: int, augmentation: Augmentation | None, generator: torch.Generator) -> Draws:
    """Draws for n images on the CPU; without augmentation, those that change nothing.

    >>> draw(3, None, torch.Generator()).offsets.tolist()
    [[0, 0], [0, 0], [0, 0]]
    """
    pad, flip = (augmentation.pad, augmentation.flip) if augmentation is not None else (0, False)
    offsets = torch.randint(2 * pad + 1, (n, 2), generator=generator)
    flips = torch.rand(n, generator=generator) < (0.5 if flip else 0.0)
    return Draws(offsets, flips)


def augment(padded: Tensor, draws: Draws, height: int, width: int) -> Tensor:
    """Crop and flip: bytes `[B, H + 2p, W + 2p, C]` → `[B, H, W, C]`, in one gather.

    >>> image = torch.arange(4, dtype=torch.uint8).view(1, 2, 2, 1)
    >>> augment(image, Draws(torch.zeros(1, 2, dtype=torch.long), torch.tensor([True])), 2, 2)[0, ..., 0].tolist()
    [[1, 0], [3, 2]]
    """
    device = padded.device
    rows = torch.arange(height, device=device) + draws.offsets[:, :1]  # [B, H]
    columns = torch.arange(width, device=device).expand(len(padded), width)
    columns = torch.where(draws.flips[:, None], width - 1 - columns, columns) + draws.offsets[:, 1:]  # [B, W]
    batch = torch.arange(len(padded), device=device)[:, None, None]
    return padded[batch, rows[:, :, None], columns[:, None, :]]


class ImageFeed(Feed):
    """Images `[N, H, W, C]` as bytes, on the device where they fit, else from the host by worker processes.

    Args:
        images: uint8 `[N, H, W, C]`, an array, a memory map or a tensor.
        labels: `[N]`.
        mean: of each channel on the 0..1 scale.
        std: of each channel.
        augmentation: None for none.
        on_device: keep the bytes on the device; by default if they fit into a share of its free memory.
        workers: processes that read images where they stay on the host.
    """

    def __init__(
        self,
        images: np.ndarray | Tensor,
        labels: np.ndarray | Tensor,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        batch_size: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        augmentation: Augmentation | None = None,
        drop_last: bool = True,
        on_device: bool | None = None,
        workers: int = 2,
    ) -> None:
        if images.ndim != 4 or str(images.dtype).removeprefix("torch.") != "uint8":
            raise FordeError(
                f"images have shape {list(images.shape)} and type {images.dtype}, but bytes (uint8) of shape "
                "[N, H, W, C] were expected."
            )
        if len(images) != len(labels):
            raise FordeError(f"there are {len(images)} images but {len(labels)} labels; pass one label for each image.")
        if images.shape[3] != len(mean) or len(mean) != len(std):
            raise FordeError(
                f"images have {images.shape[3]} channels, but statistics of {len(mean)} and {len(std)} were given."
            )
        self.size = len(labels)
        self.batch_size = min(batch_size, self.size)
        self.drop_last = drop_last
        self.augmentation = augmentation
        self.device, self.workers = device, workers
        self.height, self.width = int(images.shape[1]), int(images.shape[2])
        self.labels = torch.as_tensor(labels).long().to(device)
        self.normalised = normalise(mean, std, dtype)
        self.on_device = fits(images, self.pad, device) if on_device is None else on_device
        self.source: Tensor | np.ndarray = self._to_device(images) if self.on_device else np.asarray(images)

    @property
    def pad(self) -> int:
        """Pixels of black on each side."""
        return self.augmentation.pad if self.augmentation is not None else 0

    def _to_device(self, images: np.ndarray | Tensor) -> Tensor:
        padded = torch.zeros(
            self.size, self.height + 2 * self.pad, self.width + 2 * self.pad, images.shape[3],
            dtype=torch.uint8, device=self.device,
        )  # fmt: skip
        inside = padded[:, self.pad : self.pad + self.height, self.pad : self.pad + self.width]
        for start in range(0, self.size, INPUT_BATCH):
            part = slice(start, start + INPUT_BATCH)
            inside[part] = torch.as_tensor(np.ascontiguousarray(images[part])).to(self.device)
        return padded

    def epoch(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(self.size, generator=generator)
        draws = draw(self.size, self.augmentation, generator)
        order = order[: self.size - self.size % self.batch_size] if self.drop_last else order
        sent = order.to(self.device)
        draws = Draws(draws.offsets.to(self.device), draws.flips.to(self.device))
        indices = sent.split(self.batch_size)
        for index, padded in zip(indices, self._padded(order, sent, self.batch_size, self.workers), strict=True):
            x = augment(padded, draws.at(index), self.height, self.width)
            yield self.normalised(x), self.labels[index]

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.arange(self.size)
        padded = self._padded(order, order.to(self.device), INPUT_BATCH, workers=0)
        for images, labels in zip(padded, self.labels.split(INPUT_BATCH), strict=True):
            inside = images[:, self.pad : self.pad + self.height, self.pad : self.pad + self.width]
            yield self.normalised(inside), labels

    def batch_sizes(self) -> set[int]:
        return sizes_of_batches(self.size, self.batch_size, drop_last=self.drop_last)

    def steps(self) -> int:
        return number_of_batches(self.size, self.batch_size, drop_last=self.drop_last)

    def rows(self, start: int, end: int) -> tuple[Tensor | np.ndarray, Tensor]:
        if isinstance(self.source, np.ndarray):
            return self.source[start:end], self.labels[start:end]
        inside = slice(self.pad, self.pad + self.height), slice(self.pad, self.pad + self.width)
        return self.source[start:end, inside[0], inside[1]], self.labels[start:end]

    def _padded(self, order: Tensor, sent: Tensor, size: int, workers: int) -> Iterator[Tensor]:
        """Batches of bytes with their border, on the device, in the order given on the host and (the same) there."""
        if isinstance(self.source, Tensor):
            yield from (self.source[index] for index in sent.split(size))
            return
        loader = DataLoader(
            _Batches(self.source, order.split(size)),
            batch_size=None,
            num_workers=workers,
            pin_memory=self.device.type == "cuda",
        )
        for raw in loader:
            yield torch.nn.functional.pad(raw.to(self.device, non_blocking=True), (0, 0, *[self.pad] * 4))


class _Batches(Dataset[Tensor]):
    """Whole batches as items, so that worker processes read a batch at a time."""

    def __init__(self, images: np.ndarray, batches: Sequence[Tensor]) -> None:
        self.images, self.batches = images, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, item: int) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.images[self.batches[item].numpy()]))


def fits(images: np.ndarray | Tensor, pad: int, device: torch.device) -> bool:
    """Whether the bytes with their border fit into a share of the device's free memory; on the CPU, if in memory."""
    if device.type != "cuda":
        return not isinstance(images, np.memmap)
    n, height, width, channels = images.shape
    needed = n * (height + 2 * pad) * (width + 2 * pad) * channels
    return needed <= SHARE_OF_FREE_MEMORY * torch.cuda.mem_get_info(device)[0]
