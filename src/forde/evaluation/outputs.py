"""What a model returns, brought into one form: log-probabilities of members `[M, B, C]`."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from forde.errors import FordeError

OutputKind = Literal["logits", "probs"]


def member_log_probs(outputs: Tensor, kind: OutputKind = "logits") -> Tensor:
    """Logits or probabilities `[M, B, C]` (or `[B, C]` of one network) → log-probabilities `[M, B, C]`.

    In float32 or better. A probability of exactly 0 becomes the smallest normal float32, 1.2e-38: one such label costs
    87 nats, where infinity would hide everything else in the mean.

    >>> member_log_probs(torch.tensor([[0.0, 1.0]]), "probs")
    tensor([[[-87.3365,   0.0000]]])
    """
    if kind not in ("logits", "probs"):
        raise FordeError(f"outputs is {kind!r}, but 'logits' or 'probs' was expected.")
    if outputs.dim() == 2:
        outputs = outputs.unsqueeze(0)
    if outputs.dim() != 3:
        raise FordeError(
            f"the model returned shape {list(outputs.shape)}, but [members, batch, classes] or [batch, classes] "
            "was expected."
        )
    values = outputs if outputs.dtype == torch.float64 else outputs.float()
    if kind == "probs":
        return values.clamp_min(torch.finfo(torch.float32).tiny).log()
    return values.log_softmax(-1)


def problem_with(outputs: Tensor, kind: OutputKind) -> Tensor:
    """Whether outputs are no predictions: not finite, or probabilities that do not sum to 1; a bool on the device.

    A tensor, so that a GPU is asked once per data set and not once per batch.

    >>> problem_with(torch.tensor([[0.5, 0.6]]), "probs")
    tensor(True)
    """
    bad = ~outputs.isfinite().all()
    if kind == "probs":
        total = outputs.sum(-1)
        bad = bad | (outputs < 0).any() | ((total - 1).abs() > 1e-2).any()
    return bad
