"""Lines that pages and help show, made small enough to be run in a test, and what they need beside them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import data_files as files
import numpy as np
import torch
from torch import nn

NOT_RUN = {
    r"^(pip|apt) install ": "changes what is installed",
    r"^make ": "installs, and runs what these tests are a part of",
    r"^python -m pytest": "these are tests",
    r"^forde data download ": "asks a publisher's server; data_sets/test_data_downloads.py has a server of its own",
    r"^forde data check cifar10": "needs all of CIFAR-10; with fewer images it must say so, see test_data_sets.py",
    r"^FORDE_MAX_BYTES=": "would take 20 GB; hostile/test_large_files.py has the limit",
    r"^torchrun --nnodes=8 ": "takes eight machines; distributed/ has the meshes",
    r"^torchrun --nproc-per-node=8 ": "takes eight GPUs; distributed/test_elastic.py has restarts",
    r"^forde reproduce --report .*--page docs/results.md": "writes into the page; experiments/ has it on another one",
    r"benchmark_evaluation": "evaluates ten ResNet18 on a GPU; evaluation/test_evaluated_runs.py has the parts",
    r"^forde bench scale .*--over-processes": "starts processes; test_bench.py does so",
    r"^forde bench tables .*--page": "takes minutes and writes into the page; test_bench_tables.py has a small one",
}
"""Beginning or part of a line → why it is not run. All others are."""

SMALLER = [
    (r"--epochs \d+", "--epochs 1"),
    (r"--trials \d+", "--trials 2"),
    (r"--members \d+", "--members 2"),
    (r"--batch \d+", "--batch 2"),
    (r"--device cuda", "--device cpu"),
    (r"--repeats \d+", "--repeats 1"),
    (r"--splits \d+", "--splits 1"),
    (r"--budget short", "--budget smoke"),
    (r"--minutes \d+", "--minutes 0"),
    (r"--dimensions \d+", "--dimensions 48"),
    (r"~/data", "data"),
    (r"^(bench .*--model) [\w-]+", r"\1 toy-mlp"),
    (r"float32,tf32,bf16", "float32,bf16"),
    (r"--(engines?) (eager,)?compiled", r"--\1 eager"),  # compiling takes half a minute each
    (r"--over-size [\d,]+", "--over-size 2"),
]
ADDED = {
    "bench step": "--members 2 --batch 2 --repeats 1",
    "bench predict": "--members 2 --batch 2 --images 4 --repeats 1",
    "bench scale": "--members 2 --batch 2 --repeats 1 --over-members 1,2 --over-batch 2",
    "bench kernel": "--dimensions 48 --batch 2 --repeats 1",
    "bench corruptions": "--repeats 1",
    "features": "--weights weights.pth --limit 4 --severities 1 --device cpu",
    "reproduce": "--seeds 0 --methods deep-ensemble --device cpu",
    "train": "--device cpu",
    "tune": "--device cpu",
}
"""Command → options behind those that are shown; of two the last one counts."""


def why_not(line: str) -> str | None:
    """Why a line is not run; None for one that is."""
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, line)), None)


def smaller(words: list[str]) -> list[str]:
    """The words after `forde`, of a line that takes a moment."""
    line = shlex.join(words)
    for pattern, shorter in SMALLER:
        line = re.sub(pattern, shorter, line)
    for command, options in ADDED.items():
        if line.startswith(f"{command} ") or line == command:
            line += f" {options}"
    return shlex.split(line)


BACKBONE = """
from torch import nn


class EfficientNet(nn.Module):
    def __init__(self):
        super().__init__()
        self._conv_stem, self._bn0, self._fc = nn.Conv2d(3, 4, 32, 32, bias=False), nn.BatchNorm2d(4), nn.Linear(4, 7)

    @classmethod
    def from_name(cls, name):
        return cls()

    def forward(self, x):
        return self._fc(self._bn0(self._conv_stem(x)).relu().mean((2, 3)))
"""


def lay_out(folder: Path) -> None:
    """What lines name and no page makes: a few images in the layouts of published sets, a network of features."""
    files.write_cifar10_batches(folder / "data" / "cifar10")
    files.write_idx_set(folder / "data" / "fashion-mnist", compressed=False)
    (folder / "efficientnet_lite_pytorch.py").write_text(BACKBONE)
    layers = {"_conv_stem": nn.Conv2d(3, 4, 32, 32, bias=False), "_bn0": nn.BatchNorm2d(4), "_fc": nn.Linear(4, 7)}
    weights = {f"{name}.{key}": value for name, layer in layers.items() for key, value in layer.state_dict().items()}
    torch.save(weights, folder / "weights.pth")
    np.savez(folder / "zeros.npz", x=np.zeros((4, 8, 8, 1), np.uint8), y=np.arange(4))
