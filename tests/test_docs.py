"""The documentation's Python blocks run, in the order of each page, in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def code_of(page: Path) -> str:
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


def first_block_of(text: str) -> str:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]


# The method that CONTRIBUTING.md begins with is for a file of the package: see the last test. All its blocks are
# tried in test_contributing.py.
@pytest.mark.parametrize(
    "page", [page for page in PAGES if code_of(page) and page.name != "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code_of(page)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_train_have_what_they_need(page: Path) -> None:
    blocks = re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if "forde train " in line]
    for line in lines:
        for option in ("--data ", "--epochs ", "--run"):
            assert option in line, f"{page.name}: {line}"


def follow_the_recipe(root: Path) -> None:
    """What "Add a method in one file" asks for, in a copy of the repository."""
    package = "src/forde/methods"
    recipe = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"`{package}/my_method.py`" in recipe and f"`{package}/__init__.py`" in recipe and "`__all__`" in recipe
    (root / package / "my_method.py").write_text(first_block_of(recipe), encoding="utf-8")
    listing = root / package / "__init__.py"
    text = listing.read_text(encoding="utf-8")
    if "my_method" in text:  # a contributor runs the tests where it was followed
        return
    for pattern, mark in ((r"(?<=^from forde\.methods import )(.*)$", ""), (r"(?<=^__all__ = \[)([^]]*)", '"')):
        found = re.search(pattern, text, re.MULTILINE)
        assert found is not None
        names = sorted(
            {*re.findall(r'"?\w+"?', found[0]), f"{mark}my_method{mark}"},
            key=lambda name: (name.strip('"')[0].islower(), name),
        )
        text = text.replace(found[0], ", ".join(names), 1)
    listing.write_text(text, encoding="utf-8")


@pytest.mark.slow
def test_following_the_recipe_for_a_new_method(tmp_path: Path) -> None:
    """The method works, and all that finds it by itself stays green."""
    left_out = shutil.ignore_patterns("__pycache__", "golden", "*.egg-info")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=left_out)
    for name in ("CONTRIBUTING.md", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    follow_the_recipe(tmp_path)

    def run(*command: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stdout + done.stderr

    use = """
import torch, forde
assert forde.methods()["my-method"].startswith("One line")
ensemble = forde.Ensemble(lambda: torch.nn.Linear(4, 3), 3)
history = forde.fit(ensemble, "my-method", (torch.randn(32, 4), torch.arange(32) % 3), epochs=2, progress=False)
assert history["repulsion"][0] > 0
"""
    run("-W", "error", "-c", use)
    # Without this test itself, which would go on for ever.
    chosen = "(my-method or my_method or every_method or methods_are_listed or layers or CONTRIBUTING) and not recipe"
    run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/contract", "tests/test_docs.py",
        "tests/test_package.py", "tests/test_cli.py", "-k", chosen)  # fmt: skip
    run("-m", "ruff", "format", "--check", "--no-cache", "src/forde/methods/my_method.py")
    run("-m", "ruff", "format", "--no-cache", "src/forde/methods/__init__.py")
    run("-m", "ruff", "check", "--no-cache", "src/forde/methods")
