"""The study: what every trial tried and found, in a storage of Optuna's that several processes and machines can share.

All of a trial is in the storage, its samples' scores included. A trial that was running when its process died is
found again when the study is opened, and its training goes on where its folder has a checkpoint.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forde.durable import explaining_writes, make_folder
from forde.errors import FordeError, first_line
from forde.folder_lock import has_ended
from forde.tuning.choosing import Candidate

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

log = logging.getLogger(__name__)

FILE = "study.db"
HEARTBEAT, GRACE = 60, 240
"""Seconds between signs of life of a trial, and without one after which another machine takes it up again."""
SETTINGS, BASELINE, RETRY_OF, FOLDER, WHERE = "settings", "baseline", "retry_of", "folder", "where"
VALUES, ACCURACY, SECONDS, SCORES, CLEAN, DIVERGED = (
    "values", "accuracy", "seconds", "scores", "clean_nll", "diverged"
)  # fmt: skip
"""Names of what is noted in the storage, of the study and of its trials."""
PIECE = 30_000
"""Characters of an attribute, which some databases limit to 65,535."""


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Neither its log nor its remarks on parts of it that may change."""
    try:
        import optuna
    except ImportError as error:
        raise FordeError(f"tuning needs {error.name}; run: pip install 'forde[tune]'") from None
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def open_study(storage: str | None, folder: Path, name: str, settings: Mapping[str, Any]) -> Study:
    """The study of this name, made if it is not there; one of other settings is refused.

    Args:
        storage: a URL; a file in `folder` if left out.
        settings: what decides a trial's numbers, as JSON can hold it.
    """
    import optuna

    with explaining_writes(folder, "choose another --out"):
        make_folder(folder)
    url = storage or f"sqlite:///{(folder / FILE).absolute()}"
    options = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    try:
        opened: Any = (
            optuna.storages.get_storage(url)
            if url.startswith("redis")
            else optuna.storages.RDBStorage(url, options, heartbeat_interval=HEARTBEAT, grace_period=GRACE)
        )
        study = optuna.create_study(storage=opened, study_name=name, load_if_exists=True)
    except Exception as error:  # each database raises its own
        where = url if storage is None else "--storage"
        raise FordeError(f"the study cannot be opened in {where}: {first_line(error)}.") from None
    known = study.user_attrs.get(SETTINGS)
    if known is None:
        study.set_user_attr(SETTINGS, dict(settings))
        return study
    _refuse_others(known, json.loads(json.dumps(dict(settings))), name)
    return study


def _refuse_others(known: Mapping[str, Any], given: Mapping[str, Any], name: str) -> None:
    for key in [*known, *given]:
        if known.get(key) != given.get(key):
            raise FordeError(
                f"the study '{name}' was begun with {key} {known.get(key)!r}, but {given.get(key)!r} was given; give "
                "the same, or another --out or --study."
            )


def take_up(study: Study, first: Mapping[str, float]) -> None:
    """See that the deep ensemble comes first, and that trials which were lost are done again.

    Args:
        first: values to try after the deep ensemble, those of the recipe.
    """
    from optuna.trial import TrialState as State

    for trial in study.get_trials(deepcopy=False, states=(State.RUNNING,)):
        where = trial.user_attrs.get(WHERE) or {}
        if has_ended(where.get("host"), where.get("process")):
            study.tell(trial.number, state=State.FAIL)
    trials = study.get_trials(deepcopy=False)
    retried = {trial.user_attrs.get(RETRY_OF) for trial in trials}
    for trial in trials:
        if trial.state == State.FAIL and trial.number not in retried:
            attributes = {
                RETRY_OF: trial.number, FOLDER: folder_of(trial), BASELINE: bool(trial.user_attrs.get(BASELINE)),
            }  # fmt: skip
            study.enqueue_trial(trial.params, user_attrs=attributes)
            log.info("trial %d did not finish; it is done again", trial.number)
    alive = (State.WAITING, State.RUNNING, State.COMPLETE)
    if not any(trial.user_attrs.get(BASELINE) for trial in study.get_trials(deepcopy=False, states=alive)):
        study.enqueue_trial({}, user_attrs={BASELINE: True})
        study.enqueue_trial(dict(first))


def folder_of(trial: Trial | FrozenTrial) -> str:
    """The name of the folder that a trial trains in: its own, or that of the one it does again."""
    return str(trial.user_attrs.get(FOLDER) or f"{trial.number:04d}")


def sign(trial: Trial) -> None:
    """Note which process runs it."""
    trial.set_user_attr(WHERE, {"host": socket.gethostname(), "process": os.getpid()})


def keep(trial: Trial, values: Mapping[str, float], nll: np.ndarray, accuracy: Any, seconds: float) -> None:
    """Note all that was found.

    Args:
        nll: −ln p̄(y) `[2, K, N]`, of clean and of perturbed samples.
    """
    trial.set_user_attr(VALUES, dict(values))
    trial.set_user_attr(ACCURACY, accuracy)
    trial.set_user_attr(SECONDS, round(seconds, 2))
    trial.set_user_attr(CLEAN, float(nll[0].mean()))
    packed = base64.b64encode(zlib.compress(nll.astype("<f4").tobytes())).decode()
    pieces = [packed[start : start + PIECE] for start in range(0, len(packed), PIECE)]
    for number, piece in enumerate(pieces):
        trial.set_user_attr(f"{SCORES}.{number}", piece)
    trial.set_user_attr(SCORES, {"shape": list(nll.shape), "pieces": len(pieces)})


def candidates(study: Study) -> list[Candidate]:
    """All trials that were trained to their end, by number."""
    from optuna.trial import TrialState as State

    found = []
    for trial in study.get_trials(deepcopy=False, states=(State.COMPLETE,)):
        noted = trial.user_attrs
        packed = "".join(noted[f"{SCORES}.{number}"] for number in range(noted[SCORES]["pieces"]))
        content = zlib.decompress(base64.b64decode(packed))
        clean, corrupted = np.frombuffer(content, "<f4").reshape(noted[SCORES]["shape"])
        accuracy = None if noted[ACCURACY] is None else (noted[ACCURACY][0], noted[ACCURACY][1])
        found.append(Candidate(trial.number, noted[VALUES], clean, corrupted, accuracy, noted[SECONDS]))
    return found


def clean_cost(study: Study, clean: float) -> float | None:
    """A clean NLL − that of the deep ensemble; None where another process still trains that."""
    noted = (trial.user_attrs for trial in study.get_trials(deepcopy=False))
    baseline = next((each[CLEAN] for each in noted if each.get(BASELINE) and CLEAN in each), None)
    return None if baseline is None else clean - float(baseline)


def counts(study: Study) -> dict[str, int]:
    """How many trials finished, were pruned, diverged, run now, or ended without a result."""
    from optuna.trial import TrialState as State

    trials = study.get_trials(deepcopy=False)
    diverged = sum(DIVERGED in trial.user_attrs for trial in trials if trial.state == State.PRUNED)
    of = {state: sum(trial.state == state for trial in trials) for state in State}
    return {
        "finished": of[State.COMPLETE], "pruned": of[State.PRUNED] - diverged, "diverged": diverged,
        "running": of[State.RUNNING], "lost": of[State.FAIL],
    }  # fmt: skip
