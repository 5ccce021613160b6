"""Does `forde tune` choose as well as a fixed grid that may look at the test corruptions?

    python -m forde.experiments.tuning_against_grid digits results/tuning/digits
    python -m forde.experiments.tuning_against_grid cifar10 results/tuning/cifar10 --data-dir DATA

The tuning sees the training split alone: it holds a fifth of it out and perturbs it in ways of its own. Then its choice
and every point of the grid are trained on the whole training split, and tested on clean images and under the 19
corruptions. The best of the grid is chosen by the test itself, which is better than an honest choice can know.

Everything is kept in the folder, and the same command goes on. `report.json` has all numbers, `table.md` is for a page:

    forde reproduce --report --out results --page docs/tuning.md
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from forde.corruptions import NAMES, corrupt
from forde.data import Images, load_images
from forde.durable import make_folder, whole_file, write_whole
from forde.ensemble import Ensemble
from forde.methods import method
from forde.models import MLP
from forde.training import Reporting, fit
from forde.tuning import Tuning, tune
from forde.tuning.choosing import Paired, paired
from forde.tuning.judging import nll_of_each

SEVERITIES = (1, 3, 5)
ALPHAS = (0.0, 1.0)


def small_network() -> nn.Module:
    """Three convolutions, 20 thousand weights: what two cores can train many times."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def digits_network() -> nn.Module:
    """A perceptron with 64 hidden units."""
    return MLP(64, [64], 10)


@dataclass(frozen=True)
class Settings:
    """Of a comparison."""

    members: int
    epochs: int
    lr: float
    trials: int
    seeds: int
    strengths: tuple[float, ...]
    batch_size: int = 64
    train: int | None = None
    """Images of the training split that are used; None for all."""
    test: int | None = None

    @property
    def grid(self) -> list[dict[str, float]]:
        """Each strength with each α."""
        return [{"strength": strength, "alpha": alpha} for strength in self.strengths for alpha in ALPHAS]


NETWORKS: dict[str, Callable[[], nn.Module]] = {"digits": digits_network, "cifar10": small_network}
SETTINGS = {
    "digits": Settings(5, 20, 0.1, 16, 3, (1.0, 3.0, 10.0, 30.0, 100.0)),
    "cifar10": Settings(3, 12, 0.05, 12, 1, (1.0, 3.0, 10.0, 30.0), train=10_000, test=1_000),
}


class Point(NamedTuple):
    """What was trained on the whole training split and tested."""

    kind: str
    values: Mapping[str, float]
    clean: np.ndarray
    """−ln p̄(y) `[K, N]` of K seeds and N test images."""
    corrupted: np.ndarray
    """Its mean over 19 corruptions × severities `[K, N]`."""

    def to_dict(self, deep: Point) -> dict[str, Any]:
        """For JSON, beside the deep ensemble."""
        return {
            "kind": self.kind, "values": dict(self.values),
            "clean_nll": float(self.clean.mean()), "corrupted_nll": float(self.corrupted.mean()),
            **differences(self, deep),
        }  # fmt: skip


def differences(one: Point, other: Point) -> dict[str, Any]:
    """One − other, with standard errors, paired by image."""
    return {
        "clean_difference": paired(one.clean, other.clean)._asdict(),
        "corrupted_difference": paired(one.corrupted, other.corrupted)._asdict(),
    }


def first(images: Images, number: int | None) -> Images:
    """The first so many, which are in no order."""
    return images if number is None else replace(images, images=images.images[:number], labels=images.labels[:number])


def trained(name: str, data: Images, values: Mapping[str, float], seed: int) -> Ensemble:
    """With the recipe `forde` of these values, or the deep ensemble where there are none."""
    settings = SETTINGS[name]
    options: dict[str, Any] = dict(values)
    chosen = method("forde", **options) if values else method("deep-ensemble")
    start = seed * settings.members
    ensemble = Ensemble(NETWORKS[name], settings.members, seed=start)
    fit(
        ensemble, chosen, data, epochs=settings.epochs, batch_size=settings.batch_size, lr=settings.lr, seed=start,
        reporting=Reporting(verbose=False, diagnostics_every=0),
    )  # fmt: skip
    return ensemble


def tested(ensemble: Ensemble, data: Images) -> tuple[np.ndarray, np.ndarray]:
    """−ln p̄(y) `[N]` on clean images, and its mean over corruptions and severities."""
    y = torch.from_numpy(np.array(data.labels))

    def nll(images: np.ndarray) -> Tensor:
        return nll_of_each(ensemble.predict(replace(data, images=images)), y)

    images = np.array(data.images)
    cells = [nll(corrupt(images, kind, severity, seed=0)) for kind in NAMES for severity in SEVERITIES]
    return nll(images).numpy(), torch.stack(cells).mean(0).numpy()


def points(name: str, train: Images, test: Images, found: Tuning, folder: Path) -> Iterator[Point]:
    """The deep ensemble, the choice and the grid; each is read where it is in the folder already."""
    grid: list[tuple[str, Mapping[str, float]]] = [("grid", values) for values in SETTINGS[name].grid]
    for number, (kind, values) in enumerate([("deep ensemble", {}), ("chosen", found.values), *grid]):
        words = "-".join(f"{key}-{value:g}" for key, value in values.items())
        file = folder / f"point-{number}{'-' if words else ''}{words}.npz"
        if not file.exists():
            seeds = [tested(trained(name, train, values, seed), test) for seed in range(SETTINGS[name].seeds)]
            clean, corrupted = (np.stack([one[place] for one in seeds]) for place in (0, 1))
            with whole_file(file) as stream:
                np.savez(stream, clean=clean, corrupted=corrupted)
        with np.load(file) as stored:
            point = Point(kind, values, stored["clean"], stored["corrupted"])
        print(kind, dict(values), f"{point.clean.mean():.4f} {point.corrupted.mean():.4f}", file=sys.stderr)
        yield point


def compared(name: str, folder: Path, data_dir: Path | None) -> dict[str, Any]:
    """Tune, train the choice and the grid, test them, and say what came of it."""
    settings = SETTINGS[name]
    train = first(load_images(name, "train", data_dir), settings.train)
    test = first(load_images(name, "test", data_dir), settings.test)
    found = tune(
        train, folder / "study", epochs=settings.epochs, members=settings.members, make_network=NETWORKS[name],
        batch_size=settings.batch_size, lr=settings.lr, seeds=settings.seeds, trials=settings.trials,
        on_trial=lambda words, _: print(words, file=sys.stderr),
    )  # fmt: skip
    print(found.why, file=sys.stderr)
    deep, chosen, *grid = points(name, train, test, found, folder)
    best = min(grid, key=lambda point: point.corrupted.mean())
    return {
        "data": name, "trained_on": len(train), "tested_on": len(test), "severities": SEVERITIES, **asdict(settings),
        "machine": f"{platform.machine()}, threads: {torch.get_num_threads()}, torch {torch.__version__}",
        "chosen_minus_best_of_grid": {"best": dict(best.values), **differences(chosen, best)},
        "chosen_minus_deep_ensemble": differences(chosen, deep),
        "test": [point.to_dict(deep) for point in (deep, chosen, *grid)],
        "tuning": found.to_dict(),
    }  # fmt: skip


def as_markdown(report: Mapping[str, Any]) -> str:
    """A table of the points, and a sentence about the choice and the best of the grid."""
    best = report["chosen_minus_best_of_grid"]
    lines = ["| | strength | α | clean NLL | corrupted NLL | corrupted, − deep ensemble |", "|---|" + "---:|" * 5]
    for point in report["test"]:
        values = point["values"]
        kind = "best of the grid" if point["kind"] == "grid" and values == best["best"] else point["kind"]
        numbers = [f"{values[name]:g}" if name in values else "–" for name in ("strength", "alpha")]
        numbers += [f"{point[name]:.4f}" for name in ("clean_nll", "corrupted_nll")]
        difference = str(Paired(**point["corrupted_difference"])) if values else "–"
        lines.append(f"| {' | '.join([kind, *numbers, difference])} |")
    ended = [trial["seconds"] for trial in report["tuning"]["trials"]]
    parts = {name: Paired(**best[f"{name}_difference"]) for name in ("corrupted", "clean")}
    lines += [
        "",
        f"{report['data']}: {report['trained_on']:,} training and {report['tested_on']:,} test images, {len(NAMES)} "
        f"corruptions at severities {', '.join(map(str, report['severities']))}; {report['members']} members, "
        f"{report['epochs']} epochs, seeds: {report['seeds']}; {report['trials']} trials, of which "
        f"{len(ended)} to their end in {sum(ended):.0f} s ({report['machine']}). "
        f"Choice − best of the grid: {parts['corrupted']} corrupted, {parts['clean']} clean.",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Of the module as a script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=SETTINGS)
    parser.add_argument("out", type=Path, help="folder; report.json is what came of it")
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args(arguments)
    make_folder(given.out)
    report = compared(given.data, given.out, given.data_dir)
    report = json.loads(json.dumps(report))
    write_whole(given.out / "report.json", (json.dumps(report, indent=1) + "\n").encode())
    write_whole(given.out / "table.md", as_markdown(report).encode())
    print(json.dumps(report["chosen_minus_best_of_grid"]))


if __name__ == "__main__":
    main()
