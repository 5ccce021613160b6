"""Modules that something else has wrapped or built: TorchScript, `torch.compile`, lazy modules, Hugging Face."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from animals import CLASSES, add, floats, tokens
from torch import Tensor, nn

S = nn.Sequential
ROW = floats(5)


def perceptron() -> nn.Module:
    return S(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(perceptron())


def traced() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(perceptron(), torch.zeros(6, 5, dtype=torch.float64))


class Logits(nn.Module):
    """The logits of a model that returns more."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


def vit(**how: object) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=4, patch_size=2,
            num_channels=2, num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **how,
        )  # fmt: skip
        return ViTForImageClassification(config).train()

    return make


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=8, num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config).train()


add("scripted module", scripted, ROW)
add("scripted module, deep ensemble", scripted, ROW, method="deep-ensemble")
add("traced module", traced, ROW)
add("traced module under function-RDE", traced, ROW, method="function-rde")
add("torch.compile'd module (eager)", lambda: torch.compile(perceptron(), backend="eager"), ROW)
add(
    "torch.compile'd module (AOT) under FoRDE",
    lambda: torch.compile(perceptron(), backend="aot_eager"),
    ROW,
    refused=True,
    formulas_of=perceptron,
)
add(
    "torch.compile'd module (AOT), deep ensemble",
    lambda: torch.compile(perceptron(), backend="aot_eager"),
    ROW,
    method="deep-ensemble",
)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    add("lazy module", lambda: S(nn.LazyLinear(6), nn.Tanh(), nn.LazyLinear(CLASSES)), ROW, refused=True)
add("ViT of Hugging Face", lambda: Logits(vit()()), floats(2, 4, 4), needs="transformers")
add(
    "ViT of Hugging Face, attention by function, function-RDE",
    lambda: Logits(vit(attn_implementation="sdpa")()),
    floats(2, 4, 4),
    needs="transformers",
    method="function-rde",
)
add("ViT of Hugging Face as it is", vit(), floats(2, 4, 4), needs="transformers")
add("BERT of Hugging Face", lambda: Logits(bert()), tokens(5, 11), needs="transformers", method="function-rde")
