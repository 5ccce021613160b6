"""How processes find each other in a store that may remember an earlier attempt.

torchrun keeps one store for a job, and when it starts the processes again they would read in it where those that are
dead were to be found. So they agree on a name that no earlier attempt had, under which all else is kept: each process
leaves a token of its own, the first answers to it with the name, and waits until all have said that they read it.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from uuid import uuid4

import torch.distributed as dist

from forde.errors import FordeError

PAUSE = 0.01
"""Seconds between two looks at the store."""
PATIENCE = 300
"""Seconds until a process that did not appear counts as lost; torch's stores wait as long."""
SILENCE = 1800.0
"""Seconds for which the others wait for a process that trains; one that hangs longer ends the job. Reading data,
compiling a step and writing a checkpoint, for which all may wait for one, take less."""


def limit() -> timedelta:
    """`SILENCE` as torch takes it."""
    return timedelta(seconds=SILENCE)


def start_process_group(backend: str) -> None:
    """torch's process group of all processes, from the environment that torchrun sets."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        dist.init_process_group(backend, timeout=limit())
        return
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, is_master=False)
    dist.init_process_group(backend, store=fresh(store, rank, size), rank=rank, world_size=size, timeout=limit())


def fresh(store: dist.Store, rank: int, size: int) -> dist.Store:
    """The part of a store that only the processes of this attempt use.

    >>> store = dist.HashStore()
    >>> store.set("address", "of a process that is dead")
    >>> fresh(store, rank=0, size=1).check(["address"])
    False
    """
    store = dist.PrefixStore("forde", store)
    token = uuid4().hex
    if rank == 0:
        _invite(store, token, set(range(1, size)))
        return dist.PrefixStore(token, store)
    store.set(f"here/{rank}", token)
    name = store.get(f"answer/{token}").decode()  # waits for it
    store.set(f"read/{name}/{rank}", "")
    return dist.PrefixStore(name, store)


def _invite(store: dist.Store, name: str, missing: set[int]) -> None:
    deadline = time.monotonic() + PATIENCE
    answered: set[str] = set()
    while missing:
        for rank in list(missing):
            if store.check([f"read/{name}/{rank}"]):
                missing.discard(rank)
            elif store.check([f"here/{rank}"]) and (token := store.get(f"here/{rank}").decode()) not in answered:
                store.set(f"answer/{token}", name)  # perhaps to one that is dead; its successor leaves another token
                answered.add(token)
        if time.monotonic() > deadline:
            late = ", ".join(str(rank) for rank in sorted(missing))
            raise FordeError(f"processes {late} did not appear; look at what they said, and start all again.")
        time.sleep(PAUSE if missing else 0)
