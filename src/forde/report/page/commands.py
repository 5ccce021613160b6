"""The commands that make a run and its evaluation again."""

from __future__ import annotations

import shlex

from forde.report.page.runs import EvaluatedRun


def reproducing_commands(run: EvaluatedRun) -> list[str]:
    """`forde train …` where the run says what it was started with, and `forde evaluate …`."""
    settings = run.scores.result.settings
    evaluate = ["forde", "evaluate", str(run.folder)]
    if settings.get("corruptions"):
        evaluate += ["--corruptions", ",".join(settings["corruptions"])]
        evaluate += ["--severities", ",".join(map(str, settings["severities"]))]
    if run.scores.foreign is not None:
        evaluate += ["--foreign", run.scores.foreign["name"]]
    return [shlex.join(evaluate)]
