"""How long a cell should take on one NVIDIA H200; only for plans, never for results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from forde.experiments.cell_methods import method_of
from forde.experiments.cells import Cell
from forde.methods import methods

STEPS = {"cifar10": 390, "cifar100": 390, "tinyimagenet": 781, "fashion-mnist": 468, "digits": 14}
"""Of one epoch."""
MEMBER_STEP = 1.75e-3
"""Seconds of a compiled ResNet18 in bf16 at batch 128 on 32×32 images: `docs/performance.md`."""
EVALUATION = 3.0
"""Seconds of a member on 95 corrupted test sets, diversity included."""
FIXED = 10.0
"""Seconds to build, capture and take apart."""
COMPILING = 40.0
"""Seconds that the first cell of its program takes longer."""
ONE_NETWORK = {"swag": 1.0, "node-bnn": 4.0}
"""Steps of methods that train one network, in those of one member."""
DRAWN = {"swag": 2.0}
"""Seconds of a member that is drawn: a pass over the training data. Not measured yet."""
MODELS = {"wrn16_4": 0.6, "preact_resnet18": 1.0, "resnet18": 1.0, "resnet18-w8": 0.25, "resnet18-w16": 0.25,
          "resnet18-w32": 0.4, "resnet18-w128": 3.5, "mlp-256-256": 0.1}  # fmt: skip
"""A network's step in ResNet18's."""
TOY_EPOCH, FEATURES_EPOCH = 0.015, 0.16
"""Seconds of an epoch of the toy networks on a CPU, and of ten perceptrons on 50,000 features: 195 steps of 0.78 ms
(`docs/performance.md`)."""
FEATURES_EVALUATION = 1.0
"""Seconds of a perceptron on 95 corrupted test sets of features. Not measured yet."""


def seconds_of(cell: Cell) -> float:
    """Expected seconds of a cell.

    >>> cell = Cell("images", "cifar10", "resnet18", "deep-ensemble", 5, 12, precision="bf16")
    >>> 50 < seconds_of(cell) < 100
    True
    """
    if cell.data == "digits":
        return 0.3
    if cell.kind in ("regression-1d", "classification-2d"):
        return TOY_EPOCH * cell.epochs
    if cell.kind == "features":
        trained = ONE_NETWORK.get(cell.method, cell.members * cost_of(cell)) / 10
        return FIXED + cell.epochs * FEATURES_EPOCH * trained + cell.members * FEATURES_EVALUATION
    steps = STEPS.get(cell.data, 390)
    pixels = 4.0 if cell.data == "tinyimagenet" else 1.0
    slower = 2.0 if cell.precision == "float32" else 1.0
    size = MODELS.get(cell.model, 1.0) * pixels * slower
    trained = ONE_NETWORK.get(cell.method, cell.members * cost_of(cell))
    after = cell.members * (EVALUATION + DRAWN.get(cell.method, 0.0))
    return FIXED + size * (trained * cell.epochs * steps * MEMBER_STEP + after)


def cost_of(cell: Cell) -> float:
    """A training step in those of a deep ensemble.

    >>> cost_of(Cell("images", "cifar10", "resnet18", "forde-pca", 5, 12))
    2.05
    """
    if cell.method not in methods():
        return 1.5
    built = method_of(cell)
    if built.space is None:
        return 1.0
    if not built.space.needs_input_gradient:
        return 1.05
    return 1.0 + (0.2 + 0.85 * built.repulsion_fraction) / built.repulsion_every


def program_of(cell: Cell) -> tuple[object, ...] | None:
    """What a cell's step is compiled for on a GPU, once in a process; None where it is not compiled.

    >>> first, second = (Cell("images", "cifar10", "resnet18", "forde", 5, 12, seed=seed) for seed in (0, 1))
    >>> program_of(first) == program_of(second)
    True
    """
    if cell.kind != "images":
        return None
    return cell.model, cell.members, cell.method, dict(cell.options).get("repulsion_fraction")


def timetable(cells: Iterable[Cell]) -> Iterator[tuple[Cell, float]]:
    """Cells in the order in which they are run, each with its expected seconds, compiling included."""
    compiled = set[object]()
    for cell in cells:
        program = program_of(cell)
        new = program is not None and cell.data != "digits" and program not in compiled
        compiled.add(program)
        yield cell, seconds_of(cell) + (COMPILING if new else 0.0)
