"""Every animal with every engine: what came out, and whether that is right."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from animals import Animal
from forde_adapter import Taken, forde_steps, members_of
from independent_step import Step, independent_steps
from torch import Tensor

for group in ("images", "sequences", "habits", "state", "changed", "unusual", "wrapped"):
    importlib.import_module(f"zoo_{group}")  # each adds its animals

ENGINES = ("eager", "vectorized", "compiled")
LR, DATA_SIZE = 0.1, 40
ABSOLUTE = 1e-12
"""What rounding leaves of a gradient that is zero."""
DRAWS, SIGMAS, TINY_LR = 48, 5.0, 1e-6
EXACT, PLAIN, DRAWN = "exact", "exact, by the plain step", "same distribution"


class Trial(NamedTuple):
    """One way to run an animal."""

    engine: str
    memory: str
    part: bool

    def __str__(self) -> str:
        return f"{self.engine}, memory={self.memory}" + (", part of the batch" if self.part else "")


class Outcome(NamedTuple):
    """What a cell says, and what is wrong with it."""

    cell: str
    fault: str | None


def trials(animal: Animal) -> list[Trial]:
    """All of them. engine="auto" has no column: it must be as good as the loop."""
    ways = [(engine, memory) for engine in ENGINES for memory in ("speed", "low")]
    found = [Trial(engine, memory, False) for engine, memory in [*ways, ("auto", "speed")]]
    on_part = [("eager", "speed"), ("eager", "low"), ("vectorized", "speed"), ("compiled", "speed")]
    return found + [Trial(engine, memory, True) for engine, memory in on_part if animal.part]


def outcomes(animal: Animal) -> dict[Trial, Outcome]:
    """Of every trial."""
    right = (
        {}
        if animal.refused and animal.formulas_of is None
        else {part: _right(animal, part=part) for part in {False, animal.part}}
    )
    return {trial: _outcome(animal, trial, right.get(trial.part)) for trial in trials(animal)}


def _outcome(animal: Animal, trial: Trial, right: list[Step] | None) -> Outcome:
    try:
        taken = _attempt(animal, trial, animal.batches(), LR)
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0]
        return Outcome("raw error", f"raw {type(error).__name__}: {text[:200]}")
    if taken.refused is not None:
        return Outcome(taken.refused, _fault_of_sentence(animal, trial, taken.refused))
    if not taken.steps:
        return Outcome("wrong", taken.log[-1])
    if right is None:
        return Outcome(EXACT, "a sentence was expected, but steps were made")
    if animal.replays is not None:
        right = _right(animal, part=trial.part, draws=taken.steps)
    wrong = _equal_draws(animal, taken.steps) + differences(taken.steps, right, animal.tolerance)
    cell = PLAIN if taken.plainly else EXACT
    if wrong and animal.random and trial.engine != "eager":
        cell, wrong = DRAWN, _differences_in_distribution(animal, trial)
    return Outcome("wrong" if wrong else cell, f"{len(wrong)} wrong, {wrong[0]}" if wrong else None)


def _fault_of_sentence(animal: Animal, trial: Trial, sentence: str) -> str | None:
    if "\n" in sentence or not sentence.endswith(".") or len(sentence) > 500:
        return f"not one sentence: {sentence!r}"
    if re.search("0x[0-9a-f]", sentence):
        return f"an address says nothing to a user, and is another in every run: {sentence}"
    if trial.engine in ("eager", "auto") and not animal.refused and not (animal.unrepeatable and trial.memory == "low"):
        return f"a loop over members should do this, but: {sentence}"
    return None


@contextmanager
def _float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _attempt(animal: Animal, trial: Trial, batches: list[tuple[Tensor, Tensor]], lr: float) -> Taken:
    """Steps by the library."""
    given = [x.clone() for x, _ in batches]
    recipe = animal.recipe(part=trial.part)
    with _float64():
        how = {"memory": trial.memory, "data_size": DATA_SIZE, "lr": lr, "between": animal.between}
        taken = forde_steps(trial.engine, animal.make, animal.members, recipe, batches, **how)
    if not all(torch.equal(x, before) for (x, _), before in zip(batches, given, strict=True)):
        return Taken([], None, ["the caller's batch was changed"])
    return taken


def _right(
    animal: Animal,
    *,
    part: bool,
    batches: list[tuple[Tensor, Tensor]] | None = None,
    lr: float = LR,
    draws: list[Step] | None = None,
) -> list[Step]:
    """Steps by the formulas; `draws` are those whose random numbers are used again."""
    recipe, batches = animal.recipe(part=part), batches or animal.batches()
    with _float64(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        members = list(members_of(animal.formulas_of or animal.make, animal.members).members)

        def prepare(step: int) -> None:
            if step == 1 and animal.between is not None:
                for member in members:
                    animal.between(member)
            if draws is not None and animal.replays is not None:
                for member, buffers in zip(members, draws[step].buffers, strict=True):
                    member.replay = True
                    getattr(member, animal.replays).copy_(buffers[animal.replays])

        inputs = torch.cat([x for x, _ in batches]).flatten(1)
        moment = inputs.T @ inputs / (len(inputs) - 1) if recipe.pca else None
        return independent_steps(
            members, recipe, batches, data_size=DATA_SIZE, lr=lr, second_moment=moment, prepare=prepare
        )


def _equal_draws(animal: Animal, found: list[Step]) -> list[str]:
    """Whether members that should draw for themselves drew the same."""
    if animal.replays is None:
        return []
    first, second = ([member[animal.replays] for member in step.buffers] for step in found)
    alike = torch.equal(first[0], first[1]) or torch.equal(first[0], second[0])
    return ["members or steps drew equal random numbers"] if alike else []


def differences(found: list[Step], right: list[Step], tolerance: float) -> list[str]:
    """What differs, in words: each tensor of each member by itself, relative to its own size."""
    wrong: list[str] = []
    for number, (own, other) in enumerate(zip(found, right, strict=True), start=1):
        _compare(f"step {number}: losses", own.losses, other.losses, tolerance, wrong)
        for kind, mine, theirs in (("gradient of", own.moved, other.moved), ("buffer", own.buffers, other.buffers)):
            for member, (a, b) in enumerate(zip(mine, theirs, strict=True)):
                if set(a) != set(b):
                    wrong.append(f"step {number}: member {member} has other names ({sorted(set(a) ^ set(b))})")
                    continue
                for name in b:
                    _compare(f"step {number}: {kind} {name} of member {member}", a[name], b[name], tolerance, wrong)
    return wrong


def _compare(what: str, found: Tensor, right: Tensor, tolerance: float, wrong: list[str]) -> None:
    if found.shape != right.shape or found.dtype != right.dtype:
        wrong.append(f"{what}: {list(found.shape)} {found.dtype} instead of {list(right.shape)} {right.dtype}")
        return
    wide = torch.complex128 if right.is_complex() else torch.float64
    error, size = float((found.to(wide) - right.to(wide)).norm()), float(right.to(wide).norm())
    if not error <= tolerance * size + ABSOLUTE:
        wrong.append(f"{what}: off by {error / (size or 1):.1e}")


def _differences_in_distribution(animal: Animal, trial: Trial) -> list[str]:
    """Whether losses and gradients have other means over many draws from the same weights."""
    batches = animal.batches()[:1] * DRAWS
    found = _stacked(_attempt(animal, trial, batches, TINY_LR).steps)
    right = _stacked(_right(animal, part=trial.part, batches=batches, lr=TINY_LR))
    deviation = ((found.var(0) + right.var(0)) / DRAWS).sqrt()
    wrong = (found.mean(0) - right.mean(0)).abs() > SIGMAS * deviation + 1e-5
    return [f"{int(wrong.sum())} of {wrong.numel()} means over {DRAWS} draws"] if bool(wrong.any()) else []


def _stacked(steps: list[Step]) -> Tensor:
    """`[steps, losses and gradients]`."""
    return torch.stack(
        [torch.cat([s.losses, *(g.flatten() for member in s.moved for g in member.values())]) for s in steps]
    )
