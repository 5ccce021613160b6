"""Hashes are written into files, so they stay what they are; and one module makes them all."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

import forde
from forde.evaluation.robustness.fingerprints import fingerprint
from forde.hashing import Sha256, array_name, canonical, content_key, file_md5, json_name, sha256
from forde.saving import _checksum
from forde.training.data_prints import _take

SOURCE = Path(forde.__file__).parent
ROWS = np.arange(6, dtype=np.int16).reshape(2, 3).T
"""Not in the order of its rows."""
HALF = torch.tensor([1.5, -2], dtype=torch.bfloat16)


def test_one_module_makes_all_hashes() -> None:
    users = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if "hashlib" in named or (isinstance(node, ast.ImportFrom) and node.module == "hashlib"):
                users.append(path.relative_to(SOURCE).as_posix())
    assert users == ["hashing.py"]


class TestFilesFromBefore:
    """Values that earlier versions wrote into files; another one would disown those files."""

    def test_settings_of_a_run(self) -> None:
        assert json_name([1, {"b": None, "a": "é"}]) == "18e35068a0370867"

    def test_arrays_among_the_settings(self) -> None:
        assert array_name(ROWS, HALF, np.array(True)) == "5811c6e7f9c90c62"

    def test_weights_of_an_ensemble(self) -> None:
        found = _checksum({"b": torch.arange(4.0).reshape(2, 2), "a": torch.tensor(3)})
        assert found == "3f902d214f9c83b7ef7a6f96905fe78a932b905021dc81b14b0e500bd713f472"

    def test_saved_predictions(self) -> None:
        assert fingerprint("é", ROWS, HALF[None], np.zeros((0, 2))) == "e99edead2c4e8972bb11e8582ad4b309"

    def test_training_data(self) -> None:
        digest = Sha256()
        arrays = [np.array(["é", ""]), np.array([None, 2], dtype=object), np.datetime64("2020-01-01")]
        ones = torch.ones(2, dtype=torch.bfloat16)
        _take(digest, (ROWS, {"b": ones, "a": np.float32(2)}, [None, 1.5, "x"], *arrays))
        assert digest.short() == "019376e4f0584f2d"

    def test_generated_corruptions(self) -> None:
        assert content_key(ROWS, size=4).hex() == "53228438"


def test_hashes_agree_with_hashlib(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000  # more than is read at once
    file = tmp_path / "file"
    file.write_bytes(content)
    assert file_md5(file) == hashlib.md5(content, usedforsecurity=False).hexdigest()
    assert sha256(content) == hashlib.sha256(content).hexdigest()
    assert content_key(content) == hashlib.blake2b(content, digest_size=16).digest()
    whole = np.frombuffer(content, np.uint8)
    assert array_name(whole) == array_name(torch.from_numpy(whole.copy())) == sha256(content)[:16]
    assert json_name({"a": 1}) == sha256(canonical({"a": 1}))[:16]


@pytest.mark.parametrize("dtype", ["bool", "int64", ">f4", "complex128", "U3", "S2", "datetime64[s]"])
def test_arrays_of_any_type_count_by_the_bytes_of_their_rows(dtype: str) -> None:
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype).T
    assert array_name(array) == sha256(array.tobytes())[:16]
