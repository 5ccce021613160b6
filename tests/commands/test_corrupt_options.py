"""`forde corrupt`: its options reach the corruptions."""

from __future__ import annotations

import sys
from pathlib import Path

import data_files as files
import numpy as np
import pytest

from forde.__main__ import main
from forde.corruptions import corrupt


def test_split_preset_and_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORDE_DATA", str(tmp_path / "empty"))
    images, labels = files.write_idx_set(tmp_path / "mnist", compressed=False)
    options = ["--split", "train", "--type", "contrast", "--preset", "imagenet", "--data-dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["forde", "corrupt", "mnist", str(tmp_path / "out"), *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert np.array_equal(np.load(tmp_path / "out" / "labels.npy"), np.tile(labels, 5))
    found = np.load(tmp_path / "out" / "contrast.npy").reshape(5, len(images), 28, 28, 1)
    for severity in range(1, 6):
        one, other = (corrupt(images[..., None], "contrast", severity, preset=name) for name in ("imagenet", "cifar"))
        assert np.array_equal(found[severity - 1], one) and not np.array_equal(one, other)
