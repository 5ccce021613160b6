"""Thousands of made-up and mutated files for each reader: only FordeError may come out, and soon.

The same files every time, so that a failure is a failure for everybody.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import data_files as files
import numpy as np
import pytest
from guarding import no_hang
from hostile_pickles import PICKLES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import forde
from forde.data.archives import unpack
from forde.data.cifar import read_cifar_batches
from forde.likelihoods import likelihood_from_config
from forde.saving import read_config

CASES = {"config": 4_000, "weights": 3_000, "pickles": 4_000, "parquet": 600, "idx": 500, "npz": 500, "archives": 500}
SECONDS = 5
"""For one file, most of which take a millisecond."""


def fuzz(strategy: st.SearchStrategy[bytes], read: Callable[[bytes], object], cases: int) -> int:
    """Try that many files; returns how many of them were read without complaint."""
    tried = read_well = 0

    @settings(
        max_examples=cases,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def try_one(content: bytes) -> None:
        nonlocal tried, read_well
        tried += 1
        with no_hang(SECONDS):
            try:
                read(content)
            except forde.FordeError as error:
                assert str(error) and len(str(error)) < 100_000
            else:
                read_well += 1

    try_one()
    assert tried >= cases
    return read_well


@st.composite
def mutations(draw: st.DrawFn, valid: list[bytes]) -> bytes:
    """A valid file with a few bytes changed, cut out, put in, or taken from another one."""
    content = bytearray(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["flip", "set", "cut", "insert", "drop", "splice"]))
        place = draw(st.integers(0, max(len(content) - 1, 0)))
        if kind == "flip" and content:
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "set" and content:
            content[place] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, *b'()[]{}.",:-eRbq']))
        elif kind == "cut":
            del content[place:]
        elif kind == "insert":
            content[place:place] = draw(st.binary(max_size=12))
        elif kind == "drop":
            del content[place : place + draw(st.integers(1, 40))]
        else:
            other = draw(st.sampled_from(valid))
            start = draw(st.integers(0, len(other)))
            content[place : place + 8] = other[start : start + draw(st.integers(0, 60))]
    return bytes(content)


def any_bytes(valid: list[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(mutations(valid), mutations(valid), st.binary(max_size=200))


NUMBERS = st.one_of(
    st.integers(-3, 5),
    st.integers(),
    st.sampled_from([2**31, 2**53, 2**63, 2**64, 10**30, 10**400]),
    st.floats(),
    st.booleans(),
)
WORDS = st.sampled_from(["format", "n_members", "seed", "likelihood", "name", "noise", "classification", "regression"])
JSON = st.recursive(
    st.one_of(st.none(), NUMBERS, WORDS, st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(WORDS, st.text(max_size=3)), inner, max_size=4)
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    likelihood = forde.likelihoods.Regression(noise=0.5)
    return forde.Ensemble(make, 2, seed=7, likelihood=likelihood).save(tmp_path_factory.mktemp("ensemble"))


def make() -> nn.Module:
    return nn.Linear(2, 1)


def test_config_reader(saved: Path) -> None:
    path = saved / "config.json"
    valid = path.read_bytes()

    def read(content: bytes) -> None:
        path.write_bytes(content)
        likelihood_from_config(read_config(saved)["likelihood"])

    known = st.fixed_dictionaries(
        {"format": st.just(1), "n_members": st.one_of(st.just(2), JSON), "seed": st.one_of(st.just(0), JSON)},
        optional={"likelihood": JSON, "extra": JSON},
    )
    likelihood = st.fixed_dictionaries({"name": st.one_of(WORDS, JSON)}, optional={"noise": JSON, "evil": JSON})
    close = likelihood.map(lambda value: {"format": 1, "n_members": 2, "seed": 0, "likelihood": value})
    structured = st.one_of(JSON, known, close).map(lambda value: json.dumps(value).encode())
    try:
        read_well = fuzz(st.one_of(any_bytes([valid]), structured), read, CASES["config"])
    finally:
        path.write_bytes(valid)
    assert 0 < read_well < CASES["config"] / 2


@st.composite
def weights_files(draw: st.DrawFn, valid: bytes) -> bytes:
    """A header that is JSON and almost right, before the values."""
    size = struct.unpack("<Q", valid[:8])[0]
    entries = json.loads(valid[8 : 8 + size])
    if draw(st.booleans()):
        del entries["__metadata__"]
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(entries)))
        field = draw(st.sampled_from(["dtype", "shape", "data_offsets", "itself", "its name"]))
        if field == "itself":
            entries[name] = draw(JSON)
        elif field == "its name":
            entries[draw(st.text(max_size=8))] = entries.pop(name)
        elif isinstance(entries[name], dict):
            types = st.sampled_from(["F32", "F64", "F16", "BF16", "I32", "I64", "BOOL", "F8_E4M3", "C64", "F4", "x"])
            lists = st.lists(st.one_of(st.integers(-2, 40), st.integers(0, 2**64)), max_size=4)
            entries[name][field] = draw(st.one_of(types if field == "dtype" else lists, JSON))
    text = json.dumps(entries).encode()
    length = draw(st.one_of(st.just(len(text)), st.integers(0, 2 * len(text)), st.integers(0, 2**64 - 1)))
    return struct.pack("<Q", length) + text + valid[8 + size :]


def test_weights_reader(saved: Path) -> None:
    path = saved / "model.safetensors"
    valid = path.read_bytes()

    def read(content: bytes) -> None:
        path.write_bytes(content)
        forde.Ensemble.load(saved, make)

    try:
        read_well = fuzz(st.one_of(any_bytes([valid]), weights_files(valid)), read, CASES["weights"])
    finally:
        path.write_bytes(valid)
    assert read_well < CASES["weights"] / 2


PIECES = [
    *(bytes([code]) for code in b"().0123NIKMJL}]lduestRbaq\x85\x86\x87\x88\x89\x93\x94\x8f\x90\x91\x80"),
    *(b"q\x00", b"q\x01", b"h\x00", b"h\x01", b"K\x01", b"K\x00", b"M\x00\x0c", b"C\x01a", b"U\x01a", b"\x80\x02"),
    b"cnumpy\nndarray\n",
    b"cnumpy\ndtype\n",
    b"cnumpy.core.multiarray\n_reconstruct\n",
    b"cnumpy.core.numeric\n_frombuffer\n",
    b"cnumpy.core.multiarray\nscalar\n",
    b"c_codecs\nencode\n",
    b"X\x04\x00\x00\x00data",
    b"X\x06\x00\x00\x00labels",
    b"X\x02\x00\x00\x00u1",
    b"X\x06\x00\x00\x00latin1",
    b"\x8c\x05numpy\x8c\x05dtype\x93",
]
"""Instructions, and the names that the reader admits."""


def test_cifar_reader(tmp_path: Path) -> None:
    images, ran = files.noise(1, (32, 32, 3)), tmp_path / "ran"
    small = {"data": np.zeros((0, 3072), np.uint8), "labels": [1, np.int64(2)], "batch_label": b"one"}
    valid = [
        files.cifar_batch(images, [3]),
        *(pickle.dumps(small, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)),
        pickle.dumps({"data": images.reshape(1, -1), "labels": np.array([3])}, 5),
        *(attack for make_attack in PICKLES.values() if len(attack := make_attack(ran)) < 5_000),
    ]
    soup = st.lists(st.sampled_from(PIECES), max_size=40).map(lambda pieces: b"".join(pieces) + b".")

    def read(content: bytes) -> None:
        (tmp_path / "test_batch").write_bytes(content)
        read_cifar_batches("cifar10", tmp_path, "test")

    read_well = fuzz(st.one_of(any_bytes(valid), soup), read, CASES["pickles"])
    assert 0 < read_well < CASES["pickles"] / 2  # a flipped pixel is still a pixel
    assert not ran.exists() and [path.name for path in tmp_path.iterdir()] == ["test_batch"]


def test_cifar_in_parquet(tmp_path: Path) -> None:
    path = files.write_parquet(tmp_path / "test.parquet", [files.encoded(files.noise(1, (32, 32, 3))[0])], label=[0])
    valid = path.read_bytes()

    def read(content: bytes) -> None:
        path.write_bytes(content)
        forde.data.load("cifar10", "test", tmp_path)

    fuzz(any_bytes([valid]), read, CASES["parquet"])


def test_idx_reader(tmp_path: Path) -> None:
    files.write_idx_set(tmp_path, compressed=True)
    path = tmp_path / "train-labels-idx1-ubyte.gz"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        forde.data.load("mnist", "train", tmp_path)

    fuzz(any_bytes([path.read_bytes()]), read, CASES["idx"])


def test_npz_reader(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    valid = []
    for x in (files.noise(2, (4, 4)), np.ones((2, 3))):
        np.savez(path, x=x, y=np.arange(2))
        valid.append(path.read_bytes())

    def read(content: bytes) -> None:
        path.write_bytes(content)
        forde.data.load(path)

    fuzz(any_bytes(valid), read, CASES["npz"])


def test_archives(tmp_path: Path) -> None:
    tar, packed, zipped = io.BytesIO(), io.BytesIO(), io.BytesIO()
    for out, mode in ((tar, "w"), (packed, "w:gz")):
        with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
            for name in ("one", "folder/two"):
                member = tarfile.TarInfo(name)
                member.size = 3
                archive.addfile(member, io.BytesIO(b"abc"))
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("one", b"abc" * 20)
        file.writestr("folder/two", b"abc")
    number = 0

    def read(content: bytes) -> None:
        nonlocal number
        number += 1
        path = tmp_path / ("a.zip" if content.startswith(b"PK") else "a.tar.gz")
        path.write_bytes(content)
        unpack(path, tmp_path / "out" / str(number))

    fuzz(any_bytes([tar.getvalue(), packed.getvalue(), zipped.getvalue()]), read, CASES["archives"])
    assert {path.name for path in tmp_path.iterdir()} <= {"a.tar.gz", "a.zip", "out"}


def test_there_are_enough() -> None:
    assert sum(CASES[name] for name in ("config", "weights", "pickles")) >= 10_000
