"""A study as text: every trial beside the deep ensemble, in the order of clean NLL, and which of them is taken."""

from __future__ import annotations

from collections.abc import Sequence

from forde.tuning.choosing import Candidate, Choice


def table(choice: Choice, candidates: Sequence[Candidate]) -> str:
    """One line for each trial that was trained to its end.

    >>> import numpy as np
    >>> from forde.tuning.choosing import choose
    >>> trials = [Candidate(n, {"strength": 3.0} if n else {}, np.full((1, 2), 0.3), np.full((1, 2), 0.9 - n / 10))
    ...           for n in (0, 1)]
    >>> print(table(choose(trials, 0.01), trials))  # doctest: +NORMALIZE_WHITESPACE
    trial  strength    clean NLL    − deep ensemble    perturbed    − deep ensemble
        0         –       0.3000                  –       0.9000                  –
        1         3       0.3000   +0.0000 ± 0.0000       0.8000   −0.1000 ± 0.0000  chosen, frontier
    """
    names = list(dict.fromkeys(name for one in candidates for name in one.values))
    rows = [["trial", *(name.replace("_", " ") for name in names),
             "clean NLL", "− deep ensemble", "perturbed", "− deep ensemble", ""]]  # fmt: skip
    for one in sorted(candidates, key=lambda one: (one.clean.mean(), one.number)):
        values = [f"{one.values[name]:g}" if name in one.values else "–" for name in names]
        clean, corrupted = choice.clean[one.number], choice.corrupted[one.number]
        differences = ("–", "–") if one.is_baseline else (str(clean), str(corrupted))
        rows.append([
            str(one.number), *values, f"{one.clean.mean():.4f}", differences[0],
            f"{one.corrupted.mean():.4f}", differences[1], _remarks(choice, one),
        ])  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([*(text.rjust(width) for text, width in zip(row[:-1], widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def _remarks(choice: Choice, one: Candidate) -> str:
    said = {
        "chosen": one.number == choice.chosen.number,
        "frontier": one.number in choice.frontier,
        "alike": one.number in choice.alike,
        "too dear": not (one.is_baseline or choice.is_allowed(one.number)),
    }
    return ", ".join(word for word, applies in said.items() if applies)
