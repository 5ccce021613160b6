"""Two small runs on digits and two on tables, trained and evaluated by commands, once for all tests here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from reported import SMALL, forde


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs `a` and `b` on digits, `c` on a quantity in a table, whose names a page must not take for its
    own code, and `k` on classes in a table."""
    folder = tmp_path_factory.mktemp("runs")
    draw = np.random.default_rng(0)
    foreign = draw.integers(256, size=(40, 8, 8, 3)).astype(np.uint8)
    np.savez(folder / "noise.npz", x=foreign, y=np.arange(40) % 10)
    for name, method in (("a", "deep-ensemble"), ("b", "forde-pca")):
        forde("train", "--data", "digits", "--run", folder / name, "--method", method, *SMALL)
        options = ("--corruptions", "fog,contrast,jpeg_compression", "--severities", "1,5")
        forde("evaluate", folder / name, "--data", "digits", *options, "--foreign", folder / "noise.npz")
    x = draw.normal(size=(120, 3))
    table = pd.DataFrame({"</script>": x[:, 0], "b & c": x[:, 1], "d": x[:, 2], "price": 10 + 3 * x[:, 0]})
    (folder / "table").mkdir()
    table[:80].to_csv(folder / "table" / "train.csv", index=False)
    table[80:].to_csv(folder / "table" / "test.csv", index=False)
    forde("train", "--data", folder / "table", "--run", folder / "c", *SMALL)
    forde("evaluate", folder / "c", "--data", folder / "table", "--corruptions", "all", "--severities", "2,4")
    kinds = table.assign(kind=np.where(x[:, 1] > 0, "high", "low")).drop(columns="price")
    kinds.to_csv(folder / "kinds.csv", index=False)
    options = ("--method", "forde", "--validation", "0.2", *SMALL)
    forde("train", "--data", folder / "kinds.csv", "--run", folder / "k", *options)
    forde("evaluate", folder / "k", "--data", folder / "kinds.csv", "--corruptions", "all", "--severities", "3")
    return folder


@pytest.fixture(scope="session")
def pages(runs: Path) -> dict[str, Path]:
    """Reports of both runs on digits, and of each run on a table."""
    forde("report", runs / "a", runs / "b", "--out", runs / "digits.html")
    forde("report", runs / "c", "--out", runs / "table.html", "--title", "Prices <b>here</b>")
    forde("report", runs / "k", "--out", runs / "kinds.html")
    return {name: runs / f"{name}.html" for name in ("digits", "table", "kinds")}
