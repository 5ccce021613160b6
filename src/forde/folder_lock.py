"""One process at a time in a folder: a lock that the system takes back when the process dies, and who holds it.

`lock.json` says who. It is the lock on this file that counts, not its presence, so what a killed process left behind is
in nobody's way. Between machines that share a file system the lock holds as far as that system carries locks (NFS does,
from version 4 or with its lock service). One that carries none leaves the file's presence: there, a file of a process
of this machine that has ended is taken over, and one of another machine must be deleted by hand.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from forde.errors import FordeError

log = logging.getLogger(__name__)

NAME = "lock.json"
FAR = 1 << 30
"""Where Windows locks a byte, which nobody can read meanwhile: behind the text."""
HELD = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}
MOST_BYTES = 4096
_open: set[int] = set()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, or say who does.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with locked(folder):
    ...     try:
    ...         locked(folder).__enter__()
    ...     except FordeError as error:
    ...         str(error).partition("is in use by ")[2][:30]
    'another thread of this process'
    >>> list(folder.iterdir())
    []
    """
    path = folder / NAME
    descriptor = _acquired(path, folder)
    _open.add(descriptor)
    try:
        _sign(descriptor)
        yield
    finally:
        _open.discard(descriptor)
        with suppress(OSError):  # Windows keeps a file that is open
            path.unlink(missing_ok=True)  # while the lock is held, so that nobody else's file goes
        os.close(descriptor)
        with suppress(OSError):
            if os.name == "nt":
                path.unlink(missing_ok=True)


def _acquired(path: Path, folder: Path) -> int:
    """A descriptor of the file that lies there under this name, locked."""
    while True:
        descriptor, made = _opened(path)
        try:
            found = _try_lock(descriptor)
            if found is None:
                log.warning("'%s' is on a file system without locks; only the file says that it is in use", folder)
                found = made or _ended(path)
            if not found:
                raise FordeError(
                    f"'{folder}' is in use by {_holder(path)}; wait for it or stop it, or give another folder."
                )
            with suppress(OSError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # whoever held it has deleted it meanwhile


def _opened(path: Path) -> tuple[int, bool]:
    """A descriptor, and whether the file was made."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, flags | os.O_EXCL, 0o644), True
    except FileExistsError:
        return os.open(path, flags, 0o644), False


def _try_lock(descriptor: int) -> bool | None:
    """Whether the lock was free; None where there are no locks."""
    try:
        _lock(descriptor)
    except OSError as error:
        return False if error.errno in HELD else None
    except ImportError:
        return None
    return True


def _lock(descriptor: int) -> None:
    if os.name == "nt":
        import msvcrt

        os.lseek(descriptor, FAR, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        return
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of this opening of the file, so threads count too


def _sign(descriptor: int) -> None:
    """Write who holds it."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    text = json.dumps({"host": socket.gethostname(), "process": os.getpid(), "since": now}) + "\n"
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, text.encode())


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        with path.open("rb") as file:
            found = json.loads(file.read(MOST_BYTES))
        if isinstance(found, dict):
            return found
    return {}


def _holder(path: Path) -> str:
    """In words."""
    found = _read(path)
    host, process, since = (found.get(name) for name in ("host", "process", "since"))
    if not isinstance(process, int):
        return "another process"
    if host == socket.gethostname() and process == os.getpid():
        return f"another thread of this process (since {since})"
    return f"process {process} on '{host}' (since {since})"


def _ended(path: Path) -> bool:
    """Whether the process that signed the file ran on this machine and is no more."""
    found = _read(path)
    return has_ended(found.get("host"), found.get("process"))


def has_ended(host: object, process: object) -> bool:
    """Whether a process of this machine is no more; False where that cannot be known.

    >>> has_ended(socket.gethostname(), os.getpid()), has_ended("elsewhere", 1)
    (False, False)
    """
    if host != socket.gethostname() or not isinstance(process, int) or process <= 0 or os.name == "nt":
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _let_go() -> None:
    """A forked process (one that reads data) must not keep the lock when the one that trains has died."""
    for descriptor in list(_open):
        with suppress(OSError):
            os.close(descriptor)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
