"""Saved evaluations that were damaged are as good as absent, or refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from forde.errors import FordeError
from forde.evaluation.robustness.results import RobustnessResult
from forde.evaluation.robustness.saved_cells import SavedCell, read_cell, write_cell


def whole(path: Path) -> bytes:
    codes, labels = torch.zeros(2, 3, 4, dtype=torch.int16), torch.arange(3)
    write_cell(path, SavedCell(codes, labels, torch.zeros(3, 8, dtype=torch.float64)), "content")
    return path.read_bytes()


def test_cut_or_flipped_cells_never_raise(tmp_path: Path) -> None:
    path = tmp_path / "cell.safetensors"
    content = whole(path)
    assert read_cell(path, "content") is not None
    refused = 0
    for position in range(0, len(content), 7):
        path.write_bytes(content[:position])
        assert read_cell(path, "content") is None
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        refused += read_cell(path, "content") is None
    assert refused > 10


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        save({"codes": np.zeros(1, np.uint16)}),
        save(
            {"codes": np.zeros((1, 1, 3), np.uint8), "labels": np.zeros(1), "terms": np.zeros(1)},
            {"fingerprint": "content"},
        ),
    ],
    ids=["empty", "huge header", "without metadata", "wrong type"],
)
def test_strange_cells_are_absent(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cell.safetensors"
    path.write_bytes(content)
    assert read_cell(path, "content") is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "[" * 100_000, '{"clean": 1}', "\x00"], ids=lambda text: text[:5] or "empty"
)
def test_strange_results_are_refused_in_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(FordeError, match="is not a robustness result") as error:
        RobustnessResult.load(path)
    assert "\n" not in str(error.value)
