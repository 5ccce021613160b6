"""Processes find each other, and never those of an earlier attempt."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import torch.distributed as dist

from forde.distributed.rendezvous import fresh

SIZE = 4


def meet(store: dist.Store, size: int = SIZE) -> list[bytes]:
    """What each process reads of the first, in the part of the store that it was given."""

    def process(rank: int) -> bytes:
        own = fresh(store, rank, size)
        if rank == 0:
            own.set("address", uuid4().hex)
        return own.get("address")

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(process, range(size)))


def test_every_attempt_has_a_place_of_its_own() -> None:
    store = dist.HashStore()
    found = [meet(store) for _ in range(3)]
    assert all(len(set(each)) == 1 for each in found) and len({each[0] for each in found}) == 3


def test_an_attempt_that_did_not_get_far() -> None:
    """Two of four left their tokens and died before the first process came."""
    store = dist.HashStore()
    left = dist.PrefixStore("forde", store)
    for rank in (1, 3):
        left.set(f"here/{rank}", f"dead{rank}")
    assert len(set(meet(store))) == 1
