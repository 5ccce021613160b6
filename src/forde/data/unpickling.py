"""Reading a pickle of plain data from a stranger: arrays, bytes, text, numbers and containers, and nothing else.

A pickle is a program that may call anything importable. Here nothing is imported: the few names that numpy's arrays
need stand for the classes below, every other name is refused. Even numpy's own dtype is not called, since a crafted
state can make it read outside an array. Before a pickle is run, its instructions are read through, since a few bytes of
them can fill the memory.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from forde.errors import FordeError
from forde.reading.budget import check_fits
from forde.reading.files import MAX_SHOWN, check_is_file

MOST_INSTRUCTIONS = 2_000_000
"""Several times those of a batch of 50,000 images; each makes one object at most."""
_REMEMBERING = ("PUT", "BINPUT", "LONG_BINPUT")
_REFUSED = {
    **dict.fromkeys(("PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER"), "an object stored elsewhere"),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), "an entry of copyreg's registry"),
    **dict.fromkeys(("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"), "an instance of a class"),
}


def read_pickle(path: Path) -> Any:
    """The data in a pickle file; text that Python 2 wrote comes as bytes.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "batch"
    >>> _ = file.write_bytes(pickle.dumps({"data": np.arange(3)}, protocol=2))
    >>> read_pickle(file)
    {'data': array([0, 1, 2])}
    """
    check_is_file(path)
    check_fits(3 * path.stat().st_size, path, [path])  # the file, its bytes as arrays, and those as images
    try:
        content = path.read_bytes()
        _check_instructions(content)
        return _plain(_Reader(content).load(), set())
    except _RefusedError as error:
        raise FordeError(
            f"'{path}' is a pickle that asks for {str(error)[:MAX_SHOWN]!r}, which plain data does not need; nothing "
            "was run, do not trust this file."
        ) from error
    except Exception as error:  # a broken pickle can raise anything
        raise FordeError(f"'{path}' is truncated or not a pickle of plain data; get it again.") from error


class _RefusedError(Exception):
    """Carries the name that was asked for."""


def _check_instructions(content: bytes) -> None:
    """Refuse what plain data does not need and what the unpickler would reserve memory for without looking."""
    for count, (instruction, argument, _) in enumerate(pickletools.genops(content), start=1):
        if instruction.name in _REFUSED:
            raise _RefusedError(_REFUSED[instruction.name])
        if count > MOST_INSTRUCTIONS:
            raise pickle.UnpicklingError("too many instructions")
        # The list of remembered objects is made as long as its highest place; picklers take the places in order.
        # Other numbers of more than 64 bits can be made to hash alike, which makes dictionaries slow.
        highest = count if instruction.name in _REMEMBERING else 2**63 - 1
        if isinstance(argument, int) and not -(2**63) <= argument <= highest:
            raise pickle.UnpicklingError(f"{instruction.name} with too large a number")


class _StandIn:
    """What a pickle may make. Stateless classes refuse a state, so that no pickle can change them for the next one."""

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("unexpected state")


class _Kind(_StandIn):
    """A stand-in for numpy.dtype: plain numbers only."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code, self.order = _text(code), "="

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])

    def dtype(self) -> np.dtype[Any]:
        if not (self.code[:1] in "biuf" and self.code[1:].isdigit() and self.order in "<>=|"):
            raise pickle.UnpicklingError(f"array of {self.code}")
        order = "" if self.order == "|" else self.order
        return np.dtype(f"{order}{self.code}")


class _Array(_StandIn):
    """A stand-in for numpy.ndarray, filled by its state `(version, shape, dtype, Fortran order, bytes)`."""

    def __init__(self, *_: Any) -> None:
        self.values = np.empty(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        self.values = _from_bytes(raw, kind, shape, "F" if fortran else "C")


class _Buffer(_StandIn):
    """An array as pickle protocol 5 writes it."""

    def __init__(self, raw: Any, kind: _Kind, shape: Any, order: Any, *_: Any) -> None:
        self.values = _from_bytes(raw, kind, shape, _text(order))


class _Number(_StandIn):
    """A numpy scalar."""

    def __init__(self, kind: _Kind, raw: Any) -> None:
        self.values = _from_bytes(raw, kind, (), "C")


class _Encode(_StandIn):
    """Bytes as Python 3 writes them for Python 2: text to be encoded as latin1.

    Text is stored once and could be encoded any number of times; all together it is never longer than the file.
    """

    def __init__(self, most: int) -> None:
        self.left = most

    def __call__(self, text: Any, encoding: Any) -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise pickle.UnpicklingError("an encoding other than latin1")
        self.left -= max(len(text), 1)
        if self.left < 0:
            raise pickle.UnpicklingError("more bytes than the file has")
        return text.encode("latin1")


_KNOWN = {
    "ndarray": _Array,
    "dtype": _Kind,
    "_reconstruct": _Array,
    "scalar": _Number,
    "_frombuffer": _Buffer,
}
_MODULES = {"numpy"} | {
    f"numpy.{core}.{module}" for core in ("core", "_core") for module in ("multiarray", "numeric", "_multiarray_umath")
}


class _Reader(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.encode = _Encode(len(content))

    def find_class(self, module: str, name: str) -> Any:
        if module in _MODULES and name in _KNOWN:
            return _KNOWN[name]
        if (module, name) == ("_codecs", "encode"):
            return self.encode
        raise _RefusedError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _RefusedError("an object stored elsewhere")


def _from_bytes(raw: Any, kind: _Kind, shape: Any, order: str) -> np.ndarray:
    return np.frombuffer(raw, kind.dtype()).reshape(shape, order="F" if order == "F" else "C")


def _text(value: Any) -> str:
    if not isinstance(value, str | bytes):  # the text of containers that share parts can be endless
        raise pickle.UnpicklingError("no text")
    return value.decode("ascii") if isinstance(value, bytes) else value


def _plain(value: Any, seen: set[int]) -> Any:
    """The same data with arrays in place of their stand-ins.

    A container in two places is refused: thirty lists, each twice in the next, would unfold to a billion.
    """
    if isinstance(value, _Number):
        return value.values.item()
    if isinstance(value, _Array | _Buffer):
        return value.values
    if not isinstance(value, dict | list | tuple):
        return value
    if value and id(value) in seen:
        raise pickle.UnpicklingError("a container in two places")
    seen.add(id(value))
    if isinstance(value, dict):
        return {_plain(key, seen): _plain(item, seen) for key, item in value.items()}
    return type(value)(_plain(item, seen) for item in value)
