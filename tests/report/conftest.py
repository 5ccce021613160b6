"""Two small runs on digits and one on a table, trained and evaluated by commands, once for all tests here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from reported import SMALL, forde


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs `a` and `b` on digits, `c` on a table, whose names a page must not take for its own code."""
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
    return folder


@pytest.fixture(scope="session")
def pages(runs: Path) -> dict[str, Path]:
    """Reports of both runs on digits, and of the run on a table."""
    forde("report", runs / "a", runs / "b", "--out", runs / "digits.html")
    forde("report", runs / "c", "--out", runs / "table.html", "--title", "Prices <b>here</b>")
    return {"digits": runs / "digits.html", "table": runs / "table.html"}
