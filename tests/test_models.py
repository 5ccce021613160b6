"""METHODS 1.4: the architectures."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import forde
from forde.models import MLP, preact_resnet18, resnet18, wrn16_4


@pytest.mark.parametrize(
    ("make", "parameters"), [(resnet18, 11_173_962), (preact_resnet18, 11_172_170), (wrn16_4, 2_748_890)]
)
def test_sizes(make, parameters: int) -> None:
    """Counted by hand from the layer table: e.g. ResNet18 with 10 classes has 11.17 million parameters."""
    network = make(10)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_resnet18_has_the_paper_s_shape() -> None:
    network = resnet18(10).eval()
    assert network.stem.stride == (1, 1) and network.stem.kernel_size == (3, 3)
    x, sizes = network.stem(torch.zeros(1, 3, 32, 32)), []
    for block in network.blocks:
        x = block(x)
        sizes.append((x.shape[1], x.shape[2]))
    assert sizes == [(64, 32)] * 2 + [(128, 16)] * 2 + [(256, 8)] * 2 + [(512, 4)] * 2
    projections = [len(block.shortcut) > 0 for block in network.blocks]
    assert projections == [False, False, True, False, True, False, True, False]
    assert all(m.momentum == 0.1 and m.eps == 1e-5 for m in network.modules() if isinstance(m, nn.BatchNorm2d))


def test_wide_resnet_projects_in_each_group() -> None:
    projections = [block.projection is not None for block in wrn16_4(10).blocks]
    assert projections == [True, False] * 3


@pytest.mark.parametrize("make", [resnet18, preact_resnet18, wrn16_4])
def test_any_size_and_channels(make) -> None:
    assert make(7, channels=1)(torch.zeros(2, 1, 28, 28)).shape == (2, 7)


def test_he_initialisation() -> None:
    torch.manual_seed(0)
    network = MLP(400, [500], 10)
    assert float(network.body[0].weight.detach().std()) == pytest.approx(math.sqrt(2 / 400), rel=0.02)
    assert float(network.head.weight.detach().std()) == pytest.approx(math.sqrt(1 / 500), rel=0.05)
    assert not network.head.bias.any()


def test_reference_initialisation() -> None:
    torch.manual_seed(0)
    network = MLP(400, [500], 10, initialisation="reference")
    weight = network.body[0].weight.detach()
    # Variance of a standard normal cut at ±2: 1 − 2·2φ(2)/(2Φ(2) − 1), whose root is 0.8796.
    kept, density = math.erf(2 / math.sqrt(2)), math.exp(-2) / math.sqrt(2 * math.pi)
    assert float(weight.std()) == pytest.approx(math.sqrt((1 - 4 * density / kept) / 400), rel=0.01)
    assert 1.98 / 20 < float(weight.abs().max()) <= 2 / 20  # cut at two scales of 1/√400
    assert not network.head.weight.any()
    with pytest.raises(forde.FordeError, match="'he' or 'reference'"):
        MLP(4, [4], 2, initialisation="xavier")


def test_zero_head_trains() -> None:
    """All input gradients vanish in the first step, and the run goes on."""
    x, y = torch.randn(64, 4), torch.arange(64) % 3
    ensemble = forde.Ensemble(lambda: MLP(4, [16], 3, initialisation="reference"), 3)
    history = forde.fit(ensemble, "forde-pca", (x, y), epochs=3, batch_size=16, verbose=False)
    assert history["loss"][-1] < history["loss"][0]


def test_mlp_with_batchnorm() -> None:
    network = MLP(6, [8, 8], 3, batch_norm=True)
    assert sum(isinstance(m, nn.BatchNorm1d) for m in network.modules()) == 2
    assert network.body[0].bias is None
    with pytest.raises(forde.FordeError, match="at least 1"):
        MLP(0, [8], 3)
