"""METHODS 5: node-BNN's noise, entropy, KL and training, against formulas written out and a loop by hand."""

from __future__ import annotations

import copy
import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_network import ConvNet, Interruption, bits, compare_interrupted, image_data, small_data, small_ensemble
from torch import Tensor, nn
from torch.nn import functional as F

import forde
from forde.engine import make_engine
from forde.errors import FordeError
from forde.evaluation import evaluate_robustness, generated_cells
from forde.inference.folding import has_hooks
from forde.methods.node_bnn import NodeBNN, NodePlan
from forde.methods.node_noise import NOISY, fold, latents, noisy_layers, with_noise
from forde.methods.plan import copy_network, draw_generator
from forde.methods.variational import BHATTACHARYYA, PUBLISHED, Except, Mixture, Variational
from forde.priors import Isotropic, TrainingData

FIT: dict[str, Any] = {"epochs": 6, "batch_size": 16, "verbose": False, "engine": "eager"}
K = 3
LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(4, 6), (4,)),
    "linear on sequences": (nn.Linear(4, 6, bias=False), (7, 4)),
    "conv1d": (nn.Conv1d(4, 6, 3, groups=2), (4, 9)),
    "conv2d": (nn.Conv2d(4, 6, 3, padding=1, stride=2), (4, 5, 5)),
    "conv2d, reflecting": (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect", bias=False), (4, 5, 5)),
    "conv2d, depthwise": (nn.Conv2d(4, 8, 3, groups=4), (4, 5, 5)),
    "conv3d": (nn.Conv3d(4, 6, 2), (4, 3, 3, 3)),
    "transposed 1d": (nn.ConvTranspose1d(4, 6, 3), (4, 5)),
    "transposed 2d": (nn.ConvTranspose2d(4, 6, 3, groups=2, stride=2), (4, 4, 4)),
    "transposed 3d": (nn.ConvTranspose3d(4, 6, 2, bias=False), (4, 2, 2, 2)),
}
every_layer = pytest.mark.parametrize("layer", LAYERS)
every_mode = pytest.mark.parametrize("mode", ["out", "in", "inout"])


def noisy_of(network: nn.Module, *, components: int = K, mode: Any = "out", std: float = 0.4) -> nn.Module:
    names = [name for name, layer in network.named_modules() if type(layer) in NOISY]
    generator = torch.Generator().manual_seed(4)
    return with_noise(network, names, components=components, mode=mode, std=std, generator=generator)


def set_latents(noisy: nn.Module, *, mean: float | None = None, std: float | None = None) -> None:
    for name, parameter in noisy.named_parameters():
        if name.endswith("_mean") and mean is not None:
            nn.init.constant_(parameter, mean)
        if name.endswith("_rho") and std is not None:
            nn.init.constant_(parameter, math.log(math.expm1(std)) if std else -200.0)


def make_mixture(components: int = K, nodes: int = 5, share: float = PUBLISHED, spread: float = 0.3) -> Mixture:
    generator = torch.Generator().manual_seed(6)
    mean = 1 + spread * torch.randn(components, nodes, dtype=torch.float64, generator=generator)
    std = 0.2 + 0.4 * torch.rand(components, nodes, dtype=torch.float64, generator=generator)
    return Mixture(mean, std, (nodes - 2, 2) if nodes > 2 else (nodes,), share)


class TestNoise:
    @every_mode
    @every_layer
    def test_without_width_around_1_it_is_the_plain_layer(self, layer: str, mode: str) -> None:
        plain, shape = LAYERS[layer]
        noisy = noisy_of(nn.Sequential(plain), mode=mode)
        set_latents(noisy, mean=1.0, std=0.0)
        x = torch.randn(5, *shape)
        assert torch.equal(noisy(x), plain(x))

    @every_mode
    @every_layer
    def test_a_folded_network_is_the_noisy_one_with_the_noise_held(self, layer: str, mode: str) -> None:
        """Without width z is the mean of the row's component: row r of the noisy layer is that of folded r mod K."""
        plain = nn.Sequential(copy.deepcopy(LAYERS[layer][0])).double()
        noisy = noisy_of(plain, mode=mode)
        set_latents(noisy, std=0.0)
        x = torch.randn(2 * K + 1, *LAYERS[layer][1], dtype=torch.float64)
        found = noisy(x)
        for component in range(K):
            copied = copy.deepcopy(plain)
            copy_network(noisy, copied)
            fold(noisy, copied, component=component, generator=torch.Generator())
            torch.testing.assert_close(found[component::K], copied(x)[component::K], rtol=1e-10, atol=1e-12)

    def test_by_hand(self) -> None:
        """y = (Wx + b) (μ_k + softplus(ρ_k) ε), ε fresh for every row and node."""
        plain = nn.Linear(4, 6)
        noisy = noisy_of(nn.Sequential(plain))[0]
        x = torch.randn(8, 4)
        torch.manual_seed(3)
        found = noisy(x)
        torch.manual_seed(3)
        epsilon = torch.randn(8, 6)
        for row in range(8):
            k = row % K
            z = noisy.out_mean[k] + torch.log1p(noisy.out_rho[k].exp()) * epsilon[row]
            torch.testing.assert_close(found[row], (plain.weight @ x[row] + plain.bias) * z)

    def test_start(self) -> None:
        noisy = noisy_of(nn.Sequential(nn.Linear(2, 40_000)), std=0.3)
        mean, std = noisy[0].out_mean.detach(), F.softplus(noisy[0].out_rho.detach())
        assert mean.shape == std.shape == (K, 40_000)
        n = mean.numel() ** 0.5
        assert float(mean.mean()) == pytest.approx(1, abs=5 * 0.05 / n)
        assert float(mean.std()) == pytest.approx(0.05, rel=5 / n)
        assert float(std.mean()) == pytest.approx(0.3, abs=5 * 0.02 / n)
        assert float(std.std()) == pytest.approx(0.02, rel=5 / n)

    @pytest.mark.parametrize("samples", [K, 2 * K])
    def test_each_input_meets_each_component_equally_often(self, samples: int) -> None:
        noisy = noisy_of(nn.Sequential(nn.Linear(1, 1, bias=False)))
        set_latents(noisy, std=0.0)
        noisy[0].out_mean.data.copy_(torch.arange(1.0, K + 1)[:, None])
        nn.init.ones_(noisy[0].weight)
        plan = make_plan(NodeBNN(components=K, samples=samples))
        x, y = plan.batch(torch.tensor([[1.0], [10.0], [100.0]]), torch.arange(3))
        assert torch.equal(y, torch.arange(3).repeat_interleave(samples))
        found = noisy(x).view(3, samples) / torch.tensor([[1.0], [10.0], [100.0]])
        for row in found.round():
            assert sorted(row.tolist()) == sorted([1.0, 2.0, 3.0] * (samples // K))

    def test_predictions_of_one_input_have_the_distribution_of_fresh_noise(self) -> None:
        """Members hold their noise for all inputs; for one input that is what fresh noise for each row comes to."""
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double().eval()
        noisy = noisy_of(plain).eval()
        x, n = torch.randn(1, 4, dtype=torch.float64), 6000
        with torch.no_grad():
            fresh = noisy(x.expand(n, -1)).softmax(-1)
            held = []
            member = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double().eval()
            for draw in range(n // 4):
                copy_network(noisy, member)
                fold(noisy, member, component=draw % K, generator=draw_generator(0, draw))
                held.append(member(x).softmax(-1))
        held = torch.cat(held)
        middle = fresh.median(0).values
        for moment in (lambda p: p, lambda p: p.square(), lambda p: p.prod(-1, True), lambda p: (p > middle).double()):
            a, b = moment(fresh), moment(held)
            error = (a.mean(0) - b.mean(0)).abs() / (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
            assert error.max() < 4.5

    def test_noise_is_drawn_anew_for_each_row_and_call(self) -> None:
        noisy = noisy_of(nn.Sequential(nn.Linear(4, 6)), components=1)
        x = torch.ones(5, 4)
        found = noisy(x)
        assert not torch.equal(found[0], found[1]) and not torch.equal(found, noisy(x))


class TestWhichLayers:
    def test_convolutions_and_linear_layers_of_any_network(self) -> None:
        found, left = noisy_layers(forde.models.resnet18(10), torch.zeros(2, 3, 8, 8))
        assert len(found) == 21 and not left  # 17 convolutions, 3 on shortcuts, 1 linear layer
        assert noisy_layers(forde.models.MLP(4, [8, 8], 3), torch.zeros(2, 4))[1] == {}

    def test_layers_that_fold_could_not_scale_are_left_alone(self) -> None:
        class Odd(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.twice, self.unused, self.tokens = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
                self.b.weight = self.a.weight
                self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
                self.mine = type("Mine", (nn.Linear,), {})(4, 4)
                self.head = nn.Linear(4, 3)
                self.alias = self.head

            def forward(self, x: Tensor) -> Tensor:
                x = self.b(self.a(self.twice(self.twice(x))))
                x = self.tokens(x.repeat(2, 1))[: len(x)]
                return self.alias(self.mine(self.normed(x)))

        found, left = noisy_layers(Odd(), torch.zeros(3, 4))
        assert found == ["head"]
        assert left == {
            "twice": "a forward pass calls it 2 times",
            "unused": "a forward pass calls it 0 times",
            "tokens": "its first axis is not the batch",
            "a": "it shares its weight with 'b'",
            "b": "it shares its weight with 'a'",
        }

    def test_looking_leaves_the_network_as_it_is(self) -> None:
        network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)).train()
        network[1].eval()
        x, before = torch.randn(3, 4), {n: t.clone() for n, t in network.state_dict().items()}
        random = torch.get_rng_state()
        noisy_layers(network, x)
        assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
        assert torch.equal(random, torch.get_rng_state())
        assert [layer.training for layer in network] == [True, False, True, True]
        assert not has_hooks(network)

    def test_the_log_names_them(self, caplog: pytest.LogCaptureFixture) -> None:
        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.inner(self.inner(x)))

        with caplog.at_level(logging.INFO, logger="forde"):
            forde.fit(forde.Ensemble(Twice, 3), "node-bnn", small_data(), **FIT)
        assert "node-bnn: layer 'inner' carries no noise, because a forward pass calls it 2 times" in caplog.text
        assert "node-bnn: noise on 3 nodes of 1 layers" in caplog.text
        assert "node-bnn: 3 draws of 4 components" in caplog.text and "weigh unequally" in caplog.text


class TestEntropy:
    def gaussian(self, std: Tensor) -> float:
        return float((0.5 * (2 * math.pi * math.e * std.square()).log()).sum())

    def test_one_component(self) -> None:
        mixture = make_mixture(1)
        assert float(mixture.entropy()) == pytest.approx(self.gaussian(mixture.std), rel=1e-12)

    def test_identical_components(self) -> None:
        one = make_mixture(1)
        four = Mixture(one.mean.expand(4, -1), one.std.expand(4, -1), one.sizes)
        assert float(four.entropy()) == pytest.approx(self.gaussian(one.std), rel=1e-12)

    def test_components_far_apart_add_ln_k_for_each_layer(self) -> None:
        mixture = make_mixture(4)
        far = Mixture(1e3 * torch.arange(4.0).double()[:, None].expand(-1, 5), mixture.std, (5,))
        expected = sum(self.gaussian(std) for std in mixture.std) / 4 + math.log(4)
        assert float(far.entropy()) == pytest.approx(expected, rel=1e-12)
        two = Mixture(far.mean, far.std, (2, 3))
        assert float(two.entropy()) == pytest.approx(expected + math.log(4), rel=1e-12)

    @pytest.mark.parametrize("spread", [0.1, 0.5, 2.0])
    def test_bounds_are_below_monte_carlo(self, spread: float) -> None:
        """H(1/16) ≤ H(1/4) ≤ Monte Carlo; so KL by either is at least the Monte Carlo KL."""
        mixture = make_mixture(4, nodes=2, spread=spread)
        entropy, error, kl, kl_error = monte_carlo(mixture, prior_std=0.4)
        loose = Mixture(mixture.mean, mixture.std, (2,), PUBLISHED)
        tight = Mixture(mixture.mean, mixture.std, (2,), BHATTACHARYYA)
        assert float(loose.entropy()) <= float(tight.entropy()) + 1e-12
        assert float(tight.entropy()) <= entropy + 4 * error
        for each in (loose, tight):
            assert float(each.cross_entropy(0.4) - each.entropy()) >= kl - 4 * kl_error

    def test_no_divergence_from_itself(self) -> None:
        prior = Mixture(torch.ones(1, 7).double(), torch.full((1, 7), 0.4).double(), (7,))
        assert float(prior.cross_entropy(0.4) - prior.entropy()) == pytest.approx(0, abs=1e-12)

    @pytest.mark.parametrize("share", [PUBLISHED, BHATTACHARYYA])
    def test_by_hand(self, share: float) -> None:
        mixture = make_mixture(share=share)
        assert float(mixture.entropy()) == pytest.approx(float(entropy_by_hand(mixture)), rel=1e-12)
        assert float(mixture.cross_entropy(0.4)) == pytest.approx(float(cross_entropy_by_hand(mixture, 0.4)), rel=1e-12)

    @pytest.mark.parametrize("share", [PUBLISHED, BHATTACHARYYA])
    @pytest.mark.parametrize("gamma", [0.0, 20.0])
    def test_gradients(self, gamma: float, share: float) -> None:
        """Against finite differences, and against autograd through the sums as they are written."""
        mixture = make_mixture(share=share)
        found = mixture.gradients(0.4, gamma)

        def term(mean: Tensor, std: Tensor) -> Tensor:
            each = Mixture(mean, std, mixture.sizes, share)
            return cross_entropy_by_hand(each, 0.4) - (1 + gamma) * entropy_by_hand(each)

        live = mixture.mean.clone().requires_grad_(), mixture.std.clone().requires_grad_()
        for mine, wanted in zip(found, torch.autograd.grad(term(*live), live), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-10)
        generator = torch.Generator().manual_seed(0)
        a, b = (torch.randn(mixture.mean.shape, generator=generator, dtype=torch.float64) for _ in range(2))
        step = 1e-5
        ends = [term(mixture.mean + s * step * a, mixture.std + s * step * b) for s in (1, -1)]
        numeric = float(ends[0] - ends[1]) / (2 * step)
        assert numeric == pytest.approx(float((found[0] * a + found[1] * b).sum()), rel=1e-6)

    def test_larger_gamma_widens_the_noise(self) -> None:
        """On a quadratic loss ½ c s² + (CE − (1 + γ)H)/N of one latent, whose best s is √((1 + γ)/(c N + 1/σ²))."""
        widths = []
        for gamma in (0.0, 1.0, 10.0):
            mean, rho = torch.ones(1, 1).double(), torch.zeros(1, 1).double().requires_grad_()
            parameters = {"mean": mean.requires_grad_(), "rho": rho}
            term = Variational([("mean", "rho")], 0.4, gamma, torch.tensor(1 / 20))
            for _ in range(500):
                std = F.softplus(rho)
                (0.5 * 3 * std.square() + 0 * mean).sum().backward()
                term.add_gradients(parameters)
                with torch.no_grad():
                    rho.sub_(0.3 * rho.grad)
                mean.grad = rho.grad = None
            widths.append(float(F.softplus(rho.detach())))
            assert widths[-1] == pytest.approx(math.sqrt((1 + gamma) / (3 * 20 + 1 / 0.4**2)), rel=1e-3)
        assert widths == sorted(widths)


def monte_carlo(mixture: Mixture, prior_std: float, n: int = 200_000) -> tuple[float, float, float, float]:
    """Entropy and KL of the mixture over all nodes together, each with its standard error."""
    generator = torch.Generator().manual_seed(2)
    k = torch.arange(n) % len(mixture.mean)
    epsilon = torch.randn(n, mixture.mean.shape[1], generator=generator, dtype=torch.float64)
    z = mixture.mean[k] + mixture.std[k] * epsilon
    each = torch.distributions.Normal(mixture.mean, mixture.std).log_prob(z[:, None]).sum(-1)
    log_q = each.logsumexp(1) - math.log(len(mixture.mean))
    log_p = torch.distributions.Normal(1.0, prior_std).log_prob(z).sum(-1)
    kl = log_q - log_p
    return float(-log_q.mean()), float(log_q.std() / n**0.5), float(kl.mean()), float(kl.std() / n**0.5)


def entropy_by_hand(mixture: Mixture) -> Tensor:
    total, start = torch.zeros((), dtype=torch.float64), 0
    for size in mixture.sizes:
        mean, std = mixture.mean[:, start : start + size], mixture.std[:, start : start + size]
        start += size
        n = len(mean)
        for i in range(n):
            total = total + (0.5 * (2 * math.pi * math.e * std[i] ** 2).log()).sum() / n
            overlap = torch.zeros((), dtype=torch.float64)
            for j in range(n):
                v = std[i] ** 2 + std[j] ** 2
                distance = mixture.share * ((mean[i] - mean[j]) ** 2 / v).sum()
                distance = distance + 0.5 * ((v / 2).log().sum() - std[i].log().sum() - std[j].log().sum())
                overlap = overlap + (-distance).exp() / n
            total = total - overlap.log() / n
    return total


def cross_entropy_by_hand(mixture: Mixture, prior_std: float) -> Tensor:
    terms = 0.5 * math.log(2 * math.pi * prior_std**2) + ((mixture.mean - 1) ** 2 + mixture.std**2) / (2 * prior_std**2)
    return terms.sum() / len(mixture.mean)


def make_plan(node: NodeBNN, ensemble: forde.Ensemble | None = None, **method: Any) -> NodePlan:
    x, _ = small_data()
    ensemble = small_ensemble(4) if ensemble is None else ensemble
    data = TrainingData(lambda: iter([x.to(ensemble.dtype)]), len(x))
    return NodePlan(ensemble, forde.Method(one_network=node, **method), node, data=data, epochs=6, seed=0)


class TestTraining:
    def test_beta(self) -> None:
        assert [NodeBNN().beta(epoch, 300) for epoch in (0, 1, 100, 200, 299)] == pytest.approx([0, 1 / 200, 0.5, 1, 1])
        assert NodeBNN(warm_up=0.0).beta(0, 5) == 1

    def test_weight_decay_leaves_latents_alone(self) -> None:
        plan = make_plan(NodeBNN(), prior=Isotropic(0.3))
        network = plan.trained.members[0]
        parameters = dict(network.named_parameters())
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        (decay,) = [prior for prior in plan.method.priors if isinstance(prior, Except)]
        decay.add_gradients(parameters)
        assert len(plan.latents) == 4
        for name, parameter in parameters.items():
            wanted = torch.zeros_like(parameter) if name in plan.latents else 0.3 * parameter.detach()
            torch.testing.assert_close(parameter.grad, wanted)

    def test_groups_of_the_default_optimizer(self) -> None:
        plan = make_plan(NodeBNN())
        weights, noise = plan.groups(dict(plan.trained.members[0].named_parameters()))
        assert (weights.momentum, weights.nesterov, weights.falls) == (0.9, True, True)
        assert (noise.momentum, noise.nesterov, noise.falls) == (0.0, False, False)
        assert len(noise.parameters) == 4 and all(p.shape[0] == 4 for p in noise.parameters)

    @pytest.mark.parametrize("gamma", [0.0, 5.0])
    def test_a_run_by_hand(self, gamma: float) -> None:
        """The whole training of a small network in float64, written out: rows, noise, loss, both groups, schedules."""
        x, y = small_data()
        x = x.double()
        ensemble = forde.Ensemble(lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), 4).double()
        node = NodeBNN(components=2, samples=4, gamma=gamma)
        initial = make_plan(node, ensemble).trained.members[0]
        p = {name: tensor.detach().clone().requires_grad_() for name, tensor in initial.named_parameters()}
        history = forde.fit(ensemble, forde.Method(one_network=node, prior=Isotropic(0.02)), (x, y), **FIT)

        torch.manual_seed(0)
        order, N, velocity = torch.Generator().manual_seed(0), len(y), {}
        for epoch in range(6):
            t, beta = epoch / 6, min(1.0, epoch / 4)
            lr = 0.1 if t <= 0.5 else 0.001 if t >= 0.9 else 0.1 * (1 - 0.99 * (t - 0.5) / 0.4)
            losses = []
            for index in torch.randperm(N, generator=order)[: N - N % 16].split(16):
                rows, labels = x[index].repeat_interleave(4, 0), y[index].repeat_interleave(4)
                k = torch.arange(64) % 2
                h = rows @ p["0.weight"].T + p["0.bias"]
                h = h * (p["0.out_mean"][k] + F.softplus(p["0.out_rho"])[k] * torch.randn(64, 4, dtype=torch.float64))
                h = h.tanh() @ p["2.weight"].T + p["2.bias"]
                h = h * (p["2.out_mean"][k] + F.softplus(p["2.out_rho"])[k] * torch.randn(64, 3, dtype=torch.float64))
                nll = -h.log_softmax(-1)[torch.arange(64), labels].mean()
                kl = entropy = 0.0
                for layer in "02":
                    mean, std = p[f"{layer}.out_mean"], F.softplus(p[f"{layer}.out_rho"])
                    each = Mixture(mean, std, (mean.shape[1],))
                    entropy = entropy + entropy_by_hand(each)
                    kl = kl + cross_entropy_by_hand(each, 0.4) - entropy_by_hand(each)
                losses.append(float(nll.detach()))
                gradients = torch.autograd.grad(nll + beta * (kl - gamma * entropy) / N, list(p.values()))
                for (name, parameter), g in zip(p.items(), gradients, strict=True):
                    with torch.no_grad():
                        if "out" in name:
                            parameter.sub_(0.1 * g)
                            continue
                        decayed = g + 0.02 * parameter
                        velocity[name] = 0.9 * velocity[name] + decayed if name in velocity else decayed
                        parameter.sub_(lr * (decayed + 0.9 * velocity[name]))
            assert history["loss"][epoch] == pytest.approx(sum(losses) / len(losses), rel=1e-9)
            assert history["beta"][epoch] == pytest.approx(beta)
        for index, member in enumerate(ensemble.members):
            generator = draw_generator(0, index)
            for layer in "02":
                std = F.softplus(p[f"{layer}.out_rho"][index % 2])
                z = p[f"{layer}.out_mean"][index % 2] + std * torch.randn(
                    std.shape, generator=generator, dtype=torch.float64
                )
                own = dict(member.named_parameters())
                torch.testing.assert_close(
                    own[f"{layer}.weight"], z[:, None] * p[f"{layer}.weight"], rtol=1e-8, atol=1e-10
                )
                torch.testing.assert_close(own[f"{layer}.bias"], z * p[f"{layer}.bias"], rtol=1e-8, atol=1e-10)

    def test_records(self) -> None:
        history = forde.fit(small_ensemble(4), forde.method("node-bnn", gamma=2.0), small_data(), **FIT)
        assert history["beta"] == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1])
        assert all(kl > -1e-6 for kl in history["kl"]) and history["entropy"][-1] > history["entropy"][0]

    def test_gamma_widens_the_noise_of_a_run(self) -> None:
        found = [
            forde.fit(small_ensemble(1), forde.method("node-bnn", gamma=gamma), small_data(), **FIT)["entropy"][-1]
            for gamma in (0.0, 5.0, 20.0)
        ]
        assert found == sorted(found) and found[0] < found[2]

    def test_members_share_weights_and_statistics_up_to_the_noise(self) -> None:
        ensemble = small_ensemble(4)
        forde.fit(ensemble, "node-bnn", small_data(), **FIT)
        first, second = ensemble.members[0], ensemble.members[1]
        assert torch.equal(first[1].running_mean, second[1].running_mean)
        assert torch.equal(first[1].weight, second[1].weight)
        ratio = first[0].weight / second[0].weight
        torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio), rtol=1e-4, atol=0)
        assert set(dict(first.named_parameters())) == set(dict(small_ensemble(1).members[0].named_parameters()))
        assert type(first[0]) is nn.Linear

    @pytest.mark.parametrize("mode", ["in", "inout"])
    def test_other_modes(self, mode: Any) -> None:
        x, y = small_data()
        ensemble = small_ensemble(8)
        history = forde.fit(ensemble, forde.method("node-bnn", mode=mode, exact=True), (x, y), **FIT)
        assert history["loss"][-1] < history["loss"][0]
        assert float((ensemble.predict(x).labels == y).float().mean()) > 0.5

    def test_same_seed_same_bits(self) -> None:
        def run(seed: int) -> dict[str, Tensor]:
            ensemble = small_ensemble(3)
            forde.fit(ensemble, "node-bnn", small_data(), seed=seed, **FIT)
            return bits(ensemble)

        first, again, other = run(0), run(0), run(1)
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert not torch.equal(first["members.0.0.weight"], other["members.0.0.weight"])

    @pytest.mark.parametrize(
        "options",
        [
            {"optimizer": lambda p: torch.optim.Adam(p, lr=1e-2)},
            {"scheduler": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 6)},
            {"drop_last": False, "non_finite": "skip"},
            {"precision": "bf16"},
            {"engine": "vectorized"},
        ],
        ids=["Adam", "cosine", "all samples", "bf16", "vectorized"],
    )
    def test_around_any_training(self, options: dict[str, Any]) -> None:
        x, y = small_data()
        ensemble = small_ensemble(4)
        history = forde.fit(ensemble, "node-bnn", (x, y), **{**FIT, "epochs": 10, **options})
        assert history["loss"][-1] < history["loss"][0]
        assert bool(ensemble.predict(x).member_logits.isfinite().all())

    def test_empcov_acts_on_weights_only(self) -> None:
        ensembles = [small_ensemble(2) for _ in range(2)]
        for ensemble, prior in zip(ensembles, ("isotropic", "empcov"), strict=True):
            forde.fit(ensemble, forde.method("node-bnn", prior=prior, weight_decay=0.02), small_data(), **FIT)
        assert not torch.equal(ensembles[0].members[0][0].weight, ensembles[1].members[0][0].weight)


class TestEngines:
    def test_a_traced_step_draws_what_the_plain_one_draws(self) -> None:
        y = torch.arange(12) % 3
        found = []
        for engine in ("eager", "compiled"):
            ensemble = forde.Ensemble(ConvNet, 2)
            images = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
            node = NodeBNN()
            data = TrainingData(lambda images=images: iter([images]), 12)
            method = forde.Method(one_network=node)
            plan = NodePlan(ensemble, method, node, data=data, epochs=2, seed=0)
            plan.before_epoch(1)
            plan.trained.train()
            step = make_engine(engine, plan.trained, plan.method, fuse=False)
            optimizer = torch.optim.SGD(step.runner.parameters(), lr=0.05)
            for number in range(3):
                torch.manual_seed(number)
                step.update(*plan.batch(images, y), optimizer, step=number, data_size=12)
            if engine == "compiled":
                assert not step.is_plain
            step.close()
            found.append({name: p.detach().clone() for name, p in plan.trained.members[0].named_parameters()})
        for name, expected in found[0].items():
            torch.testing.assert_close(
                found[1][name], expected, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}"
            )

    @pytest.mark.cuda
    def test_a_captured_step_follows_beta(self) -> None:
        """β is 0 when the step is captured; what widens the noise afterwards does not depend on the random numbers."""
        x, y = small_data()
        found = []
        for engine in ("eager", "compiled"):
            ensemble = small_ensemble(4)
            method = forde.method("node-bnn", gamma=20.0)
            history = forde.fit(ensemble, method, (x, y), device="cuda", **{**FIT, "engine": engine, "epochs": 12})
            assert bool(ensemble.predict(x).member_logits.isfinite().all())
            found.append(history["entropy"][-1] - history["entropy"][0])
        assert found[0] > 0.5 and found[1] == pytest.approx(found[0], rel=0.1)


class TestAfterwards:
    def trained(self) -> forde.Ensemble:
        ensemble = forde.Ensemble(ConvNet, 8)
        forde.fit(ensemble, "node-bnn", image_data(), augmentation=forde.Augmentation(pad=1), **FIT)
        return ensemble

    def test_predictions_do_not_change(self) -> None:
        ensemble, data = self.trained(), image_data()
        first = ensemble.predict(data).member_logits
        assert first.shape == (8, 40, 3) and torch.equal(first, ensemble.predict(data).member_logits)
        torch.testing.assert_close(first, ensemble.predict(data, batch_size=7).member_logits)
        assert float(ensemble.predict(data).epistemic.mean()) > 0

    def test_robustness(self) -> None:
        data = image_data()
        cells = generated_cells(data.images, data.labels, ["fog"], [1, 5])
        result = evaluate_robustness(self.trained(), (data.images, data.labels), cells, verbose=False)
        assert result.pooled["nll"].value > 0

    def test_loaded_in_another_process(self, tmp_path: Path) -> None:
        ensemble = self.trained()
        ensemble.save(tmp_path / "ensemble")
        code = (
            "import sys, numpy as np, forde\n"
            "sys.path.insert(0, sys.argv[2])\n"
            "from one_network import ConvNet, image_data\n"
            "ensemble = forde.Ensemble.load(sys.argv[1] + '/ensemble', ConvNet)\n"
            "np.save(sys.argv[1] + '/logits.npy', ensemble.predict(image_data()).member_logits.numpy())\n"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)], check=True)
        found = np.load(tmp_path / "logits.npy")
        assert np.array_equal(found, ensemble.predict(image_data()).member_logits.numpy())


class TestResume:
    @pytest.mark.parametrize("steps", [0, 7, 24])
    def test_bit_for_bit(self, steps: int, tmp_path: Path) -> None:
        compare_interrupted("node-bnn", tmp_path, Interruption(steps=steps))

    def test_members_are_made_again(self, tmp_path: Path) -> None:
        assert compare_interrupted("node-bnn", tmp_path, Interruption(making_members=True)) == 0


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"components": 0}, "components is 0"),
            ({"samples": 1.5}, "samples is 1.5"),
            ({"gamma": -1.0}, "gamma is -1.0"),
            ({"std": 0.0}, "std is 0"),
            ({"mode": "middle"}, "unknown mode 'middle'"),
            ({"warm_up": -1.0}, "warm_up is -1.0"),
        ],
    )
    def test_settings(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(FordeError, match=message):
            forde.method("node-bnn", **options)

    def test_no_layer_for_the_noise(self) -> None:
        class Scale(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.randn(5, 3))

            def forward(self, x: Tensor) -> Tensor:
                return x @ self.weight

        with pytest.raises(FordeError, match="no convolution or linear layer"):
            forde.fit(forde.Ensemble(Scale, 2), "node-bnn", small_data(), **FIT)

    def test_members_are_untouched_by_a_failed_run(self) -> None:
        ensemble = small_ensemble(2)
        before = bits(ensemble)
        with pytest.raises(FordeError):
            forde.fit(ensemble, "node-bnn", small_data(), lr=1e9, **FIT)
        assert all(torch.equal(before[name], tensor) for name, tensor in bits(ensemble).items())


def test_latents_by_name() -> None:
    noisy = noisy_of(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Conv1d(2, 3, 1))), mode="inout")
    assert list(latents(noisy)) == ["0.in", "0.out", "1.0.in", "1.0.out"]
    assert list(latents(noisy_of(nn.Linear(2, 2)))) == ["out"]
