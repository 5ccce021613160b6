"""How a network of the library is built, in words that a file can hold: its name and its sizes.

    {"name": "mlp", "inputs": 64, "hidden": [32], "outputs": 10, "batch_norm": false, "activation": "ReLU"}
    {"name": "resnet18", "outputs": 10, "channels": 3}

The words are read off the network itself and compared with it, so that an MLP whose layers were exchanged has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from forde.errors import FordeError, unknown_name
from forde.models.mlp import MLP
from forde.models.resnet import ResNet, preact_resnet18, resnet18, wrn16_4
from forde.torch_private import hooks_of_layer

RESNETS = {"resnet18": resnet18, "preact_resnet18": preact_resnet18, "wrn16_4": wrn16_4}
MODELS = ("mlp", *RESNETS)
"""Names of networks."""
ACTIVATIONS = (
    "ReLU", "LeakyReLU", "ReLU6", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Softplus", "Softsign", "Sigmoid",
    "Tanh", "Hardtanh", "Hardswish",
)  # fmt: skip
"""Of torch, with torch's settings."""
MOST = 1 << 31
"""Below which every size in a file must be."""


def description(network: nn.Module) -> dict[str, Any] | None:
    """What `build` makes the same architecture of; None for a network that is not the library's.

    >>> description(MLP(4, [8], 3, activation=nn.Tanh))["activation"], description(nn.Linear(4, 3))
    ('Tanh', None)
    """
    for candidate in _candidates(network):
        with torch.device("meta"):
            same = build(candidate)
        if _alike(network, same):
            return candidate
    return None


def build(words: Mapping[str, Any]) -> nn.Module:
    """The network of a description, freshly initialised; the description may be from a file that anybody wrote.

    >>> build({"name": "wrn16_4", "outputs": 10, "channels": 1}).head.out_features
    10
    """
    name = words.get("name")
    if not isinstance(name, str) or name not in MODELS:
        raise unknown_name("model", name, MODELS)
    if not _is_valid(words):
        raise FordeError(f"the description of the network, a {name}, is damaged or of another version.")
    if name != "mlp":
        return RESNETS[name](words["outputs"], channels=words["channels"])
    return MLP(
        words["inputs"], words["hidden"], words["outputs"], batch_norm=words.get("batch_norm", False),
        activation=getattr(nn, words.get("activation", "ReLU")),
    )  # fmt: skip


def n_parameters(words: Mapping[str, Any]) -> int | None:
    """How many parameters the network would have, without taking memory for it; None for more than a tensor can have.

    >>> n_parameters({"name": "mlp", "inputs": 4, "hidden": [], "outputs": 3})
    15
    """
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in build(words).parameters())
    except RuntimeError:
        return None


def _candidates(network: nn.Module) -> list[dict[str, Any]]:
    """Descriptions that could be this network's."""
    head = getattr(network, "head", None)
    if not isinstance(head, nn.Linear):
        return []
    if type(network) is MLP:
        linear = [layer for layer in network.body if isinstance(layer, nn.Linear)]
        kinds = [type(layer).__name__ for layer in network.body if type(layer).__name__ in ACTIVATIONS]
        options = {
            "inputs": linear[0].in_features if linear else head.in_features,
            "hidden": [layer.out_features for layer in linear],
            "outputs": head.out_features,
            "batch_norm": any(isinstance(layer, nn.BatchNorm1d) for layer in network.body),
            "activation": kinds[0] if kinds else "ReLU",
        }
        return [{"name": "mlp", **options}]
    if type(network) is ResNet and isinstance(network.stem, nn.Conv2d):
        channels = network.stem.in_channels
        return [{"name": name, "outputs": head.out_features, "channels": channels} for name in RESNETS]
    return []


def _alike(network: nn.Module, other: nn.Module) -> bool:
    """Whether both have the same layers with the same settings and shapes, and no code of anybody else's."""
    own, others = network.state_dict(), other.state_dict()
    return (
        repr(network) == repr(other)
        and getattr(network, "pre_activation", None) == getattr(other, "pre_activation", None)
        and own.keys() == others.keys()
        and all(tensor.shape == others[name].shape for name, tensor in own.items())
        and not any("forward" in vars(layer) or any(hooks_of_layer(layer)) for layer in network.modules())
    )


def _is_valid(words: Mapping[str, Any]) -> bool:
    sizes = {"mlp": {"inputs", "outputs"}}.get(words["name"], {"outputs", "channels"})
    others = {"name", "hidden", "batch_norm", "activation"} if words["name"] == "mlp" else {"name"}
    return (
        sizes <= set(words) <= sizes | others
        and all(_is_size(words[size]) for size in sizes)
        and (words["name"] != "mlp" or (isinstance(words.get("hidden"), list) and all(map(_is_size, words["hidden"]))))
        and type(words.get("batch_norm", False)) is bool
        and words.get("activation", "ReLU") in ACTIVATIONS
    )


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value < MOST
