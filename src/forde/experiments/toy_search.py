"""Settings for the toy figures: one table per question, printed as Markdown.

python -m forde.experiments.toy_search selection scalar network kernel schedule training --seeds 3
python -m forde.experiments.toy_search selection --profile full --seeds 1
python -m forde.experiments.toy_search results --profile full --seeds 3
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from forde.experiments import toys
from forde.experiments.toys import CLASSIFICATION, METHODS, REGRESSION, Settings, settings_for, toy_method
from forde.kernels import RBF, InverseMultiquadric, Laplace, VonMisesFisher
from forde.methods import Method
from forde.models import MLP
from forde.spaces import InputGradients

Case = tuple[str, str, Method, Settings]
"""Task, label, method, settings."""
DECADES = (1, 10, 100, 1000, 10000)


def centred_logit(logits: Tensor, y: Tensor) -> Tensor:
    """True-class logit minus the mean logit: what remains of it when common shifts are removed."""
    return logits.gather(-1, y[:, None]).squeeze(-1) - logits.mean(-1)


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """True-class logit minus the largest other."""
    others = logits.scatter(-1, y[:, None], -torch.inf)
    return logits.gather(-1, y[:, None]).squeeze(-1) - others.amax(-1)


def sum_of_logits(logits: Tensor, y: Tensor) -> Tensor:
    """One scalar of all logits, whatever the label."""
    return logits.sum(-1)


def random_projection(logits: Tensor, y: Tensor) -> Tensor:
    """The same random combination of logits for all members and samples."""
    return logits @ torch.randn(logits.shape[-1], generator=torch.Generator().manual_seed(0))


SCALARS: dict[str, Any] = {
    "logit": "logit",
    "log_prob": "log_prob",
    "centred logit": centred_logit,
    "margin": margin,
    "sum of logits": sum_of_logits,
    "random projection": random_projection,
}


def started_normal(network: nn.Module) -> nn.Module:
    """Every weight and bias from N(0, 1), as D'Angelo & Fortuin start their toy networks."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_()
    return network


NETWORKS: dict[str, dict[str, Callable[[], nn.Module]]] = {
    "2d": {
        "ReLU 50-50": CLASSIFICATION.network,
        "ReLU 10-10, N(0, 1) start": lambda: started_normal(MLP(2, [10, 10], 5)),
        "ReLU 100-100": lambda: MLP(2, [100, 100], 5),
        "ReLU 50-50-50": lambda: MLP(2, [50, 50, 50], 5),
        "tanh 50-50": lambda: MLP(2, [50, 50], 5, activation=nn.Tanh),
        "tanh 50-50, N(0, 1) start": lambda: started_normal(MLP(2, [50, 50], 5, activation=nn.Tanh)),
    },
    "1d": {
        "tanh 50-50": REGRESSION.network,
        "ReLU 50-50": lambda: MLP(2, [50, 50], 1),
        "ReLU 200-50-50-50": lambda: MLP(2, [200, 50, 50, 50], 1),
        "tanh 50": lambda: MLP(2, [50], 1, activation=nn.Tanh),
    },
}


def selection(tasks: dict[str, Settings]) -> Iterator[Case]:
    """Every method at every repulsion weight: the rule that fixes `repulsion_weights`."""
    for task, settings in tasks.items():
        for name in METHODS:
            for weight in (1,) if name == "deep-ensemble" else DECADES:
                changed = replace(settings, repulsion_weights={name: weight})
                yield task, f"{name} × {weight}", toy_method(name, changed), changed


def original(tasks: dict[str, Settings]) -> Iterator[Case]:
    """The same with the networks of the publications that the tasks come from."""
    networks = {"1d": NETWORKS["1d"]["ReLU 200-50-50-50"], "2d": NETWORKS["2d"]["ReLU 10-10, N(0, 1) start"]}
    yield from selection({task: replace(settings, network=networks[task]) for task, settings in tasks.items()})


def results(tasks: dict[str, Settings]) -> Iterator[Case]:
    """Every method as in the figures."""
    for task, settings in tasks.items():
        for name in METHODS:
            yield task, name, toy_method(name, settings), settings


def scalar(tasks: dict[str, Settings]) -> Iterator[Case]:
    """Which scalar's input gradient members are compared by."""
    forde = toy_method("forde-identity", tasks["2d"])
    for label, output in SCALARS.items():
        for weight in (1, 100, 1000):
            yield "2d", f"{label} × {weight}", _changed(forde, output=output, weight=weight), tasks["2d"]
    for weight in (1, 10):
        lit = _changed(toy_method("lit", tasks["2d"]), output="logit", weight=weight)
        yield "2d", f"lit, logit × {weight}", lit, tasks["2d"]


def network(tasks: dict[str, Settings]) -> Iterator[Case]:
    """Width, depth, activation and start."""
    for task, settings in tasks.items():
        for label, build in NETWORKS[task].items():
            changed = replace(settings, network=build)
            for name in ("deep-ensemble", "weight-rde", "function-rde", "lit", "forde-identity"):
                yield task, f"{label}, {name}", toy_method(name, changed), changed


def kernel(tasks: dict[str, Settings]) -> Iterator[Case]:
    """Bandwidth rule and kernels on the sphere."""
    kernels = {
        "RBF per column": RBF(bandwidth="per_column"),
        "RBF per sample": RBF(bandwidth="per_sample"),
        "RBF global": RBF(bandwidth="global"),
        "von Mises-Fisher κ=5": VonMisesFisher(),
        "Laplace": Laplace(),
        "inverse multiquadric": InverseMultiquadric(),
    }
    for task, settings in tasks.items():
        forde = toy_method("forde-identity", settings)
        for label, one in kernels.items():
            yield task, label, replace(forde, kernel=one), settings


def schedule(tasks: dict[str, Settings]) -> Iterator[Case]:
    """A repulsion weight that falls linearly to 1 over the first 80 of 300 parts, as in the authors' first commit."""
    for task, settings in tasks.items():
        forde = toy_method("forde-identity", settings)
        end = settings.epochs * 80 / 300
        for start in (100, 1000):

            def falling(epoch: int, start: int = start, end: float = end) -> float:
                return max(1.0, start - (start - 1) * epoch / end)

            yield task, f"{start} → 1", replace(forde, repulsion_weight=falling), settings
            yield task, f"{start} throughout", replace(forde, repulsion_weight=float(start)), settings


def training(tasks: dict[str, Settings]) -> Iterator[Case]:
    """Prior and length of training."""
    for task, settings in tasks.items():
        changes: dict[str, dict[str, Any]] = {
            "no prior": {"weight_decay": 0.0},
            "λ = 5e-4": {"weight_decay": 5e-4},
            "λ = 1/N": {},
            "λ = 10/N": {"weight_decay": 10 * settings.weight_decay},
            "100 epochs": {"epochs": 100},
            "1000 epochs": {"epochs": 1000},
        }
        for label, change in changes.items():
            changed = replace(settings, **change)
            for name in ("deep-ensemble", "forde-identity"):
                yield task, f"{label}, {name}", toy_method(name, changed), changed


SECTIONS = {f.__name__: f for f in (selection, original, results, scalar, network, kernel, schedule, training)}


def _changed(method: Method, *, output: Any, weight: float) -> Method:
    assert isinstance(method.space, InputGradients)
    return replace(method, space=replace(method.space, output=output), repulsion_weight=weight)


def measure(task: str, method: Method, settings: Settings, seed: int) -> dict[str, float]:
    """The numbers of one row."""
    if task == "1d":
        line = toys.run_regression(method, settings=settings, seed=seed)
        return {
            "std outside": line.outside,
            "gaps": line.gaps,
            "beyond": line.beyond,
            "inside": line.inside,
            "member RMSE": line.member_rmse,
        }
    plane = toys.run_classification(method, settings=settings, seed=seed)
    return {
        "far entropy": plane.far,
        "lowest direction": float(plane.ring.min()),
        "behind classes": float(plane.behind.mean()),
        "lowest behind": float(plane.behind.min()),
        "on test points": plane.on_test,
        "worst member accuracy": plane.worst_member_accuracy,
    }


def cell(values: list[float]) -> str:
    """Mean ± standard deviation over seeds."""
    mean = f"{statistics.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.3f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="+", choices=SECTIONS)
    parser.add_argument("--task", choices=("1d", "2d"), help="one task only")
    parser.add_argument("--profile", choices=("quick", "full"), default="quick")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    tasks = {"1d": settings_for(REGRESSION, options.profile), "2d": settings_for(CLASSIFICATION, options.profile)}
    for section in options.sections:
        shown = ""
        for task, label, method, settings in SECTIONS[section](tasks):
            if options.task not in (None, task):
                continue
            rows = [measure(task, method, settings, seed) for seed in range(options.seeds)]
            if task != shown:
                shown = task
                print(f"\n{section}, {task}, {options.profile}, {options.seeds} seed(s)\n")
                print(f"| | {' | '.join(rows[0])} |")
                print("|---" * (1 + len(rows[0])) + "|")
            print(f"| {label} | {' | '.join(cell([row[key] for row in rows]) for key in rows[0])} |", flush=True)


if __name__ == "__main__":
    main()
