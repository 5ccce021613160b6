"""Training data as a shared backbone's features: computed once for the run where they cannot change, else per batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch
from torch import Tensor

from forde.arguments import Input, each_tensor
from forde.data.scale import Scale
from forde.ensemble import Ensemble
from forde.training.feed import Feed, TensorFeed
from forde.training.image_feed import ImageFeed

log = logging.getLogger(__name__)

KEPT = 2**31
"""Bytes of features up to which they are kept for the whole run."""


def of_features(feed: Feed, ensemble: Ensemble) -> Feed:
    """The data as the members see it: as it is without a backbone, or what the backbone makes of it.

    Data in memory that is not augmented gives the same features in every epoch, so these are computed once and kept.
    """
    if ensemble.backbone is None:
        return feed
    if isinstance(feed, TensorFeed) or (isinstance(feed, ImageFeed) and feed.augmentation is None):
        first = next(feed.pairs())[0]
        rows = ensemble.to_members(ensemble.as_input(first[:1]))
        if sum(tensor.nbytes for tensor in each_tensor(rows)) * feed.size <= KEPT:
            return _kept(feed, ensemble)
    log.info("backbone: it runs once for each batch")
    return FeatureFeed(feed, ensemble)


def _kept(feed: TensorFeed | ImageFeed, ensemble: Ensemble) -> TensorFeed:
    parts = [(ensemble.to_members(ensemble.as_input(x)), y) for x, y in feed.pairs()]
    x = torch.cat([tensor for part, _ in parts for tensor in each_tensor(part)])
    log.info(
        "backbone: it ran once over %s samples, whose features are kept, %s each", f"{len(x):,}", list(x.shape[1:])
    )
    y = torch.cat([targets for _, targets in parts])
    features = TensorFeed(x, y, batch_size=feed.batch_size, drop_last=feed.drop_last)
    features.scale = feed.scale
    return features


class FeatureFeed(Feed):
    """Features of another feed's batches, computed when these are drawn."""

    def __init__(self, feed: Feed, ensemble: Ensemble) -> None:
        self.feed, self.ensemble, self.size = feed, ensemble, feed.size

    def epoch(self, generator: torch.Generator) -> Iterator[tuple[Input, Tensor]]:
        return ((self.ensemble.to_members(x), y) for x, y in self.feed.epoch(generator))

    def pairs(self) -> Iterator[tuple[Input, Tensor]]:
        return ((self.ensemble.to_members(self.ensemble.as_input(x)), y) for x, y in self.feed.pairs())

    @property
    def scale(self) -> Scale | None:  # type: ignore[override]
        return self.feed.scale

    def generators(self) -> list[torch.Generator]:
        return self.feed.generators()

    def batch_sizes(self) -> set[int]:
        return self.feed.batch_sizes()

    def steps(self) -> int | None:
        return self.feed.steps()
