"""Letting the process keep the memory that a step on a CPU frees, since the next step asks for it again.

glibc gives blocks above a threshold back to the system at once, and other memory when enough of it is free; each page
that comes back later costs a fault. Its thresholds follow the largest block freed so far, up to 32 MiB. Activations of
small networks are smaller than that, and there are many of them.
"""

from __future__ import annotations

import torch

LARGEST_THAT_COUNTS = 2**25
ROUNDING = 2**14
"""More than what glibc adds to a block."""


def keep_freed_memory() -> None:
    """Free one large block, as a program with larger networks would: 64 MiB of free memory stay from then on.

    Nothing is written to the block, so the system never has to find memory for it. Other allocators do not mind.

    >>> keep_freed_memory()
    """
    torch.empty(LARGEST_THAT_COUNTS - ROUNDING, dtype=torch.uint8, device="cpu")
