"""A cell: one ensemble, trained and evaluated. It is what is run, kept in a file of its own, and never run twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

from forde.hashing import json_name

Kind = Literal["images", "features", "regression-1d", "classification-2d"]


@dataclass(frozen=True)
class Cell:
    """All that decides a cell's numbers, and nothing else.

    The defaults of optional fields are part of the names of cells: a field that has its default value is left out of
    the name, so that fields can be added, and a default must never be changed.

    >>> cell = Cell("images", "cifar10", "resnet18", "forde-tuned", 5, 12, options=options_of(alpha=0.2))
    >>> cell.name[:-9]
    'cifar10-resnet18-m5-e12-forde-tuned-alpha0.2-s0'
    >>> cell.name == Cell.of(cell.identity).name
    True
    """

    kind: Kind
    data: str
    """A data set's name; for features the name that their folder was given."""
    model: str
    method: str
    members: int
    epochs: int
    options: tuple[tuple[str, Any], ...] = ()
    """The method's, sorted by name."""
    prior: str = "isotropic"
    seed: int = 0
    precision: str = "float32"
    batch_size: int = 128
    lr: float = 0.1
    augment: bool = True
    corruptions: tuple[str, ...] = ()
    """Those evaluated on; empty for all 19."""
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    train_size: int | None = None
    """The first so many training samples; None for all."""
    test_size: int | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """The fields as JSON, without those that have their default value."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        defaults = {each.name: each.default for each in fields(self) if each.default is not MISSING}
        plain = {name: value for name, value in given.items() if name not in defaults or value != defaults[name]}
        if "options" in plain:
            plain["options"] = dict(plain["options"])
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    @classmethod
    def of(cls, identity: Mapping[str, Any]) -> Cell:
        """Inverse of `identity`."""
        given: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in identity.items()}
        return cls(**{**given, "options": options_of(**given.get("options", {}))})

    @property
    def name(self) -> str:
        """Readable, and different for different cells: the file's name."""
        words = [self.data, self.model, f"m{self.members}", f"e{self.epochs}", self.label, f"s{self.seed}"]
        text = "-".join(re.sub(r"[^A-Za-z0-9._-]+", "_", word) for word in words)
        return f"{text}-{json_name(self.identity)[:8]}"

    @property
    def label(self) -> str:
        """Method, options and prior, as in the file's name."""
        options = "".join(f"-{name}{value}" for name, value in self.options)
        return f"{self.method}{options}{'' if self.prior == 'isotropic' else f'-{self.prior}'}"

    @property
    def setting(self) -> str:
        """A short name for all but the seed: cells of one setting are averaged."""
        return json_name({name: value for name, value in self.identity.items() if name != "seed"})


def options_of(**options: Any) -> tuple[tuple[str, Any], ...]:
    """A method's options in the form that a cell holds; whole numbers are the same with and without a point.

    >>> options_of(strength=10.0, output="log_prob")
    (('output', 'log_prob'), ('strength', 10))
    """
    return tuple((name, _plain(options[name])) for name in sorted(options))


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def unique(cells: Iterable[Cell]) -> list[Cell]:
    """Each cell once, in the order of the first time.

    >>> cell = Cell("images", "cifar10", "resnet18", "lit", 5, 12)
    >>> len(unique([cell, cell]))
    1
    """
    return list({cell.name: cell for cell in cells}.values())
