"""`make test-oldest`: it asks for what the package promises, and says why where that cannot be had."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

import oldest

ROOT = Path(__file__).parents[1]


def test_it_is_the_oldest_that_the_package_allows() -> None:
    (least,) = re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert f"{least}.0" == oldest.OLDEST
    assert oldest.wheel().startswith(f"torch=={oldest.OLDEST}")


def test_the_tests_exist() -> None:
    names = (ROOT / "docs" / "networks.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in names for name in oldest.NETWORKS)
    assert all((ROOT / test.partition("::")[0]).exists() for test in oldest.TESTS)


@pytest.mark.parametrize(("arguments", "status"), [(["--optional"], 0), ([], 1)])
def test_without_the_wheel_one_sentence_says_so(
    arguments: list[str],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    # pip has nowhere to look, and would change nothing.
    nowhere = {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path), "CONFIG_FILE": os.devnull, "DRY_RUN": "1"}
    for name, value in nowhere.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setattr(oldest, "python_of", lambda environment: Path(sys.executable))
    assert oldest.main([*arguments, "--torch", f"torch=={oldest.OLDEST}+nowhere"]) == status
    said = capsys.readouterr().out
    assert said.startswith(f"tests with torch {oldest.OLDEST} were left out, because it cannot be had here: ")
    assert "nowhere" in said and said.count("\n") == 1


def test_tests_that_fail_fail_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(oldest, "python_of", lambda environment: Path(sys.executable))
    monkeypatch.setattr(oldest, "install", lambda *given: None)
    (tmp_path / "test_wrong.py").write_text("def test_wrong():\n    assert False\n")
    monkeypatch.setattr(oldest, "TESTS", (str(tmp_path / "test_wrong.py"),))
    assert oldest.main(["--optional"]) == 1
