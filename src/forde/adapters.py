"""Members that are adapters of one pretrained network, through the `peft` package."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from forde.errors import FordeError, unknown_name


def lora(network: nn.Module, *, fresh: Sequence[str] = (), **options: Any) -> Callable[[], nn.Module]:
    """What builds members as low-rank adapters (LoRA, Hu et al. 2021, https://arxiv.org/abs/2106.09685) of a network.

    A linear layer becomes x ↦ (W + (α/r) B A) x with A `[r, in]` and B `[out, r]` of each member's own; W `[out, in]`
    and all else of the network is frozen and shared, in memory and in files.

    Args:
        network: pretrained; it is frozen where it is.
        fresh: names of layers that each member has for itself, with new initial weights: a head.
        options: of `peft.LoraConfig`: `r`, `lora_alpha`, `target_modules`, `lora_dropout`, ...

    >>> from forde import Ensemble
    >>> network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    >>> ensemble = Ensemble(lora(network, r=2, target_modules=["0"], fresh=["2"]), n_members=3)
    >>> sum(parameter.numel() for parameter in ensemble.members[1].parameters() if parameter.requires_grad)  # 2·20 + 51
    91
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError as error:
        if error.name != "peft":
            raise
        raise FordeError("adapters need the peft package; run: pip install 'forde[finetune]'.") from None
    if not isinstance(network, nn.Module):
        raise FordeError(
            f"lora adapts a network, but a {type(network).__name__} was given; pass the pretrained network itself."
        )
    modules = dict(network.named_modules())
    for name in fresh:
        if name not in modules:
            raise unknown_name("layer", name, [name for name in modules if name])
        if not any(hasattr(module, "reset_parameters") for module in modules[name].modules()):
            raise FordeError(f"the layer '{name}' has no reset_parameters(), so fresh= cannot initialise it anew.")
    try:
        config = LoraConfig(modules_to_save=list(fresh) or None, **options)
    except TypeError as error:
        raise FordeError(f"peft.LoraConfig does not take these options ({error}); see its documentation.") from None
    network.requires_grad_(False)

    def make_network() -> nn.Module:
        own = _with_shared_parameters(network, fresh)
        for name in fresh:
            for module in own.get_submodule(name).modules():
                if callable(reset := getattr(module, "reset_parameters", None)):
                    reset()
        try:
            adapted: nn.Module = get_peft_model(own, copy.deepcopy(config))
        except ValueError as error:
            raise FordeError(f"peft cannot adapt this network ({str(error).splitlines()[0].rstrip('.')}).") from error
        return adapted

    return make_network


def _with_shared_parameters(network: nn.Module, fresh: Sequence[str]) -> nn.Module:
    """A copy with modules and buffers of its own that shares parameters, but for those of the layers named."""
    own = {id(p) for name in fresh for p in network.get_submodule(name).parameters()}
    return copy.deepcopy(network, {id(p): p for p in network.parameters() if id(p) not in own})
