"""`docs/architecture.md` lists one batch's way through the files; here the way is walked and compared.

`python tests/test_architecture.py` writes the list anew.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import forde

ROOT = Path(__file__).parents[1]
SOURCE = Path(forde.__file__).parent
TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "architecture.md"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), TESTS / "README.md"]
TO_BE_MADE = "src/forde/methods/my_method.py"
HEADING = "## One batch's way through the files\n"
LINE = re.compile(r"^\d+\. `([^`]+)` — (.+)$", re.MULTILINE)


def walk() -> list[str]:
    """Files of the library that one step of FoRDE on a perceptron enters, in the order of their first call.

    The second step of a run, between two moves of the optimizer, turned so that it begins with drawing the batch.
    """
    calls: list[tuple[str, str]] = []
    moves = [0]

    def watch(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and SOURCE in path.parents and not frame.f_code.co_name.startswith("<"):
            calls.append((path.relative_to(SOURCE).as_posix(), frame.f_code.co_name))

    class Watched(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            moves[0] += 1
            sys.setprofile(watch if moves[0] == 2 else None)
            return super().step(closure)

    x, y = torch.randn(32, 8), torch.randint(3, (32,))
    ensemble = forde.Ensemble(lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), 2)
    try:
        forde.fit(
            ensemble, "forde-identity", (x, y), epochs=1, batch_size=8, engine="eager", progress=False,
            optimizer=lambda parameters: Watched(parameters, lr=0.1), diagnostics_every=0,
        )  # fmt: skip
    finally:
        sys.setprofile(None)
    drawn = calls.index(("training/feed.py", "epoch"))
    return list(dict.fromkeys(file for file, _ in calls[drawn:] + calls[:drawn]))


def listed(page: str) -> dict[str, str]:
    """The files on the page, in order, with what it says of each."""
    section = page.partition(HEADING)[2].partition("\n## ")[0]
    return dict(LINE.findall(section))


def rewritten(page: str, files: list[str]) -> str:
    """The page with the list as it should be; what it says of a file stays."""
    before, heading, rest = page.partition(HEADING)
    section, end, after = rest.partition("\n## ")
    words = listed(page)
    lines = [f"{number}. `{file}` — {words.get(file, '…')}" for number, file in enumerate(files, start=1)]
    text = LINE.split(section)[0]
    return f"{before}{heading}{text}{chr(10).join(lines)}\n{end}{after}"


def test_the_page_lists_one_batchs_way_through_the_files() -> None:
    page, files = PAGE.read_text(encoding="utf-8"), walk()
    assert list(listed(page)) == files, "run: python tests/test_architecture.py"
    assert "…" not in listed(page).values(), "say in docs/architecture.md what each file does for the batch"
    assert rewritten(page, files) == page


def test_the_walk_leads_through_all_three_phases() -> None:
    """Else the two could agree on nothing."""
    files = walk()
    for file in ("training/loop.py", "step/core.py", "spaces/input_gradients.py", "kernels/rbf.py", "rules/wgd.py"):
        assert file in files
    assert files[0] == "training/feed.py"
    assert files.index("spaces/input_gradients.py") < files.index("kernels/rbf.py") < files.index("priors/isotropic.py")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    """A file by its path from `src/forde/`, the repository or the tests, except one to be made."""
    named = set(re.findall(r"`([\w./]+/[\w.]+\.py)`", page.read_text(encoding="utf-8"))) - {TO_BE_MADE}
    tops = (SOURCE, ROOT, TESTS, TESTS / "reliability")
    assert not [name for name in sorted(named) if not any((top / name).exists() for top in tops)]


def test_the_page_names_every_folder_of_the_step() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for folder in ("step", "compile", "distributed", "double_backward", "spaces", "kernels", "rules", "priors"):
        assert f"`{folder}/" in page


def test_a_list_that_is_behind_is_brought_up_to_date() -> None:
    page = f"# A\n\n{HEADING}\nText.\n\n1. `a.py` — draws\n2. `gone.py` — is gone\n\n## B\nmore\n"
    new = rewritten(page, ["b.py", "a.py"])
    assert new == f"# A\n\n{HEADING}\nText.\n\n1. `b.py` — …\n2. `a.py` — draws\n\n## B\nmore\n"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), walk()), encoding="utf-8")
