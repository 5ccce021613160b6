"""Loss curves of several engines on the same images in the same order: do they train the same in bfloat16?

python -m forde.experiments.curves train cifar10 --data FOLDER --engine compiled --seed 0 --json compiled-0.json
python -m forde.experiments.curves compare compiled-0.json eager-0.json compiled-1.json eager-1.json ...

Rounding differs between engines, and training amplifies it; what may not differ is the curve, beyond what another seed
(initialisation, order and crops) changes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

import torch

from forde.benchmarks.machine import machine
from forde.data import load_images
from forde.durable import write_whole
from forde.engine import make_engine
from forde.ensemble import Ensemble
from forde.evaluation import accuracy
from forde.methods import method
from forde.models import resnet18
from forde.prediction import ClassificationPrediction
from forde.priors import TrainingData
from forde.training.image_feed import Augmentation, ImageFeed

PARTS = 10
"""Points of a curve: means over as many equal parts of the run."""


def train(options: argparse.Namespace) -> None:
    """Train ResNet18s with SGD (Nesterov, learning rate 0.1) and write down the mean loss of every step."""
    data, test = load_images(options.name, "train", options.data), load_images(options.name, "test", options.data)
    device = torch.device(options.device)
    ensemble = Ensemble(lambda: resnet18(10), options.members, seed=options.seed).to(device).train()
    feed = ImageFeed(
        data.images[: options.images], data.labels[: options.images], mean=data.description.mean,
        std=data.description.std, batch_size=128, device=device, augmentation=Augmentation(),
    )  # fmt: skip
    fitted = method(options.method).prepare(ensemble.members[0], TrainingData(feed.inputs, feed.size))
    engine = make_engine(options.engine, ensemble, fitted, options.precision)
    optimizer = torch.optim.SGD(engine.runner.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    generator, losses, step = torch.Generator().manual_seed(options.seed), [], count()
    for epoch in range(options.epochs):
        for x, y in feed.epoch(generator):
            report = engine.update(x, y, optimizer, step=next(step), epoch=epoch, data_size=feed.size)
            losses.append(report.losses.mean())
    engine.settle()
    engine.close()
    found: dict[str, Any] = {
        "machine": machine(),
        **{name: value for name, value in vars(options).items() if name not in ("data", "json", "do")},
        "losses": torch.stack(losses).tolist(),
    }
    write_whole(options.json, json.dumps(found).encode())  # whatever happens to the rest
    ensemble.eval()
    scored = ImageFeed(
        test.images[: options.images], test.labels[: options.images], mean=data.description.mean,
        std=data.description.std, batch_size=500, device=device,
    )  # fmt: skip
    found["test_accuracy"] = statistics.fmean(
        accuracy(cast(ClassificationPrediction, ensemble.predict(x)).probs, y.cpu()) for x, y in scored.epoch(generator)
    )
    write_whole(options.json, json.dumps(found).encode())


def parts(losses: Sequence[float]) -> list[float]:
    """Means over equal parts of a curve."""
    size = len(losses) / PARTS
    return [statistics.fmean(losses[round(i * size) : round((i + 1) * size)]) for i in range(PARTS)]


def compare(options: argparse.Namespace) -> None:
    """For each part of the run: mean and deviation over seeds by engine, and how far engines are apart."""
    curves: dict[str, dict[int, list[float]]] = defaultdict(dict)
    accuracy: dict[str, list[float]] = defaultdict(list)
    for file in options.files:
        run: dict[str, Any] = json.loads(file.read_text())
        curves[run["engine"]][run["seed"]] = parts(run["losses"])
        accuracy[run["engine"]].append(run.get("test_accuracy", math.nan))
    plain = curves["eager"]
    for engine, found in accuracy.items():
        print(f"{engine}: {len(found)} seeds, test accuracy {statistics.fmean(found):.4f}")
    print("part   " + "  ".join(f"{engine:>16}" for engine in curves) + "   largest |same seed, other engine|")
    for i in range(PARTS):
        values = {engine: [curve[i] for curve in by_seed.values()] for engine, by_seed in curves.items()}
        cells = "  ".join(f"{statistics.fmean(v):8.4f} ±{statistics.stdev(v):7.4f}" for v in values.values())
        apart = max(abs(curve[i] - plain[seed][i]) for c in curves.values() for seed, curve in c.items())
        print(f"{i + 1:4}   {cells}   {apart:.4f}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("train")
    one.set_defaults(do=train)
    one.add_argument("name")
    one.add_argument("--data", type=Path)
    one.add_argument("--engine", default="compiled")
    one.add_argument("--method", default="forde-pca")
    one.add_argument("--precision", default="bf16")
    one.add_argument("--members", type=int, default=3)
    one.add_argument("--epochs", type=int, default=2)
    one.add_argument("--images", type=int, default=50_000)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    one.add_argument("--json", type=Path, required=True)
    several = commands.add_parser("compare")
    several.set_defaults(do=compare)
    several.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    options.do(options)


if __name__ == "__main__":
    main()
