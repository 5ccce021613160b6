"""Files of weights: read without running any code that they may hold, and compared with the network before use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from forde.errors import FordeError, first_line
from forde.hashing import Sha256
from forde.reading.files import check_is_file


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a `.safetensors` file, or from one that `torch.save` wrote (only tensors are taken).

    >>> read_weights(Path("nowhere.pth"))
    Traceback (most recent call last):
    forde.errors.FordeError: the file of weights 'nowhere.pth' is missing; check its name.
    """
    if not path.exists():
        raise FordeError(f"the file of weights '{path}' is missing; check its name.")
    check_is_file(path)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise anything, from EOFError to UnpicklingError
        raise FordeError(
            f"'{path}' is damaged or holds more than weights ({first_line(error)}); get it again."
        ) from None
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise FordeError(
            f"'{path}' holds a {type(state).__name__}, but tensors by name were expected; give a state dict."
        )
    return {str(name): value for name, value in state.items()}


def load_into(network: nn.Module, path: Path) -> None:
    """Read a file into a network, whose names and shapes it must have."""
    state, expected = read_weights(path), network.state_dict()
    if difference := sorted(set(state) ^ set(expected)):
        where = "file" if difference[0] in state else "network"
        raise FordeError(
            f"the weights in '{path}' are of another network: '{difference[0][:200]}' is only in the {where}; give the "
            "file that belongs to this network."
        )
    for name, tensor in expected.items():
        if state[name].shape != tensor.shape:
            raise FordeError(
                f"the weights in '{path}' are of another network: '{name}' has shape {list(state[name].shape)} there "
                f"and {list(tensor.shape)} here; give the file that belongs to this network."
            )
    network.load_state_dict(state)


def weights_name(network: nn.Module) -> str:
    """A short name for all weights and buffers of a network, by which it is known again.

    >>> weights_name(nn.ReLU()) == weights_name(nn.GELU())
    True
    """
    digest = Sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.add(repr((name, str(tensor.dtype), tuple(tensor.shape))))
        digest.add(tensor)
    return digest.short()
