"""What is easy to get wrong is written once: files that are whole, hashes, random-number state, CUDA graphs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "forde"
HOMES = {
    "os.fsync": {"durable.py"},
    "tempfile.mkstemp": set(),
    "tempfile.NamedTemporaryFile": set(),
    "os.replace": set(),
    "os.rename": set(),
    "temporary.replace": {"durable.py"},
    "hashlib.sha256": {"hashing.py"},
    "hashlib.blake2b": {"hashing.py"},
    "hashlib.md5": {"hashing.py"},
    "torch.get_rng_state": {"random_state.py"},
    "torch.set_rng_state": {"random_state.py"},
    "torch.cuda.get_rng_state": {"random_state.py"},
    "torch.cuda.set_rng_state": {"random_state.py"},
    "np.random.get_state": {"random_state.py"},
    "np.random.set_state": {"random_state.py"},
    # Processes of a mesh fork them by their own devices.
    "torch.random.fork_rng": {"random_state.py", "step/sharded.py"},
    "torch.cuda.graph": {"cuda_graph.py"},
}


def calls() -> dict[str, set[str]]:
    """Dotted names that are called, and the files in which they are."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                found.setdefault(ast.unparse(node.func), set()).add(str(path.relative_to(SOURCE)))
    return found


@pytest.mark.parametrize("name", HOMES)
def test_is_called_in_its_own_file_only(name: str) -> None:
    assert calls().get(name, set()) <= HOMES[name]


def test_the_names_are_those_in_use() -> None:
    """Else a name above could be misspelt, and its rule say nothing."""
    found = calls()
    for file in ("durable.py", "hashing.py", "random_state.py", "cuda_graph.py"):
        assert any(file in homes and file in found.get(name, ()) for name, homes in HOMES.items()), file


def test_every_test_file_has_a_name_of_its_own() -> None:
    """pytest takes two of one name for the same module, and stops."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
