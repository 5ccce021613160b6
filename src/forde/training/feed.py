"""Batches for training, from tensors, a Dataset or a DataLoader, always in an order that the seed fixes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from forde.arguments import Input, as_inputs, as_tensor, each_tensor, inputs_of_batch, taken_apart
from forde.data.scale import Scale
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.likelihoods import Likelihood

SCALED = 2**22
"""Values of data in memory that its scale is taken of."""
INPUT_BATCH = 1024
"""Rows per batch where inputs are only looked at (PCA, covariances)."""


class Feed(ABC):
    """Training data as seen by the trainer."""

    size: int
    """N."""
    scale: Scale | None = None
    """Of the inputs as they were given, where they are tensors of floats and, of a loader, once a batch was drawn."""

    @abstractmethod
    def epoch(self, generator: torch.Generator) -> Iterator[tuple[Input, Tensor]]:
        """One pass in random order: batches `(x [B, ...], y [B])` on the members' device, in their precision."""

    @abstractmethod
    def pairs(self) -> Iterator[tuple[Input, Tensor]]:
        """One pass over inputs and targets, in any order."""

    def inputs(self) -> Iterator[Input]:
        """One pass over the inputs, in any order."""
        return (x for x, _ in self.pairs())

    def generators(self) -> list[torch.Generator]:
        """Sources of random numbers of its own, beside the one that `epoch` is given."""
        return []

    def batch_sizes(self) -> set[int]:
        """Sizes that batches will have, as far as they are known before they are drawn."""
        return set()

    def steps(self) -> int | None:
        """Batches of an epoch; None where nobody knows before they are drawn."""
        return None

    def rows(self, start: int, end: int) -> tuple[Any, ...] | None:
        """Samples start..end−1 as they lie in memory; None where they are read one by one."""
        return None


class TensorFeed(Feed):
    """Data held in memory, on the training device."""

    def __init__(self, x: Input, y: Tensor, *, batch_size: int, drop_last: bool) -> None:
        self.x, self.y = x, y
        self.size = len(y)
        self.batch_size = min(batch_size, self.size)
        self.drop_last = drop_last

    def epoch(self, generator: torch.Generator) -> Iterator[tuple[Input, Tensor]]:
        order = torch.randperm(self.size, generator=generator).to(self.x.device)
        end = self.size - self.size % self.batch_size if self.drop_last else self.size
        for start in range(0, end, self.batch_size):
            chosen = order[start : min(start + self.batch_size, end)]
            yield self.x[chosen], self.y[chosen]

    def pairs(self) -> Iterator[tuple[Input, Tensor]]:
        return zip(self.x.split(INPUT_BATCH), self.y.split(INPUT_BATCH), strict=True)

    def batch_sizes(self) -> set[int]:
        return sizes_of_batches(self.size, self.batch_size, drop_last=self.drop_last)

    def steps(self) -> int:
        return number_of_batches(self.size, self.batch_size, drop_last=self.drop_last)

    def rows(self, start: int, end: int) -> tuple[Tensor, ...]:
        return *each_tensor(self.x[start:end]), self.y[start:end]


class LoaderFeed(Feed):
    """Whatever a DataLoader yields; its own batch size, order and augmentation are kept."""

    def __init__(self, loader: DataLoader[Any], ensemble: Ensemble) -> None:
        self.loader, self.ensemble, self.likelihood = loader, ensemble, ensemble.likelihood
        dataset = loader.dataset
        self.size = len(dataset) if isinstance(dataset, Sized) else sum(len(y) for _, y in self.pairs())
        if self.size == 0:
            raise FordeError("the data is empty; pass at least one sample.")
        self.scale = None  # counting is not seeded, and a resumed run must find the same scale

    def epoch(self, generator: torch.Generator) -> Iterator[tuple[Input, Tensor]]:
        self._seed(generator)
        for x, y in self.pairs():
            _check_batch(x, y, self.likelihood)
            yield self.ensemble.as_input(x), as_targets(y, self.likelihood).to(self.ensemble.device)

    def rows(self, start: int, end: int) -> tuple[Tensor, ...] | None:
        dataset = self.loader.dataset
        return tuple(tensor[start:end] for tensor in dataset.tensors) if type(dataset) is TensorDataset else None

    def steps(self) -> int | None:
        try:
            return len(self.loader)
        except TypeError:
            return None

    def generators(self) -> list[torch.Generator]:
        owners = (self.loader, self.loader.sampler, getattr(self.loader.batch_sampler, "sampler", None))
        found = [getattr(owner, "generator", None) for owner in owners]
        return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())

    def _seed(self, generator: torch.Generator) -> None:
        # Shuffling draws from the loader's own generator, else from torch's global one, which fit has seeded.
        if self.loader.generator is not None:
            self.loader.generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))

    def pairs(self) -> Iterator[tuple[Input, Tensor]]:
        for batch in self.loader:
            pair = taken_apart(batch) if isinstance(batch, Mapping) else batch
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise FordeError(
                    f"the loader yields {_in_words(batch)}, but pairs (inputs, targets) were expected; wrap the "
                    "dataset so that an item is (x, y), or a dict of inputs and 'labels'."
                )
            x = inputs_of_batch(pair[0])
            self.scale = self.scale or Scale.of(x)
            yield x, _targets(pair[1])


def _targets(values: Any) -> Tensor:
    if isinstance(values, np.ndarray):
        return as_tensor(values, "targets")
    if not isinstance(values, Tensor):
        raise FordeError(
            f"the targets of a batch are {_in_words(values)}, but one tensor was expected; wrap the dataset so that an "
            "item is (x, y), with y one tensor."
        )
    return values


def _in_words(values: Any) -> str:
    """What was given, for a message.

    >>> _in_words([1, 2, 3]), _in_words({"x": 1, "y": 2})
    ('a list of 3', "a dict of 'x', 'y'")
    """
    inside = ""
    if isinstance(values, Mapping):
        inside = f" of {', '.join(map(repr, list(values)[:5]))}"
    elif isinstance(values, (tuple, list)):
        inside = f" of {len(values)}"
    return f"a {type(values).__name__}{inside}"


def make_feed(data: Any, ensemble: Ensemble, *, batch_size: int, drop_last: bool) -> Feed:
    """A feed from `(x, y)`, a Dataset or a DataLoader, checked as far as can be done before training."""
    likelihood = ensemble.likelihood
    if batch_size < 1:
        raise FordeError(f"batch_size is {batch_size}, but a whole number of at least 1 was expected.")
    if isinstance(data, DataLoader):
        return LoaderFeed(data, ensemble)
    if isinstance(data, Dataset):
        return LoaderFeed(loader_of(data, batch_size=batch_size, drop_last=drop_last), ensemble)
    data = taken_apart(data, "the data") if isinstance(data, Mapping) else data
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise FordeError(
            f"the data is {_in_words(data)}, but a pair (x, y), a dict with 'labels', a Dataset or a DataLoader was "
            "expected."
        )
    x, y = as_inputs(data[0]), as_tensor(data[1], "targets")
    check_data(x, y, likelihood)
    y = as_targets(y, likelihood).to(ensemble.device)
    feed = TensorFeed(ensemble.as_input(x), y, batch_size=batch_size, drop_last=drop_last)
    feed.scale = Scale.of(x, values=SCALED)  # before the ensemble prepares it: bytes have none
    return feed


def loader_of(data: Dataset[Any], *, batch_size: int, drop_last: bool) -> DataLoader[Any]:
    """A loader of a Dataset that draws its order from a generator of its own.

    >>> loader_of(TensorDataset(torch.zeros(10, 2)), batch_size=4, drop_last=True).drop_last
    True
    """
    if isinstance(data, IterableDataset):
        raise FordeError(
            "an IterableDataset has an order of its own, which fit cannot shuffle; pass a DataLoader of it instead."
        )
    if isinstance(data, Sized) and len(data) == 0:
        raise FordeError("the data is empty; pass at least one sample.")
    drop = drop_last and isinstance(data, Sized) and len(data) > batch_size
    return DataLoader(data, batch_size=batch_size, shuffle=True, drop_last=drop, generator=torch.Generator())


def sizes_of_batches(n: int, batch_size: int, *, drop_last: bool) -> set[int]:
    """Sizes of the batches of an epoch of n samples.

    >>> sizes_of_batches(10, 4, drop_last=False), sizes_of_batches(10, 4, drop_last=True)
    ({2, 4}, {4})
    """
    rest = n % batch_size
    return {batch_size} if drop_last or not rest else {batch_size, rest}


def number_of_batches(n: int, batch_size: int, *, drop_last: bool) -> int:
    """Batches of an epoch of n samples.

    >>> number_of_batches(10, 4, drop_last=False), number_of_batches(10, 4, drop_last=True)
    (3, 2)
    """
    return n // batch_size if drop_last else -(-n // batch_size)


def as_targets(y: Tensor, likelihood: Likelihood) -> Tensor:
    """Targets of the type that the likelihood takes."""
    return y.long() if likelihood.takes_labels and not y.is_floating_point() else y


def check_data(x: Input, y: Tensor, likelihood: Likelihood) -> None:
    """Refuse data that cannot be trained on."""
    if len(x) != len(y):
        raise FordeError(f"there are {len(x)} inputs but {len(y)} targets; pass one target for each input.")
    if len(y) == 0:
        raise FordeError("the data is empty; pass at least one sample.")
    _check_batch(x, y, likelihood)


def refuse_one_class(y: Tensor, likelihood: Likelihood) -> None:
    """Stop where there is nothing to tell apart in targets `[N, ...]` to train on."""
    labels = likelihood.labels(y)
    if labels is None:
        return
    if labels.numel() == 0:
        raise FordeError("no target has a label: all are to be ignored; pass some that have one, or fix ignore_index.")
    if int(labels.min()) == int(labels.max()):
        raise FordeError(
            f"all {labels.numel()} labels are class {int(labels[0])}, but at least 2 classes were expected; "
            "add data of another class."
        )


def refuse_not_finite(x: Input) -> None:
    """Stop where inputs hold NaN or infinite values."""
    for tensor in each_tensor(x):
        if (tensor.is_floating_point() or tensor.is_complex()) and not bool(tensor.isfinite().all()):
            raise FordeError("the inputs hold NaN or infinite values; remove those rows or fill in the values.")


def _check_batch(x: Input, y: Tensor, likelihood: Likelihood) -> None:
    refuse_not_finite(x)
    likelihood.check_targets(y)
