"""Pretrained networks, and by which names they are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from torch import nn

from forde.data.features.network import At, Pool, named_layer
from forde.data.features.preprocessing import Preprocessing
from forde.data.features.weights import weights_name
from forde.errors import FordeError, unknown_name


@dataclass(frozen=True)
class Backbone:
    """A network, where its features are taken from, and what its inputs look like.

    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5), nn.ReLU(), nn.Linear(5, 10))
    >>> own = Backbone("own", network, Preprocessing((8, 8), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), layer="3", at="input")
    >>> own.about["layer"], own.about["at"]
    ('3', 'input')
    """

    name: str
    network: nn.Module
    preprocessing: Preprocessing
    layer: str = ""
    """The name of a part of the network, as in `network.named_modules()`; empty: the network itself."""
    at: At = "output"
    """Whether features are what the layer gives, or (for a classifier) what it is given."""
    pool: Pool = "none"
    """How more than one position becomes one row: see `forde.data.features.network.pooled`."""
    revision: str = ""
    """The published version of the weights, where there is one."""

    def __post_init__(self) -> None:
        for what, given, known in (("at", self.at, At), ("pool", self.pool, Pool)):
            if given not in get_args(known):
                raise unknown_name(f"value of {what}", given, get_args(known))
        if self.layer:
            named_layer(self.network, self.layer)

    @property
    def about(self) -> dict[str, Any]:
        """What decides the features, in JSON: the weights by their hash, layer, pooling and preprocessing."""
        preprocessing = {
            key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self.preprocessing).items()
        }
        return {
            "name": self.name,
            "revision": self.revision,
            "weights": weights_name(self.network),
            "layer": self.layer,
            "at": self.at,
            "pool": self.pool,
            "preprocessing": preprocessing,
        }


def _efficientnet_lite0(weights: Path | None, revision: str | None) -> Backbone:
    from forde.data.features.efficientnet_lite import efficientnet_lite0

    _refuse_revision("efficientnet-lite0", revision)
    network, preprocessing, found = efficientnet_lite0(weights)
    return Backbone("efficientnet-lite0", network, preprocessing, revision=found)


NAMED: dict[str, Callable[[Path | None, str | None], Backbone]] = {"efficientnet-lite0": _efficientnet_lite0}
"""Those with a name of their own."""
TIMM = "timm:"


def backbone(name: str, *, weights: str | Path | None = None, revision: str | None = None) -> Backbone:
    """A pretrained network by name.

    Args:
        name: "efficientnet-lite0" (needs `efficientnet_lite_pytorch`); a vision model of the Hugging Face hub such as
            "google/vit-base-patch16-224-in21k", or a folder with its files (needs `transformers`); or "timm:" and a
            model of `timm`. For any other network build a `Backbone`.
        weights: a file with the weights, in place of those that are downloaded or come with a package.
        revision: branch, tag or commit of a model of the hub.

    >>> backbone("efficientnet-lite1")
    Traceback (most recent call last):
    forde.errors.FordeError: unknown backbone 'efficientnet-lite1'; did you mean 'efficientnet-lite0'? Known:
    an existing folder, efficientnet-lite0, owner/model of the Hugging Face hub, timm:model.
    """
    file = None if weights is None else Path(weights).expanduser()
    if name in NAMED:
        return NAMED[name](file, revision)
    if name.startswith(TIMM):
        from forde.data.features.timm_models import timm_model

        _refuse_revision(name, revision)
        network, preprocessing, found = timm_model(name.removeprefix(TIMM), file)
        return Backbone(name, network, preprocessing, revision=found)
    folder = Path(name).expanduser()
    if folder.is_dir() or name.count("/") == 1:
        if file is not None:
            raise FordeError(
                f"weights was given beside '{name}', whose folder has its own; leave it out, or give the folder."
            )
        from forde.data.features.hugging_face import hugging_face

        vision = hugging_face(name, revision)
        label = folder.resolve().name if folder.is_dir() else name
        return Backbone(label, vision.network, vision.preprocessing, pool=vision.pool, revision=vision.revision)
    known = [*NAMED, f"{TIMM}model", "owner/model of the Hugging Face hub", "an existing folder"]
    raise unknown_name("backbone", name, known)


def _refuse_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise FordeError(f"revision belongs to models of the Hugging Face hub, and '{name}' is none; leave it out.")
