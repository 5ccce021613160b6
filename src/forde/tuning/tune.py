"""`tune`: find strength and α, and by choice learning rate and weight decay, on a validation split."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from forde.data.description import Images, Table
from forde.durable import write_whole
from forde.errors import FordeError, NonFiniteError, first_line, number_from_0, whole_number
from forde.hashing import array_name
from forde.training.recipe import Recipe
from forde.training.splitting import held_out
from forde.training.usual import RATES, usual_optimizer
from forde.tuning import study as studies
from forde.tuning.choosing import Candidate, Choice, choose, explained, to_dict
from forde.tuning.judging import Judge
from forde.tuning.showing import table
from forde.tuning.space import Range, parsed_space, suggested
from forde.tuning.trial import Training, train_and_judge

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

RECOMMENDED = {"strength": 10.0, "alpha": 1.0}
"""Of the recipe; what is tried after the deep ensemble."""
STARTUP = 5
"""Trials by chance before the search learns from them, and before any may be pruned."""
TRIALS = "trials"
RESULT = "tuning.json"


@dataclass(frozen=True)
class Tuning:
    """What a study has found so far."""

    choice: Choice
    candidates: Sequence[Candidate]
    searched: Mapping[str, Range]
    counts: Mapping[str, int]
    settings: Mapping[str, Any]

    @property
    def values(self) -> dict[str, float]:
        """Of the chosen trial; empty for the deep ensemble."""
        return dict(self.choice.chosen.values)

    @property
    def why(self) -> str:
        """The reasons, in a few sentences."""
        return explained(self.choice, list(self.searched))

    def __str__(self) -> str:
        """All trials as a table, and the reasons."""
        counts = ", ".join(f"{number} {state}" for state, number in self.counts.items() if number)
        return f"{table(self.choice, self.candidates)}\n\ntrials: {counts}\n{self.why}"

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries and numbers, for JSON."""
        return {
            **to_dict(self.choice, self.candidates), "why": self.why, "counts": dict(self.counts),
            "searched": {name: [one.low, one.high] for name, one in self.searched.items()},
            "settings": dict(self.settings),
        }  # fmt: skip


def tune(
    data: Images | Table,
    out: str | Path,
    *,
    epochs: int,
    model: str = "mlp",
    hidden: Sequence[int] = (128, 128),
    make_network: Callable[[], nn.Module] | None = None,
    members: int = 5,
    batch_size: int = 128,
    lr: float | None = None,
    weight_decay: float = 5e-4,
    augment: bool = False,
    search: str = "strength,alpha",
    trials: int = 20,
    clean_budget: float = 0.01,
    validation: float = 0.2,
    seeds: int = 1,
    seed: int = 0,
    storage: str | None = None,
    name: str = "forde",
    device: Any = None,
    precision: str = "float32",
    engine: str = "auto",
    on_trial: Callable[[str, Tuning], None] | None = None,
) -> Tuning:
    """Find the strength and α of the recipe `forde` that bear perturbed inputs best, at a limited price on clean ones.

        minimise  mean NLL over perturbations of the validation split
        such that clean NLL ≤ the deep ensemble's + clean_budget

    The deep ensemble is the first trial, the recipe's own values are the second. The perturbations are none of the
    corruptions that runs are tested under (`tuning.perturbations`). The test split is never looked at. A trial whose
    NLL on perturbed samples is above the median of others in the same epoch is stopped.

    Called again with the same settings and `out`, it goes on: everything is in the study, and a trial that was lost
    with its process is done again.

    Args:
        data: the training split.
        out: folder for the study, the trials' checkpoints and `tuning.json`.
        make_network: builds a network of your own, in the place of `model`.
        search: names, each with a range where it shall be another: `"strength=1:30,alpha,lr,weight_decay"`.
        trials: in all, those of earlier calls and the deep ensemble included.
        clean_budget: nats of clean NLL that may be lost.
        validation: share of the data that trials are judged by.
        seeds: trainings for each trial; with several, differences between seeds count among the errors.
        storage: URL of an Optuna storage that several machines share; `study.db` in `out` if left out.
        name: of the study in the storage.
        on_trial: called after each trial that this process has done, with words for it.

    >>> import tempfile, forde
    >>> found = tune(forde.data.load("digits"), tempfile.mkdtemp(), epochs=1, hidden=[8], members=2, trials=2)
    >>> found.candidates[0].name, found.candidates[1].name
    ('deep ensemble', 'strength 10, alpha 1')
    """
    whole_number("trials", trials, at_least=2)
    whole_number("seeds", seeds, at_least=1)
    number_from_0("clean_budget", clean_budget)
    folder = Path(out)
    rate = lr if lr is not None else RATES[usual_optimizer(data.description.n_classes)]
    space = parsed_space(search, rate)
    part, held = held_out(data, validation, seed=seed, by_class=bool(data.description.n_classes))
    recipe = Recipe.of(part, model, hidden)
    training = Training(
        make_network or recipe.make_network, recipe.likelihood, recipe.in_standard_units(part), members, epochs,
        batch_size, rate, weight_decay, seed, seeds, device, precision, engine, augment,  # type: ignore[arg-type]
    )  # fmt: skip
    judge = Judge.of(recipe.in_standard_units(held), seed=seed)
    settings = {
        "data": data.description.name, "samples": len(data), "content": _content(data), "validation": validation,
        "judged": len(judge.held), "perturbations": [f"{kind}-{level}" for kind, level in judge.kinds],
        "model": model if make_network is None else getattr(make_network, "__qualname__", "own"),
        "hidden": list(hidden), "members": members, "epochs": epochs, "batch_size": batch_size, "lr": rate,
        "weight_decay": weight_decay, "augment": augment, "search": {name: str(one) for name, one in space.items()},
        "precision": precision, "seeds": seeds, "seed": seed,
    }  # fmt: skip
    with studies.quiet_optuna():
        opened = studies.open_study(storage, folder, name, settings)
        studies.take_up(opened, {name: value for name, value in RECOMMENDED.items() if _within(value, space.get(name))})
        work = _Work(opened, training, judge, space, folder / TRIALS, clean_budget)
        while _begun(opened) < trials:
            words = work.one()
            found = _found(opened, clean_budget, space, settings)
            if found is not None:
                _write(found, folder)
                if on_trial is not None:
                    on_trial(words, found)
        found = _found(opened, clean_budget, space, settings)
    if found is None:
        raise FordeError(
            "the deep ensemble has not been trained to its end: another process is at it; wait for it, and start again."
        )
    _write(found, folder)
    return found


@dataclass
class _Work:
    """Does one trial after another."""

    study: Study
    training: Training
    judge: Judge
    space: Mapping[str, Range]
    folder: Path
    """In which trials have folders."""
    budget: float
    words: str = ""
    """For the trial that was done last."""

    def one(self) -> str:
        """Do the next trial; returns words for it."""
        from optuna.pruners import MedianPruner
        from optuna.samplers import TPESampler

        number = len(self.study.get_trials(deepcopy=False))
        # A seed for each trial: a study that is taken up draws what it would have drawn.
        drawn = int(np.random.SeedSequence([self.training.seed, number]).generate_state(1)[0])
        self.study.sampler = TPESampler(seed=drawn, n_startup_trials=STARTUP, constant_liar=True)
        self.study.pruner = MedianPruner(STARTUP, n_warmup_steps=self.training.epochs // 3)
        self.study.optimize(self._objective, n_trials=1)
        return self.words

    def _objective(self, trial: Trial) -> float:
        from optuna import TrialPruned

        studies.sign(trial)
        baseline = bool(trial.user_attrs.get(studies.BASELINE))
        values = {} if baseline else suggested(trial, self.space)
        folder = self.folder / studies.folder_of(trial)
        label = ", ".join(f"{name} {value:g}" for name, value in values.items()) or "deep ensemble"
        head = f"trial {trial.number}, {label}"

        def report(epoch: int, value: float) -> None:
            if baseline:
                return  # everything is compared with it, so it is always trained to its end
            trial.report(value, epoch)
            if trial.should_prune():
                raise TrialPruned(f"pruned after epoch {epoch}")

        begun = time.monotonic()
        try:
            nll, accuracy = train_and_judge(self.training, values, self.judge, folder, report)
        except TrialPruned as pruned:
            shutil.rmtree(folder, ignore_errors=True)
            self.words = f"{head}: {pruned}"
            raise
        except NonFiniteError as error:
            if baseline:
                raise FordeError(f"the deep ensemble cannot be trained like this: {error}") from None
            trial.set_user_attr(studies.DIVERGED, first_line(error))
            shutil.rmtree(folder, ignore_errors=True)
            self.words = f"{head}: diverged ({first_line(error)})"
            raise TrialPruned(first_line(error)) from None
        studies.keep(trial, values, nll, accuracy, time.monotonic() - begun)
        clean, corrupted = (float(each.mean()) for each in nll)
        cost = studies.clean_cost(self.study, clean)
        if cost is not None:  # the search then prefers what is allowed
            trial.set_constraint("clean NLL", cost - self.budget)
        self.words = f"{head}: NLL {clean:.4f} clean, {corrupted:.4f} perturbed"
        return corrupted


def _begun(study: Study) -> int:
    """Trials that have a result, or that are being done now by another process."""
    counts = studies.counts(study)
    return sum(counts[state] for state in ("finished", "pruned", "diverged", "running"))


def _found(study: Study, clean_budget: float, space: Mapping[str, Range], settings: Mapping[str, Any]) -> Tuning | None:
    """None as long as there is no deep ensemble."""
    every = studies.candidates(study)
    if not any(one.is_baseline for one in every):
        return None
    return Tuning(choose(every, clean_budget), every, space, studies.counts(study), settings)


def _write(found: Tuning, folder: Path) -> None:
    import json

    write_whole(folder / RESULT, (json.dumps(found.to_dict(), indent=1) + "\n").encode())


def _within(value: float, searched: Range | None) -> bool:
    return searched is not None and searched.low <= value <= searched.high and searched.low < searched.high


def _content(data: Images | Table) -> str:
    """A short name for the values of the data."""
    return array_name(data.images, data.labels) if isinstance(data, Images) else array_name(data.x, data.y)
