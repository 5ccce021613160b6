"""The program that compares `forde tune` with a grid: what it writes, and that it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from forde.experiments import tuning_against_grid as program

SMALL = program.Settings(2, 1, 0.1, 2, 1, (1.0, 10.0), train=60, test=20)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(program.SETTINGS, "digits", SMALL)
    monkeypatch.setitem(program.NETWORKS, "digits", lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    monkeypatch.setattr(program, "SEVERITIES", (3,))


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


def test_the_choice_is_compared_with_the_best_of_the_grid(small: None, tmp_path: Path) -> None:
    program.main(["digits", str(tmp_path)])
    report = read(tmp_path)
    deep, chosen, *grid = report["test"]
    assert deep["kind"] == "deep ensemble" and chosen["values"] == report["tuning"]["values"]
    assert [point["values"] for point in grid] == SMALL.grid
    best = min(grid, key=lambda point: point["corrupted_nll"])
    difference = report["chosen_minus_best_of_grid"]
    assert difference["best"] == best["values"]
    assert difference["corrupted_difference"]["value"] == pytest.approx(chosen["corrupted_nll"] - best["corrupted_nll"])
    files = sorted(tmp_path.glob("point-*.npz"))
    errors = [np.load(file)["corrupted"] for file in files]
    assert len(files) == 2 + len(SMALL.grid) and all(each.shape == (1, 20) for each in errors)

    table = (tmp_path / "table.md").read_text().splitlines()
    assert len([line for line in table if line.startswith("| grid ")]) == len(grid) - 1
    (line,) = [line for line in table if line.startswith("| best of the grid ")]
    assert f"{best['corrupted_nll']:.4f}" in line and f"| {best['values']['strength']:g} |" in line


def test_it_goes_on(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program.main(["digits", str(tmp_path)])
    before = read(tmp_path)
    last = sorted(tmp_path.glob("point-5*.npz"))[0]
    last.unlink()
    trained = []
    whole = program.trained

    def noting(*arguments: Any) -> Any:
        trained.append(arguments[2])
        return whole(*arguments)

    monkeypatch.setattr(program, "trained", noting)
    program.main(["digits", str(tmp_path)])
    assert trained == [SMALL.grid[-1]] and read(tmp_path)["test"] == before["test"]
