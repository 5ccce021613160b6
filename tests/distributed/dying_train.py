"""`forde train` in which the last process is killed, once, when some epochs are done: `torchrun … dying_train.py …`."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch

from forde.__main__ import main


def die_after(metrics: Path, epochs: int) -> None:
    while not metrics.exists() or metrics.read_text().count("\n") < epochs:
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    first_time = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first_time and int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        folder = Path(sys.argv[sys.argv.index("--run") + 1])
        threading.Thread(target=die_after, args=(folder / "metrics.jsonl", 3), daemon=True).start()
    sys.exit(main())
