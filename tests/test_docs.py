"""The documentation's Python blocks run, in the order of each page, in an empty folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def code_of(page: Path) -> str:
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("page", [page for page in PAGES if code_of(page)], ids=lambda page: page.name)
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


def test_the_skeleton_in_contributing_is_a_working_method(tmp_path: Path) -> None:
    use = """
import torch, forde
assert "my-method" in forde.methods()
ensemble = forde.Ensemble(lambda: torch.nn.Linear(4, 3), 3)
history = forde.fit(ensemble, "my-method", (torch.randn(32, 4), torch.arange(32) % 3), epochs=2, progress=False)
assert history["repulsion"][0] > 0
"""
    code = code_of(ROOT / "CONTRIBUTING.md") + use
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
