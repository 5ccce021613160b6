"""SIGTERM, Ctrl-C and a closed terminal as a request to stop after the current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

NUMBERS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
"""SIGHUP, which a closed terminal sends, does not exist on Windows."""


@dataclass
class StopRequest:
    """Which signal has arrived, if any."""

    signal: signal.Signals | None = None


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Notes SIGTERM, Ctrl-C and SIGHUP instead of dying of them; a second Ctrl-C interrupts at once.

    A signal that is ignored stays so: Ctrl-C for what a script started with `&`, SIGHUP under `nohup`. Handlers belong
    to the main thread, so in any other nothing is noted.

    >>> with stop_requests() as request:
    ...     signal.raise_signal(signal.SIGTERM)
    >>> request.signal.name
    'SIGTERM'
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:
        if request.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = signal.Signals(number)

    heard = [number for number in NUMBERS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, note) for number in heard}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
