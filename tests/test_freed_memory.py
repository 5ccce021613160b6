"""What a step frees is there for the next one."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PAGES_OF_A_LATER_ROUND = """
import ctypes, resource
from forde.step.plain import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
blocks = (ctypes.c_void_p * 32)()
{first}
for _ in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for i in range(32):  # of 1 MiB each; nothing else is asked for between, which might hold on to them
        blocks[i] = libc.malloc(2**20)
        ctypes.memset(blocks[i], 1, 2**20)
    for i in range(32):
        libc.free(ctypes.c_void_p(blocks[i]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(first: str) -> int:
    """Pages that the system had to find for 8192 pages of blocks, which had been freed just before."""
    script = PAGES_OF_A_LATER_ROUND.format(first=first)
    return int(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that gives freed memory back")
def test_memory_is_not_asked_for_again() -> None:
    assert faults("") > 4096  # otherwise there is nothing to do
    assert faults("keep_freed_memory()") < 64
