"""What the documentation shows works: its blocks run, in the order of each page, in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from docs_pages import PAGES, ROOT, SHELL, Block, blocks, forde_words, indented_blocks, lines_of
from forde.commands.options import LATER
from shown_lines import NOT_RUN, lay_out, smaller, why_not


def runs_here(line: str) -> bool:
    own_script = line.startswith("torchrun") and line.endswith(".py")
    return (forde_words(line) is not None or own_script) and why_not(line) is None


def run_in_shell(line: str) -> None:
    """A `forde` command runs in this process, with fewer epochs and members than are shown."""
    from typer.testing import CliRunner

    from forde.cli import app

    words = forde_words(line)
    if words is None:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *line.split()[1:]],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return
    result = CliRunner().invoke(app, smaller(words))
    out_of_time = result.exit_code == LATER and "--minutes" in words
    assert result.exit_code == 0 or out_of_time, f"{line}\n{result.output}\n{result.exception!r}"


def shown(page: Path) -> Iterator[Block]:
    """The blocks of a page in their order, those that are indented too: as a shell's."""
    indented = [Block("bash", code, None) for code in indented_blocks(page)]
    yield from (*blocks(page), *indented)


def has_something_to_run(page: Path) -> bool:
    return any(
        block.language == "python" or (block.language in SHELL and any(map(runs_here, lines_of(block.code))))
        for block in shown(page)
    )


# The method that CONTRIBUTING.md begins with is for a file of the package: see the last test. All its blocks are
# tried in test_contributing.py, and those of docs/tasks.md in test_tasks.py.
ELSEWHERE = ("CONTRIBUTING.md", "tasks.md")


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if has_something_to_run(page) and page.name not in ELSEWHERE],
    ids=lambda page: page.name,
)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FORDE_DATA", str(tmp_path / "data"))
    names: dict[str, Any] = {"__name__": "__main__"}
    with torch.random.fork_rng():
        for block in shown(page):
            if block.file:
                Path(block.file).write_text(block.code, encoding="utf-8")
            elif block.language == "python":
                exec(compile(block.code, f"{page.name}: {block.code[:60]!r}", "exec"), names)
            elif block.language in SHELL:
                for line in filter(runs_here, lines_of(block.code)):
                    run_in_shell(line)


def test_every_line_of_a_shell_is_run_or_says_why_not() -> None:
    """And each reason is that of a line that is shown."""
    shells = [block.code for page in PAGES for block in shown(page) if block.language in SHELL]
    lines = [line for code in shells for line in lines_of(code)]
    commands = [line for line in lines if re.match(r"(?:[A-Z_]+=\S+ +)*(forde|torchrun|python|pip|apt|make) ", line)]
    assert [line for line in commands if not runs_here(line) and why_not(line) is None] == []
    assert [pattern for pattern in NOT_RUN if not any(re.search(pattern, line) for line in commands)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """To a file that is there, and to a heading that it has."""
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page.name} links to {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    from markdown.extensions.toc import slugify

    headings = re.findall(r"^#+ (.+?)(?: \{ *#([\w-]+) *\})?$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {named or slugify(title, "-") for title, named in headings}


def test_lines_for_those_who_come_from_elsewhere_are_run() -> None:
    """What stands in the last column of docs/coming-from.md stands in its blocks too, which run."""
    page = ROOT / "docs" / "coming-from.md"
    code = "".join("".join(block.code for block in blocks(page)).split())
    rows = re.findall(r"^\| .* \| (.+) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    lines = [line for row in rows for line in re.findall(r"`([^`]+)`", row) if re.search(r"[(=\[]", line)]
    assert len(lines) > 40
    assert [line for line in lines if "".join(line.split()) not in code] == []


def follow_the_recipe(root: Path) -> None:
    """What "Add a method in one file" asks for, in a copy of the repository."""
    package = "src/forde/methods"
    recipe = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"`{package}/my_method.py`" in recipe and f"`{package}/__init__.py`" in recipe and "`__all__`" in recipe
    first = next(block.code for block in blocks(root / "CONTRIBUTING.md") if block.language == "python")
    (root / package / "my_method.py").write_text(first, encoding="utf-8")
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
history = forde.fit(ensemble, "my-method", (torch.randn(32, 4), torch.arange(32) % 3), epochs=2, verbose=False)
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
