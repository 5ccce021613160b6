"""The inputs that members disagree on most, as they appear on the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forde.evaluation.runs.examples import Examples
from forde.report.page.charts.common import COLOURS
from forde.report.page.charts.contributions import contribution_figure
from forde.report.page.parts import Figure, number, percent
from forde.report.page.runs import EvaluatedRun

MEMBERS = 10
"""Shown of an input; more would not fit on a phone."""


@dataclass(frozen=True)
class Said:
    """What a member predicted, and where it looked."""

    who: str
    what: str
    picture: str = ""
    """Its input gradients as a data URI; empty for rows of a table."""
    text: str = ""
    """The picture's text alternative."""
    colour: str = ""
    """Of the member's dots in the chart of a row."""


@dataclass(frozen=True)
class Disputed:
    """An input that members disagree on."""

    title: str
    picture: str
    text: str
    members: Sequence[Said]
    figure: Figure | None = None
    """Contributions of columns, where the input is a row of a table."""


def disputed_inputs(run: EvaluatedRun, place: int) -> list[Disputed]:
    """Those of one run; none where it has a single member."""
    examples = run.examples
    if examples is None:
        return []
    return [_disputed(run, examples, place, k) for k in range(len(examples.rows))]


def _disputed(run: EvaluatedRun, examples: Examples, place: int, k: int) -> Disputed:
    names = _class_names(run, examples)
    images = examples.inputs.ndim == 4
    truth = names[int(examples.targets[k])] if names else number(float(examples.targets[k]))
    where = f"{'Image' if images else 'Row'} {int(examples.rows[k]) + 1:,}"
    title = f"{where}: {_together(examples, names, k)}, in truth {truth}"
    members = [_said(examples, names, m, k) for m in range(min(MEMBERS, len(examples.members)))]
    figure = None
    if not images:
        figure = contribution_figure(
            f"contributions-{place}-{k}", title, examples.features, examples.inputs[k], examples.sensitivity[:, k]
        )
    picture = as_data_uri(_visible(examples.inputs[k])) if images else ""
    return Disputed(title, picture, f"The input, in truth {truth}", members, figure)


def _together(examples: Examples, names: Sequence[str], k: int) -> str:
    """What the ensemble makes of its members' predictions."""
    mean = examples.members[:, k].mean(0)
    if not names:
        return f"predicted {number(float(mean[0]))}"
    return f"predicted {names[int(mean.argmax())]} ({percent(float(mean.max()), 0)})"


def _said(examples: Examples, names: Sequence[str], member: int, k: int) -> Said:
    who = f"member {member + 1}"
    if names:
        label = int(examples.members[member, k].argmax())
        what = f"{names[label]} ({percent(float(examples.members[member, k, label]), 0)})"
    else:
        mean, deviation = examples.members[member, k]
        what = f"{number(float(mean))} ± {number(float(deviation), 2)}"
    if examples.inputs.ndim != 4:
        return Said(who, what, colour=COLOURS[member % len(COLOURS)])
    return Said(who, what, as_data_uri(gradient_picture(examples.sensitivity[member, k])), f"Input gradients of {who}")


def _class_names(run: EvaluatedRun, examples: Examples) -> list[str]:
    """Numbers for classes that have no names; nothing for a quantity."""
    if run.scores.task == "regression":
        return []
    return [str(name) for name in run.scores.data["classes"]] or list(map(str, range(examples.members.shape[-1])))


def _visible(image: np.ndarray) -> np.ndarray:
    """uint8 `[H, W, C]` → RGB; of other numbers of channels than 1 and 3 the first is shown, grey."""
    return image if image.shape[-1] == 3 else np.repeat(image[..., :1], 3, axis=-1)


def gradient_picture(gradient: np.ndarray) -> np.ndarray:
    """`[H, W]` → RGB: white where 0, blue where more light raises the output, orange where it lowers it.

    >>> gradient_picture(np.array([[0.0, 2.0, -2.0]])).tolist()
    [[[255, 255, 255], [0, 114, 178], [213, 94, 0]]]
    """
    share = gradient / max(float(np.abs(gradient).max()), 1e-30)
    colour = np.where(share[..., None] > 0, np.array([0, 114, 178]), np.array([213, 94, 0]))
    mixed = 255 + np.abs(share)[..., None] * (colour - 255.0)
    return mixed.round().astype(np.uint8)


def as_data_uri(image: np.ndarray) -> str:
    """An RGB image `[H, W, 3]` as a PNG that is part of the page."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(stream, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
