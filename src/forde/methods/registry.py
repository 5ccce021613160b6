"""Methods by name: one decorated function per file of this package."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from forde.errors import FordeError, unknown_name
from forde.methods.base import Method
from forde.priors import EmpCov, Isotropic, Prior

Recipe = Callable[..., Method]
_RECIPES: dict[str, Recipe] = {}

COMMON = ("repulsion_scale", "repulsion_weight", "repulsion_every", "repulsion_fraction")
"""Fields of `Method` that every recipe takes as options."""


def register(name: str) -> Callable[[Recipe], Recipe]:
    """Make a recipe known under `name`; the first line of its docstring is what `forde.methods()` shows."""

    def add(recipe: Recipe) -> Recipe:
        if name in _RECIPES:
            raise ValueError(f"the method name '{name}' is taken")
        if not recipe.__doc__:
            raise ValueError(f"the recipe of '{name}' needs a docstring: its first line is shown to users")
        _RECIPES[name] = recipe
        return recipe

    return add


def methods() -> dict[str, str]:
    """Name and one line of every registered method.

    >>> methods()["deep-ensemble"]
    'Independent members: no repulsion.'
    """
    return {name: inspect.getdoc(recipe).splitlines()[0] for name, recipe in _RECIPES.items()}  # type: ignore[union-attr]


def method(
    name: str,
    *,
    prior: str | Prior | Sequence[Prior] = "isotropic",
    weight_decay: float = 5e-4,
    **options: Any,
) -> Method:
    """A named method.

    Args:
        name: one of `forde.methods()`.
        prior: on the weights: `"isotropic"` (weight decay), `"empcov"`, or a `Prior`, each beside the method's own
            priors on outputs or features; a sequence of priors replaces all.
        weight_decay: λ of a prior given by name.
        options: the method's own (`forde.method("forde-tuned", alpha=0.2)`), and `repulsion_scale`, `repulsion_weight`,
            `repulsion_every`, `repulsion_fraction`.

    >>> method("forde-pca", prior="empcov", repulsion_every=2).name
    'forde-pca'
    """
    if name not in _RECIPES:
        raise unknown_name("method", name, _RECIPES)
    recipe = _RECIPES[name]
    own = set(inspect.signature(recipe).parameters)
    for option in options:
        if option not in own and option not in COMMON:
            raise unknown_name(f"option of {name}", option, own | set(COMMON) | {"prior", "weight_decay"})
    base = recipe(**{key: value for key, value in options.items() if key in own})
    changes = {key: value for key, value in options.items() if key in COMMON}
    if "repulsion_weight" in changes and "strength" in options and base.repulsion_weight != 1:
        raise FordeError(f"strength is what {name} has in the place of repulsion_weight; give one of them.")
    return dataclasses.replace(base, name=name, prior=_priors(prior, weight_decay, base.priors), **changes)


def _priors(prior: str | Prior | Sequence[Prior], weight_decay: float, own: tuple[Prior, ...]) -> tuple[Prior, ...]:
    if isinstance(prior, str):
        if prior not in ("isotropic", "empcov"):
            raise unknown_name("prior", prior, ("isotropic", "empcov"))
        prior = Isotropic(weight_decay) if prior == "isotropic" else EmpCov(weight_decay)
    if not isinstance(prior, Prior):
        if not all(isinstance(one, Prior) for one in prior):
            raise FordeError("prior must be 'isotropic', 'empcov', a Prior or a sequence of Priors.")
        return tuple(prior)
    return (*(one for one in own if one.on_weights != prior.on_weights), prior)
