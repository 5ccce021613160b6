"""What is done before the first step: find the device, make batches of the data, fit the method to them."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from forde.arguments import Arguments, Input
from forde.data.description import Images, Table
from forde.data.known_inputs import Inputs
from forde.data.standardise import StandardTable
from forde.distributed.mesh import own_device
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.methods import Method
from forde.priors import TrainingData
from forde.training.feature_feed import of_features
from forde.training.feed import Feed, TensorFeed, as_targets, make_feed, refuse_one_class
from forde.training.image_feed import ImageFeed
from forde.training.options import Batching
from forde.training.repulsion_feed import inputs_feed
from forde.training.settings import BATCH_SIZE, Settings
from forde.training.splitting import held_out

log = logging.getLogger(__name__)


def available_device(device: str | torch.device, *, own: bool = False) -> torch.device:
    """The device asked for, if this machine has it; with `own`, of several GPUs the one for this process."""
    try:
        target = own_device(torch.device(device)) if own else torch.device(device)
    except RuntimeError:
        raise FordeError(f"unknown device '{device}'; expected 'cpu', 'cuda', 'cuda:0' or 'mps'.") from None
    if target.type == "cuda" and not torch.cuda.is_available():
        raise FordeError("device 'cuda' was asked for, but torch sees no NVIDIA GPU here; use device='cpu'.")
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise FordeError(
            f"device '{target}' was asked for, but torch sees {torch.cuda.device_count()} GPU(s); use 'cuda:0'."
        )
    if target.type == "mps" and not torch.backends.mps.is_available():
        raise FordeError("device 'mps' was asked for, but torch sees no Apple GPU here; use device='cpu'.")
    return target


class Feeds(NamedTuple):
    """All data of a run as batches."""

    data: Feed
    validation: Feed | None = None
    repel_on: Feed | None = None

    def named(self) -> dict[str, Feed]:
        """Those that there are, by the name that a run's settings have for them."""
        others = {"validation_data": self.validation, "repel_on_data": self.repel_on}
        return {"data": self.data, **{name: feed for name, feed in others.items() if feed is not None}}

    def of_features(self, ensemble: Ensemble) -> Feeds:
        """The data as the members see it."""
        others = (None if feed is None else of_features(feed, ensemble) for feed in (self.validation, self.repel_on))
        return Feeds(of_features(self.data, ensemble), *others)


def feeds_of(data: Any, method: Method, ensemble: Ensemble, settings: Settings) -> Feeds:
    """The data as batches for this ensemble, with those to validate with and to repel on, where there are some.

    The ensemble learns what its inputs are, where the data says so.
    """
    validation, held = settings.validation, None
    if isinstance(data, DataLoader) and settings.batch_size not in (BATCH_SIZE, data.batch_size):
        log.warning(
            "batch_size=%d is not that of the DataLoader, whose batches are used as they come; give it the size.",
            settings.batch_size,
        )
    if validation is not None and isinstance(validation.data, float):
        by_class = ensemble.likelihood.takes_labels
        data, held = held_out(data, validation.data, seed=settings.seed, by_class=by_class)
        log.info("validation: %.3g of the training data, drawn by the seed, is held out", validation.data)
    elif validation is not None:
        held = validation.data
    if isinstance(data, (Images, Table)):
        ensemble.inputs = Inputs.of(data, ensemble.inputs)
    feed = _feed_of(data, ensemble, settings.batch_size, settings.batches)
    if isinstance(feed, TensorFeed):
        refuse_one_class(feed.y, ensemble.likelihood)
    refuse_uneven_parts(feed.batch_sizes(), settings.optimization.accumulate)
    other = _repulsion_feed(method, ensemble, settings)
    if held is None:
        return Feeds(feed, None, other)
    try:
        return Feeds(feed, _feed_of(held, ensemble, settings.batch_size, Batching(drop_last=False)), other)
    except FordeError as error:
        raise FordeError(f"of the validation data: {error}") from None


def _repulsion_feed(method: Method, ensemble: Ensemble, settings: Settings) -> Feed | None:
    """The inputs of `repel_on` as batches for this ensemble; None where members repel on the batch."""
    data = settings.batches.repel_on
    if data is None:
        return None
    batch_size = method.compared(settings.batch_size) or settings.batch_size
    try:
        if isinstance(data, Images):
            return _feed_of(data, ensemble, batch_size, Batching())
        if isinstance(data, Table):
            units = None if ensemble.inputs is None else ensemble.inputs.standardisation
            data = (data if isinstance(data, StandardTable) or units is None else units.apply(data)).x
        return inputs_feed(data, ensemble, batch_size=batch_size)
    except FordeError as error:
        raise FordeError(f"of the data of repel_on: {error}") from None


def _feed_of(data: Any, ensemble: Ensemble, batch_size: int, batches: Batching) -> Feed:
    if isinstance(data, Images):
        known = ensemble.inputs
        inputs = known if known is not None and known.are_images else Inputs.of(data)
        ensemble.likelihood.check_targets(torch.as_tensor(data.labels))
        return ImageFeed(
            data.images,
            data.labels,
            mean=inputs.mean,
            std=inputs.std,
            batch_size=batch_size,
            device=ensemble.device,
            dtype=ensemble.dtype,
            augmentation=batches.augmentation,
            drop_last=batches.drop_last,
        )
    if batches.augmentation is not None:
        raise FordeError("augmentation needs images as bytes, from forde.data.load or forde.data.Images.")
    units = None if ensemble.inputs is None else ensemble.inputs.standardisation
    if isinstance(data, Table) and not isinstance(data, StandardTable) and units is not None:
        data = units.apply(data)  # validation data in their own units
    pair = (data.x, data.y) if isinstance(data, Table) else data
    feed = make_feed(pair, ensemble, batch_size=batch_size, drop_last=batches.drop_last)
    if isinstance(data, Table):  # which the ensemble prepares by the names of columns
        feed.scale = None
    return feed


def fitted_to(method: Method, ensemble: Ensemble, feed: Feed) -> tuple[Method, tuple[Input, Tensor] | None]:
    """The method as it is with this data, and a batch of it, if there is one; the ensemble learns from it too.

    That is what its likelihood has to know, and the scale of its inputs.
    """
    first, example = next(iter(feed.pairs()), None), None
    if first is not None:
        _look_at_inputs(method, ensemble, first[0])
        ensemble.likelihood = ensemble.likelihood.knowing(first[1])
        rows = max(feed.batch_sizes(), default=len(first[1]))
        targets = as_targets(first[1][:rows], ensemble.likelihood)
        example = ensemble.as_input(first[0][:rows]), targets.to(ensemble.device)
    fitted = method.prepare(ensemble.members[0], training_data(ensemble, feed))
    if fitted.kernel is not None and fitted.kernel.note is not None:
        log.info("%s: %s", fitted.name, fitted.kernel.note)
    ensemble.input_scale = feed.scale
    return fitted, example


def refuse_uneven_parts(sizes: Collection[int], parts: int) -> None:
    """Stop where batches of the largest of these sizes have no equal parts; a smaller last batch may be uneven."""
    largest = max(sizes, default=0)
    if largest % parts:
        raise FordeError(
            f"accumulate={parts} makes {parts} parts of each batch, but {largest} samples have no {parts} parts of one "
            f"size; choose a batch_size that {parts} divides, or another number of parts."
        )


def training_data(ensemble: Ensemble, feed: Feed) -> TrainingData:
    """The inputs, for what is fitted to them before training."""
    return TrainingData(lambda: map(ensemble.as_input, feed.inputs()), feed.size)


def _look_at_inputs(method: Method, ensemble: Ensemble, x: Input) -> None:
    if isinstance(x, Arguments):
        return
    if method.space is not None and method.space.needs_input_gradient and x[0].numel() == 1 and ensemble.n_members > 1:
        log.warning(
            "The inputs have one feature, so every input gradient points up or down and members do not repel; "
            "add a feature, for example (x, x²)."
        )
    embeds = any(isinstance(module, (nn.Embedding, nn.EmbeddingBag)) for module in ensemble.members[0].modules())
    if x.dtype == torch.uint8 and not embeds and int(x.max()) > 1:
        log.warning(
            "The inputs are bytes up to %d and reach the network as they are; if it does not scale them itself, pass "
            "x.float() / 255 or forde.data.Images.",
            int(x.max()),
        )


def say_what_is_not_trained(ensemble: Ensemble) -> None:
    """One line about layers that `make_network` left in evaluation mode."""
    names = sorted(ensemble.left_in_evaluation)
    if any(name.isdecimal() for name in names):
        log.warning(
            "make_network() returned a network in evaluation mode, so dropout and BatchNorm stay in it while weights "
            "are trained; call .train() on the network there if that is not what you want."
        )
    elif names:
        log.info("%d layers stay in evaluation mode, as make_network() left them: %s, ...", len(names), names[0])
