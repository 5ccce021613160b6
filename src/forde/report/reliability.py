"""Reliability diagrams: how often predictions of a given confidence are right."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from forde.evaluation import ece, reliability


def draw_reliability(predictions: Mapping[str, tuple[Tensor, Tensor]], path: Path, *, n_bins: int = 15) -> Path:
    """One panel per method: bars of accuracy per confidence bin against the diagonal of perfect calibration.

    Args:
        predictions: for each title, probabilities `[N, C]` and labels `[N]`.
        path: PNG file to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(predictions), 3.6), layout="constrained")
    axes = figure.subplots(1, len(predictions), sharey=True, squeeze=False)[0]
    for axis, (title, (probs, labels)) in zip(axes, predictions.items(), strict=True):
        table = reliability(probs, labels, n_bins)
        filled = table.counts > 0
        # In numpy's arrays: matplotlib subtracts them, of which NumPy warns with tensors.
        centres = ((filled.nonzero().flatten() + 0.5) / n_bins).numpy()
        accuracy, confidence = table.accuracy[filled].numpy(), table.confidence[filled].numpy()
        axis.bar(centres, accuracy, width=1 / n_bins, color="#4477aa", edgecolor="white", label="accuracy")
        axis.plot(confidence, accuracy, "o", color="#ee6677", markersize=3, label="bin means")
        axis.plot([0, 1], [0, 1], "--", color="0.4", linewidth=1, label="perfect calibration")
        axis.set(title=f"{title}\nECE {ece(probs, labels, n_bins):.4f}", xlabel="confidence", xlim=(0, 1), ylim=(0, 1))
    axes[0].set_ylabel("accuracy")
    axes[0].legend(loc="upper left", fontsize=8)
    figure.savefig(path, dpi=150)
    return path
