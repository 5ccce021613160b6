"""`repel_on`: other data than the batch for members to be compared at, in an order of its own."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from forde.arguments import Input, as_inputs, inputs_in, shapes, without_labels
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.inference import running
from forde.methods import Method
from forde.random_state import get_random_state, set_random_state
from forde.training.feed import Feed, LoaderFeed, TensorFeed, loader_of, refuse_not_finite


def refuse_to_repel_elsewhere(method: Method) -> None:
    """Stop where other data than the batch has nothing to say to a method."""
    if method.space is None:
        raise FordeError(
            f"repel_on is where members repel, but those of {method.name} do not; choose a method that repels, such as "
            "'forde-pca', or leave repel_on out."
        )
    if not method.space.uses_batch:
        raise FordeError(
            f"{method.name} compares members by their weights, which no data changes; choose a method that compares "
            "them on data, such as 'forde-pca' or 'function-rde', or leave repel_on out."
        )
    if method.mixes_representations:
        raise FordeError(
            f"{type(method.rule).__name__} in {type(method.space).__name__} space shares the gradients of the loss "
            "between members, which other data has none of; use WGD, or leave repel_on out."
        )


class InputLoader(LoaderFeed):
    """What a DataLoader yields, without targets; where there are some they are left out."""

    def epoch(self, generator: torch.Generator) -> Iterator[tuple[Input, Tensor]]:
        self._seed(generator)
        for x, y in self.pairs():
            refuse_not_finite(x)
            yield self.ensemble.as_input(x), y

    def pairs(self) -> Iterator[tuple[Input, Tensor]]:
        return ((x, no_labels(x)) for x in map(inputs_in, self.loader))


def no_labels(x: Input) -> Tensor:
    """Labels `[B, 0]` for inputs that have none.

    >>> no_labels(torch.zeros(8, 4)).shape
    torch.Size([8, 0])
    """
    return torch.zeros(len(x), 0, device=x.device)


def inputs_feed(data: Any, ensemble: Ensemble, *, batch_size: int) -> Feed:
    """Batches of inputs from tensors, arrays, a dict, a Dataset or a DataLoader; labels are not read.

    Args:
        data: of a pair `(x, y)` the x is used, of a dict all but `"labels"` or `"label"`.
    """
    if isinstance(data, DataLoader):
        return InputLoader(data, ensemble)
    if isinstance(data, Dataset):
        return InputLoader(loader_of(data, batch_size=batch_size, drop_last=True), ensemble)
    if isinstance(data, Mapping):
        data = without_labels(data)
    elif isinstance(data, (tuple, list)) and 1 <= len(data) <= 2 and not isinstance(data[0], (int, float)):
        data = data[0]
    x = as_inputs(data)
    if isinstance(x, Tensor) and x.dim() == 0:
        raise FordeError(
            "it is a single number, but inputs were expected; pass data, or take the method's repulsion_fraction "
            "for a part of the batch."
        )
    if len(x) == 0:
        raise FordeError("the data is empty; pass at least one sample.")
    refuse_not_finite(x)
    return TensorFeed(ensemble.as_input(x), no_labels(x), batch_size=batch_size, drop_last=True)


class RepulsionFeed:
    """Batches that members are compared at, labelled by their mean prediction where the method reads labels.

    Args:
        feed: inputs as the members take them.
        ensemble: all members.
        method: what is compared.
    """

    def __init__(self, feed: Feed, ensemble: Ensemble, method: Method) -> None:
        assert method.space is not None
        self.feed, self.ensemble = feed, ensemble
        self.labelled = method.space.reads_labels or ensemble.likelihood.carries_weights

    def epoch(self, generator: torch.Generator) -> Iterator[Input]:
        """Pass after pass without end, `[B', ...]` each, in an order that the generator decides.

        Reading draws random numbers apart from those of the training, so that batches, dropout and augmentation of the
        latter are the same with and without other data to repel on.
        """
        passes = itertools.chain.from_iterable(self._pass(generator) for _ in itertools.count())
        device = self.ensemble.device
        outside = get_random_state(device)
        seed = int(torch.randint(2**32, (), generator=generator))
        torch.manual_seed(seed)
        np.random.seed(seed)  # data sets of others draw from it
        random.seed(seed)
        while True:
            x = next(passes)
            inside = get_random_state(device)
            set_random_state(outside)
            yield x
            outside = get_random_state(device)
            set_random_state(inside)

    def _pass(self, generator: torch.Generator) -> Iterator[Input]:
        empty = True
        for x, _ in self.feed.epoch(generator):
            empty = False
            yield x
        if empty:
            raise FordeError("the loader of repel_on yielded no batch; check its batch size, drop_last and sampler.")

    def with_labels(self, x: Input) -> tuple[Input, Tensor]:
        """A batch as a step takes it; labels are those of the mean prediction of the members as they are now."""
        if not self.labelled:
            return x, no_labels(x)
        with torch.no_grad(), running(list(self.ensemble.members)) as outputs_of:
            return x, self.ensemble.likelihood.most_probable(outputs_of(x))

    def first(self) -> Input:
        """Two of the inputs, to try; random numbers stand afterwards where they were."""
        own = self.feed.generators()
        before = get_random_state(self.ensemble.device, own)
        try:
            x = next((x for x, _ in self.feed.pairs()), None)
        finally:
            set_random_state(before, own)
        if x is None:
            raise FordeError("the data of repel_on is empty; pass at least one sample.")
        return self.ensemble.as_input(x[:2])


def repulsion_feed(
    feed: Feed | None, ensemble: Ensemble, method: Method, example: Input | None
) -> RepulsionFeed | None:
    """Other data for members to be compared at, once it was seen that they can be, as far as one batch tells.

    Args:
        feed: its inputs as the members take them; None where members repel on the batch.
        example: inputs as they are trained on.
    """
    if feed is None:
        return None
    found = RepulsionFeed(feed, ensemble, method)
    x = found.first()
    try:
        with torch.no_grad(), running(list(ensemble.members)) as outputs_of:
            outputs_of(x)
        found.with_labels(x)
    except FordeError as error:
        if example is not None and shapes(x) != shapes(example):
            raise FordeError(
                f"the inputs of repel_on have shape {shapes(x)}, but those of the training data {shapes(example)}; "
                "prepare both in the same way."
            ) from error
        raise FordeError(f"of the data of repel_on: {error}") from None
    return found
