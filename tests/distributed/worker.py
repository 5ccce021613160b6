"""One process of a mesh: does every job of a list, and the first process notes what all had to say.

RANK=0 WORLD_SIZE=2 python worker.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from sharded_jobs import RUNNERS

import forde.compile.step

if __name__ == "__main__":
    torch.set_num_threads(1)
    forde.compile.step.can_fuse = lambda device: False  # compiled steps are traced, and no C++ compiler is at work
    folder = Path(sys.argv[1])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size)
    for name, job in json.loads((folder / "jobs.json").read_text()).items():
        try:
            found = RUNNERS[job["kind"]](job)
        except Exception:
            found = {"failed": traceback.format_exc()}
        everything: list[object] = [None] * size
        dist.all_gather_object(everything, found)
        if rank == 0:
            torch.save(everything, folder / "unfinished")
            (folder / "unfinished").replace(folder / f"{name}.pt")  # whoever waits for it sees all of it
    dist.destroy_process_group()
