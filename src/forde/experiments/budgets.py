"""How much of the paper is run: four budgets from the letter of it down to a test of the machinery."""

from __future__ import annotations

from dataclasses import dataclass, replace

from forde.errors import FordeError, unknown_name


@dataclass(frozen=True)
class Budget:
    """What a budget makes of the paper's settings.

    >>> budget("short").epochs_of(300), budget("full").epochs_of(300)
    (12, 300)
    """

    name: str
    line: str
    members: int | None
    """None: as many as the paper has."""
    epochs: int | None
    """None: as many as the paper has; else the most."""
    seeds: int
    """Of the methods that are compared most closely."""
    other_seeds: int
    """Of all others."""
    precision: str
    chosen: tuple[int, ...] | None = None
    """Seeds asked for in place of all these."""
    backbone: str = "vit-base-patch16-224-in21k"
    """The pretrained network whose features transfer learning begins with: the name of their folder."""

    @property
    def smoke(self) -> bool:
        """Whether stand-ins take the place of data sets and networks."""
        return self.name == "smoke"

    def seeds_of(self, *, closely: bool) -> tuple[int, ...]:
        """The seeds of a method, which is compared closely or not."""
        return self.chosen or tuple(range(self.seeds if closely else self.other_seeds))

    def members_of(self, paper: int) -> int:
        """Members where the paper has so many."""
        return self.members or paper

    def epochs_of(self, paper: int) -> int:
        """Epochs where the paper has so many."""
        return min(self.epochs or paper, paper)


BUDGETS = {
    each.name: each
    for each in (
        Budget("full", "the paper to the letter", None, None, 5, 5, "float32"),
        Budget("long", "10 members, 100 epochs, bf16", 10, 100, 1, 1, "bf16"),
        Budget("short", "5 members, 12 epochs, bf16", 5, 12, 3, 1, "bf16"),
        Budget("smoke", "seconds on a CPU: the digits of scikit-learn and small networks", 3, 2, 2, 2, "float32"),
    )
}


def budget(name: str) -> Budget:
    """A budget by name.

    >>> budget("long").members_of(16)
    10
    """
    if name not in BUDGETS:
        raise unknown_name("budget", name, BUDGETS)
    return BUDGETS[name]


def adjusted(
    chosen: Budget, precision: str | None = None, seeds: str | None = None, backbone: str | None = None
) -> Budget:
    """The budget with another precision, other seeds, as in "0,1,2", or other features; as it is for None.

    >>> adjusted(budget("short"), "float32", "0,3").seeds_of(closely=False)
    (0, 3)
    """
    if precision is not None:
        if precision not in (known := ("float32", "bf16")):
            raise unknown_name("precision", precision, known)
        chosen = replace(chosen, precision=precision)
    if backbone is not None:
        chosen = replace(chosen, backbone=backbone)
    if seeds is None:
        return chosen
    try:
        numbers = tuple(dict.fromkeys(int(word) for word in seeds.split(",")))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 0:
        raise FordeError(f"the seeds are '{seeds}', but whole numbers from 0 as in 0,1,2 were expected.")
    return replace(chosen, chosen=numbers)
