"""Hashes: checksums of files, short names for contents, and keys by which equal contents are found.

Files on the disk hold what these functions return, so their results never change.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

SHORT = 16
"""Hexadecimal digits of a short name."""
BLOCK = 1 << 20
"""Bytes of a file that are read at once."""


class Sha256:
    """A SHA-256 of text, bytes and arrays that are added one after another.

    An array counts with its values alone; where shape and type matter, add them as text.

    >>> digest = Sha256()
    >>> digest.add("ab")
    >>> digest.add(np.array([99], np.uint8))
    >>> digest.hex() == sha256(b"abc")
    True
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, part: str | bytes | Tensor | np.ndarray) -> None:
        """Add text (as UTF-8), bytes or the values of an array."""
        self._digest.update(_content(part))

    def hex(self) -> str:
        """The checksum of what was added so far: 64 hexadecimal digits."""
        return self._digest.hexdigest()

    def short(self) -> str:
        """The first 16 of them."""
        return self.hex()[:SHORT]


def sha256(content: bytes) -> str:
    """The checksum of bytes: 64 hexadecimal digits.

    >>> sha256(b"")[:8]
    'e3b0c442'
    """
    return hashlib.sha256(content).hexdigest()


def canonical(value: Any) -> bytes:
    """JSON that is the same for equal values, for checksums.

    >>> canonical({"b": 1, "a": [2.5]})
    b'{"a":[2.5],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def json_name(value: Any) -> str:
    """A short name for a value that JSON can hold.

    >>> json_name({"a": 1, "b": 2}) == json_name({"b": 2, "a": 1}) != json_name({"a": 1})
    True
    """
    return sha256(canonical(value))[:SHORT]


def array_name(*arrays: Tensor | np.ndarray) -> str:
    """A short name for the values of arrays.

    >>> array_name(np.zeros(2)) == array_name(torch.zeros(2, dtype=torch.float64))
    True
    """
    digest = Sha256()
    for array in arrays:
        digest.add(array)
    return digest.short()


def content_key(*parts: bytes | np.ndarray, size: int = 16) -> bytes:
    """A few bytes that tell contents from each other, for finding equal ones; faster than SHA-256.

    >>> content_key(b"ab") == content_key(b"a", b"b") != content_key(b"ba")
    True
    """
    digest = hashlib.blake2b(digest_size=size)
    for part in parts:
        digest.update(_content(part))
    return digest.digest()


def file_md5(path: Path) -> str:
    """The MD5 of a file, in hexadecimal, as publishers of data sets state it.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "empty"
    >>> file.touch()
    >>> file_md5(file)
    'd41d8cd98f00b204e9800998ecf8427e'
    """
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _content(part: str | bytes | Tensor | np.ndarray) -> bytes | memoryview:
    """Its bytes; those of an array in the order of its rows, without a copy where they lie so."""
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, bytes):
        return part
    if isinstance(part, Tensor):  # as bytes, because numpy has no bfloat16
        return part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
