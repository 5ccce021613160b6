"""Figures 2 and 3 of the paper: 16 small networks per method on a 1D regression and a 2D classification task.

The paper does not print its settings; these were found by `forde.experiments.toy_search` and are explained in
`docs/toys.md`. Network, optimizer, epochs and prior are the same for all methods. The repulsion of every method is
multiplied by the largest of 1, 10, 100, 1000, 10000 at which its members still fit the data (1 where they never do).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from forde.data import toys
from forde.ensemble import Ensemble
from forde.errors import unknown_name
from forde.likelihoods import Likelihood, Regression
from forde.methods import Method, method
from forde.models import MLP
from forde.prediction import ClassificationPrediction, RegressionPrediction
from forde.training import fit
from forde.training.schedule import paper_factor

METHODS = ("deep-ensemble", "weight-rde", "function-rde", "feature-rde", "lit", "forde-identity", "forde-pca")
N_MEMBERS = 16
LEARNING_RATE = 1e-2

REGRESSION_RANGE = 10.0
"""Predictions are shown for −10 ≤ x ≤ 10."""
CLASSIFICATION_RANGE = 20.0
"""Entropy is shown on [−20, 20]²."""
FAR_RADIUS = 10.0
"""Points further from the origin than this are outside the data: class means are at 5, all points within 9."""
RING_RADII = (15.0, 17.5, 20.0)
N_ANGLES = 360

Profile = Literal["quick", "full"]


@dataclass(frozen=True)
class Settings:
    """What all methods share in one task, and what each adds."""

    network: Callable[[], nn.Module]
    epochs: int
    weight_decay: float
    repulsion_weights: Mapping[str, float]
    """Factor of each method's repulsion; 1 for a method that is not named."""
    options: Mapping[str, Mapping[str, Any]]
    """Further options of each method."""
    grid: int
    """Points of the plotted grid per axis."""


REGRESSION = Settings(
    network=lambda: MLP(2, [50, 50], 1, activation=nn.Tanh),
    epochs=500,
    weight_decay=1 / sum(toys.CLUSTER_SIZES),  # the prior N(0, 1) on every weight
    repulsion_weights={"weight-rde": 10000, "function-rde": 100, "feature-rde": 100, "lit": 1}
    | dict.fromkeys(("forde-identity", "forde-pca"), 1000),
    options={},
    grid=401,
)
"""Of the 1D task."""

CLASSIFICATION = Settings(
    network=lambda: MLP(2, [50, 50], toys.N_CLASSES),
    epochs=500,
    weight_decay=1 / (toys.N_CLASSES * toys.TRAIN_PER_CLASS),
    repulsion_weights={"weight-rde": 10000, "function-rde": 10000, "feature-rde": 1000, "lit": 10}
    | dict.fromkeys(("forde-identity", "forde-pca"), 1000),
    # Logits that are all shifted by the same function of x give the same probabilities, so members can have different
    # logit gradients and equal predictions; gradients of the log-probability cannot differ without consequence.
    options={name: {"output": "log_prob"} for name in ("lit", "forde-identity", "forde-pca")},
    grid=161,
)
"""Of the 2D task."""

QUICK_EPOCHS = 200
QUICK_GRID = 101


@dataclass(frozen=True)
class RegressionResult:
    """One method on the 1D task. Standard deviations are those of the members' means; the noise is not in them."""

    method: str
    seed: int
    x: Tensor
    """`[G]` grid over [−10, 10]."""
    mean: Tensor
    """`[G]`."""
    std: Tensor
    """`[G]`."""
    outside: float
    """Mean std over the grid points outside the clusters."""
    gaps: float
    """Mean std between the clusters."""
    beyond: float
    """Mean std left and right of all clusters."""
    inside: float
    """Mean std within the clusters."""
    member_rmse: float
    """Root mean square residual of the members on the training data; the noise has 0.05."""
    seconds: float

    @property
    def fits(self) -> bool:
        """Whether members' residuals are close to the noise: at most 1.2 times it."""
        return self.member_rmse <= 1.2 * toys.NOISE_STD


@dataclass(frozen=True)
class ClassificationResult:
    """One method on the 2D task. Entropies are those of the averaged probabilities, in nats (at most ln 5 = 1.61)."""

    method: str
    seed: int
    axis: Tensor
    """`[G]` coordinates of the grid along either axis."""
    entropy: Tensor
    """`[G, G]`, rows along the second coordinate."""
    far: float
    """Mean entropy over grid points with ‖x‖ > 10."""
    ring: Tensor
    """`[360]` entropy in each direction (degrees from the first axis), mean over radii 15, 17.5 and 20."""
    behind: Tensor
    """`[5]` the same straight behind each class."""
    on_test: float
    """Mean entropy on the test points."""
    accuracy: float
    """Of the ensemble, on the training data."""
    worst_member_accuracy: float
    """Of the worst member, on the training data."""
    test_accuracy: float
    seconds: float

    @property
    def fits(self) -> bool:
        """Whether every member fits the training data: more than 90 % right."""
        return self.worst_member_accuracy > 0.9


def settings_for(settings: Settings, profile: Profile) -> Settings:
    """The settings as they are for `"full"`; fewer epochs and a coarser grid for `"quick"`.

    >>> settings_for(CLASSIFICATION, "quick").epochs
    200
    """
    if profile not in ("quick", "full"):
        raise unknown_name("profile", profile, ("quick", "full"))
    if profile == "full":
        return settings
    return replace(settings, epochs=QUICK_EPOCHS, grid=min(settings.grid, QUICK_GRID))


def toy_method(name: str, settings: Settings) -> Method:
    """The named method with the task's prior, repulsion weight and options.

    >>> toy_method("forde-identity", CLASSIFICATION).repulsion_weight
    1000
    """
    return method(
        name,
        weight_decay=settings.weight_decay,
        repulsion_weight=settings.repulsion_weights.get(name, 1.0),
        **settings.options.get(name, {}),
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: operations this small gain nothing from two, and lose much where cores are shared.

    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def run_regression(name: str | Method, *, settings: Settings = REGRESSION, seed: int = 0) -> RegressionResult:
    """Train one method on `regression_1d()` and predict on [−10, 10].

    Args:
        name: one of `METHODS`, or a method of your own.
        settings: network, epochs and the rest; `settings_for(REGRESSION, "quick")` for a demonstration.
        seed: of the initialisation and the order of the data; the data itself stays the same.

    >>> result = run_regression("deep-ensemble", settings=replace(REGRESSION, epochs=2, grid=11))
    >>> result.x.shape, result.std.shape
    (torch.Size([11]), torch.Size([11]))
    """
    x, y, features = toys.regression_1d()
    ensemble, trained, seconds = _train(name, settings, (features(x), y), Regression(toys.NOISE_STD), seed)
    grid = torch.linspace(-REGRESSION_RANGE, REGRESSION_RANGE, settings.grid)
    prediction, fitted = ensemble.predict(features(grid)), ensemble.predict(features(x))
    assert isinstance(prediction, RegressionPrediction) and isinstance(fitted, RegressionPrediction)
    std = prediction.epistemic.sqrt()
    outside = outside_clusters(grid)
    beyond = grid.abs() > toys.CLUSTERS[-1][1]
    return RegressionResult(
        trained.name,
        seed,
        grid,
        prediction.mean,
        std,
        outside=float(std[outside].mean()),
        gaps=float(std[outside & ~beyond].mean()),
        beyond=float(std[beyond].mean()),
        inside=float(std[~outside].mean()),
        member_rmse=float((fitted.member_means - y).square().mean().sqrt()),
        seconds=seconds,
    )


def outside_clusters(x: Tensor) -> Tensor:
    """Which inputs lie in no cluster of the training data: `[G]` → `[G]` bool.

    >>> outside_clusters(torch.tensor([-9.0, -6.0, 0.0, 3.0])).tolist()
    [True, False, False, True]
    """
    return torch.stack([(x < low) | (x > high) for low, high in toys.CLUSTERS]).all(0)


@one_thread()
def run_classification(
    name: str | Method, *, settings: Settings = CLASSIFICATION, seed: int = 0
) -> ClassificationResult:
    """Train one method on `classification_2d()` and map the entropy of p̄ on [−20, 20]².

    Args: as for `run_regression`.

    >>> result = run_classification("deep-ensemble", settings=replace(CLASSIFICATION, epochs=2, grid=11))
    >>> result.entropy.shape, result.ring.shape, result.behind.shape
    (torch.Size([11, 11]), torch.Size([360]), torch.Size([5]))
    """
    data = toys.classification_2d()
    ensemble, trained, seconds = _train(name, settings, (data.x, data.y), "classification", seed)

    def predict(x: Tensor) -> ClassificationPrediction:
        prediction = ensemble.predict(x.reshape(-1, 2))
        assert isinstance(prediction, ClassificationPrediction)
        return prediction

    axis = torch.linspace(-CLASSIFICATION_RANGE, CLASSIFICATION_RANGE, settings.grid)
    points = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1)  # [G, G, 2]
    entropy = predict(points).total.view(settings.grid, settings.grid)
    on_train, on_test = predict(data.x), predict(data.x_test)
    correct = on_train.member_logits.argmax(-1) == data.y
    return ClassificationResult(
        trained.name,
        seed,
        axis,
        entropy,
        far=float(entropy[points.norm(dim=-1) > FAR_RADIUS].mean()),
        ring=predict(on_rings(torch.arange(N_ANGLES) * (2 * math.pi / N_ANGLES))).total.view(-1, N_ANGLES).mean(0),
        behind=predict(on_rings(toys.class_angles())).total.view(-1, toys.N_CLASSES).mean(0),
        on_test=float(on_test.total.mean()),
        accuracy=float((on_train.labels == data.y).float().mean()),
        worst_member_accuracy=float(correct.float().mean(1).min()),
        test_accuracy=float((on_test.labels == data.y_test).float().mean()),
        seconds=seconds,
    )


def on_rings(angles: Tensor) -> Tensor:
    """Points far from the data in the given directions, at radii 15, 17.5 and 20: `[A]` → `[3, A, 2]`.

    >>> on_rings(torch.zeros(4)).shape
    torch.Size([3, 4, 2])
    """
    return torch.tensor(RING_RADII)[:, None, None] * torch.stack([angles.cos(), angles.sin()], dim=-1)


def run_figure_2(
    methods: Iterable[str] = METHODS, *, profile: Profile = "quick", seed: int = 0
) -> list[RegressionResult]:
    """1D regression for each method, for `forde.report.toys.draw_figure_2`."""
    settings = settings_for(REGRESSION, profile)
    return [run_regression(name, settings=settings, seed=seed) for name in methods]


def run_figure_3(
    methods: Iterable[str] = METHODS, *, profile: Profile = "quick", seed: int = 0
) -> list[ClassificationResult]:
    """2D classification for each method, for `forde.report.toys.draw_figure_3`."""
    settings = settings_for(CLASSIFICATION, profile)
    return [run_classification(name, settings=settings, seed=seed) for name in methods]


def _train(
    name: str | Method, settings: Settings, data: tuple[Tensor, Tensor], likelihood: str | Likelihood, seed: int
) -> tuple[Ensemble, Method, float]:
    """Adam on full batches, with the learning rate schedule of the paper: `([N, 2], [N])` → ensemble, method, time."""
    chosen = toy_method(name, settings) if isinstance(name, str) else name
    ensemble = Ensemble(settings.network, N_MEMBERS, seed=seed, likelihood=likelihood)
    started = time.perf_counter()
    fit(
        ensemble,
        chosen,
        data,
        epochs=settings.epochs,
        batch_size=len(data[0]),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=LEARNING_RATE),
        scheduler=lambda optimizer: LambdaLR(optimizer, lambda epoch: paper_factor(epoch, settings.epochs)),
        seed=seed,
        diagnostics_every=0,
        verbose=False,
    )
    return ensemble, chosen, time.perf_counter() - started
