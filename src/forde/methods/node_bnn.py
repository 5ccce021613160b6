"""Node-based Bayesian network (Trinh et al. 2022, https://arxiv.org/abs/2206.02435): noise on nodes instead of weights.

One network is trained, whose convolutions and linear layers multiply each of their nodes by a latent z
(`methods/node_noise.py`). Weights are point estimates; q(z) is a mixture of K Gaussians for each layer:

    loss = mean over B·L rows of −log p(y | x, z) + β (KL(q, p) − γ H(q))/N         (`methods/variational.py`)

Each input of a batch is given L times, and row r draws fresh noise from component r mod K, so that with L = K an input
meets each component once. β grows from 0 to 1 over `warm_up` of the epochs. Larger γ spreads the noise, which makes the
network robust to corrupted inputs; γ = 0 is plain variational inference, and the authors leave their choice blank.

    forde.fit(forde.Ensemble(make_network, n_members=32), "node-bnn", data, epochs=300)

Member i becomes one draw of component i mod K: z is drawn once and multiplied into the weights (z ⊙ (Wx + b) is a layer
of weights z ⊙ W and bias z ⊙ b), so 32 members of 4 components are 8 draws of each, as published. The authors draw
again for every row of a test batch. Here all inputs share a member's z: for each single input the distribution of the
prediction is exactly the same, as its 32 draws are independent in both; predictions do not change from call to call
nor with the batch they are in, and members are plain networks. Only means over a test set vary more from seed to seed.

The authors' defaults: SGD, for weights with Nesterov momentum 0.9 and the method's prior (weight decay 5e-4) and a
learning rate that falls to 1 %, for latents with a constant learning rate, no momentum and no weight decay. Their N is
what an epoch sees, 49,920 under `drop_last`; here it is the number of samples. They start convolutions from a Kaiming
normal of fan-out; here weights start as `make_network` makes them. Any other optimizer gets weights and latents alike.

Engines: eager, compiled (which traces the noise like that of dropout), vectorized with nothing to gain.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from forde.arguments import Input
from forde.ensemble import Ensemble, of_networks
from forde.errors import FordeError, number_from_0, unknown_name, whole_number
from forde.methods.base import Method
from forde.methods.node_noise import SIDES, Mode, fold, latents, noisy_layers, refuse_no_layer, with_noise
from forde.methods.plan import Group, OneNetwork, Passes, Plan, copy_network, draw_generator, refuse_different_members
from forde.methods.registry import register
from forde.methods.variational import BHATTACHARYYA, PUBLISHED, Except, Variational
from forde.priors import TrainingData

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeBNN(OneNetwork):
    """Members are draws of multiplicative noise on the nodes of one network.

    Args:
        components: K, Gaussians in the mixture of each layer.
        samples: L, rows that each input becomes in training; the cost of a step grows with it.
        gamma: γ, weight of the entropy beyond the ELBO.
        std: of the prior N(1, σ²), and about which the noise starts; the authors' 0.4 for ResNet18 (0.3 for VGG16).
        mode: where layers carry noise: `"out"` on their outputs, before BatchNorm; `"in"` on their inputs; `"inout"`.
        warm_up: share of the epochs over which β grows to 1; 200 of 300 as published.
        exact: the true Bhattacharyya distance in the bound of the entropy, in place of the published code's 1/16.

    >>> [round(NodeBNN().beta(epoch, 300), 3) for epoch in (0, 100, 200, 299)]
    [0.0, 0.5, 1.0, 1.0]
    """

    components: int = 4
    samples: int = 4
    gamma: float = 0.0
    std: float = 0.4
    mode: Mode = "out"
    warm_up: float = 200 / 300
    exact: bool = False

    def __post_init__(self) -> None:
        whole_number("components", self.components, at_least=1)
        whole_number("samples", self.samples, at_least=1)
        number_from_0("gamma", self.gamma)
        number_from_0("warm_up", self.warm_up)
        if not number_from_0("std", self.std):
            raise FordeError("std is 0, but a positive number was expected; noise of no width has no entropy.")
        if self.mode not in SIDES:
            raise unknown_name("mode", self.mode, SIDES)

    def beta(self, epoch: int, epochs: int) -> float:
        """Weight of the variational term in an epoch (0, 1, …)."""
        over = self.warm_up * epochs
        return min(1.0, epoch / over) if over else 1.0

    def plan(self, ensemble: Ensemble, method: Method, *, data: TrainingData, epochs: int, seed: int) -> Plan:
        refuse_different_members(ensemble, method.name)
        return NodePlan(ensemble, method, self, data=data, epochs=epochs, seed=seed)


class NodePlan(Plan):
    """A copy of the first member is trained with noise on its nodes; members stay as they are until the end."""

    makes_members = True

    def __init__(
        self, ensemble: Ensemble, method: Method, node: NodeBNN, *, data: TrainingData, epochs: int, seed: int
    ) -> None:
        first = ensemble.members[0]
        found, left = noisy_layers(first, next(data.batches()))
        refuse_no_layer(found, left)
        for name, why in left.items():
            log.info("node-bnn: layer '%s' carries no noise, because %s", name, why)
        network = with_noise(
            first, found, components=node.components, mode=node.mode, std=node.std,
            generator=draw_generator(seed, ensemble.n_members),
        )  # fmt: skip
        places = list(latents(network).values())
        self.latents = frozenset(name for pair in places for name in pair)
        self.strength = torch.zeros((), device=ensemble.device, dtype=torch.float32)
        share = BHATTACHARYYA if node.exact else PUBLISHED
        self.term = Variational(places, node.std, node.gamma, self.strength, share)
        weights = tuple(Except(p, self.latents) if p.on_weights else p for p in method.priors)
        super().__init__(of_networks(ensemble, [network]), replace(method, prior=(*weights, self.term)))
        self.node, self.size, self.epochs, self.seed = node, data.size, epochs, seed
        nodes = sum(self.term.mixture(dict(network.named_parameters())).sizes)
        log.info("node-bnn: noise on %s nodes of %d layers", f"{nodes:,}", len(found))

    def groups(self, parameters: Mapping[str, Tensor]) -> list[Group]:
        weights = [p for name, p in parameters.items() if name not in self.latents]
        latents = [p for name, p in parameters.items() if name in self.latents]
        return [Group(weights), Group(latents, momentum=0.0, nesterov=False, falls=False)]

    def batch(self, x: Input, y: Tensor) -> tuple[Input, Tensor]:
        samples = self.node.samples
        return x.repeat_interleave(samples, 0), y.repeat_interleave(samples, 0)

    def before_epoch(self, epoch: int) -> None:
        self.strength.fill_(self.node.beta(epoch, self.epochs) / self.size)

    def after_epoch(self, epoch: int) -> dict[str, float]:
        mixture = self.term.mixture(dict(self.trained.members[0].named_parameters()))
        entropy = float(mixture.entropy())
        kl = float(mixture.cross_entropy(self.node.std)) - entropy
        return {"kl": kl, "entropy": entropy, "beta": self.node.beta(epoch, self.epochs)}

    def make_members(self, ensemble: Ensemble, passes: Passes) -> None:
        network, components = self.trained.members[0], self.node.components
        for index, member in enumerate(ensemble.members):
            copy_network(network, member)
            fold(network, member, component=index % components, generator=draw_generator(self.seed, index))
        log.info("node-bnn: %d draws of %d components", ensemble.n_members, components)
        if ensemble.n_members % components:
            log.info(
                "node-bnn: components weigh unequally, because %d does not divide the number of members", components
            )


@register("node-bnn")
def node_bnn(
    *,
    components: int = 4,
    samples: int = 4,
    gamma: float = 0.0,
    std: float = 0.4,
    mode: Mode = "out",
    warm_up: float = 200 / 300,
    exact: bool = False,
) -> Method:
    """Draws of multiplicative noise on the nodes of one network, learned by variational inference."""
    return Method(one_network=NodeBNN(components, samples, gamma, std, mode, warm_up, exact))
