"""Predictions as columns: what `forde predict` writes for classes and for quantities."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forde.data.known_inputs import Inputs
from forde.durable import make_folder, write_whole
from forde.errors import FordeError
from forde.evaluation.runs.reference import Reference, uncertainty_of
from forde.metrics.regression import mixture_quantile
from forde.prediction import ClassificationPrediction, Prediction, RegressionPrediction

SUFFIXES = (".csv", ".parquet")
Columns = Mapping[str, Sequence[Any] | np.ndarray]


def columns_of(
    prediction: Prediction, inputs: Inputs, reference: Reference | None, *, doubt: float, level: float
) -> dict[str, Any]:
    """Name → values `[N]`.

    Args:
        doubt: a prediction is not to be trusted if at most this share of the reference is as uncertain.
        level: the probability of the interval of a quantity.
    """
    if isinstance(prediction, ClassificationPrediction):
        found = _of_classes(prediction, inputs)
    elif isinstance(prediction, RegressionPrediction) and prediction.mean.dim() == 1:
        found = _of_quantities(prediction, inputs, level)
    else:
        raise FordeError(
            f"forde predict writes classes and quantities, but the run gives a {type(prediction).__name__}; call "
            "forde.load_run(...).predict for it."
        )
    if reference is None:
        return found
    share = reference.share(uncertainty_of(prediction)).numpy()
    first = {name: found[name] for name in list(found)[: 2 if "label" in found else 3]}
    trust = {"do_not_trust": np.where(share <= doubt, "yes", "no"), "share_as_uncertain": share}
    return {**first, **trust, **found}


def _of_classes(prediction: ClassificationPrediction, inputs: Inputs) -> dict[str, Any]:
    probs = prediction.probs.double().numpy()
    labels, names = probs.argmax(1), inputs.classes or tuple(map(str, range(probs.shape[1])))
    return {
        "label": [names[label] for label in labels],
        "probability": probs.max(1),
        "total": prediction.total.double().numpy(),
        "aleatoric": prediction.aleatoric.double().numpy(),
        "epistemic": prediction.epistemic.double().numpy(),
        **{f"p_{name}": probs[:, place] for place, name in enumerate(names)},
    }


def _of_quantities(prediction: RegressionPrediction, inputs: Inputs, level: float) -> dict[str, Any]:
    ends = [
        mixture_quantile(prediction.member_means, prediction.member_variances, end)
        for end in ((1 - level) / 2, (1 + level) / 2)
    ]
    return {
        "mean": prediction.mean.double().numpy(),
        "low": ends[0].numpy(),
        "high": ends[1].numpy(),
        "total_std": prediction.std.double().numpy(),
        "aleatoric_std": prediction.aleatoric.sqrt().double().numpy(),
        "epistemic_std": prediction.epistemic.sqrt().double().numpy(),
    }


def as_csv(columns: Columns) -> bytes:
    """The columns as a CSV file, numbers to six significant digits.

    >>> as_csv({"label": ["a, b"], "probability": np.array([1 / 3])})
    b'label,probability\\n"a, b",0.333333\\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*([_shown(one) for one in values] for values in columns.values()), strict=True))
    return text.getvalue().encode()


def _shown(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else value


def write_columns(columns: Columns, path: Path) -> None:
    """A CSV or Parquet file, whole or as it was."""
    if path.suffix.lower() == ".csv":
        content = as_csv(columns)
    else:
        import pyarrow as pa
        from pyarrow import parquet

        sink = pa.BufferOutputStream()
        parquet.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), sink)
        content = sink.getvalue().to_pybytes()
    make_folder(path.parent)
    write_whole(path, content)
