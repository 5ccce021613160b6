"""Short names for content, so that saved predictions are reused only for the model and data they came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

from forde.errors import FordeError
from forde.hashing import Sha256


def fingerprint(*parts: str | np.ndarray | Tensor) -> str:
    """32 hexadecimal digits that change when any text, or any array's shape, type or values change.

    >>> fingerprint("a", np.zeros(2)) == fingerprint("a", np.zeros(2)) != fingerprint("a", np.zeros(3))
    True
    """
    digest = Sha256()
    for part in parts:
        if isinstance(part, str):
            digest.add(f"text {len(part)}:{part}")
            continue
        digest.add(f"array {list(part.shape)} {part.dtype}:")
        digest.add(part)
    return digest.hex()[:32]


def model_fingerprint(model: Callable[[Tensor], Any], model_id: str | None) -> str:
    """Of a module's class, structure and weights; of any other callable, of the `model_id` that names it.

    >>> model_fingerprint(nn.Linear(2, 1), None) == model_fingerprint(nn.Linear(2, 1), None)  # other weights
    False
    """
    if isinstance(model, nn.Module):
        state = model.state_dict()
        return fingerprint(model_id or "", repr(model), *state, *(t for t in state.values() if isinstance(t, Tensor)))
    if not model_id:
        raise FordeError(
            "saved predictions of a plain function cannot be told apart from another's; pass model_id='a name that "
            "changes with the model' or leave folder out."
        )
    return fingerprint(model_id)
