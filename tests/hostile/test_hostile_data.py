"""Hostile data files through the command line: one sentence, nothing run, nothing damaged, little memory."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import data_files as files
import numpy as np
import pytest
from guarding import fingerprints, little_memory, no_hang
from hostile_archives import TARS, ZIPS
from hostile_pickles import PICKLES

from forde.__main__ import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files that must survive."""
    files.write_file(tmp_path / "precious", b"do not touch")
    files.write_cifar10_batches(tmp_path / "data", per_batch=1)
    files.write_file(tmp_path / "out" / "fog.npy", b"from an earlier run")
    return tmp_path


def refused(folder: Path, *arguments: str | Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the command in this process, and hold it to what the module's first line says."""
    before = fingerprints(folder)
    monkeypatch.setattr(sys, "argv", ["forde", *map(str, arguments)])
    monkeypatch.chdir(folder)
    with no_hang(), little_memory():
        assert main() == 1
    after = fingerprints(folder)
    assert {path: after.get(path) for path in before} == before
    assert all(path.relative_to(folder).parts[1].endswith(".unpacking") for path in set(after) - set(before))
    assert not (folder / "ran").exists() and not Path("/tmp/forde-was-here").exists()


def one_sentence(text: str) -> None:
    assert text.startswith("Error: ") and text.count("\n") == 1 and text.rstrip("\n").endswith("."), text
    assert len(text) < 1_000 and "Traceback" not in text


@pytest.mark.parametrize("name", PICKLES)
def test_pickles(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    files.write_file(folder / "data" / "data_batch_1", PICKLES[name](folder / "ran"))
    refused(folder, "data", "check", "cifar10", "--data-dir", folder / "data", monkeypatch=monkeypatch)
    error = capsys.readouterr().err
    one_sentence(error)
    assert "data_batch_1" in error


@pytest.mark.parametrize("kind, name", [("tar", name) for name in TARS] + [("zip", name) for name in ZIPS])
def test_archives(
    folder: Path, kind: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A file that has arrived is not fetched again, so this needs no network.
    data_set, file = ("cinic10", "CINIC-10.tar.gz") if kind == "tar" else ("tinyimagenet", "tiny-imagenet-200.zip")
    content = (TARS if kind == "tar" else ZIPS)[name]()
    files.write_file(folder / "data" / ".downloads" / data_set / file, content)
    refused(folder, "data", "download", data_set, "--data-dir", folder / "data", monkeypatch=monkeypatch)
    error = capsys.readouterr().err.strip("\n").splitlines()[-1] + "\n"  # after what is left of the progress bar
    one_sentence(error)
    assert file in error and not (folder / "data" / data_set).exists()


def array_file(header: str) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text


def npz(path: Path, x: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", x)
    return path


def npz_of(path: Path, x: np.ndarray, y: np.ndarray) -> Path:
    np.savez(path, x=x, y=y)
    return path


def claims(shape: str, kind: str = "|u1") -> Callable[[Path], Path]:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}"
    return lambda folder: npz(folder / "set.npz", array_file(header))


def idx_set(content: bytes, *, compressed: bool = False) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        files.write_idx_set(folder / "data" / "mnist", compressed=compressed)
        name = "train-images-idx3-ubyte" + (".gz" if compressed else "")
        return files.write_file(folder / "data" / "mnist" / name, gzip.compress(content) if compressed else content)

    return make


def class_folders(name: str, write: Callable[[Path], object]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        files.write_class_folders(folder / "pictures", ["a", "b"])
        write(folder / "pictures" / "a" / name)
        return folder / "pictures"

    return make


def parquet(label: list[object], image: bytes | None = None) -> Callable[[Path], Path]:
    content = files.encoded(files.noise(1, (8, 8, 3))[0]) if image is None else image
    return lambda folder: files.write_parquet(folder / "set.parquet", [content] * len(label), label=label)


def csv(content: bytes) -> Callable[[Path], Path]:
    return lambda folder: files.write_file(folder / "set.csv", content)


def linked(folder: Path, name: str, target: str) -> Path:
    (folder / name).symlink_to(target)
    return folder / name


def png_claiming(width: int, height: int) -> bytes:
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"a")) + chunk(b"IEND", b"")


IMAGES = files.noise(2, (8, 8, 3))
SETS: dict[str, Callable[[Path], Path]] = {
    "npz: claims a terabyte": claims("(1000000000000,)"),
    "npz: claims more than can be counted": claims("(4611686018427387904, 8, 8)"),
    "npz: claims a negative size": claims("(-1,)"),
    "npz: claims objects": claims("(1,)", "|O"),
    "npz: a header that calls": lambda folder: npz(
        folder / "set.npz", array_file("__import__('os').system('touch ran')")
    ),
    "npz: a header nested without end": lambda folder: npz(folder / "set.npz", array_file("-" * 9_000 + "1")),
    "npz: a header of a gigabyte": lambda folder: npz(folder / "set.npz", b"\x93NUMPY\x02\x00\x00\x00\x00\x40a"),
    "npz: a label of 2^62": lambda folder: npz_of(folder / "set.npz", IMAGES, np.array([0, 2**62])),
    "npz: a label that is no number": lambda folder: npz_of(folder / "set.npz", IMAGES, np.array([0, np.nan])),
    "npz: labels without an axis": lambda folder: npz_of(folder / "set.npz", IMAGES, np.array(1)),
    "npz: images without pixels": lambda folder: npz_of(folder / "set.npz", IMAGES[:, :0], np.arange(2)),
    "npz: a folder": lambda folder: (folder / "set.npz").mkdir() or folder / "set.npz",
    "npz: a link to itself": lambda folder: linked(folder, "set.npz", "set.npz"),
    "npz: a device": lambda folder: linked(folder, "set.npz", "/dev/zero"),
    "idx: claims 2^96 bytes": idx_set(b"\0\0\x08\x03" + b"\xff" * 12),
    "idx: claims a terabyte": idx_set(b"\0\0\x08\x03" + struct.pack(">3I", 1 << 20, 1 << 10, 1 << 10)),
    "idx: claims a terabyte, compressed": idx_set(b"\0\0\x08\x03" + b"\x7f" * 12, compressed=True),
    "idx: a header that ends": idx_set(b"\0\0\x08\x03\0"),
    "images: a bomb": class_folders("big.png", lambda path: files.write_file(path, png_claiming(2**31 - 1, 2**31 - 1))),
    "images: half": class_folders("half.png", lambda path: files.write_file(path, png_claiming(8, 8))),
    "images: PostScript": class_folders(
        "ps.png", lambda path: files.write_file(path, b"%!PS-Adobe-3.0 EPSF-3.0\n(ran)(w)file")
    ),
    "images: a pipe": class_folders("pipe.png", os.mkfifo),
    "images: a device": class_folders("zero.png", lambda path: path.symlink_to("/dev/zero")),
    "images: a folder": class_folders("folder.png", lambda path: path.mkdir()),
    "images: a link to itself": class_folders("loop.png", lambda path: path.symlink_to(path.name)),
    "parquet: a label of 2^62": parquet([0, 2**62]),
    "parquet: labels that are text": parquet(["cat", "dog"]),
    "parquet: labels that are records": parquet([{"a": 1}, {"a": 2}]),
    "parquet: no images": parquet([0, 1], b"no image"),
    "parquet: text": lambda folder: files.write_file(folder / "set.parquet", b"PAR1" + b"\xff" * 64 + b"PAR1"),
    "csv: a column twice": csv(b"a,a,b\n1,2,3\n"),
    "csv: names that are no text": csv(b"a,\xff\n1,2\n"),
    "csv: nothing": csv(b""),
    "csv: a device": lambda folder: linked(folder, "set.csv", "/dev/zero"),
}


@pytest.mark.parametrize("name", SETS)
def test_other_sets(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = SETS[name](folder)
    if name.startswith("idx"):
        command: tuple[str | Path, ...] = ("data", "check", "mnist", "--data-dir", folder / "data")
    else:
        command = ("corrupt", path, folder / "out", "--split", "train", "--type", "fog")
    refused(folder, *command, monkeypatch=monkeypatch)
    one_sentence(capsys.readouterr().err)


@pytest.mark.parametrize("name", ["a call in protocol 2", "a memory with a place far away"])
def test_in_a_process_of_its_own(folder: Path, name: str) -> None:
    """As a user meets it, with nothing of the tests around."""
    files.write_file(folder / "data" / "data_batch_1", PICKLES[name](folder / "ran"))
    before = fingerprints(folder)
    result = subprocess.run(
        [sys.executable, "-m", "forde", "data", "check", "cifar10", "--data-dir", str(folder / "data")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 1 and result.stdout == ""
    one_sentence(result.stderr)
    assert fingerprints(folder) == before and not (folder / "ran").exists()


def test_there_are_enough() -> None:
    assert len(PICKLES) + len(TARS) + len(ZIPS) + len(SETS) >= 90
