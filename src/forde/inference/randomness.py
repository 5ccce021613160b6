"""Whether somebody drew random numbers: what is computed once and repeated must not depend on them."""

from __future__ import annotations

import pickle
import random

import numpy as np
import torch


def random_state() -> bytes:
    """State of all generators that code usually draws from; it changes with every draw.

    >>> before = random_state()
    >>> before == random_state(), torch.rand(1).shape, before == random_state()
    (True, torch.Size([1]), False)
    """
    tensors = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        tensors += torch.cuda.get_rng_state_all()
    return pickle.dumps((random.getstate(), np.random.get_state(), [tensor.numpy().tobytes() for tensor in tensors]))
