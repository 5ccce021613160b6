"""Does `forde tune` choose as well as a fixed grid that may look at the test corruptions?

    python benchmarks/tuning_against_grid.py digits results/tuning/digits.json
    python benchmarks/tuning_against_grid.py cifar10 results/tuning/cifar10-small.json --data-dir DATA

The tuning sees the training split alone: it holds a fifth of it out and perturbs it in ways of its own. Then its choice
and every point of the grid are trained on the whole training split, and tested on clean images and under the 19
corruptions. The best of the grid is chosen by the test itself, which is better than an honest choice can know.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import forde
from forde.corruptions import NAMES, corrupt
from forde.data import Images
from forde.tuning import tune
from forde.tuning.choosing import paired
from forde.tuning.judging import nll_of_each

STRENGTHS, ALPHAS = (1.0, 3.0, 10.0, 30.0, 100.0), (0.0, 1.0)
SEVERITIES = (1, 3, 5)


def small_network() -> nn.Module:
    """Three convolutions, 20 thousand weights: what two cores can train many times."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def digits_network() -> nn.Module:
    """A perceptron with 64 hidden units."""
    return forde.models.MLP(64, [64], 10)


EXPERIMENTS: dict[str, dict[str, Any]] = {
    "digits": {"network": digits_network, "train": None, "test": None, "members": 5, "epochs": 20, "batch_size": 64,
               "lr": 0.1, "trials": 16, "seeds": 3, "strengths": STRENGTHS},
    "cifar10": {"network": small_network, "train": 2000, "test": 400, "members": 3, "epochs": 8, "batch_size": 64,
                "lr": 0.05, "trials": 8, "seeds": 1, "strengths": STRENGTHS[::2]},
}  # fmt: skip


def first(images: Images, number: int | None) -> Images:
    """The first so many, which are in no order."""
    return images if number is None else replace(images, images=images.images[:number], labels=images.labels[:number])


def trained(settings: dict[str, Any], data: Images, values: dict[str, float], seed: int) -> forde.Ensemble:
    method = forde.method("forde", **values) if values else forde.method("deep-ensemble")
    ensemble = forde.Ensemble(settings["network"], settings["members"], seed=seed * settings["members"])
    forde.fit(
        ensemble, method, data, epochs=settings["epochs"], batch_size=settings["batch_size"], lr=settings["lr"],
        seed=seed * settings["members"], progress=False, diagnostics_every=0,
    )  # fmt: skip
    return ensemble


def tested(ensemble: forde.Ensemble, data: Images) -> tuple[Tensor, Tensor]:
    """−ln p̄(y) `[N]` on clean images, and its mean over 19 corruptions × severities."""
    y = torch.from_numpy(np.array(data.labels))

    def nll(images: np.ndarray) -> Tensor:
        return nll_of_each(ensemble.predict(replace(data, images=images)), y)

    images = np.array(data.images)
    cells = [nll(corrupt(images, name, severity, seed=0)) for name in NAMES for severity in SEVERITIES]
    return nll(images), torch.stack(cells).mean(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", choices=EXPERIMENTS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--study", type=Path, help="folder of the study, to go on after an interruption")
    given = parser.parse_args()
    settings = EXPERIMENTS[given.data]
    train = first(forde.data.load(given.data, "train", given.data_dir), settings["train"])
    test = first(forde.data.load(given.data, "test", given.data_dir), settings["test"])
    begun = time.monotonic()
    found = tune(
        train, given.study or given.out.with_suffix(".study"), epochs=settings["epochs"], members=settings["members"],
        make_network=settings["network"], batch_size=settings["batch_size"], lr=settings["lr"], seeds=settings["seeds"],
        trials=settings["trials"], on_trial=lambda words, _: print(words, file=sys.stderr),
    )  # fmt: skip
    tuning_seconds = time.monotonic() - begun
    print(found.why, file=sys.stderr)
    grid = [{"strength": strength, "alpha": alpha} for strength in settings["strengths"] for alpha in ALPHAS]
    points = [("deep ensemble", {}), ("chosen", found.values), *(("grid", point) for point in grid)]
    rows = []
    for kind, values in points:
        seeds = [tested(trained(settings, train, values, seed), test) for seed in range(settings["seeds"])]
        clean, corrupted = (torch.stack([one[place] for one in seeds]).numpy() for place in (0, 1))
        rows.append({"kind": kind, "values": values, "clean": clean, "corrupted": corrupted})
        print(kind, values, f"{clean.mean():.4f} {corrupted.mean():.4f}", file=sys.stderr)
    deep, chosen = rows[0], rows[1]
    best = min(rows[2:], key=lambda row: row["corrupted"].mean())
    report = {
        "data": given.data, "trained_on": len(train), "tested_on": len(test), "severities": SEVERITIES,
        **{name: settings[name] for name in ("members", "epochs", "batch_size", "lr", "trials", "seeds")},
        "machine": f"{torch.get_num_threads()} threads, {platform.machine()}, torch {torch.__version__}",
        "tuning_seconds": round(tuning_seconds), "seconds": round(time.monotonic() - begun),
        "chosen_minus_best_of_grid": paired(chosen["corrupted"], best["corrupted"])._asdict(),
        "chosen_minus_deep_ensemble": {
            "clean": paired(chosen["clean"], deep["clean"])._asdict(),
            "corrupted": paired(chosen["corrupted"], deep["corrupted"])._asdict(),
        },
        "test": [
            {"kind": row["kind"], "values": row["values"], "clean_nll": float(row["clean"].mean()),
             "corrupted_nll": float(row["corrupted"].mean()),
             "clean_difference": paired(row["clean"], deep["clean"])._asdict(),
             "corrupted_difference": paired(row["corrupted"], deep["corrupted"])._asdict()}
            for row in rows
        ],
        "tuning": found.to_dict(),
    }  # fmt: skip
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["chosen_minus_best_of_grid"]))


if __name__ == "__main__":
    main()
