"""The settings that decide a run's result, as the page lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forde.report.page.parts import Cell, Table, number, percent, text_cell
from forde.report.page.runs import EvaluatedRun


def settings_table(runs: Sequence[EvaluatedRun]) -> Table:
    """Run by run; those in which runs differ come first and are bold."""
    each = [_settings(run) for run in runs]
    names = list(dict.fromkeys(name for settings in each for name in settings))
    differing = [name for name in names if len({settings.get(name, "–") for settings in each}) > 1]
    rows = []
    for name in [*differing, *(name for name in names if name not in differing)]:
        kind = "best" if name in differing else ""
        values = [settings.get(name, "–") for settings in each]
        rows.append([text_cell(name), *(Cell(value, value.lower(), kind) for value in values)])
    caption = "What decides the result." + (" Bold: runs differ in it." if differing else "")
    return Table("settings", caption, ["Setting", *(run.name for run in runs)], rows)


def _settings(run: EvaluatedRun) -> dict[str, str]:
    training, recipe, data = run.settings.get("training", {}), run.recipe, run.scores.data
    optimizer, data_of_training = training.get("optimizer", {}), run.settings.get("data")
    found: dict[str, Any] = {
        "method": run.method,
        **_repulsion(training.get("method", {})),
        "members": run.scores.cost["members"],
        "network": recipe.get("model"),
        "hidden layers": ", ".join(map(str, recipe.get("hidden", []))) if recipe.get("model") == "mlp" else None,
        "epochs": training.get("epochs"),
        "kept": _kept(run, training),
        "batch size": training.get("batch_size"),
        "optimizer": optimizer.get("type"),
        "learning rate": optimizer.get("lr"),
        "prior": _prior(training.get("method", {}).get("prior")),
        "augmentation": "random crops and flips" if training.get("augmentation") else None,
        "seed": training.get("seed"),
        "precision": training.get("precision"),
        "trained on": f"{data_of_training.get('size'):,} samples" if data_of_training else None,
        "evaluated on": f"{data['samples']:,} samples ({data['name']}, {data['split']})",
        "version": run.sessions[-1].get("forde") if run.sessions else None,
    }
    return {name: f"{value}" for name, value in found.items() if value is not None}


def _repulsion(method: Mapping[str, Any]) -> dict[str, str | None]:
    """Which forces there are, and how strong; nothing for methods without any."""
    if not method.get("kernel"):
        return {}
    weight, part = method.get("repulsion_weight"), method.get("repulsion_fraction", 1)
    metric = method["kernel"].get("metric") or {}
    return {
        "members compared by": _words(method.get("space", {}).get("type")),
        "strength of the repulsion": None if weight is None else number(float(weight)),
        "alpha": None if metric.get("alpha") is None else number(float(metric["alpha"])),
        "repulsion on": None if part in (None, 1) else f"{percent(float(part), 0)} of each batch",
    }


def _prior(priors: Any) -> str | None:
    """Each prior with its weight decay."""
    if not isinstance(priors, list):
        return None
    words = []
    for prior in priors:
        decay = prior.get("weight_decay")
        words.append(_words(prior.get("type")) + (f", weight decay {decay}" if decay is not None else ""))
    return "; ".join(words) or "none"


def _words(name: Any) -> str:
    """A class's name as words.

    >>> _words("InputGradients"), _words("EmpCov")
    ('input gradients', 'EmpCov')
    """
    known = {"InputGradients": "input gradients", "Weights": "weights", "Outputs": "outputs", "Features": "features",
             "Isotropic": "isotropic"}  # fmt: skip
    return known.get(str(name), str(name))


def _kept(run: EvaluatedRun, training: Mapping[str, Any]) -> str | None:
    """The epoch after which the ensemble is kept, where validation data chose it."""
    validation = training.get("validation") or {}
    if run.best_epoch is None or not validation.get("restore_best"):
        return None
    return f"as after epoch {run.best_epoch + 1}, best validation {validation.get('monitor')}"
