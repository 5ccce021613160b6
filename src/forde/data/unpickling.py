"""Reading a pickle of plain data from a stranger: arrays, bytes, text, numbers and containers, and nothing else.

A pickle is a program that may call anything importable. Here nothing is imported: the few names that numpy's arrays
need stand for the classes below, every other name is refused. Even numpy's own dtype is not called, since a crafted
state can make it read outside an array.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from forde.errors import FordeError


def read_pickle(path: Path) -> Any:
    """The data in a pickle file; text that Python 2 wrote comes as bytes.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "batch"
    >>> _ = file.write_bytes(pickle.dumps({"data": np.arange(3)}, protocol=2))
    >>> read_pickle(file)
    {'data': array([0, 1, 2])}
    """
    try:
        with path.open("rb") as file:
            return _plain(_Reader(file, encoding="bytes").load())
    except FileNotFoundError as error:
        raise FordeError(f"the file '{path}' is missing; get the data set again.") from error
    except _RefusedError as error:
        raise FordeError(
            f"'{path}' is a pickle that asks for '{error}', which plain data does not need; nothing was run, do not "
            "trust this file."
        ) from error
    except Exception as error:  # a broken pickle can raise anything
        raise FordeError(f"'{path}' is truncated or not a pickle of plain data; get it again.") from error


class _RefusedError(Exception):
    """Carries the name that was asked for."""


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


class _Encoded(_StandIn):
    """Bytes as Python 3 writes them for Python 2: text to be encoded as latin1."""

    def __new__(cls, text: str, encoding: str) -> Any:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"encoding {encoding}")
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
    def find_class(self, module: str, name: str) -> Any:
        if module in _MODULES and name in _KNOWN:
            return _KNOWN[name]
        if (module, name) == ("_codecs", "encode"):
            return _Encoded
        raise _RefusedError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _RefusedError("an object stored elsewhere")


def _from_bytes(raw: Any, kind: _Kind, shape: Any, order: str) -> np.ndarray:
    data = raw.encode("latin1") if isinstance(raw, str) else raw
    return np.frombuffer(data, kind.dtype()).reshape(shape, order="F" if order == "F" else "C")


def _text(value: Any) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    """The same data with arrays in place of their stand-ins."""
    if isinstance(value, _Number):
        return value.values.item()
    if isinstance(value, _Array | _Buffer):
        return value.values
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    return value
