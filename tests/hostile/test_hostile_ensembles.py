"""Hostile folders of saved ensembles: one sentence, nothing built that the file does not pay for, nothing damaged."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from guarding import fingerprints, little_memory, no_hang
from torch import nn

import forde

Attack = Callable[[Path], object]


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return forde.Ensemble(make, 2, seed=7).save(tmp_path / "ensemble")


def config(content: bytes) -> Attack:
    return lambda folder: (folder / "config.json").write_bytes(content)


def setting(**changes: Any) -> Attack:
    """The saved settings with some of them changed; the values are written as JSON, NaN included."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def raw_setting(key: str, text: str) -> Attack:
    """The saved settings with one of them replaced by text that is not made by a JSON library."""

    def change(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text())
        content[key] = "PLACE"
        (folder / "config.json").write_text(json.dumps(content).replace('"PLACE"', text))

    return change


def weights(change: Callable[[bytes], bytes]) -> Attack:
    def write(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))

    return write


def header(change: Callable[[dict[str, Any]], object]) -> Attack:
    """The saved weights under a changed header."""

    def rewrite(content: bytes) -> bytes:
        size = struct.unpack("<Q", content[:8])[0]
        entries = json.loads(content[8 : 8 + size])
        entries.pop("__metadata__")  # a stranger can leave the checksum out
        change(entries)
        text = json.dumps(entries).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + size :]

    return weights(rewrite)


def entry(**changes: Any) -> Attack:
    return header(lambda entries: entries["members.0.0.weight"].update(changes))


def raw_header(text: bytes) -> Attack:
    return weights(lambda content: struct.pack("<Q", len(text)) + text)


def header_length(length: int) -> Attack:
    return weights(lambda content: struct.pack("<Q", length) + content[8:])


def replaced(name: str, put: Callable[[Path], object]) -> Attack:
    """Something else in the place of a file."""

    def replace(folder: Path) -> None:
        (folder / name).unlink()
        put(folder / name)

    return replace


def flipped(position: int) -> Attack:
    return weights(lambda b: b[:position] + bytes([b[position] ^ 1]) + b[position + 1 :])


def many_members(folder: Path) -> None:
    """A billion in the settings, and a tensor that makes the last of them look present."""
    setting(n_members=10**9)(folder)
    end = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header(lambda entries: entries.update({"members.999999999.0.weight": end}))(folder)


ZERO = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
CONFIGS: dict[str, Attack] = {
    "empty": config(b""),
    "not JSON": config(b"members: 2"),
    "not UTF-8": config(b'{"format": 1, "n_members": 2, "seed": 0, "name": "\xff"}'),
    "UTF-16": config('{"format": 1}'.encode("utf-16")),
    "only a number": config(b"1"),
    "lists nested without end": config(b"[" * 60_000),
    "objects nested without end": config(b'{"format":' * 6_000),
    "a megabyte of blanks": config(b" " * (1 << 20)),
    "another format": setting(format=2),
    "format true": setting(format=True),
    "format 1.0": setting(format=1.0),
    "format of ten thousand lists": setting(format=[[]] * 10_000),
    "a billion members": setting(n_members=10**9),
    "a billion members, one of them stored": many_members,
    "minus one member": setting(n_members=-1),
    "no members": setting(n_members=0),
    "three members where two are stored": setting(n_members=3),
    "members 1e400": raw_setting("n_members", "1e400"),
    "members of five thousand digits": raw_setting("n_members", "9" * 5_000),
    "members as text": setting(n_members="2"),
    "members true": setting(n_members=True),
    "members null": setting(n_members=None),
    "members NaN": setting(n_members=float("nan")),
    "members 2.0": setting(n_members=2.0),
    "members twice": raw_setting("n_members", '2, "n_members": 2'),
    "a negative seed": setting(seed=-1),
    "an unknown likelihood": setting(likelihood={"name": "evil"}),
    "a likelihood that is a list": setting(likelihood={"name": ["regression"]}),
    "a likelihood with a line end": setting(likelihood={"name": "a\nError: run this"}),
    "a likelihood with half a character": setting(likelihood={"name": "\ud800"}),
    "an unknown option": setting(likelihood={"name": "regression", "__class__": 1}),
    "noise NaN": setting(likelihood={"name": "regression", "noise": float("nan")}),
    "noise infinite": setting(likelihood={"name": "regression", "noise": float("inf")}),
    "noise 1e400": raw_setting("likelihood", '{"name": "regression", "noise": 1e400}'),
    "noise of four hundred digits": setting(likelihood={"name": "regression", "noise": 10**400}),
    "noise as text": setting(likelihood={"name": "regression", "noise": "1"}),
    "a scale that is a list": setting(input_scale=[0.0, 1.0]),
    "a scale without a deviation": setting(input_scale={"mean": 0.0}),
    "a scale with more in it": setting(input_scale={"mean": 0.0, "std": 1.0, "__class__": 1}),
    "a scale as text": setting(input_scale={"mean": "0", "std": "1"}),
    "a scale of truth": setting(input_scale={"mean": False, "std": True}),
    "a scale of 0": setting(input_scale={"mean": 0.0, "std": 0}),
    "a negative scale": setting(input_scale={"mean": 0.0, "std": -1.0}),
    "a scale NaN": setting(input_scale={"mean": float("nan"), "std": 1.0}),
    "a scale 1e400": raw_setting("input_scale", '{"mean": 0.0, "std": 1e400}'),
    "a scale of four hundred digits": setting(input_scale={"mean": 10**400, "std": 1}),
    "missing": lambda folder: (folder / "config.json").unlink(),
    "a folder": replaced("config.json", Path.mkdir),
    "a link to itself": replaced("config.json", lambda path: path.symlink_to(path.name)),
    "a device": replaced("config.json", lambda path: path.symlink_to("/dev/zero")),
    "a pipe": replaced("config.json", os.mkfifo),
}
WEIGHTS: dict[str, Attack] = {
    "empty": weights(lambda content: b""),
    "cut in the length": weights(lambda content: content[:4]),
    "cut in the header": weights(lambda content: content[:100]),
    "cut in the values": weights(lambda content: content[:-1]),
    "longer than it should be": weights(lambda content: content + b"a"),
    "a bit flipped in the values": flipped(-1),
    "a bit flipped in the header": flipped(20),
    "a bit flipped in the length": flipped(0),
    "values of another training": weights(lambda content: content[:-16] + bytes(16)),
    "a header of 100 MB": header_length(100_000_000),
    "a header of 2^63 bytes": header_length(1 << 63),
    "a header of 2^64 - 1 bytes": header_length((1 << 64) - 1),
    "a header of no bytes": header_length(0),
    "a header that is not JSON": raw_header(b"tensors"),
    "a header that is a list": raw_header(b"[]"),
    "a header nested without end": raw_header(b'{"a":' * 100_000),
    "a header that is not UTF-8": raw_header(b'{"\xff": 1}'),
    "no tensors": raw_header(b"{}"),
    "overlapping tensors": entry(data_offsets=[0, 48]),
    "offsets out of range": entry(data_offsets=[1 << 40, (1 << 40) + 48]),
    "negative offsets": entry(data_offsets=[-48, 0]),
    "offsets in reverse": entry(data_offsets=[60, 12]),
    "offsets that are text": entry(data_offsets=["0", "48"]),
    "an unknown type": entry(dtype="OBJECT"),
    "whole numbers for weights": entry(dtype="I32"),
    "another size of type": entry(dtype="F64"),
    "a swapped shape": entry(shape=[4, 3]),
    "a shape of 2^62 x 2^62": entry(shape=[1 << 62, 1 << 62]),
    "a shape of 10^18 x 0": header(lambda e: e.update({"extra": {**ZERO, "shape": [10**18, 0]}})),
    "a negative shape": entry(shape=[-3, -4]),
    "an extra tensor": header(lambda e: e.update({"members.0.extra": ZERO})),
    "an extra tensor with a long name": header(lambda e: e.update({"members.0." + "a" * 100_000: ZERO})),
    "an extra tensor with a line end": header(lambda e: e.update({"members.0.a\nb": ZERO})),
    "a tensor under another name": header(lambda e: e.update({"members.0.evil": e.pop("members.0.0.weight")})),
    "a pickle": weights(lambda content: b"\x80\x02cos\nsystem\nX\x09\x00\x00\x00touch ran\x85R."),
    "missing": lambda folder: (folder / "model.safetensors").unlink(),
    "a folder": replaced("model.safetensors", Path.mkdir),
    "a link to itself": replaced("model.safetensors", lambda path: path.symlink_to(path.name)),
    "a device": replaced("model.safetensors", lambda path: path.symlink_to("/dev/zero")),
    "a pipe": replaced("model.safetensors", os.mkfifo),
}
CASES = {
    **{f"config.json: {name}": attack for name, attack in CONFIGS.items()},
    **{f"model.safetensors: {name}": attack for name, attack in WEIGHTS.items()},
}


@pytest.mark.parametrize("name", CASES)
def test_refused_in_one_sentence(saved: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved)
    CASES[name](saved)
    before = fingerprints(saved.parent)
    with no_hang(), little_memory(), pytest.raises(forde.FordeError) as raised:
        forde.Ensemble.load(saved, make)
    sentence = str(raised.value)
    assert "\n" not in sentence and sentence.endswith(".") and len(sentence) < 1_000
    assert fingerprints(saved.parent) == before and not (saved / "ran").exists()


def test_no_flipped_bit_changes_the_weights(saved: Path) -> None:
    """In the length, the header or the values; a flip in the checksum's own name does no harm."""
    path = saved / "model.safetensors"
    content, expected = path.read_bytes(), forde.Ensemble.load(saved, make).state_dict()
    refused = 0
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 << (position % 8)
        path.write_bytes(changed)
        try:
            found = forde.Ensemble.load(saved, make).state_dict()
        except forde.FordeError:
            refused += 1
        else:
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert refused > 0.95 * len(content)


def test_weights_stay_when_the_file_is_cut_afterwards(saved: Path) -> None:
    loaded = forde.Ensemble.load(saved, make)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    expected = loaded.predict(x).probs
    with (saved / "model.safetensors").open("r+b") as file:
        file.truncate(0)
    assert torch.equal(loaded.predict(x).probs, expected)


def test_files_without_a_checksum_are_read(saved: Path) -> None:
    header(lambda entries: None)(saved)
    assert forde.Ensemble.load(saved, make).n_members == 2


def test_saving_follows_no_link_and_leaves_nothing_behind(saved: Path) -> None:
    precious = saved.parent / "precious"
    precious.write_bytes(b"do not touch")
    (saved / "config.json.tmp").symlink_to(precious)
    (saved / "model.safetensors").unlink()
    (saved / "model.safetensors").symlink_to(precious)
    forde.Ensemble(make, 2, seed=8).save(saved)
    assert precious.read_bytes() == b"do not touch" and forde.Ensemble.load(saved, make).seed == 8
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", "model.safetensors"]
    (saved / "config.json").unlink()
    (saved / "config.json").mkdir()
    with pytest.raises(forde.FordeError, match="choose a writable folder"):
        forde.Ensemble(make, 2).save(saved)
    assert not list(saved.glob("*.tmp"))
