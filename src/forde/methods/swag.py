"""SWAG (Maddox et al. 2019, https://arxiv.org/abs/1902.02476): a Gaussian around the path of SGD.

One network is trained. From `start` on its weights are collected at the end of every epoch, under a learning rate that
stays high enough to move about; `methods/moments.py` has the formulas of mean, covariance and draws. Member i of the
ensemble becomes draw i, and its BatchNorm statistics are estimated anew by one shuffled pass over the training data
(augmented as in training), because those of the network belong to none of the weights that were drawn.

    forde.fit(forde.Ensemble(make_network, n_members=30), "swag", data, epochs=300)

The authors' defaults: SGD with momentum 0.9 without Nesterov, lr 0.1, weight decay as the method's prior; over the
`start` first epochs the learning rate is constant to one half, falls linearly to `swa_lr` at 90 %, and stays. Any other
optimizer or schedule does as well (`fit(optimizer=..., scheduler=...)`). It costs one network's training, memory on the
CPU for (16 + 4 · rank) bytes per weight, and at the end as many forward passes over the data as there are members.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from forde.ensemble import Ensemble, of_networks
from forde.errors import FordeError, number_from_0, whole_number
from forde.methods.base import Method
from forde.methods.moments import Moments, refresh_batch_norm
from forde.methods.plan import Group, OneNetwork, Passes, Plan, copy_network, draw_generator, refuse_different_members
from forde.methods.registry import register
from forde.priors import TrainingData

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Swag(OneNetwork):
    """Members are draws from a Gaussian that was fitted to the weights of one training run.

    Args:
        swa_lr: the learning rate while weights are collected; half of `lr` if left out, as the authors' 0.05 for
            CIFAR-100 (for CIFAR-10 they take 0.01).
        start: share of the epochs after which weights are collected; 161 of 300 as published.
        every: collect in every so many epochs.
        rank: largest number of deviations in the low-rank part of the covariance; at least 2.
        scale: factor of the covariance: 0.5 as in the paper; 0 gives the mean of the weights (SWA).

    >>> Swag().first_epoch(300), Swag().collections(300), Swag().collections(2)
    (161, 139, 1)
    """

    swa_lr: float | None = None
    start: float = 161 / 300
    every: int = 1
    rank: int = 20
    scale: float = 0.5

    def __post_init__(self) -> None:
        if self.swa_lr is not None:
            number_from_0("swa_lr", self.swa_lr)
        if isinstance(self.start, (bool, str)) or not 0 <= self.start < 1:
            raise FordeError(
                f"start is {self.start!r}, but a share of the epochs, from 0 to less than 1, was expected."
            )
        whole_number("every", self.every, at_least=1)
        whole_number("rank", self.rank, at_least=2)
        number_from_0("scale", self.scale)

    def first_epoch(self, epochs: int) -> int:
        """How many epochs pass before weights are collected; the last epoch is always left."""
        return min(round(self.start * epochs), epochs - 1)

    def collects(self, epoch: int, epochs: int) -> bool:
        """Whether weights are collected at the end of an epoch (0, 1, …)."""
        after = epoch + 1 - self.first_epoch(epochs)
        return after > 0 and after % self.every == 0

    def collections(self, epochs: int) -> int:
        """How often weights are collected."""
        return sum(self.collects(epoch, epochs) for epoch in range(epochs))

    def falling(self, epochs: int, lr: float) -> tuple[int, float]:
        last = 0.5 if self.swa_lr is None else self.swa_lr / lr if lr else 1.0
        return max(1, self.first_epoch(epochs)), last

    def plan(self, ensemble: Ensemble, method: Method, *, data: TrainingData, epochs: int, seed: int) -> Plan:
        refuse_different_members(ensemble, method.name)
        if not self.collections(epochs):
            raise FordeError(
                f"with every={self.every} and start={self.start:.3g} no weights would be collected in {epochs} epochs; "
                "train longer, or lower every."
            )
        if self.collections(epochs) == 1 and self.scale and ensemble.n_members > 1:
            log.warning(
                "swag: all members will be the same, because weights are collected once only in %d epochs (start=%.3g, "
                "every=%d); train longer, or lower start.", epochs, self.start, self.every,
            )  # fmt: skip
        return SwagPlan(ensemble, method, self, epochs=epochs, seed=seed)


class SwagPlan(Plan):
    """The first member is the network that is trained; the others wait."""

    makes_members = True

    def __init__(self, ensemble: Ensemble, method: Method, swag: Swag, *, epochs: int, seed: int) -> None:
        super().__init__(of_networks(ensemble, [ensemble.members[0]]), method)
        self.swag, self.epochs, self.seed = swag, epochs, seed
        self.moments = Moments(swag.rank)

    def groups(self, parameters: Mapping[str, Tensor]) -> list[Group]:
        return [Group(list(parameters.values()), nesterov=False)]

    def after_epoch(self, epoch: int) -> dict[str, float]:
        if self.swag.collects(epoch, self.epochs):
            self.moments.collect(self.trained.members[0])
        return {"collected": float(self.moments.count)}

    def tensors(self) -> dict[str, Tensor]:
        return self.moments.tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.moments.load(tensors)

    def make_members(self, ensemble: Ensemble, passes: Passes) -> None:
        network = self.trained.members[0]
        for index, member in enumerate(ensemble.members):
            if member is not network:
                copy_network(network, member)
            self.moments.draw(member, draw_generator(self.seed, index), scale=self.swag.scale)
        generator = draw_generator(self.seed, ensemble.n_members)
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))  # dropout draws from torch's own numbers
        seen = refresh_batch_norm(list(ensemble.members), passes(generator))
        note = f", BatchNorm statistics from {seen:,} samples" if seen else ""
        log.info("swag: %d draws from %d collected weights%s", ensemble.n_members, self.moments.count, note)


@register("swag")
def swag(
    *,
    swa_lr: float | None = None,
    start: float = 161 / 300,
    every: int = 1,
    rank: int = 20,
    scale: float = 0.5,
) -> Method:
    """Draws from a Gaussian around the path of one network's training."""
    return Method(one_network=Swag(swa_lr, start, every, rank, scale))
