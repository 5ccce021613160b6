"""The inputs that members disagree about most, with each member's prediction and what it looks at.

For a member i the picture is ∂f_i/∂x, f the scalar that the likelihood names: for classes the logit of the class that
the ensemble predicts, for a quantity the mean. They are computed once, when a run is evaluated, so that a report needs
neither the network nor the data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from forde.data.description import Images, Table
from forde.durable import write_whole
from forde.errors import FordeError
from forde.evaluation.runs.inputs import inputs_of, labels_of, predicted, rows_in_order, to_units
from forde.prediction import ClassificationPrediction, RegressionPrediction
from forde.training.diagnostics import outputs_and_gradients
from forde.training.trained import TrainedRun

EXAMPLES = "examples.safetensors"
MOST = 6
FORMAT = "forde-examples-1"


@dataclass(frozen=True)
class Examples:
    """K inputs, those with the largest epistemic uncertainty first."""

    inputs: np.ndarray
    """uint8 images `[K, H, W, C]`, or rows of a table in their own units `[K, D]`."""
    targets: np.ndarray
    """`[K]` classes or quantities."""
    rows: np.ndarray
    """`[K]` their places in the data, from 0."""
    members: np.ndarray
    """`[M, K, C]` probabilities; of a quantity `[M, K, 2]`, mean and standard deviation."""
    sensitivity: np.ndarray
    """Images: ∂f/∂x summed over channels `[M, K, H, W]`; rows: x' ∂f/∂x' in standard units, each column's contribution
    `[M, K, D]`."""
    uncertainty: np.ndarray
    """`[K]` epistemic uncertainty, in nats or as standard deviation."""
    features: tuple[str, ...] = ()

    def save(self, folder: Path) -> None:
        """Write them into the folder of an evaluation."""
        from safetensors.numpy import save

        names = [name for name in self.__dataclass_fields__ if name != "features"]
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in names}
        write_whole(folder / EXAMPLES, save(arrays, metadata={"format": FORMAT, "features": json.dumps(self.features)}))

    @classmethod
    def load(cls, folder: Path) -> Examples | None:
        """Those of an evaluation; None where there are none, as a run of one member has none."""
        from safetensors import safe_open

        path = folder / EXAMPLES
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="np") as file:
                features = tuple(map(str, json.loads(file.metadata()["features"])))
                names = [name for name in cls.__dataclass_fields__ if name != "features"]
                return cls(**{name: file.get_tensor(name) for name in names}, features=features)
        except Exception:  # a damaged file can raise anything, from SafetensorError to TypeError
            raise FordeError(f"'{path}' is damaged; evaluate the run again.") from None


def find_examples(run: TrainedRun, data: Images | Table, epistemic: Tensor) -> Examples | None:
    """The inputs of largest epistemic uncertainty `[N]`; None for one member, who has nobody to disagree with."""
    if run.ensemble.n_members < 2:
        return None
    chosen = epistemic.argsort(descending=True, stable=True)[:MOST]
    transform, inputs = inputs_of(run, data)
    picked = np.array(inputs[chosen.numpy()])
    x = run.ensemble.as_input(transform(torch.from_numpy(picked).to(run.ensemble.device)))
    prediction = predicted(run.ensemble, x)
    said = prediction.labels if isinstance(prediction, ClassificationPrediction) else torch.zeros(len(x))
    _, gradients = outputs_and_gradients(run.ensemble, x, said.to(run.ensemble.device))
    if gradients is None:
        return None
    gradients = gradients.reshape(len(gradients), *x.shape)
    if isinstance(data, Images):
        sensitivity = gradients.sum(2)
    else:
        sensitivity = gradients * x
        if isinstance(prediction, RegressionPrediction):
            assert run.inputs.standardisation is not None and run.inputs.standardisation.target_scale is not None
            sensitivity = sensitivity * run.inputs.standardisation.target_scale
    return Examples(
        inputs=picked if isinstance(data, Images) else rows_in_order(run, data)[chosen.numpy()],
        targets=labels_of(data)[chosen.numpy()],
        rows=chosen.numpy(),
        members=_members(run, prediction).float().cpu().numpy(),
        sensitivity=sensitivity.float().cpu().numpy(),
        uncertainty=epistemic[chosen].float().cpu().numpy(),
        features=() if isinstance(data, Images) else run.inputs.features,
    )


def _members(run: TrainedRun, prediction: object) -> Tensor:
    if isinstance(prediction, ClassificationPrediction):
        return prediction.member_probs
    found = to_units(run)(prediction)
    assert isinstance(found, RegressionPrediction)
    return torch.stack([found.member_means, found.member_variances.sqrt()], -1)
