"""Pickles of plain data are read; anything that would run code is refused before it runs."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import data_files as files
import numpy as np
import pytest

import forde.data
from forde.data.unpickling import read_pickle
from forde.errors import FordeError


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_survives(tmp_path: Path, protocol: int) -> None:
    data = {
        "array": np.arange(12, dtype=">i4").reshape(3, 4),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "bytes": b"\xff\x00",
        "text": "Grüße",
        "numbers": [1, 2.5, True, None, np.int64(7), np.float32(0.5)],
        "nested": ({"a": (1, [2])},),
    }
    path = files.write_file(tmp_path / "data", pickle.dumps(data, protocol))
    read = read_pickle(path)
    np.testing.assert_array_equal(read.pop("array"), data.pop("array"))
    np.testing.assert_array_equal(read.pop("fortran"), data.pop("fortran"))
    assert read == data


def calls(ran: Path) -> list[tuple[Any, ...]]:
    import builtins
    import codecs
    import subprocess

    return [
        (os.system, f"touch {ran}"),
        (subprocess.check_call, ["touch", str(ran)]),
        (builtins.eval, f"open({str(ran)!r}, 'w')"),
        (builtins.exec, f"open({str(ran)!r}, 'w')"),
        (builtins.open, str(ran), "w"),
        (builtins.getattr, os, "system"),
        (Path, str(ran)),
        (np.load, str(ran)),
        (np.memmap, str(ran), "u1", "w+", 0, (1,)),
        (codecs.lookup, "latin1"),
    ]


@pytest.mark.parametrize("number", range(10))
def test_calls_are_refused_and_nothing_runs(tmp_path: Path, number: int) -> None:
    ran = tmp_path / "ran"
    try:
        content = files.malicious_pickle(*calls(ran)[number])
    except (TypeError, pickle.PicklingError):  # a module as an argument cannot be pickled by name
        content = b"\x80\x02cbuiltins\ngetattr\n(cos\nsystem\nX\x01\x00\x00\x00atR."
    files.write_file(tmp_path / "test_batch", content)
    with pytest.raises(FordeError, match="nothing was run") as raised:
        forde.data.load("cifar10", "test", tmp_path)
    assert "test_batch" in str(raised.value) and not ran.exists()


ATTACKS = {
    "dotted name below an admitted module": b"\x80\x04\x8c\x05numpy\x8c\x0bf2py.os.popen\x93.",
    "another function of an admitted module": b"cnumpy\nfromfile\n.",
    "an object stored elsewhere": b"Pstranger\n.",
    "an extension registry entry": b"\x80\x02\x82\x01.",
    "a state for a class": b"\x80\x02cnumpy\nndarray\n}X\x01\x00\x00\x00aK\x01sb.",
    "object arrays": b"\x80\x02cnumpy\ndtype\n(X\x02\x00\x00\x00O8K\x00K\x01tR.",
    "a codec of the stranger's choice": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
    "a list in itself": b"]q\x00h\x00a.",
    "an array longer than its bytes": (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85K\x00tR"
        b"(K\x01K\xff\x85cnumpy\ndtype\n(X\x02\x00\x00\x00u1K\x00K\x01tR\x89C\x01atb."
    ),
    "nothing": b"",
    "text": b"hello",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_crafted_pickles_end_in_one_sentence(tmp_path: Path, attack: str) -> None:
    path = files.write_file(tmp_path / "test_batch", ATTACKS[attack])
    with pytest.raises(FordeError, match="test_batch"):
        forde.data.load("cifar10", "test", path.parent)


def test_a_refused_pickle_leaves_the_reader_as_it_was(tmp_path: Path) -> None:
    test_crafted_pickles_end_in_one_sentence(tmp_path, "a state for a class")
    path = files.write_file(tmp_path / "data", pickle.dumps(np.arange(3)))
    assert read_pickle(path).tolist() == [0, 1, 2]
