"""`docs/architecture.md` lists one batch's way through the files; here the way is walked and compared.

`python tests/test_architecture.py` writes the list anew.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

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


class Call(NamedTuple):
    file: str
    function: str
    depth: int
    """How many functions of the library are being run, this one included."""


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, 3),
    )  # fmt: skip


def walk(
    make: Callable[[], nn.Module] = perceptron,
    shape: tuple[int, ...] = (8,),
    method: forde.Method | str = "forde-identity",
) -> list[Call]:
    """Calls of the library's functions in one step of two members, by default of FoRDE on perceptrons.

    The second step of a run, between two moves of the optimizer, turned so that it begins with drawing the batch.
    """
    calls: list[Call] = []
    moves = [0]

    def watch(frame: FrameType, event: str, _: Any) -> None:
        path, code = Path(frame.f_code.co_filename), frame.f_code
        if event != "call" or SOURCE not in path.parents or code.co_name.startswith("<"):
            return
        depth, above = 1, frame.f_back
        while above is not None:
            depth += SOURCE in Path(above.f_code.co_filename).parents
            above = above.f_back
        name = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on with the class
        calls.append(Call(path.relative_to(SOURCE).as_posix(), name, depth))

    class Watched(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            moves[0] += 1
            sys.setprofile(watch if moves[0] == 2 else None)
            return super().step(closure)

    x, y = torch.randn(32, *shape), torch.randint(3, (32,))
    ensemble = forde.Ensemble(make, 2)
    try:
        forde.fit(
            ensemble, method, (x, y), epochs=1, batch_size=8, engine="eager", verbose=False,
            optimizer=lambda parameters: Watched(parameters, lr=0.1), diagnostics_every=0,
        )  # fmt: skip
    finally:
        sys.setprofile(None)
    drawn = next(i for i, call in enumerate(calls) if call.file == "training/feed.py")
    return calls[drawn:] + calls[:drawn]


def files_of(calls: list[Call]) -> list[str]:
    """In the order of their first call."""
    return list(dict.fromkeys(call.file for call in calls))


def functions_of(calls: list[Call]) -> int:
    return len({call[:2] for call in calls})


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
    page, files = PAGE.read_text(encoding="utf-8"), files_of(walk())
    assert list(listed(page)) == files, "run: python tests/test_architecture.py"
    assert "…" not in listed(page).values(), "say in docs/architecture.md what each file does for the batch"
    assert rewritten(page, files) == page


def test_the_walk_leads_through_all_three_phases() -> None:
    """Else the two could agree on nothing."""
    files = files_of(walk())
    for file in ("training/loop.py", "step/core.py", "spaces/input_gradients.py", "kernels/rbf.py", "rules/wgd.py"):
        assert file in files
    assert files[0] == "training/feed.py"
    assert files.index("spaces/input_gradients.py") < files.index("kernels/rbf.py") < files.index("priors/isotropic.py")


def test_a_step_can_be_followed() -> None:
    """So many files and functions a reader may have to open, and no more."""
    calls = walk()
    depth = max(call.depth for call in calls) - min(call.depth for call in calls) + 1
    assert len(files_of(calls)) <= 15 and functions_of(calls) <= 40 and depth <= 8
    convolutions = walk(convolutional, (3, 8, 8))
    assert len(files_of(convolutions)) <= 18 and functions_of(convolutions) <= 55
    half = walk(convolutional, (3, 8, 8), forde.method("forde-pca", repulsion_fraction=0.5))
    assert len(files_of(half)) <= len(files_of(convolutions)) + 1
    assert functions_of(half) <= functions_of(convolutions) + 10


def classes() -> Iterator[tuple[str, type]]:
    """Every class of the library, with the folder or module that it is in."""
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE)
        if any(isinstance(node, ast.ClassDef) for node in ast.parse(path.read_text(encoding="utf-8")).body):
            module = importlib.import_module(".".join(("forde", *place.with_suffix("").parts)))
            for value in vars(module).values():
                if isinstance(value, type) and value.__module__ == module.__name__:
                    yield place.parts[0], value


def test_inheritance_is_at_most_two_deep() -> None:
    """Of the library's own classes; in what makes a step, a class and what it is a kind of, and no more."""
    found = {
        (place, kind): [own for own in kind.__mro__ if own.__module__.startswith("forde.")] for place, kind in classes()
    }
    assert len(found) > 200
    deep = {kind.__qualname__ for (_, kind), line in found.items() if len(line) - 1 > 2}
    assert not deep
    of_steps = {"step", "compile", "double_backward", "distributed", "engine.py"}
    assert not {kind.__qualname__ for (place, kind), line in found.items() if place in of_steps and len(line) - 1 > 1}


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
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), files_of(walk())), encoding="utf-8")
