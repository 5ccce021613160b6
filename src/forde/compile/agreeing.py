"""What several processes agree on before they trace, verify, capture or drop a step: all of them do it, or none.

A step that is traced in one process and plain in another would still come to the same numbers. But while a step is
compiled, BatchNorm over data shards sends messages, and so does every question whether to go on; processes that do not
ask the same questions in the same order would wait for each other for good.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from typing import Protocol, TypeVar

from forde.errors import FordeError, first_line

T = TypeVar("T")
log = logging.getLogger(__name__)


class UnrecoverableError(FordeError):
    """What ends one process at once, because others wait for it where they cannot be told."""


class Company(Protocol):
    """All processes that make a step together; a mesh."""

    @property
    def shape(self) -> tuple[int, int]:
        """Shards of members × shards of the batch; process r is at (r // d, r % d)."""

    def all_reduce_max(self, numbers: list[int]) -> list[int]:
        """The largest of all processes' numbers, one by one."""

    def all_gather_values(self, value: T) -> list[T]:
        """Every process's value, in their order."""


def together(company: Company | None, work: Callable[[], str | None]) -> str | None:
    """Do something in every process; why not to go on in words, the same in all; None if nothing speaks against it.

    What is raised as FordeError in one process is raised in all.

    >>> together(None, lambda: None), together(None, lambda: "it branches on its data")
    (None, 'it branches on its data')
    """
    if company is None:
        return work()
    reason: str | None = None
    refused: FordeError | None = None
    try:
        reason = work()
    except UnrecoverableError:
        raise
    except FordeError as error:
        refused = error
    found = company.all_gather_values((reason, None if refused is None else str(refused)))
    if refused is not None:
        raise refused
    for index, (_, told) in enumerate(found):
        if told is not None:
            raise FordeError(f"process {index} of this training stopped: {told}")
    return reason or next((f"{told} (in process {index})" for index, (told, _) in enumerate(found) if told), None)


def attempt(work: Callable[[], str | None], *, talks: bool) -> str | None:
    """Do what may fail for any reason, such as tracing a network; why it cannot be done, in words.

    Args:
        talks: whether messages are sent meanwhile. A failure then ends this process, because those that share its batch
            wait in the middle of it.

    >>> attempt(lambda: 1 / 0, talks=False)
    'it cannot be traced or compiled (division by zero)'
    """
    try:
        return work()
    except FordeError:
        raise
    except Exception as error:  # whatever the compiler stumbles over, training goes on without it
        reason = f"it cannot be traced or compiled ({first_line(error)})"
        log.debug("engine: %s", reason, exc_info=error)
        if talks:
            raise UnrecoverableError(
                f"a compiled step failed in this process ({first_line(error)}), while others that share its batch wait "
                "for messages; use engine='eager'."
            ) from error
        return reason


def agreed_change(company: Company | None, change: str | None, key: object) -> str | None:
    """What has changed in the networks of any process, in words; None where nothing has.

    Args:
        change: in this process.
        key: the kind of batch, which must be the same everywhere.
    """
    if company is None:
        return change
    mark = zlib.crc32(repr(key).encode())
    changed, high, low = company.all_reduce_max([int(change is not None), mark, -mark])
    if high != -low:
        raise FordeError("the processes drew batches of different shapes; give all of them the same data.")
    if not changed:
        return None
    found = company.all_gather_values(change)
    shards = company.shape[1]
    for first in range(0, len(found), shards):
        sharing = found[first : first + shards]
        if len(set(sharing)) > 1:
            told = next(each for each in sharing if each is not None)
            raise FordeError(
                f"{told} in one process, but not in all that share a batch, so they no longer train the same networks; "
                "change it in all processes alike."
            )
    return next(each for each in found if each is not None)
