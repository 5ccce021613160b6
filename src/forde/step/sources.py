"""What input gradients are taken of where that is not the one tensor of the batch: inputs by name, or embeddings.

With embeddings e_b `[T, E]` of a sample's tokens the representation is built from

    J_b = ∂/∂e_b Σ_b' f(x_b'; θ_i)_{y_b'}        `[T·E]`, rows of tokens that are padding set to 0

so that tokens, which have no gradient, are compared where the network first makes numbers of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from forde.arguments import EMBEDDINGS, Arguments, Input, Of, differentiated
from forde.errors import FordeError

MASK = "attention_mask"
"""The input that is 0 at padding, by the name that it has in the transformers package."""


class Sources:
    """Tensors that a scalar is differentiated by, and which of their entries count."""

    def __init__(self, tensors: Sequence[Tensor] = ()) -> None:
        self.tensors = list(tensors)
        self.counts: list[Tensor | None] = [None] * len(self.tensors)
        """For each, what its gradient is multiplied with; None for nothing."""

    def joined(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """Gradients by the tensors, `[B, ...]` each, as one `[B, D]`; 0 where there is none."""
        rows = []
        for tensor, found, counts in zip(self.tensors, gradients, self.counts, strict=True):
            gradient = torch.zeros_like(tensor) if found is None else found
            rows.append((gradient if counts is None else gradient * counts.to(gradient)).flatten(1))
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)


@contextmanager
def sources_of(network: nn.Module, x: Input, of: Of) -> Iterator[tuple[Input, Sources]]:
    """The batch as the network is to be given it inside, and what its output can be differentiated by then.

    Args:
        of: as in `InputGradients`.

    >>> network = nn.Bilinear(2, 3, 1)
    >>> with sources_of(network, Arguments([torch.ones(4, 2), torch.ones(4, 3)]), of=1) as (given, sources):
    ...     output = network(*given.positional_and_named[0])
    >>> sources.joined(torch.autograd.grad(output.sum(), sources.tensors)).shape
    torch.Size([4, 3])
    """
    if of == EMBEDDINGS:
        with _watched_embeddings(network, x) as sources:
            yield x, sources
    elif isinstance(x, Tensor) and of is None:
        leaf = x.detach().requires_grad_()
        yield leaf, Sources([leaf])
    else:
        yield _with_leaves(x, of)


def _with_leaves(x: Input, of: Of) -> tuple[Arguments, Sources]:
    """The batch with the inputs that gradients are taken of as leaves, and these."""
    if isinstance(x, Tensor):
        raise FordeError(
            f"input gradients are asked for of={of!r}, but a batch is one tensor; leave `of` out, "
            "or write of='embeddings' to compare tokens there."
        )
    leaves = {name: x.tensors[name].detach().requires_grad_() for name in differentiated(x, of)}
    tensors = {**x.tensors, **leaves}
    given = Arguments({str(n): t for n, t in tensors.items()} if x.by_name else list(tensors.values()))
    return given, Sources(list(leaves.values()))


# Embeddings


def embedding_of(network: nn.Module) -> nn.Module:
    """The layer that makes vectors of tokens: `get_input_embeddings()` where the network has it, else the first one.

    >>> embedding_of(nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 2)))
    Embedding(10, 4)
    """
    ask = getattr(network, "get_input_embeddings", None)
    if callable(ask):
        found = ask()
        if isinstance(found, nn.Module):
            return found
    for module in network.modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            return module
    raise FordeError(
        "the network has no embedding layer, but members are to be compared at its output (of='embeddings'); leave "
        "`of` out, or give the network a get_input_embeddings() that returns the layer."
    )


@contextmanager
def _watched_embeddings(network: nn.Module, x: Input) -> Iterator[Sources]:
    """Collects what the embedding layer returns during the forward pass inside, `[B, T, E]`; padding does not count.

    Padding is where the input `attention_mask` is 0; without one of the tokens' shape, where tokens are the layer's
    `padding_idx`. Without either, every token counts.
    """
    sources, layer = Sources(), embedding_of(network)
    mask = x.tensors.get(MASK) if isinstance(x, Arguments) else None

    def keep(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> Tensor:
        tokens = next((value for value in (*given, *named.values()) if isinstance(value, Tensor)), None)
        if not isinstance(output, Tensor) or len(output) != len(x) or _are_places(tokens):
            raise FordeError(
                f"the embedding layer ({type(module).__name__}) does not return a row for each sample (is it one of "
                "places?), so members cannot be compared there (of='embeddings'); give the network a "
                "get_input_embeddings() that returns the layer of the tokens."
            )
        # One that is frozen leads no gradient on; from here on there is a graph.
        kept = output if output.requires_grad else output.detach().requires_grad_()
        sources.tensors.append(kept)
        sources.counts.append(_not_padding(module, tokens, mask, kept))
        return kept

    handle = layer.register_forward_hook(keep, with_kwargs=True)
    try:
        yield sources
    finally:
        handle.remove()
    if not sources.tensors:
        raise FordeError(
            "the forward pass did not use the embedding layer, at whose output members are to be compared "
            "(of='embeddings'); let get_input_embeddings() return the one that it uses."
        )


def _are_places(tokens: Tensor | None) -> bool:
    """Whether a layer is given 0, 1, 2, ..., which may be as many as samples by chance."""
    if tokens is None or tokens.dim() != 1 or len(tokens) < 2:
        return False
    return torch.equal(tokens, torch.arange(len(tokens), device=tokens.device).to(tokens))


def _not_padding(layer: nn.Module, tokens: Tensor | None, mask: Tensor | None, output: Tensor) -> Tensor | None:
    """`[B, T, 1]`, 0 at padding; None where every token counts."""
    if tokens is None or output.shape[:-1] != tokens.shape:
        return None
    if mask is not None and mask.shape == tokens.shape:
        return (mask != 0).unsqueeze(-1)
    padding = getattr(layer, "padding_idx", None)
    return None if padding is None else (tokens != padding).unsqueeze(-1)
