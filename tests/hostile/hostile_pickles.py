"""Pickles that attack their reader, by name; each takes the file that it would make if it could."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import data_files as files

Maker = Callable[[Path], bytes]


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def _command(ran: Path) -> str:
    return f"touch {ran}"


def _reduced(protocol: int) -> Maker:
    import os

    def make(ran: Path) -> bytes:
        return pickle.dumps({"data": files.Malicious(os.system, _command(ran))}, protocol)

    return make


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85K\x00tR"
"""An empty array, to be filled by a state."""


def _dtype(code: bytes) -> bytes:
    return b"cnumpy\ndtype\n(" + _text(code.decode()) + b"K\x00K\x01tR"


def _batch(labels: bytes, data: bytes | None = None) -> bytes:
    """A batch of one image, with these instructions for its labels."""
    image = ARRAY + b"(K\x01K\x01M\x00\x0c\x86" + _dtype(b"u1") + b"\x89B\x00\x0c\x00\x00" + bytes(3072) + b"tb"
    return b"\x80\x03}(" + _text("data") + (data or image) + _text("labels") + labels + b"u."


def _doubled(times: int) -> bytes:
    """A list that holds one list twice, which holds one twice, ...: 2^times of them in a few bytes each."""
    levels = (
        b"](h" + bytes([level]) + b"h" + bytes([level]) + b"eq" + bytes([level + 1]) + b"0" for level in range(times)
    )
    return b"]q\x000" + b"".join(levels) + b"h" + bytes([times])


HUGE = struct.pack("<Q", 1 << 40)
PICKLES: dict[str, Maker] = {
    **{f"a call in protocol {protocol}": _reduced(protocol) for protocol in range(6)},
    "a call by INST": lambda ran: b"(S'" + _command(ran).encode() + b"'\nios\nsystem\n.",
    "a call by OBJ": lambda ran: b"(cos\nsystem\n" + _text(_command(ran)) + b"o.",
    "a call by NEWOBJ": lambda ran: b"\x80\x02csubprocess\nPopen\n" + _text(_command(ran)) + b"\x85\x81.",
    "a call by NEWOBJ_EX": lambda ran: b"\x80\x04csubprocess\nPopen\n" + _text(_command(ran)) + b"\x85}\x92.",
    "a call by STACK_GLOBAL": lambda ran: b"\x80\x04\x8c\x02os\x8c\x06system\x93" + _text(_command(ran)) + b"\x85R.",
    "a call hidden in a state": lambda ran: (
        b"\x80\x02" + ARRAY + b"cos\nsystem\n" + _text(_command(ran)) + b"\x85R" + b"b."
    ),
    "a name below an admitted module": lambda ran: b"\x80\x04\x8c\x05numpy\x8c\x0bf2py.os.popen\x93.",
    "a name with a line end": lambda ran: b"\x80\x04\x8c\x02os" + _text("a\nb" * 10_000) + b"\x93.",
    "copyreg": lambda ran: b"\x80\x02ccopy_reg\n_reconstructor\n(cos\nsystem\ncos\nsystem\nNtR.",
    "the registry of extensions": lambda ran: b"\x80\x02\x82\x01.",
    "a persistent id": lambda ran: b"Pos.system\n.",
    "a buffer from elsewhere": lambda ran: b"\x80\x05\x97.",
    "an array of objects": lambda ran: (
        b"\x80\x02" + ARRAY + b"(K\x01K\x01\x85" + _dtype(b"O8") + b"\x89]cos\nsystem\natb."
    ),
    "an array whose type is a class": lambda ran: b"\x80\x02" + ARRAY + b"(K\x01K\x01\x85cnumpy\ndtype\n\x89C\x01atb.",
    "a new method for the reader's classes": lambda ran: b"\x80\x02cnumpy\ndtype\n}" + _text("dtype") + b"Nsb.",
    "a state for the encoder": lambda ran: b"\x80\x02c_codecs\nencode\n}" + _text("left") + b"J\xff\xff\xff\x7fsb.",
    "a codec of its choice": lambda ran: b"\x80\x02c_codecs\nencode\n" + _text("a") + _text("zlib") + b"\x86R.",
    "a memory with a place far away": lambda ran: b"\x80\x02Nr\xff\xff\xff\x3f.",
    "a memory with a place farther away": lambda ran: b"Np1000000000000\n.",
    "bytes longer than the file": lambda ran: b"\x80\x04\x8e" + HUGE + b"a.",
    "text longer than the file": lambda ran: b"\x80\x04\x8d" + HUGE + b"a.",
    "a bytearray longer than the file": lambda ran: b"\x80\x05\x96" + HUGE + b"a.",
    "a frame longer than the file": lambda ran: b"\x80\x04\x95" + HUGE + b"N.",
    "a number longer than the file": lambda ran: b"\x80\x02\x8b\xff\xff\xff\x7fa.",
    "a number of a million digits": lambda ran: b"L" + b"9" * 1_000_000 + b"L\n.",
    "an array larger than its bytes": lambda ran: (
        b"\x80\x03" + ARRAY + b"(K\x01J\xff\xff\xff\x7f\x85" + _dtype(b"f8") + b"\x89C\x01atb."
    ),
    "lists nested a hundred thousand times": lambda ran: b"(" * 100_000 + b"l" * 100_000 + b".",
    "a list in itself": lambda ran: b"]q\x00h\x00a.",
    "labels that unfold to 2^60 lists": lambda ran: _batch(_doubled(60)),
    "a type whose text unfolds to 2^60 lists": lambda ran: b"\x80\x02cnumpy\ndtype\n" + _doubled(60) + b"\x85R.",
    "one text encoded ten thousand times": lambda ran: (
        b"\x80\x02"
        + _text("a" * 100_000)
        + b"q\x000]("
        + b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R" * 10_000
        + b"e."
    ),
    "keys that hash alike": lambda ran: (
        b"\x80\x02}("
        + b"".join(b"\x8a\x0d" + ((2**61 - 1) * n).to_bytes(13, "little") + b"N" for n in range(40_000))
        + b"u."
    ),
    "labels that are a number": lambda ran: _batch(b"K\x05"),
    "labels of different depth": lambda ran: _batch(b"](](K\x01ee"),
    "labels that are an array without axes": lambda ran: _batch(
        ARRAY + b"(K\x01)" + _dtype(b"i8") + b"\x89C\x08" + bytes(8) + b"tb"
    ),
    "data that is text": lambda ran: _batch(b"]", _text("data")),
    "nothing": lambda ran: b"",
    "no end": lambda ran: b"\x80\x02}(",
}
