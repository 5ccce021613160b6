"""Which rows networks are trained on, and which rows judge them because they have not seen them.

Out of fold, members have twins: as many networks, but at least ten, trained beside them, of which each leaves out a
fifth of the rows. Twins stand for members where rows are needed that these have not seen; members see all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forde.errors import FordeError, unknown_name
from forde.methods import Method
from forde.training.splitting import drawn

Calibration = Literal["out-of-fold", "holdout"]

FOLDS = 5
"""Each twin leaves out one of so many parts of the rows."""
FEWEST_TWINS = 2 * FOLDS
"""So that each row is judged by two networks, from whose scatter follows what a mixture of all members would say."""
FEWEST_ROWS = 40
"""With fewer rows, what is left out says too little about the noise."""
MOST_ROWS = 10_000
"""With more rows, a tenth of them is enough to judge all members by, and nothing is trained twice."""


@dataclass(frozen=True)
class LeftOut:
    """Rows to train on and rows to judge by, as indices into the table."""

    trained: NDArray[np.intp]
    """[T] rows that are trained on."""
    seen: Tensor
    """[T, A] which of them each network is trained on: M members, and then the twins where rows are out of fold."""
    judged: NDArray[np.intp]
    """[J] rows that networks are judged by; none without calibration."""
    by: Tensor
    """[J, B] which of the last B networks each of these is predicted by: those that have not seen it."""


def chosen(calibration: str | None, n_rows: int, method: Method, *, needed: bool = False) -> Calibration | None:
    """What `calibration="auto"` comes to for a table of so many rows; other values are checked and kept.

    Args:
        needed: whether rows that members have not seen decide on something else as well, so that few rows give some.

    >>> chosen("auto", 300, Method()), chosen("auto", 30_000, Method()), chosen("auto", 20, Method())
    ('out-of-fold', 'holdout', None)
    """
    if calibration is not None and calibration not in (known := ("auto", *get_args(Calibration))):
        raise unknown_name("calibration", calibration, known)
    if method.one_network is not None:
        if calibration in get_args(Calibration):
            raise FordeError(
                f"{method.name} makes its members of one network when training is done, so rows cannot be left out "
                f"for calibration='{calibration}'; use calibration=None."
            )
        return None
    if calibration != "auto":
        return calibration  # type: ignore[return-value]
    if n_rows < (FOLDS if needed else FEWEST_ROWS):
        return None
    return "out-of-fold" if n_rows <= MOST_ROWS else "holdout"


def left_out(
    calibration: Calibration | None,
    n_rows: int,
    n_members: int,
    *,
    share: float,
    seed: int,
    labels: NDArray[Any] | None,
) -> LeftOut:
    """Rows for training and judging.

    Out of fold, the rows are dealt into 5 folds, of which 5 twins each leave out one; they are dealt anew for the next
    5. So twins that judge the same row were trained on different rows.

    Args:
        share: of the rows that `"holdout"` leaves out.
        labels: of the rows `[N]`, whose classes come into folds and the holdout alike.

    >>> rows = left_out("out-of-fold", 10, 10, share=0.1, seed=0, labels=None)
    >>> rows.seen.int().sum(0).tolist()  # members, twins
    [10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]
    >>> rows.by.int().sum(1).tolist()
    [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    """
    rows = np.arange(n_rows)
    if calibration is None:
        return LeftOut(rows, torch.ones(n_rows, n_members), rows[:0], torch.ones(0, n_members))
    if calibration == "holdout":
        number = int(share * n_rows) if isinstance(share, float) and 0 < share < 1 else 0
        if not 0 < number < n_rows:
            raise FordeError(
                f"validation_fraction={share!r} of {n_rows} rows holds out {number}, but at least one row has to be "
                "held out and one left; pass another share between 0 and 1, or calibration=None."
            )
        kept, held = drawn(n_rows, number, seed=seed, labels=labels)
        return LeftOut(kept, torch.ones(len(kept), n_members), held, torch.ones(number, n_members))
    if n_rows < FOLDS:
        raise FordeError(f"calibration='out-of-fold' needs at least {FOLDS} rows, not {n_rows}; use calibration=None.")
    random = np.random.default_rng(np.random.SeedSequence([seed], spawn_key=(3,)))
    twins = np.arange(max(n_members, FEWEST_TWINS))
    folds = np.empty((n_rows, -(-len(twins) // FOLDS)), dtype=np.intp)
    for column in folds.T:
        order = random.permutation(n_rows)
        if labels is not None:
            order = order[np.argsort(labels[order], kind="stable")]
        column[order] = rows % FOLDS
    unseen = torch.from_numpy(folds[:, twins // FOLDS] == twins % FOLDS)
    seen = torch.cat([torch.ones(n_rows, n_members), 1.0 - unseen.float()], 1)
    return LeftOut(rows, seen, rows, unseen.float())
