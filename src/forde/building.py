"""How the networks of an ensemble are built, as its folder tells it: library networks by their words, others by a name.

A name is for people. It is never imported because a file holds it: that would run whatever code it names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from forde.errors import FordeError
from forde.models.building import build, description, n_parameters
from forde.saving import MAX_SHOWN, WEIGHTS

Factory = Callable[[], nn.Module]


def name_of(factories: Sequence[Factory]) -> str | None:
    """`module:function` where all members are built by one function that a module has under this name.

    >>> from forde.models import MLP
    >>> name_of([MLP, MLP]), name_of([lambda: MLP(4, [8], 3)])
    ('forde.models.mlp:MLP', None)
    """
    names = {(getattr(one, "__module__", None), getattr(one, "__qualname__", "<")) for one in factories}
    module, name = names.pop()
    if names or module in (None, "__main__") or "<" in name:  # <lambda>, or <locals> of another function
        return None
    return f"{module}:{name}"


def words_for(members: Sequence[nn.Module], built_by: str | None) -> Any:
    """For a file: the description that all members share, one of each member, the name of a function, or None."""
    found = [description(member) for member in members]
    if None in found:
        return built_by
    return found[0] if all(one == found[0] for one in found) else found


def factories_of(words: Any, n_members: int, folder: str | Path) -> Factory | list[Factory]:
    """What builds the networks that a folder describes, from files that anybody may have written."""
    advice = f"give the function that built them: forde.Ensemble.load('{folder}', make_network)."
    if words is None:
        raise FordeError(f"'{folder}' does not say how its networks are built; {advice}")
    if isinstance(words, str):
        raise FordeError(
            f"the networks in '{folder}' were built by '{words[:MAX_SHOWN]}', which is code and not imported because a "
            f"file names it; import it yourself and {advice}"
        )
    several = words if isinstance(words, list) else [words]
    if not all(isinstance(one, Mapping) for one in several) or len(several) not in (1, n_members):
        raise FordeError(f"the description of the networks in '{folder}' is damaged; {advice}")
    for one in several:
        refuse_other_sizes(one, Path(folder))
    made: list[Factory] = [partial(build, one) for one in several]
    return made if len(made) == n_members else made[0]


def refuse_other_sizes(words: Mapping[str, Any], folder: Path) -> None:
    """Before a network is built, which might fill the memory: it cannot have more parameters than bytes are stored."""
    try:
        size = n_parameters(words)
    except FordeError as error:
        raise FordeError(f"'{folder}': {error}") from None
    try:
        stored = (folder / WEIGHTS).stat().st_size
    except OSError:
        return  # whoever reads the weights says what is missing
    if size is None or size > stored:
        raise FordeError(
            f"'{folder}' describes a network of {size if size is not None else sys.maxsize:,} parameters, but its "
            f"weights have {stored:,} bytes; one of them was altered, so train again."
        )
