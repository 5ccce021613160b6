"""What a network is called with: one tensor, or several tensors by name or by position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from forde.errors import FordeError, missing_key, unknown_name
from forde.torch_private import version_of

LABELS = ("labels", "label")
"""Under which a batch in a dict keeps its targets."""


class Arguments:
    """Several tensors of one batch, `[B, ...]` each, that a network takes together.

    A dict is given by name, `network(**tensors)`; a sequence by position, `network(*tensors)`. What a tensor has under
    the same name (`device`, `clone`, rows by index, ...) holds for all of them here.

    >>> batch = Arguments({"tokens": torch.zeros(8, 5).long(), "mask": torch.ones(8, 5)})
    >>> len(batch), len(batch[:2]), sorted(batch.positional_and_named[1])
    (8, 2, ['mask', 'tokens'])
    """

    def __init__(self, tensors: Mapping[str, Tensor] | Sequence[Tensor]) -> None:
        self.by_name = isinstance(tensors, Mapping)
        named = tensors.items() if isinstance(tensors, Mapping) else enumerate(tensors)
        self.tensors: dict[str | int, Tensor] = dict(named)
        _refuse_different_lengths(self.tensors)

    @property
    def positional_and_named(self) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """As a call takes them: those by position, and those by name."""
        if self.by_name:
            return (), {str(name): tensor for name, tensor in self.tensors.items()}
        return tuple(self.tensors.values()), {}

    def map(self, function: Callable[[Tensor], Tensor]) -> Arguments:
        """The inputs with a function applied to each."""
        each = {name: function(tensor) for name, tensor in self.tensors.items()}
        return Arguments({str(n): t for n, t in each.items()} if self.by_name else list(each.values()))

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, rows: slice | Tensor) -> Arguments:
        return self.map(lambda tensor: tensor[rows])

    def split(self, size: int) -> list[Arguments]:
        """Parts of so many samples."""
        return [self[start : start + size] for start in range(0, len(self), size)]

    def clone(self) -> Arguments:
        """The inputs in memory of their own."""
        return self.map(torch.clone)

    def detach(self) -> Arguments:
        """The inputs without their graph."""
        return self.map(torch.detach)

    def repeat_interleave(self, times: int, axis: int) -> Arguments:
        """Every sample (`axis=0`) so many times."""
        return self.map(lambda tensor: tensor.repeat_interleave(times, axis))

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return next(iter(self.tensors.values())).device

    @property
    def shape(self) -> tuple[torch.Size, ...]:
        """Of each."""
        return tuple(tensor.shape for tensor in self.tensors.values())

    @property
    def version(self) -> tuple[int, ...]:
        """As `version_of` has it, of each."""
        return tuple(version_of(tensor) for tensor in self.tensors.values())

    def __repr__(self) -> str:
        return f"Arguments({in_words(self)})"


Input = Tensor | Arguments
"""What a network is called with."""
Of = str | int | Sequence[str | int] | None
"""Which of several inputs gradients are taken of: names or positions, `"embeddings"`, or None for all floats."""
SameInput = TypeVar("SameInput", Tensor, Arguments, Tensor | Arguments)


EMBEDDINGS = "embeddings"
"""As a choice of what input gradients are taken of: the output of the embedding layer."""


def differentiated(x: Arguments, of: Of) -> Sequence[str | int]:
    """Names or positions of the inputs that gradients are taken of: those asked for, or all that are floats.

    >>> batch = Arguments({"pixels": torch.zeros(2, 3), "size": torch.ones(2), "kind": torch.ones(2).long()})
    >>> differentiated(batch, None), differentiated(batch, "pixels")
    (['pixels', 'size'], ['pixels'])
    """
    advice = f"compare members at the embeddings of tokens with InputGradients(of='{EMBEDDINGS}')"
    if of is None:
        floats = [name for name, tensor in x.tensors.items() if tensor.is_floating_point()]
        if not floats:
            raise FordeError(
                f"none of the inputs ({', '.join(map(repr, x.tensors))}) holds floats, so they have no gradients; "
                f"{advice}, or choose 'deep-ensemble' or 'function-rde'."
            )
        return floats
    names = [of] if isinstance(of, (str, int)) else list(of)
    for name in names:
        if name not in x.tensors:
            raise unknown_name("input", name, map(str, x.tensors))
        if not x.tensors[name].is_floating_point():
            raise FordeError(
                f"the input {name!r} has type {x.tensors[name].dtype}, so it has no gradients; name one of floats, or "
                f"{advice}."
            )
    return names


def as_rows(x: Input, of: Of) -> Tensor:
    """The inputs that gradients are taken of, as a tensor whose rows `[B, D]` these have too; one tensor as it is.

    >>> as_rows(Arguments([torch.zeros(2, 3), torch.ones(2, 1, 2)]), None).shape
    torch.Size([2, 5])
    """
    if isinstance(x, Tensor):
        return x
    return torch.cat([x.tensors[name].flatten(1) for name in differentiated(x, of)], dim=1)


def called(network: Callable[..., Any], x: Input) -> Any:
    """What the network returns for a batch.

    >>> called(torch.add, Arguments([torch.ones(2), torch.ones(2)]))
    tensor([2., 2.])
    """
    if isinstance(x, Tensor):
        return network(x)
    arguments, named = x.positional_and_named
    return network(*arguments, **named)


def in_words(x: Input) -> str:
    """Shapes and types, for a message.

    >>> in_words(torch.zeros(8, 4)), in_words(Arguments({"a": torch.zeros(8).long()}))
    ('shape [8, 4] and type float32', "'a' [8] int64")
    """
    if isinstance(x, Tensor):
        return f"shape {list(x.shape)} and type {_kind(x)}"
    return ", ".join(f"{name!r} {list(tensor.shape)} {_kind(tensor)}" for name, tensor in x.tensors.items())


def shapes(x: Input) -> str:
    """Shapes but for the number of samples, in words.

    >>> shapes(torch.zeros(8, 4))
    '[N, 4]'
    """
    if isinstance(x, Arguments):
        return ", ".join(f"{name!r} {shapes(tensor)}" for name, tensor in x.tensors.items())
    return f"[N{''.join(f', {size}' for size in x.shape[1:])}]"


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _refuse_different_lengths(tensors: Mapping[Any, Tensor]) -> None:
    if not tensors:
        raise FordeError("a batch has no inputs; give it at least one tensor.")
    first, size = next(iter(tensors)), None
    for name, tensor in tensors.items():
        if tensor.dim() == 0:
            raise FordeError(
                f"the input {name!r} is a single number, but a row for each sample was expected; leave it out of the "
                "batch, or repeat it."
            )
        size = len(tensor) if size is None else size
        if len(tensor) != size:
            raise FordeError(
                f"the inputs {first!r} and {name!r} have {size} and {len(tensor)} rows, but one of each for every "
                "sample was expected; give both the same samples."
            )


# What users and loaders give


def as_tensor(values: Any, what: str) -> Tensor:
    """A tensor from a tensor, array, data frame or nested list of numbers."""
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        raise FordeError(f"the {what} have rows of different lengths; pad them to one length.") from None
    if array.dtype.kind not in "biufc":
        raise FordeError(
            f"the {what} have type {array.dtype}, but numbers were expected; encode categories and strings first, or "
            "leave them out."
        )
    return torch.from_numpy(np.require(array, requirements="W"))  # torch warns of arrays that it may not write to


def as_inputs(values: Any, what: str = "inputs") -> Input:
    """What a network is called with: a dict is given by name, a tuple of tensors by position, all else is one tensor.

    >>> as_inputs({"a": [[1.0], [2.0]], "b": np.zeros(2)}).shape
    (torch.Size([2, 1]), torch.Size([2]))
    """
    if isinstance(values, (Tensor, Arguments)):
        return values.detach()
    if isinstance(values, Mapping):
        return Arguments({str(name): as_tensor(value, f"inputs '{name}'") for name, value in values.items()})
    if isinstance(values, tuple) and _holds_arrays(values):
        return Arguments([as_tensor(value, f"inputs {index}") for index, value in enumerate(values)])
    return as_tensor(values, what)


def inputs_of_batch(values: Any) -> Input:
    """The inputs in a loader's batch; its collating makes lists of tuples."""
    return as_inputs(tuple(values) if isinstance(values, list) and _holds_arrays(values) else values)


def inputs_in(batch: Any) -> Input:
    """The inputs in a batch, with or without targets.

    >>> inputs_in((torch.zeros(4, 2), torch.zeros(4))).shape, inputs_in([torch.zeros(4, 2)]).shape
    (torch.Size([4, 2]), torch.Size([4, 2]))
    """
    if isinstance(batch, Mapping):
        return as_inputs(without_labels(batch))
    inputs = batch[0] if isinstance(batch, (tuple, list)) and len(batch) else batch
    several = isinstance(inputs, (Mapping, tuple, list))
    if not several and not isinstance(inputs, (Tensor, Arguments)) and not hasattr(inputs, "__array__"):
        raise FordeError(
            f"a batch is a {type(batch).__name__} that holds a {type(inputs).__name__}, but a tensor or a pair "
            "(inputs, targets) was expected; wrap the data so that an item is x or (x, y)."
        )
    return inputs_of_batch(inputs)


def _holds_arrays(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, Tensor) or hasattr(value, "__array__") for value in values)


def without_labels(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch in a dict as a network takes it.

    >>> without_labels({"tokens": [1, 2], "labels": [0, 1]})
    {'tokens': [1, 2]}
    """
    return {name: value for name, value in batch.items() if name not in LABELS}


def taken_apart(batch: Mapping[str, Any], what: str = "a batch") -> tuple[dict[str, Any], Any]:
    """Arguments and targets of a batch in a dict, whose targets are under 'labels' or 'label'.

    >>> taken_apart({"tokens": [1, 2], "labels": [0, 1]})
    ({'tokens': [1, 2]}, [0, 1])
    """
    there = [name for name in LABELS if name in batch]
    if not there:
        advice = f"put the targets of a dict of inputs under {LABELS[0]!r}, or give a pair (x, y)"
        raise missing_key(what, LABELS[0], map(str, batch), advice)
    if len(there) > 1:
        raise FordeError(f"{what} has both {LABELS[0]!r} and {LABELS[1]!r}, but one of them was expected; remove one.")
    return without_labels(batch), batch[there[0]]


def each_tensor(x: Input) -> Iterator[Tensor]:
    """The one tensor, or all of them."""
    return iter((x,) if isinstance(x, Tensor) else x.tensors.values())
