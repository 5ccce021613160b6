"""The log of a run, where several runs go on in one process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from short_runs import train

from forde.training.run_log import logged_to


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    """The `forde` logger, which every test must leave as it was."""
    found = logging.getLogger("forde")
    before = found.level, found.propagate, list(found.handlers)
    yield found
    after = found.level, found.propagate, list(found.handlers)
    found.setLevel(before[0])
    found.propagate, found.handlers = before[1], before[2]
    assert after == before


def overlapping(first: Path, second: Path) -> None:
    """The run that began first ends first, in a thread of its own."""
    entered, may_leave = threading.Event(), threading.Event()

    def run() -> None:
        with logged_to(first):
            logging.getLogger("forde.training").info("of the first")
            entered.set()
            may_leave.wait(10)

    thread = threading.Thread(target=run)
    thread.start()
    entered.wait(10)
    with logged_to(second):
        logging.getLogger("forde.training").info("of the second")
        may_leave.set()
        thread.join()
        logging.getLogger("forde.training").info("still of the second")


def test_runs_that_overlap_leave_the_logger_as_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    overlapping(tmp_path / "a", tmp_path / "b")
    logging.getLogger("forde.training").warning("heard")
    assert caplog.messages == ["heard"]


def test_each_has_its_own_lines(tmp_path: Path) -> None:
    overlapping(tmp_path / "a", tmp_path / "b")
    lines = [[line.partition("INFO ")[2] for line in (tmp_path / name).read_text().splitlines()] for name in "ab"]
    assert lines == [["of the first"], ["of the second", "still of the second"]]


def test_threads_without_a_run_are_heard_in_the_log(tmp_path: Path) -> None:
    with logged_to(tmp_path / "a"):
        helper = threading.Thread(target=lambda: logging.getLogger("forde.data").info("from a helper"))
        helper.start()
        helper.join()
    assert "from a helper" in (tmp_path / "a").read_text()


def test_after_concurrent_trainings_the_logger_is_heard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    started, meeting = [], threading.Barrier(2)

    def meet(record: object) -> None:
        if threading.get_ident() not in started:
            started.append(threading.get_ident())
            meeting.wait(30)

    threads = [threading.Thread(target=train, args=(tmp_path / name,), kwargs={"callback": meet}) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logging.getLogger("forde").warning("heard")
    assert caplog.messages == ["heard"]
    for own, other in (("a", "b"), ("b", "a")):
        text = (tmp_path / own / "log.txt").read_text()
        assert f"'{tmp_path / own / 'ensemble'}'" in text and f"'{tmp_path / other / 'ensemble'}'" not in text
