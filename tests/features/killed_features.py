"""Features of a slow network, for a test to kill: python killed_features.py FILE SECONDS_PER_BATCH."""

from __future__ import annotations

import sys
import time

import torch
from small_backbones import images, small

from forde.data.features import features

N, BATCH = 120, 8

if __name__ == "__main__":
    torch.set_num_threads(1)
    backbone, pause = small(), float(sys.argv[2])
    backbone.network.register_forward_pre_hook(lambda *_: time.sleep(pause))
    features(backbone, images(N), sys.argv[1], batch_size=BATCH, save_seconds=0, device="cpu")
