"""What a run of `forde train` is made of: the network, how its data is prepared, and what its outputs mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn

from forde.data.description import Images, Table
from forde.data.known_inputs import Inputs
from forde.data.standardise import Standardisation
from forde.errors import FordeError, unknown_name
from forde.models.building import MODELS, MOST, build

OF_INPUTS = ("shape", "n_classes", "classes", "features", "target")
"""Those that a run has always noted, beside the statistics of a table; those of images are noted with the ensemble."""


@dataclass(frozen=True)
class Recipe:
    """All that is needed, beside the weights, to predict for new data in its own units.

    >>> from forde.data import load
    >>> recipe = Recipe.of(load("digits"), "mlp", [32])
    >>> recipe.make_network().head
    Linear(in_features=32, out_features=10, bias=True)
    >>> Recipe.from_json(recipe.to_json()).inputs.classes == recipe.inputs.classes
    True
    """

    model: str
    """A name of `forde.models`, or `module:function` of a network of the user's own."""
    hidden: tuple[int, ...]
    """Widths of the perceptron's hidden layers."""
    inputs: Inputs

    @classmethod
    def of(cls, data: Images | Table, model: str, hidden: Sequence[int]) -> Recipe:
        """A network of this kind for this training data."""
        described = data.description
        if model not in MODELS and ":" not in model:
            raise unknown_name("model", model, MODELS)
        if model in MODELS and model != "mlp" and len(described.shape) != 3:
            raise FordeError(f"{model} needs images, but '{described.name}' is a table; use --model mlp.")
        _refuse_one_class(data)
        if isinstance(data, Images):
            return cls(model, tuple(hidden), Inputs.of(data))
        units = Standardisation.of(data)
        if not (data.x != data.x[:1]).any():
            raise FordeError(f"every feature in '{described.name}' is constant; add one that varies.")
        if not described.n_classes and not (data.y != data.y[:1]).any():
            raise FordeError(
                f"the target '{data.target_name}' in '{described.name}' is {data.y[0]} in every row; name another one."
            )
        return cls(model, tuple(hidden), Inputs.of(units.apply(data)))

    @property
    def features(self) -> tuple[str, ...]:
        """Columns of a table in the order of the network's inputs."""
        return self.inputs.features

    @property
    def classes(self) -> tuple[str, ...]:
        """Names in the order of the labels."""
        return self.inputs.classes

    @property
    def n_classes(self) -> int:
        """0 for a quantity."""
        return self.inputs.n_classes

    @property
    def standardisation(self) -> Standardisation | None:
        """Of a table; images bring the statistics of their channels with them."""
        return self.inputs.standardisation

    @property
    def likelihood(self) -> str:
        """The name of the likelihood that the outputs are for."""
        return "classification" if self.n_classes else "learned-noise-regression"

    @property
    def words(self) -> dict[str, Any]:
        """How a network of the library is built, for `forde.models.building.build`."""
        outputs = self.n_classes or 2  # a quantity: its mean and its variance
        if self.model == "mlp":
            return {"name": "mlp", "inputs": prod(self.inputs.shape), "hidden": list(self.hidden), "outputs": outputs}
        return {"name": self.model, "outputs": outputs, "channels": self.inputs.shape[2]}

    def make_network(self) -> nn.Module:
        """A member of the library's, freshly initialised."""
        return build(self.words)

    def in_standard_units(self, data: Images | Table) -> Images | Table:
        """The data as the members see it: a table standardised, images as they are."""
        return self.standardisation.apply(data) if self.standardisation and isinstance(data, Table) else data

    def to_json(self) -> dict[str, Any]:
        """Lists, text and numbers, from which `from_json` makes the same again."""
        inputs = self.inputs.to_json()
        own = {name: inputs[name] for name in (*OF_INPUTS, "standardisation", "encoding") if name in inputs}
        return {"model": self.model, "hidden": list(self.hidden), **own}

    @classmethod
    def from_json(cls, value: Any) -> Recipe:
        """Inverse of `to_json`, for a file that anybody may have written."""
        damaged = FordeError("the description of the network is damaged or of another version; train again.")
        if not isinstance(value, dict) or not _is_valid(value):
            raise damaged
        own = {name: value[name] for name in (*OF_INPUTS, "standardisation", "encoding") if name in value}
        try:
            inputs = Inputs.from_json({"mean": [], "std": [], **own})
        except FordeError:
            raise damaged from None
        return cls(value["model"], tuple(value["hidden"]), inputs)


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
    hidden = value.get("hidden")
    return (
        set(value) - {"encoding"} == {"model", "hidden", "standardisation", *OF_INPUTS}
        and isinstance(value["model"], str)
        and (value["model"] in MODELS or ":" in value["model"])
        and isinstance(hidden, list)
        and all(type(size) is int and 0 < size < MOST for size in hidden)
        and isinstance(value["shape"], list)
        and len(value["shape"]) == (3 if value["standardisation"] is None else 1)
    )
