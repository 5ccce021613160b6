"""Function space (D'Angelo & Fortuin 2021, https://arxiv.org/abs/2106.11642): z_i = f(x; θ_i) on the mini-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from forde.errors import FordeError
from forde.spaces.base import Space, View

Kind = Literal["logits", "probs"]


@dataclass(frozen=True)
class Outputs(Space):
    """Members are compared by their outputs on the training batch.

    Args:
        of: `"logits"` (default) or `"probs"` (softmax or sigmoid, the default of D'Angelo & Fortuin's code).
        per_sample: compare sample by sample, `[B, C]`, instead of one vector for the whole batch, `[1, B·C]`.

    >>> Outputs(of="probs").scale
    'batch'
    """

    same_size_advice: ClassVar[str] = "give all members as many outputs"

    reads_labels: ClassVar[bool] = False

    of: Kind = "logits"
    per_sample: bool = False

    def __post_init__(self) -> None:
        if self.of not in ("logits", "probs"):
            raise FordeError(f"Outputs(of={self.of!r}) is unknown; expected 'logits' or 'probs'.")

    @property
    def mixes(self) -> Literal["representation", "weights"]:  # type: ignore[override]
        # Probabilities are not on the way from logits to the loss, so loss gradients cannot be mixed there.
        return "representation" if self.of == "logits" else "weights"

    @property
    def sample_axis(self) -> Literal[1, 2]:  # type: ignore[override]
        return 1 if self.per_sample else 2

    def represent(self, view: View) -> Tensor:
        z = view.output if self.of == "logits" else view.likelihood.probs(view.output)
        return z.reshape(len(z), -1) if self.per_sample else z.flatten().unsqueeze(0)
