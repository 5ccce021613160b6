"""What the text says about the tables of methods."""

from __future__ import annotations

from forde.experiments.claims import Claim, better
from forde.experiments.paper import OTHERS

BASELINES = ("deep-ensemble", *OTHERS)
OURS = "this library"
CORRUPTED = ("cA", "cNLL", "cECE")
TOLERANCE = {"accuracy": 0.005, "nll": 0.01}
"""How much worse still counts as competitive on clean data: what the paper's tables round to, or lose."""


def table_claims(best_clean: str) -> tuple[Claim, ...]:
    """The claims on a table with FoRDE-PCA, -Identity and -Tuned.

    Args:
        best_clean: the number in which FoRDE-Identity is said to be best on clean data.
    """
    forde = ("forde-identity", "forde-tuned")
    most = [
        Claim(f"FoRDE-Tuned outperforms most baselines ({name}).", better(name, "forde-tuned", *BASELINES), need="most")
        for name in ("nll", "accuracy", "cA", "cNLL")
    ]
    return (
        *(
            Claim(
                f"FoRDE-PCA outperforms the other methods under corruption ({name}).",
                better(name, "forde-pca", *BASELINES, *forde),
            )
            for name in CORRUPTED
        ),
        *competitive("forde-pca", "FoRDE-PCA"),
        Claim(
            f"FoRDE-Identity outperforms the baselines on clean data ({best_clean}).",
            better(best_clean, "forde-identity", *BASELINES),
        ),
        Claim(
            "FoRDE-Identity is slightly less robust than deep ensembles (cNLL).",
            better("cNLL", "deep-ensemble", "forde-identity"),
        ),
        *most,
        *no_gain(),
        *recipe_claims(),
    )


def competitive(label: str, shown: str) -> tuple[Claim, ...]:
    """That a method loses little on clean data."""
    return tuple(
        Claim(
            f"{shown} stays competitive on clean data ({name}, at most {by:g} worse).",
            better(name, label, "deep-ensemble", by=-by),
        )
        for name, by in TOLERANCE.items()
    )


def no_gain() -> tuple[Claim, ...]:
    """That repulsion between weights or functions improves nothing."""
    return tuple(
        Claim(
            f"{shown} repulsion brings no significant improvement over deep ensembles (accuracy, NLL, cA, cNLL).",
            tuple(one for name in ("accuracy", "nll", "cA", "cNLL") for one in better(name, label, "deep-ensemble")),
            denied=True,
        )
        for label, shown in (("weight-rde", "Weight-space"), ("function-rde", "Function-space"))
    )


def recipe_claims() -> tuple[Claim, ...]:
    """What the recipe `forde` is for."""
    gains = [
        Claim(
            f"The recipe forde is more robust than deep ensembles ({name}).",
            better(name, "forde", "deep-ensemble"),
            OURS,
        )
        for name in CORRUPTED
    ]
    return (
        *gains,
        Claim(
            "The recipe forde is more robust than FoRDE-PCA as published (cA, cNLL).",
            (*better("cA", "forde", "forde-pca"), *better("cNLL", "forde", "forde-pca")),
            OURS,
        ),
        Claim(
            "The recipe forde loses nothing significant on clean data (accuracy, NLL).",
            (*better("accuracy", "deep-ensemble", "forde"), *better("nll", "deep-ensemble", "forde")),
            OURS,
            denied=True,
        ),
    )
