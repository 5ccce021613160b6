"""Threads take turns with the random numbers that a process has only once.

torch, numpy and Python's `random` each have one global generator, whatever the number of threads, and factories,
dropout and data sets draw from it. So what builds or trains networks holds the *turn*: the generators are its own until
it gives way, and stand where it left them when it has the turn again. Others that begin meanwhile start from the state
before the first of them. A thread that is alone pays for one look at an empty queue per step.

Draws by threads that neither build nor train are not seen here.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from forde.random_state import RandomState, get_random_state, set_random_state

log = logging.getLogger(__name__)


class _Turns:
    """A re-entrant lock that is handed over in the order of asking, and the generators' states of those who wait."""

    def __init__(self) -> None:
        self.queue: deque[object] = deque()
        self.forget()

    def forget(self) -> None:
        """Begin anew, as in a forked process: it has one thread, which waits for nobody."""
        self.changed = threading.Condition()
        self.queue.clear()
        self.holder: int | None = None
        self.last: int | None = None
        """Whose states the generators have."""
        self.open: dict[int, int] = {}
        """Thread → how many turns it has begun and not ended."""
        self.states: dict[int, RandomState] = {}
        """Thread → states when it gave way last."""
        self.outside: RandomState
        """States before the first of the turns that are open."""

    def take(self, what: str | None) -> None:
        """Wait until nobody else has the turn, and set the generators to this thread's states."""
        me, ticket = threading.get_ident(), object()
        if what is not None and self.holder is not None:
            log.info("%s: another thread builds or trains networks; they take turns", what)
        with self.changed:
            self.queue.append(ticket)
            try:
                while self.holder is not None or self.queue[0] is not ticket:
                    self.changed.wait()
                self.holder = me
            finally:
                self.queue.remove(ticket)
                self.changed.notify_all()
        if not self.open:
            self.outside = get_random_state()
        elif self.last != me:
            set_random_state(self.states.get(me, self.outside))
        self.last = me

    def give(self) -> None:
        """Let the next one have the turn."""
        if self.open.get(threading.get_ident()):
            self.states[threading.get_ident()] = get_random_state()
        with self.changed:
            self.holder = None
            self.changed.notify_all()

    @property
    def mine(self) -> bool:
        return self.holder == threading.get_ident()


_turns = _Turns()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_turns.forget)


@contextmanager
def turn(what: str) -> Iterator[None]:
    """The global generators are this thread's alone inside, but where it gives way; turns of one thread may nest.

    >>> import torch
    >>> with turn("outer"), turn("inner"):
    ...     torch.manual_seed(0).initial_seed()
    0
    """
    turns, me = _turns, threading.get_ident()
    held, begun = turns.mine, False
    try:
        if not held:
            turns.take(what)
        turns.open[me] = turns.open.get(me, 0) + 1
        begun = True
        yield
    finally:
        if begun:
            rest = turns.open.pop(me, 1) - 1
            if rest:
                turns.open[me] = rest
            else:
                turns.states.pop(me, None)
        if not held and turns.mine:
            turns.give()


@contextmanager
def paused() -> Iterator[None]:
    """Other threads may have the turn inside; for code of the user's, which may wait for them."""
    turns = _turns
    if not turns.mine:
        yield
        return
    turns.give()
    try:
        yield
    finally:
        turns.take(None)


def give_way() -> None:
    """Let those go first who wait for the turn; call it where `waiting` is not empty."""
    with paused():
        pass


waiting = _turns.queue
"""Who waits for the turn."""
