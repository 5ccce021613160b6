"""What a function or class does, as a short text that changes with its code but not with where or when it runs.

Of a function: its bytecode, constants, defaults, the plain values and functions that it takes from around it, and the
same of those functions, as far as they are not installed packages'. Names of local variables, comments, docstrings and
line numbers do not count. Bytecode belongs to a version of Python, which the text names; texts of different versions
cannot be compared (`comparable`).
"""

from __future__ import annotations

import dis
import functools
import inspect
import re
import sys
import sysconfig
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forde.hashing import Sha256

LIBRARIES = ("torch", "forde", "numpy", "builtins", "functools", "operator", "math", "abc", "typing", "dataclasses")
"""Whose code belongs to a version of theirs; it is known by its name."""
MOST_BYTES = 1 << 26
"""Larger arrays around a function are taken by their shape."""
MOST_FUNCTIONS = 2000
"""That are followed from one to the next."""
INSTALLED = ("site-packages", "dist-packages", sysconfig.get_paths()["stdlib"])
"""In the paths of packages."""
PYTHON = f"py{sys.version_info.major}.{sys.version_info.minor}"
_PRINT = re.compile(r"(py\d+\.\d+):[0-9a-f]{16}")
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|meta)(:\d+)?")


def is_library(value: Any) -> bool:
    """Whether a function or class is torch's, forde's, numpy's or Python's own.

    >>> is_library(torch.tanh), is_library(type("Mine", (), {"__module__": "mine"}))
    (True, False)
    """
    module = getattr(value, "__module__", None) or "builtins"
    return str(module).partition(".")[0] in LIBRARIES


def code_print(value: Any) -> str | None:
    """The text for a function, a bound method, a partial or a class; None where there is no Python code of a user's.

    >>> two, other_two, three = (eval(f"lambda epoch: {n}", {"__name__": "mine"}) for n in (2, 2, 3))
    >>> code_print(two) == code_print(other_two) != code_print(three)
    True
    >>> code_print(torch.tanh) is None
    True
    """
    digest = Sha256()
    seen: set[int] = set()
    if not _take(digest, value, seen):
        return None
    return f"{PYTHON}:{digest.short()}"


def comparable(old: Any, new: Any) -> bool:
    """Whether two values say the same of the same thing; not so for code under different versions of Python.

    >>> comparable("py3.11:0123456789abcdef", "py3.12:0123456789abcdee"), comparable("a", "b")
    (False, True)
    """
    both = [_PRINT.fullmatch(value) if isinstance(value, str) else None for value in (old, new)]
    return both[0] is None or both[1] is None or both[0][1] == both[1][1]


def _take(digest: Sha256, value: Any, seen: set[int]) -> bool:
    """Add a callable to the digest; False where it has no code of a user's."""
    if isinstance(value, functools.partial):
        _take(digest, value.func, seen)
        for each in (*value.args, *value.keywords.items()):
            _take_plain(digest, each, seen)
        return True
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        return _take(digest, value.__func__, seen)
    if isinstance(value, property):
        taken = [_take(digest, part, seen) for part in (value.fget, value.fset) if part is not None]
        return any(taken)
    wrapped = getattr(value, "__wrapped__", None)  # what functools.wraps and lru_cache leave behind
    if wrapped is not None and not isinstance(value, FunctionType):
        return _take(digest, wrapped, seen)
    if isinstance(value, FunctionType):
        return _take_function(digest, value, seen)
    if inspect.isclass(value):
        return _take_class(digest, value, seen)
    return False


def _take_function(digest: Sha256, function: FunctionType, seen: set[int]) -> bool:
    if is_library(function):
        return False
    if id(function) in seen or len(seen) > MOST_FUNCTIONS:
        return True
    seen.add(id(function))
    _take_code(digest, function.__code__, function.__doc__)
    if _installed(function):
        return True
    for part in (function.__defaults__ or (), tuple(sorted((function.__kwdefaults__ or {}).items()))):
        _take_plain(digest, part, seen)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        digest.add(name)
        _take_plain(digest, content, seen)
    for name in names_read(function.__code__):
        if name in function.__globals__ and not name.startswith("__"):
            digest.add(name)
            _take_plain(digest, function.__globals__[name], seen)
    return True


def _take_class(digest: Sha256, cls: type, seen: set[int]) -> bool:
    """All that a class and those of its bases that are no library's define."""
    found = False
    for base in cls.__mro__:
        if is_library(base) or id(base) in seen:
            continue
        seen.add(id(base))
        found = True
        for name, member in sorted(vars(base).items()):
            if name.startswith("__") and not isinstance(member, FunctionType):
                continue
            digest.add(name)
            if not _take(digest, member, seen):
                _take_plain(digest, member, seen)
    return found


def _installed(value: Any) -> bool:
    """Whether a function or class belongs to a package, whose globals are its own affair."""
    members = vars(value).values() if inspect.isclass(value) else (value,)
    function = next((member for member in members if isinstance(member, FunctionType)), None)
    return function is not None and any(part in function.__code__.co_filename for part in INSTALLED)


def _take_code(digest: Sha256, code: CodeType, docstring: str | None) -> None:
    digest.add(repr((code.co_argcount, code.co_kwonlyargcount, code.co_flags, code.co_names)))
    digest.add(code.co_code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _take_code(digest, constant, None)
        elif not (isinstance(constant, str) and constant == docstring):
            ordered = sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant
            digest.add(f"{type(constant).__name__} {ordered!r}")


def _take_plain(digest: Sha256, value: Any, seen: set[int]) -> None:
    """Add what a function takes from around it, where that decides what it computes.

    Lists, dictionaries and objects are left out: they are where functions keep notes. So are names of devices, which a
    resumed run may change.
    """
    if value is None or isinstance(value, (bool, int, float, complex)):
        digest.add(f"{type(value).__name__} {value!r}")
    elif isinstance(value, str) and not _DEVICE.fullmatch(value):
        digest.add(f"str {value!r}")
    elif isinstance(value, tuple):
        for each in value:
            _take_plain(digest, each, seen)
    elif isinstance(value, (Tensor, np.ndarray)):
        digest.add(repr((tuple(value.shape), str(value.dtype))))
        digest.add(_content(value))
    elif callable(value):
        digest.add(getattr(value, "__qualname__", type(value).__qualname__))
        if not _installed(value):
            _take(digest, value, seen)


def _content(array: Tensor | np.ndarray) -> bytes | Tensor | np.ndarray:
    if array.nbytes > MOST_BYTES or (isinstance(array, Tensor) and array.requires_grad):  # one that is trained
        return b""
    if isinstance(array, np.ndarray):
        return b"" if array.dtype.hasobject else array
    if array.layout != torch.strided or array.device.type == "meta":
        return b""
    return array


def names_read(code: CodeType) -> list[str]:
    """Global names that a function and those within it read.

    >>> names_read((lambda self: self.inner(scale)).__code__)
    ['scale']
    """
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(names_read(constant))
    return sorted(names)
