"""What `forde train` makes of a data set: which network, for which columns and classes, in which units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from torch import nn

from forde import models
from forde.data.description import Images, Table
from forde.data.standardise import Standardisation
from forde.errors import FordeError, unknown_name

MODELS = ("mlp", "resnet18", "preact_resnet18", "wrn16_4")
MOST = 1 << 31
"""Below which every size in a file must be."""


@dataclass(frozen=True)
class Recipe:
    """All that is needed, beside the weights, to predict for new data in its own units.

    >>> from forde.data import load
    >>> recipe = Recipe.of(load("digits"), "mlp", [32])
    >>> recipe.make_network().head
    Linear(in_features=32, out_features=10, bias=True)
    >>> Recipe.from_json(recipe.to_json()) == recipe
    True
    """

    model: str
    hidden: tuple[int, ...]
    """Widths of the perceptron's hidden layers."""
    shape: tuple[int, ...]
    """`(H, W, C)` of an image or `(D,)` of a row."""
    n_classes: int
    """0 for a quantity."""
    classes: tuple[str, ...] = ()
    """Names in the order of the labels."""
    features: tuple[str, ...] = ()
    """Columns of a table in the order of the network's inputs."""
    target: str = ""
    """The column of a table that is predicted."""
    standardisation: Standardisation | None = None
    """Of a table; images bring the statistics of their channels with them."""

    @classmethod
    def of(cls, data: Images | Table, model: str, hidden: Sequence[int]) -> Recipe:
        """A network of this kind for this training data."""
        if model not in MODELS:
            raise unknown_name("model", model, MODELS)
        described = data.description
        images = len(described.shape) == 3
        if model != "mlp" and not images:
            raise FordeError(f"{model} needs images, but '{described.name}' is a table; use --model mlp.")
        _refuse_one_class(data)
        network = (model, tuple(hidden), tuple(described.shape), described.n_classes, tuple(described.classes))
        if isinstance(data, Images):
            return cls(*network)
        units = Standardisation.of(data)
        if not (data.x != data.x[:1]).any():
            raise FordeError(f"every feature in '{described.name}' is constant; add one that varies.")
        if not described.n_classes and not (data.y != data.y[:1]).any():
            raise FordeError(
                f"the target '{data.target_name}' in '{described.name}' is {data.y[0]} in every row; name another one."
            )
        return cls(*network, data.feature_names, data.target_name, units)

    @property
    def likelihood(self) -> str:
        """The name of the likelihood that the outputs are for."""
        return "classification" if self.n_classes else "learned-noise-regression"

    def make_network(self) -> nn.Module:
        """A member, freshly initialised."""
        outputs = self.n_classes or 2  # a quantity: its mean and its variance
        if self.model == "mlp":
            return models.MLP(prod(self.shape), self.hidden, outputs)
        network: nn.Module = getattr(models, self.model)(outputs, channels=self.shape[2])
        return network

    def in_standard_units(self, data: Images | Table) -> Images | Table:
        """The data as the members see it: a table standardised, images as they are."""
        return self.standardisation.apply(data) if self.standardisation and isinstance(data, Table) else data

    def to_json(self) -> dict[str, Any]:
        """Lists, text and numbers, from which `from_json` makes the same again."""
        units = None if self.standardisation is None else self.standardisation.to_json()
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return {**plain, "standardisation": units}

    @classmethod
    def from_json(cls, value: Any) -> Recipe:
        """Inverse of `to_json`, for a file that anybody may have written."""
        if not isinstance(value, dict) or not _is_valid(value):
            raise FordeError("the description of the network is damaged or of another version; train again.")
        fields: dict[str, Any] = {
            key: tuple(field) if isinstance(field, list) else field for key, field in value.items()
        }
        if value["standardisation"] is not None:
            fields["standardisation"] = Standardisation.from_json(value["standardisation"])
        recipe = cls(**fields)
        if recipe.standardisation is not None and (len(recipe.standardisation.mean),) != recipe.shape:
            raise FordeError("the statistics of the table do not fit its number of features; train again.")
        return recipe


def _refuse_one_class(data: Images | Table) -> None:
    """By its name; whoever trains on the labels knows only numbers."""
    labels, classes = data.labels if isinstance(data, Images) else data.y, data.description.classes
    if data.description.n_classes and len(labels) and labels.min() == labels.max():
        name = classes[int(labels[0])] if classes else int(labels[0])
        raise FordeError(
            f"all {len(labels):,} labels in '{data.description.name}' are of one class, '{name}', but at least 2 "
            "were expected; add data of another class."
        )


def _is_valid(value: dict[str, Any]) -> bool:
    sizes = (value.get("hidden"), value.get("shape"))
    names = (value.get("classes"), value.get("features"))
    return (
        set(value) == set(Recipe.__dataclass_fields__)
        and value["model"] in MODELS
        and all(
            isinstance(each, list) and all(type(size) is int and 0 < size < MOST for size in each) for each in sizes
        )
        and all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in names)
        and (value["n_classes"] == 0 or _is_size(value["n_classes"]))
        and isinstance(value["target"], str)
        and len(value["shape"]) == (3 if value["standardisation"] is None else 1)
        and (value["standardisation"] is None or len(value["features"]) == value["shape"][0])
    )


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value < MOST
