"""The fault tables of docs/reliability.md name tests that exist, and every test of a fault is in them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
RELIABILITY = ROOT / "docs" / "reliability.md"


def fault_tables() -> list[tuple[Path, list[str]]]:
    """Of each table whose last column names tests: the folder that names are relative to, and that column's cells."""
    tables = []
    for table in re.findall(r"(?:^\|.*\n)+", RELIABILITY.read_text(encoding="utf-8"), re.MULTILINE):
        header, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()]
        folder = re.fullmatch(r"test in `tests/(\w+)/`", header[-1])
        if folder is not None:
            assert all(len(row) == len(header) for row in rows), f"a row of another length under {header}"
            tables.append((ROOT / "tests" / folder[1], [row[-1] for row in rows]))
    return tables


def names_in(path: Path) -> set[str]:
    """Test functions and classes of a file, and `Class::test` within."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found.add(node.name)
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            inside = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
            found |= {node.name, *(f"{node.name}::{name}" for name in inside if name.startswith("test_"))}
    return found


def named_tests(folder: Path, cell: str) -> list[tuple[Path, str | None]]:
    """Files and tests in a cell; a test without a file is of the file before it."""
    found: list[tuple[Path, str | None]] = []
    for name in re.findall(r"`([^`]+)`", cell):
        file, _, test = name.partition("::")
        if file.endswith(".py"):
            found.append(((folder / file).resolve(), test or None))
        else:
            assert found, f"no file is named before '{name}'"
            found.append((found[-1][0], test or file))
    return found


def test_every_fault_has_a_test_that_exists() -> None:
    tables = fault_tables()
    assert len(tables) == 2 and all(len(cells) > 15 for _, cells in tables)
    for folder, cells in tables:
        for above, cell in zip(["", *cells], cells, strict=False):
            named = named_tests(folder, cell)
            assert named or (cell.startswith("the same") and above), f"no test is named in '{cell}'"
            for path, test in named:
                assert path.is_file(), f"'{path.name}' in '{cell}' is no file"
                assert test is None or test in names_in(path), f"'{path.name}' has no '{test}'"


def test_every_test_of_a_fault_is_in_a_table() -> None:
    """A test beside the others that no row names is a fault that the page forgot."""
    named = {pair for folder, cells in fault_tables() for cell in cells for pair in named_tests(folder, cell)}
    files = sorted(
        [*(ROOT / "tests" / "reliability").glob("test_*.py"), *(ROOT / "tests" / "hostile").glob("test_*.py")]
    )
    elsewhere = {"test_writers.py", "test_resume_cuda.py"}  # no faults: other places for records, and a GPU's tolerance
    for path in files:
        if path.name not in elsewhere and (path, None) not in named:
            missing = {test for test in names_in(path) if "::" not in test and (path, test) not in named}
            missing.discard("test_there_are_enough")  # counts the others
            missing -= {test.partition("::")[0] for of, test in named if of == path and test is not None}
            assert not missing, f"no row of {RELIABILITY.name} names {sorted(missing)} of {path.name}"
