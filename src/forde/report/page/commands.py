"""The commands that make a run and its evaluation again."""

from __future__ import annotations

import shlex

from forde.corruptions import NAMES
from forde.evaluation.runs.cells import ALL
from forde.evaluation.runs.table_shifts import SHIFTS
from forde.report.page.runs import EvaluatedRun

TRAIN, EVALUATE = "forde train ", "forde evaluate "


def reproducing_commands(run: EvaluatedRun) -> list[str]:
    """`forde train …` where the run says what it was started with, and `forde evaluate …`: as it was typed, or put
    together from what was evaluated, where no command was."""
    settings = run.scores.result.settings
    trained = _trained(run)
    if isinstance(typed := settings.get("command"), str) and typed.startswith(EVALUATE):
        return [*([trained] if trained else []), typed]
    evaluate = ["forde", "evaluate", str(run.folder)]
    if settings.get("corruptions"):
        names = list(settings["corruptions"])
        evaluate += ["--corruptions", ALL if set(names) in (set(NAMES), set(SHIFTS)) else ",".join(names)]
        evaluate += ["--severities", ",".join(map(str, settings["severities"]))]
    if run.scores.foreign is not None:
        evaluate += ["--foreign", run.scores.foreign["name"]]
    return [*([trained] if trained else []), shlex.join(evaluate)]


def _trained(run: EvaluatedRun) -> str | None:
    """What the run notes of its settings, which needs no other file; else as it was typed."""
    note = (run.settings.get("how") or {}).get("note")
    started = run.sessions[0].get("command") if run.sessions else None
    found = note.get("command") if isinstance(note, dict) else started
    return found if isinstance(found, str) and found.startswith(TRAIN) else None
