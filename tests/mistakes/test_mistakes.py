"""The list of mistakes stays true to the source, and the tool tells those that are noticed from those that are not.

The list itself is tried with `python tests/mistakes`, which takes minutes.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from all_mistakes import MISTAKES
from trying import ROOT, SOURCE, Mistake, attempt, copied, problem


def test_every_mistake_can_still_be_made() -> None:
    complaints = [complaint for mistake in MISTAKES if (complaint := problem(mistake))]
    assert not complaints, "\n".join(complaints)


def test_every_test_that_should_notice_exists() -> None:
    for mistake in MISTAKES:
        assert mistake.tests, mistake.name
        for test in mistake.tests:
            file, *names = test.split("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            for name in names:
                found = re.search(rf"(def|class) {name}\b", text)
                assert found, f"{mistake.name}: there is no {name} in {file}; name the test that notices it."


def test_every_mistake_is_still_a_program() -> None:
    """One that does not even parse would be noticed by anything, and one that changes only the layout by nothing."""
    for mistake in MISTAKES:
        text = (SOURCE / "forde" / mistake.file).read_text(encoding="utf-8")
        if mistake.old in text:  # the rest is told of above
            right, wrong = (ast.dump(ast.parse(each)) for each in (text, text.replace(mistake.old, mistake.new)))
            changed = right != wrong
            assert changed, f"{mistake.name} changes nothing"


def test_names_are_unique() -> None:
    names = Counter(mistake.name for mistake in MISTAKES)
    assert names.most_common(1)[0][1] == 1


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, str]:
    """A package of one function under the library's name, and a test that looks at half of it."""
    package = tmp_path / "src" / "forde"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def pair(x):\n    return x + 1, x + 2\n")
    test = tmp_path / "test_small.py"
    test.write_text("import forde\n\ndef test_first():\n    assert forde.pair(0)[0] == 1\n")
    return tmp_path / "src", str(test)


@pytest.mark.parametrize(("old", "new", "noticed"), [("x + 1", "x - 1", True), ("x + 2", "x - 2", False)])
def test_what_a_test_looks_at_is_noticed(small: tuple[Path, str], old: str, new: str, noticed: bool) -> None:
    source, test = small
    outcome = attempt(Mistake("sign", "__init__.py", old, new, (test,)), source)
    assert outcome.noticed is noticed
    assert ("test_first" in outcome.says) is noticed
    assert old in (source / "forde" / "__init__.py").read_text(), "the source itself is never changed"


def test_tests_that_cannot_run_notice_nothing(small: tuple[Path, str]) -> None:
    source, test = small
    outcome = attempt(Mistake("sign", "__init__.py", "x + 1", "x - 1", (f"{test}::test_missing",)), source)
    assert not outcome.noticed and "could not run" in outcome.says


@pytest.mark.parametrize(("old", "times"), [("x + 7", 0), ("x + ", 2)])
def test_text_that_is_not_there_once_is_refused(small: tuple[Path, str], old: str, times: int) -> None:
    source, test = small
    mistake = Mistake("sign", "__init__.py", old, "x - ", (test,))
    assert f"occurs {times} times" in str(problem(mistake, source))
    with pytest.raises(SystemExit, match="sign"), copied([mistake], source):
        pass
