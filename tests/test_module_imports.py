"""The reader of imports that the layer test relies on, tried on small packages written for it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from module_imports import forbidden_imports, import_cycle, imports, top_level_names

# As in test_package.py; `attic` is in none.
LAYERS = [{"low", "beside"}, {"middle"}, {"high"}, {"__init__"}]


def write_package(folder: Path, files: dict[str, str]) -> Path:
    """A package named `house` with these files; every folder gets an empty `__init__.py` unless it is given."""
    package = folder / "house"
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for inside in {path.parent for path in package.rglob("*.py")} | {package}:
        (inside / "__init__.py").touch()
    return package


def house(folder: Path, statement: str, name: str = "middle/deep/room.py") -> Path:
    """A package with one module in every layer and a statement in one of them."""
    files = {f"{part}/things.py": "" for part in ("low", "beside", "middle", "high")}
    return write_package(folder, {**files, "middle/deep/room.py": "", name: statement})


UPWARD = {
    "import house.high": "house.high",
    "import house.high.things": "house.high.things",
    "import os, house.high.things as things": "house.high.things",
    "from house import high": "house.high",
    "from house import low, high": "house.high",
    "from house.high import things": "house.high.things",
    "from house.high import chair": "house.high",
    "from house.high import *": "house.high",
    "from house.high.things import chair as seat": "house.high.things",
    "from ... import high": "house.high",
    "from ...high import things": "house.high.things",
    "from ...high.things import chair": "house.high.things",
    "import house": "house",
    "from house import chair": "house",
    "from ... import chair": "house",
    "import house.attic": "house.attic",
    "from house.attic import box": "house.attic",
    "def later():\n    from house import high": "house.high",
    "async def later():\n    import house.high": "house.high",
    "class Room:\n    from house import high": "house.high",
    "if True:\n    try:\n        import house.high\n    except ImportError:\n        pass": "house.high",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.high import chair": "house.high",
    "import importlib\nhigh = importlib.import_module('house.high')": "house.high",
    "high = __import__('house.high')": "house.high",
}


@pytest.mark.parametrize("statement", UPWARD)
def test_every_kind_of_import_is_found(statement: str, tmp_path: Path) -> None:
    found = forbidden_imports(house(tmp_path, statement), LAYERS)
    assert [(one.importer, one.imported) for one in found] == [("house.middle.deep.room", UPWARD[statement])]


@pytest.mark.parametrize(
    "statement",
    [
        "import house.low",
        "from house import low, beside",
        "from house.low.things import chair",
        "from ... import low",
        "from ...low import things",
        "from house.middle import deep, things",
        "from .. import things",
        "from . import chair",
        "def later():\n    from house import low",
        "import housekeeping, high",
        "from high import things",
        "from highhouse.high import things",
        "'import house.high'",
        "import_module = print\nimport_module(3)",
    ],
)
def test_allowed_imports_pass(statement: str, tmp_path: Path) -> None:
    assert forbidden_imports(house(tmp_path, statement), LAYERS) == []


def test_a_relative_import_in_an_init_starts_from_its_folder(tmp_path: Path) -> None:
    package = house(tmp_path, "from . import room\nfrom ..things import chair\nimport os", "middle/deep/__init__.py")
    assert [one.imported for one in imports(package)] == ["house.middle.deep.room", "house.middle.things"]


def test_neighbours_in_a_layer_do_not_import_each_other(tmp_path: Path) -> None:
    package = house(tmp_path, "def later():\n    from house import beside", "low/things.py")
    assert [str(one) for one in forbidden_imports(package, LAYERS)] == ["house.low.things:2 imports house.beside"]


def test_what_is_in_no_layer_imports_nothing_and_is_named(tmp_path: Path) -> None:
    package = house(tmp_path, "from house.low import things", "cellar.py")
    assert [str(one) for one in forbidden_imports(package, LAYERS)] == ["house.cellar:1 imports house.low.things"]
    assert top_level_names(package) - set().union(*LAYERS) == {"cellar"}


def test_a_folder_without_init_is_named(tmp_path: Path) -> None:
    package = house(tmp_path, "")
    (package / "shed" / "tools").mkdir(parents=True)
    (package / "shed" / "tools" / "rake.py").touch()
    assert top_level_names(package) - set().union(*LAYERS) == {"shed"}


def test_imports_say_when_they_run(tmp_path: Path) -> None:
    text = """
from typing import TYPE_CHECKING
import typing
import house.a
if TYPE_CHECKING:
    import house.b
    def known():
        import house.c
else:
    import house.d
if typing.TYPE_CHECKING:
    import house.e
class Room:
    import house.f
    def enter(self):
        import house.g
"""
    found = imports(write_package(tmp_path, {"room.py": text}))
    assert {one.imported[-1]: one.when for one in found} == {
        "a": "load", "b": "typing", "c": "typing", "d": "load", "e": "typing", "f": "load", "g": "call"
    }  # fmt: skip


CIRCLES = {
    "two modules": {"a.py": "from house.b import y\nx = 1", "b.py": "from house.a import x\ny = 1"},
    "relative": {"a.py": "from .b import y\nx = 1", "b.py": "from .a import x\ny = 1"},
    "through the package": {"__init__.py": "from house.a import x\ny = 1", "a.py": "from house import y\nx = 1"},
    "through another folder's init": {
        "east/__init__.py": "from house.east.a import x",
        "east/a.py": "from house.west.quiet import y\nx = 1",
        "west/__init__.py": "from house.west.b import z",
        "west/quiet.py": "y = 1",
        "west/b.py": "from house.east.a import x\nz = 1",
    },
}
STRAIGHT = {
    "a chain": {"a.py": "from house.b import y\nx = 1", "b.py": "from house.c import y", "c.py": "y = 1"},
    "a package and its parts": {
        "__init__.py": "from house.east import x",
        "east/__init__.py": "from house.east.a import x",
        "east/a.py": "from house.east.b import x",
        "east/b.py": "x = 1",
    },
    "neighbours by name": {
        "east/__init__.py": "from house.east.a import x",
        "east/a.py": "from house.east import b\nx = b.x",
        "east/b.py": "x = 1",
    },
    "later": {"a.py": "def f():\n    from house.b import y\nx = 1", "b.py": "from house.a import x\ny = 1"},
    "for a type checker": {
        "a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.b import y\nx = 1",
        "b.py": "from house.a import x\ny = 1",
    },
}


def forget_house() -> None:
    for name in [name for name in sys.modules if name == "house" or name.startswith("house.")]:
        del sys.modules[name]


def python_imports_all(package: Path) -> bool:
    """Whether Python itself can import each module of the package first."""
    try:
        for path in package.rglob("*.py"):
            forget_house()
            importlib.import_module(".".join(["house", *path.relative_to(package).with_suffix("").parts]))
    except ImportError as error:
        assert "partially initialized" in str(error)
        return False
    finally:
        forget_house()
    return True


@pytest.mark.parametrize("name", [*CIRCLES, *STRAIGHT])
def test_circles_are_those_that_python_stumbles_over(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = write_package(tmp_path, (CIRCLES | STRAIGHT)[name])
    monkeypatch.syspath_prepend(str(tmp_path))
    assert python_imports_all(package) == (import_cycle(package) == []) == (name in STRAIGHT)


def test_a_circle_is_listed_in_the_order_of_its_imports(tmp_path: Path) -> None:
    files = {"a.py": "import house.b", "b.py": "import house.c", "c.py": "import house.a", "d.py": "import house.a"}
    found = import_cycle(write_package(tmp_path, files))
    assert "".join(name[-1] for name in found) in ("abca", "bcab", "cabc")
