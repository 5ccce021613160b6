"""A training of two processes, the second of which hangs for good after the first epoch.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29500 python hanging_train.py SECONDS
"""

from __future__ import annotations

import os
import sys
import threading

import torch
from sharded_cases import ensemble, fit

import forde
from forde.distributed import rendezvous


def hang(record: object) -> None:
    if os.environ["RANK"] == "1":
        print("hanging", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    torch.set_num_threads(1)
    rendezvous.SILENCE = float(sys.argv[1])
    try:
        fit(ensemble(), mesh=(2, 1), epochs=2, callback=hang)
    except forde.FordeError as error:
        print(error, flush=True)
        sys.exit(1)
