"""What the paper's image experiments share: data, networks, members, and the methods of its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from forde.experiments.budgets import Budget
from forde.experiments.cells import Cell, options_of

MEMBERS = 10
MODELS = {"cifar10": "resnet18", "cifar100": "resnet18", "tinyimagenet": "preact_resnet18"}
EPOCHS = {"cifar10": 300, "cifar100": 300, "tinyimagenet": 150}

CLOSELY = ("deep-ensemble", "forde-pca", "forde", "forde-identity", "forde-tuned")
"""Methods that are compared over several seeds at every budget."""
OTHERS = ("weight-rde", "function-rde", "feature-rde", "lit", "swag", "node-bnn")

RECIPE: dict[str, Any] = {"strength": 10, "repulsion_fraction": 0.25}
"""The options of `forde` in cells: written out, so that another default later makes no old result wrong."""

ALPHA = {"cifar10": 0.2, "cifar100": 0.4, "tinyimagenet": 0.4}
"""Of forde-tuned; the paper has none for TinyImageNet."""
SWA_LR = {"cifar10": 0.01, "cifar100": 0.05, "tinyimagenet": 0.05}
"""Of SWAG, as its authors have it for the first two."""
DRAWS = {"swag": 30, "node-bnn": 32}
"""Members that are draws from one trained network: as many as their authors take at every budget but smoke."""
SMOKE_DRAWS = 4
CAUCHY = {"cifar10": 1e-3, "cifar100": 5e-3, "tinyimagenet": 5e-3}
"""Of feature-rde."""

SMOKE_CORRUPTIONS = ("gaussian_noise", "contrast")
SMOKE_SEVERITIES = (1, 5)


def options_for(method: str, data: str) -> dict[str, Any]:
    """The options that a method has in the paper's tables.

    >>> options_for("forde-tuned", "cifar10")
    {'alpha': 0.2}
    """
    if method == "forde":
        return dict(RECIPE)
    if method == "forde-tuned":
        return {"alpha": ALPHA.get(data, 0.4)}
    if method == "swag":
        return {"swa_lr": SWA_LR.get(data, 0.05)} | ({"start": 0.0} if data == "digits" else {})
    return {"cauchy": CAUCHY.get(data, 1e-3)} if method == "feature-rde" else {}


def members_of(budget: Budget, method: str) -> int:
    """How many members a method has in the paper's tables at a budget.

    >>> from forde.experiments.budgets import budget
    >>> members_of(budget("short"), "lit"), members_of(budget("short"), "swag")
    (5, 30)
    """
    if method in DRAWS:
        return SMOKE_DRAWS if budget.smoke else DRAWS[method]
    return budget.members_of(MEMBERS)


def image_cell(
    budget: Budget,
    data: str,
    method: str,
    seed: int,
    *,
    options: Mapping[str, Any] | None = None,
    prior: str = "isotropic",
    model: str | None = None,
    members: int | None = None,
) -> Cell:
    """A cell of the paper's image experiments, or its small stand-in at the smoke budget.

    Args:
        options: the method's; by default those of the paper's tables.
        model: by default the paper's for this data.
        members: as many, whatever the budget says.

    >>> from forde.experiments.budgets import budget
    >>> image_cell(budget("full"), "cifar10", "forde-tuned", 0).epochs
    300
    """
    data = "digits" if budget.smoke else data
    given = options_of(**(options_for(method, data) if options is None else options))
    own = members_of(budget, method) if members is None else members
    if budget.smoke:
        return Cell(
            "images", data, "mlp-16" if model is None else model, method, own, budget.epochs_of(300), given, prior,
            seed, budget.precision, augment=False, corruptions=SMOKE_CORRUPTIONS, severities=SMOKE_SEVERITIES,
            batch_size=64, train_size=256, test_size=128,
        )  # fmt: skip
    return Cell(
        "images", data, model or MODELS[data], method, own, budget.epochs_of(EPOCHS[data]), given, prior, seed,
        budget.precision,
    )  # fmt: skip


def table(budget: Budget, data: str, methods: Iterable[str], **more: Any) -> list[Cell]:
    """Cells of a table of methods."""
    return [
        image_cell(budget, data, method, seed, **more)
        for method in methods
        for seed in budget.seeds_of(closely=method in CLOSELY)
    ]


def label_of(cell: Cell) -> str:
    """What a cell's setting is called in tables and claims: its method, with what differs from the paper's tables.

    >>> from forde.experiments.budgets import budget
    >>> label_of(image_cell(budget("short"), "cifar10", "forde-tuned", 0))
    'forde-tuned'
    >>> label_of(image_cell(budget("short"), "cifar10", "deep-ensemble", 0, prior="empcov"))
    'deep-ensemble + EmpCov'
    """
    expected = dict(options_of(**options_for(cell.method, cell.data)))
    changed = [f"{name}={value}" for name, value in cell.options if name not in expected or expected[name] != value]
    missing = [f"no {name}" for name in expected if name not in dict(cell.options)]
    prior = " + EmpCov" if cell.prior == "empcov" else ""
    return " ".join([cell.method, *changed, *missing]) + prior
