"""A method: a choice on each axis (space, kernel, rule, prior), and how often and how strongly members repel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from torch import nn

from forde.arguments import EMBEDDINGS, as_rows
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.kernels import Kernel
from forde.kernels.rbf import RBF
from forde.methods.plan import OneNetwork, Plan
from forde.priors import Isotropic, Prior, TrainingData
from forde.rules import WGD, Rule
from forde.spaces import FeatureLayer, Space
from forde.spaces.features import last_linear_of


@dataclass(frozen=True)
class Method:
    """Everything that distinguishes one repulsive ensemble from another.

    Args:
        space: what of two members is compared; None for no repulsion (a deep ensemble).
        kernel: how similar they are; RBF with the median heuristic by default.
        rule: what force follows; Wasserstein gradient descent by default.
        prior: one prior or several; weight decay 5e-4 by default, `()` for none.
        repulsion_scale: factor of the repulsion in mean-loss units: `"batch"` (1/B), `"data"` (1/N) or a number;
            by default the space's own, and 1 for a plain penalty.
        repulsion_weight: further factor, a number or a function of the epoch (0, 1, …).
        repulsion_every: repel in every k-th step only, starting with the first. Forces are not enlarged to make up for
            it; `repulsion_weight=k` does.
        repulsion_fraction: repel on the first samples of each batch only, this share of it; the loss still uses the
            whole batch. Input gradients are then those of each sample by itself, under BatchNorm's statistics of the
            whole batch as numbers; with 1 they contain, as published, what a sample changes in these.
        shared_head: one last linear layer for all members (feature-RDE as published): its copies are kept equal and
            follow the mean of the members' gradients.
        one_network: for methods that train one network and make all members of it at the end (SWAG, node-BNN); they
            have no space.

    >>> from forde import spaces, kernels, rules
    >>> mine = Method(space=spaces.Features(), kernel=kernels.RBF(bandwidth="per_sample"), rule=rules.SVGD())
    >>> mine.factor(step=0, epoch=0, batch_size=4)
    0.25
    """

    space: Space | None = None
    kernel: Kernel | None = None
    rule: Rule | None = None
    prior: Prior | Sequence[Prior] = (Isotropic(),)
    repulsion_scale: Literal["batch", "data"] | float | None = None
    repulsion_weight: float | Callable[[int], float] = 1.0
    repulsion_every: int = 1
    repulsion_fraction: float = 1.0
    shared_head: bool = False
    name: str = "custom"
    one_network: OneNetwork | None = None

    def __post_init__(self) -> None:
        prior = (self.prior,) if isinstance(self.prior, Prior) else tuple(self.prior)
        object.__setattr__(self, "prior", prior)
        if self.space is not None:
            object.__setattr__(self, "kernel", self.kernel or RBF())
            object.__setattr__(self, "rule", self.rule or WGD())
        self._check()

    def _check(self) -> None:
        if not isinstance(self.repulsion_every, int) or self.repulsion_every < 1:
            raise FordeError(f"repulsion_every is {self.repulsion_every!r}, but a whole number ≥ 1 was expected.")
        if not isinstance(self.repulsion_fraction, int | float) or not 0 < self.repulsion_fraction <= 1:
            raise FordeError(f"repulsion_fraction is {self.repulsion_fraction!r}, but a number in (0, 1] was expected.")
        if not callable(self.repulsion_weight):
            _check_factor(self.repulsion_weight, "repulsion_weight")
        if self.repulsion_scale is not None and self.repulsion_scale not in ("batch", "data"):
            _check_factor(self.repulsion_scale, "repulsion_scale", "'batch', 'data' or ")
        if self.space is None:
            return
        if self.one_network is not None:
            raise FordeError("one_network trains a single network, which nothing can repel; leave space out.")
        assert self.kernel is not None and self.rule is not None
        if self.rule.needs_symmetric_kernel and not self.kernel.symmetric:
            raise FordeError(
                f"{type(self.rule).__name__} needs a symmetric kernel, but this one has a bandwidth per column or row; "
                "use bandwidth='per_sample', 'global' or a number."
            )
        if self.kernel.needs_training_data and not self.space.needs_input_gradient:
            raise FordeError(
                f"a PCA metric compares input gradients along directions of the inputs, but the space is "
                f"{type(self.space).__name__}; use InputGradients or metric=Identity()."
            )
        if self.kernel.needs_training_data and self.space.gradients_of == EMBEDDINGS:
            raise FordeError(
                "a PCA metric compares input gradients along directions of the inputs, which tokens have none of; use "
                "'forde-identity' or metric=Identity() with of='embeddings'."
            )
        if self.rule.mixes and self.space.mixes == "representation" and self.repulsion_fraction < 1:
            raise FordeError(
                f"{type(self.rule).__name__} in {type(self.space).__name__} space mixes loss gradients of the whole "
                "batch, so repulsion_fraction must be 1."
            )

    @cached_property
    def priors(self) -> tuple[Prior, ...]:
        """The priors, always as a tuple."""
        assert isinstance(self.prior, tuple)
        return self.prior

    def factor(self, *, step: int, epoch: int, batch_size: int, data_size: int | None = None) -> float | None:
        """What the repulsion is multiplied with in this step, in mean-loss units; None where members do not interact.

        Args:
            data_size: N; the batch size if left out.

        >>> from forde.spaces import InputGradients
        >>> Method(space=InputGradients(), repulsion_weight=3.0).factor(step=0, epoch=0, batch_size=4)
        0.75
        """
        if self.space is None or self.rule is None or step % self.repulsion_every:
            return None
        weight = self.repulsion_weight
        if callable(weight):
            weight = weight(epoch)
            _check_factor(weight, f"repulsion_weight({epoch})")
        if weight == 0:
            return None
        scale = self.repulsion_scale
        if scale is None:
            scale = self.space.scale if self.rule.log_density else 1.0
        sizes = {"batch": batch_size, "data": data_size or batch_size}
        return weight * (1 / sizes[scale] if isinstance(scale, str) else float(scale))

    def compared(self, batch_size: int) -> int | None:
        """At how many of a batch's samples, the first ones, members are compared; None where at all of them."""
        if self.repulsion_fraction == 1 or self.space is None or not self.space.uses_batch:
            return None
        return max(1, math.ceil(self.repulsion_fraction * batch_size))

    @cached_property
    def mixes_representations(self) -> bool:
        """Whether driving forces are shared where members are compared (SVGD in output or feature space)."""
        space, rule = self.space, self.rule
        return space is not None and rule is not None and rule.mixes and space.mixes == "representation"

    @cached_property
    def mixes_weights(self) -> bool:
        """Whether gradients of weights are shared between members (SVGD in weight or input-gradient space)."""
        return self.rule is not None and self.rule.mixes and not self.mixes_representations

    def prepare(self, network: nn.Module, data: TrainingData) -> Method:
        """The method with metrics and priors fitted to the training data; `network` is any member."""
        of = None if self.space is None else self.space.gradients_of
        kernel = None if self.kernel is None else self.kernel.prepare(lambda: (as_rows(x, of) for x in data.batches()))
        return replace(self, kernel=kernel, prior=tuple(prior.prepare(network, data) for prior in self.priors))

    def plan(self, ensemble: Ensemble, *, data: TrainingData, epochs: int, seed: int) -> Plan:
        """What a run of `fit` trains: the members, or one network that they are made of."""
        if self.one_network is None:
            return Plan(ensemble, self)
        return self.one_network.plan(ensemble, self, data=data, epochs=epochs, seed=seed)

    def falling(self, epochs: int, lr: float) -> tuple[int, float]:
        """How the learning rate falls where nobody says otherwise: over how many epochs, and to which share of `lr`.

        It is constant over half of these epochs and at the share from 90 % of them on (`training.schedule`).
        """
        return (epochs, 0.01) if self.one_network is None else self.one_network.falling(epochs, lr)

    def feature_layer(self, network: nn.Module) -> FeatureLayer | None:
        """The activation that the space or a prior reads; None for none."""
        layer = None if self.space is None else self.space.feature_layer(network)
        if layer is None and any(prior.needs_features for prior in self.priors):
            layer = last_linear_of(network)
        return layer


def _check_factor(value: object, name: str, others: str = "") -> None:
    """Refuse a factor of the repulsion that would attract, or that is no number."""
    try:
        fits = not isinstance(value, str) and 0 <= float(value) < math.inf  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        fits = False
    if not fits:
        raise FordeError(f"{name} is {value!r}, but {others}0 (no repulsion) or a positive number was expected.")
