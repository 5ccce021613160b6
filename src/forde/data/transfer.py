"""Fetching one file over HTTP: continued where it broke off, checked, and never half there under its name."""

from __future__ import annotations

import http.client
import queue
import shutil
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from forde.errors import FordeError
from forde.hashing import file_md5
from forde.reading.files import MAX_SHOWN

Progress = Callable[[int, int | None], None]
"""Called with the bytes received so far and, where the server says it, all bytes."""

BLOCK = 1 << 20
TIMEOUT = 30.0
"""Seconds without an answer."""
ATTEMPTS = 4
PAUSE = 0.5
"""Seconds before the second attempt; twice that before the third, and so on."""
MAX_BYTES = 8 << 30
MAX_SECONDS = 86_400.0
"""For all of a file, attempts included."""
SLOWEST = 2_000
"""Bytes per second, on average over an attempt; a server that sends a byte now and then would never time out."""
GRACE = 60.0
"""Seconds until the first look at the average."""


class _StaysSecure(urllib.request.HTTPRedirectHandler):
    """Follows redirections to other places on the web, but never from https to anything less."""

    def redirect_request(  # noqa: PLR0917 - as urllib calls it
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        kinds = ("https",) if req.type == "https" else ("http", "https")
        if urllib.parse.urlsplit(newurl).scheme.lower() not in kinds:
            fp.close()
            raise FordeError(
                f"{req.full_url} leads to {newurl[:MAX_SHOWN]}, which is not {' or '.join(kinds)}; see whether the "
                "publisher moved it."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _BrokenOffError(Exception):
    """The transfer ended early; another attempt may continue it."""


def fetch(
    url: str, target: Path, *, md5: str | None, progress: Progress | None = None, max_bytes: int = MAX_BYTES
) -> Path:
    """Fetch a file to `target`, which appears only when it is complete and has the checksum.

    What has arrived is kept in `<target>.part`, and a later call goes on from there. Without a checksum it starts
    anew, since nothing would tell whether the server's file is still the same.
    """
    part = target.with_name(f"{target.name}.part")
    end = time.monotonic() + MAX_SECONDS
    for attempt in range(1, ATTEMPTS + 1):
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            _receive(url, part, resume=md5 is not None, progress=progress, max_bytes=max_bytes, end=end)
            break
        except _BrokenOffError as error:
            if attempt == ATTEMPTS:
                raise FordeError(
                    f"the transfer of {url} broke off after {part.stat().st_size:,} bytes; run the same command again, "
                    "and it goes on from there."
                ) from error
            time.sleep(PAUSE * 2 ** (attempt - 1))
        except OSError as error:  # the network's errors have become others by now
            raise FordeError(
                f"'{part}' cannot be written ({error.strerror}); make room or choose another folder, and run the same "
                "command again."
            ) from error
    if md5 is not None and (found := file_md5(part)) != md5:
        part.unlink()
        raise FordeError(
            f"what {url} sent has the MD5 {found}, but {md5} was expected; it was deleted, try again or get the file "
            "elsewhere."
        )
    return part.replace(target)


def _receive(url: str, part: Path, *, resume: bool, progress: Progress | None, max_bytes: int, end: float) -> None:
    start = part.stat().st_size if resume and part.exists() else 0
    headers = {"User-Agent": "forde"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        answer = _answer(urllib.request.Request(url, headers=headers))
    except FordeError:
        raise
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # nothing is left to send: the part is whole, and the checksum decides
            return
        said = str(error.reason).partition("\n")[0]
        raise FordeError(f"{url} answered {error.code} {said}; see whether the publisher moved it.") from error
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise FordeError(f"{url} cannot be reached ({reason}); check the network and try again.") from error
    with answer:
        if not (answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")):
            start = 0  # the server sends the whole file
        length = answer.headers.get("Content-Length")
        # Not isdigit, which takes "²" for a number; int refuses thousands of digits.
        total = start + int(length) if length and length.isdecimal() and len(length) < 20 else None
        _check_room(url, part, total, start, max_bytes)
        with part.open("ab" if start else "wb") as file:
            received = start
            for block in _blocks(answer, url, end):
                received += len(block)
                if received > max_bytes:
                    raise _too_large(url, max_bytes)
                file.write(block)
                if progress:
                    progress(received, total)
    if total is not None and received < total:
        raise _BrokenOffError


def _answer(request: urllib.request.Request) -> Any:
    """The server's answer up to its headers, which must be there in time: a read that times out begins anew with each
    byte, so a thread of its own asks, and is left behind if need be.
    """
    result: queue.SimpleQueue[Any] = queue.SimpleQueue()
    given_up = threading.Event()

    def ask() -> None:
        try:
            answer = urllib.request.build_opener(_StaysSecure).open(request, timeout=TIMEOUT)
            if given_up.is_set():
                answer.close()
            result.put(answer)
        except BaseException as error:  # raised again where somebody waits for it
            result.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        found = result.get(timeout=2 * TIMEOUT)
    except queue.Empty:
        given_up.set()
        raise TimeoutError("timed out") from None
    if isinstance(found, BaseException):
        raise found
    return found


def _blocks(answer: Any, url: str, end: float) -> Iterator[bytes]:
    """What arrives, as it arrives; a transfer that would take too long ends with what is there."""
    begun, received = time.monotonic(), 0
    try:
        while block := answer.read1(BLOCK):
            received += len(block)
            yield block
            now = time.monotonic()
            if now > end or received < SLOWEST * (now - begun - GRACE):
                raise FordeError(
                    f"{url} sends too slowly, {received:,} bytes in {now - begun:.0f} s; run the same command again "
                    "later, and it goes on from there."
                )
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOffError from error


def _check_room(url: str, part: Path, total: int | None, start: int, max_bytes: int) -> None:
    if total is None:
        return
    if total > max_bytes:
        raise _too_large(url, max_bytes)
    free = shutil.disk_usage(part.parent).free
    if total - start > free:
        raise FordeError(f"{url} needs {total - start:,} bytes, but '{part.parent}' has {free:,} left; make room.")


def _too_large(url: str, max_bytes: int) -> FordeError:
    return FordeError(f"{url} sends more than the {max_bytes:,} bytes that are allowed; get the file by hand.")
