"""Who imports whom in a package, read from its source without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal

When = Literal["load", "call", "typing"]


@dataclass(frozen=True)
class Import:
    """One module named by one import, and when it runs: at load, in a call, or only for a type checker."""

    importer: str
    imported: str
    line: int
    when: When

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def module_files(folder: Path) -> dict[str, Path]:
    """Every module of the package in `folder` by its dotted name; a package's own name is its `__init__.py`."""
    files = {}
    for path in sorted(folder.rglob("*.py")):
        parts = [folder.name, *path.relative_to(folder).with_suffix("").parts]
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imports(folder: Path) -> list[Import]:
    """Every import of the package in `folder` that names a module of the same package.

    `from package import x` names the module `package.x` if there is one, else `package`. An import of `package.a.b`
    is listed as that one module, although Python loads `package` and `package.a` first.
    A name that is put together at run time, as in `import_module(f"package.{x}")`, cannot be seen.
    """
    files = module_files(folder)
    found = []
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node, when in _import_nodes(ast.parse(path.read_text(encoding="utf-8")), "load"):
            for other in _named(node, package, set(files)):
                if other == folder.name or other.startswith(f"{folder.name}."):
                    found.append(Import(name, other, node.lineno, when))
    return found


def _import_nodes(node: ast.AST, when: When) -> Iterator[tuple[ast.Import | ast.ImportFrom | ast.Call, When]]:
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Call)):
        yield node, when
    if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING":
        for child in node.body:
            yield from _import_nodes(child, "typing")
        for child in node.orelse:
            yield from _import_nodes(child, when)
        return
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and when == "load":
        when = "call"
    for child in ast.iter_child_nodes(node):
        yield from _import_nodes(child, when)


def _named(node: ast.Import | ast.ImportFrom | ast.Call, package: str, modules: set[str]) -> list[str]:
    """The modules that an import names; `package` is what a relative import starts from."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            start = package.rsplit(".", node.level - 1)[0]
            base = f"{start}.{base}" if base else start
        inside = [f"{base}.{alias.name}" for alias in node.names]
        return list(dict.fromkeys(name if name in modules else base for name in inside))
    if _last_name(node.func) in ("import_module", "__import__") and node.args:
        name = node.args[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            return [name.value]
    return []


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def top_level_names(folder: Path) -> set[str]:
    """The folders and modules right inside a package, `__init__` among them."""
    return {path.relative_to(folder).parts[0].removesuffix(".py") for path in folder.rglob("*.py")}


def forbidden_imports(folder: Path, layers: list[set[str]]) -> list[Import]:
    """Imports between top-level folders or modules that do not go from a later layer to an earlier one.

    Neighbours in one layer do not import each other, so that folders can never form a circle. Nothing may import, or
    be imported by, what is in no layer. Imports in functions and for a type checker count like any other: they run
    later or never, but their author had to know the other folder all the same.
    """
    level = {name: index for index, layer in enumerate(layers) for name in layer}
    forbidden = []
    for found in imports(folder):
        own, other = _top_level(found.importer), _top_level(found.imported)
        if own != other and level.get(other, len(layers)) >= level.get(own, -1):
            forbidden.append(found)
    return forbidden


def _top_level(module: str) -> str:
    """The folder or module right inside the package that a module belongs to; `__init__` for the package itself."""
    return [*module.split("."), "__init__"][1]


def import_cycle(folder: Path) -> list[str]:
    """Modules that import each other in a circle while they load, the first one repeated at the end; or nothing.

    Python loads `a` and `a.b` before `a.b.c`, so whoever imports the last depends on all three, except on those that
    contain the importer: these are loading already. Imports in functions and for a type checker do not run at load.
    """
    graph: dict[str, set[str]] = {name: set() for name in module_files(folder)}
    for found in imports(folder):
        if found.when == "load":
            around = _with_parents(found.importer)
            graph[found.importer] |= {found.imported} | (_with_parents(found.imported) - around)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])[::-1]  # the sorter lists each module before the one that imports it
    return []


def _with_parents(module: str) -> set[str]:
    parts = module.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
