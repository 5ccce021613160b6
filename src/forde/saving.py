"""Reading and writing an ensemble's folder: `config.json` and `model.safetensors`, and never any code.

Both files are written beside their destination and renamed, so that a crash leaves the old ones whole. What is read is
taken for a stranger's: nothing that a file says about itself is believed before it is compared with the file.
"""

from __future__ import annotations

import json
import reprlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forde.durable import make_folder, write_whole
from forde.errors import FordeError
from forde.hashing import Sha256

FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
MAX_CONFIG_BYTES = 1 << 26
"""Enough for the statistics of hundreds of thousands of columns."""
CHECKSUM = "forde.sha256"
"""Under which `model.safetensors` keeps the checksum of its tensors; files without one are read as well."""
PRECISIONS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
"""Which a network may be stored in, whatever its own."""
MAX_SHOWN = 200
"""Characters of a name in a file that a message repeats."""


def save(folder: str | Path, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Path:
    """Write both files into `folder` (made if missing) and return it."""
    from safetensors.torch import save as to_bytes

    path = Path(folder)
    # Clones: safetensors refuses tensors that share memory, as tied or stacked weights do.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    weights = to_bytes(tensors, metadata={CHECKSUM: _checksum(tensors)})
    text = json.dumps({"format": FORMAT, **config}, indent=2) + "\n"
    try:
        make_folder(path)
        write_whole(path / WEIGHTS, weights)
        write_whole(path / CONFIG, text.encode())
    except OSError as error:
        raise FordeError(f"could not write '{path}': {error.strerror}; choose a writable folder.") from None
    return path


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values."""
    digest = Sha256()
    for name, tensor in sorted(tensors.items()):
        digest.add(repr((name, str(tensor.dtype), tuple(tensor.shape))))
        digest.add(tensor)
    return digest.hex()


def read_config(folder: str | Path) -> dict[str, Any]:
    """The settings in `config.json`, checked, the number of members also against the tensors that are there."""
    path = Path(folder) / CONFIG
    config = _read_json(path)
    found = config.get("format") if isinstance(config, dict) else None
    if found != FORMAT and not path.with_name(WEIGHTS).exists():
        raise FordeError(
            f"'{folder}' has no {WEIGHTS}, so it holds no ensemble; that of a run is in '{Path(folder) / 'ensemble'}' "
            "once it has finished (forde.load_run finds it)."
        )
    if type(found) is not int or found != FORMAT:
        raise FordeError(
            f"'{path}' has format {reprlib.repr(found)}, but {FORMAT} was expected; use the version that wrote it."
        )
    valid = {
        "n_members": _is_whole(config.get("n_members"), at_least=1),
        "seed": _is_whole(config.get("seed"), at_least=0),
        "likelihood": _is_likelihood(config.get("likelihood")),
    }
    for key, is_valid in valid.items():
        if not is_valid:
            raise FordeError(f"'{path}' lacks a valid '{key}'; the file was altered, so save the ensemble again.")
    # Before a network is built: with another number they might fill the memory.
    with _opened(path.with_name(WEIGHTS)) as file:
        stored = len(_members(file.keys()))
    if config["n_members"] != stored:
        raise FordeError(
            f"'{path}' says {reprlib.repr(config['n_members'])} members, but {WEIGHTS} beside it holds {stored}; one "
            "of them was altered, so save the ensemble again."
        )
    return config


def _read_json(path: Path) -> Any:
    try:
        if not path.is_file():  # reading a pipe or a device would not end
            raise OSError
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except OSError:
        raise FordeError(f"'{path}' cannot be read; expected a folder written by Ensemble.save.") from None
    if len(content) > MAX_CONFIG_BYTES:
        raise FordeError(
            f"'{path}' has more than {MAX_CONFIG_BYTES:,} bytes; the file was altered, so save the ensemble again."
        )
    try:
        return json.loads(content.decode(), object_pairs_hook=_without_repetition, parse_constant=_refuse)
    except (ValueError, RecursionError):  # nesting without end is refused by the second
        raise FordeError(f"'{path}' is not valid JSON; the file is damaged, so save the ensemble again.") from None


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):  # readers disagree on which one counts
        raise ValueError("a key is given twice")
    return dict(pairs)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _is_whole(value: Any, *, at_least: int) -> bool:
    return type(value) is int and value >= at_least


def _is_likelihood(value: Any) -> bool:
    """Whether it is a name, and numbers, lists of them or further names; which ones is for the likelihood to say."""
    if not isinstance(value, dict):
        return False
    options = dict(value)
    return _is_name(options.pop("name", None)) and all(
        _is_name(option) or all(map(_is_number, option if isinstance(option, list) else [option]))
        for option in options.values()
    )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


def _members(names: Iterable[str]) -> set[str]:
    """The numbers i in the names `members.i.…`."""
    parts = (name.split(".", 2) for name in names)
    return {part[1] for part in parts if part[0] == "members" and len(part) == 3}


def load_weights(folder: str | Path, module: nn.Module, shared: Mapping[str, str] | None = None) -> None:
    """Copy the tensors of `model.safetensors` into `module`, whose architecture must match exactly.

    Args:
        shared: names of parameters of `module` that are the same as another one, which alone is in the file, and
            stay the same.
    """
    shared = shared or {}
    path = Path(folder) / WEIGHTS
    with _opened(path) as file:
        # Clones: what safetensors gives are views of the file, and the program would die if that were cut short.
        state = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a mapping)
        checksum = (file.metadata() or {}).get(CHECKSUM)
    stored = {**{name: state[owner] for name, owner in shared.items() if owner in state}, **state}
    _check_architecture(module.state_dict(), stored, path)
    if checksum is not None and checksum != _checksum(state):
        raise FordeError(f"the weights in '{path}' are not those that were saved: the file is damaged; get it again.")
    module.load_state_dict(stored, assign=True)  # keeps the stored precision
    for name, owner in shared.items():
        place, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(place), leaf, module.get_parameter(owner))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import safe_open

    try:
        if path.exists() and not path.is_file():
            raise OSError("reading a pipe or a device would not end")
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise FordeError(f"'{path}' is missing; expected a folder written by Ensemble.save.") from None
    except Exception:  # a damaged file can raise anything, from SafetensorError to TypeError
        raise FordeError(f"'{path}' is truncated or damaged; save the ensemble again.") from None


def _check_architecture(expected: Mapping[str, Tensor], stored: Mapping[str, Tensor], path: Path) -> None:
    if difference := set(expected) ^ set(stored):
        name = min(difference)
        where = "file" if name in stored else "network"
        raise FordeError(
            f"'{path}' holds another architecture: {name[:MAX_SHOWN]!r} is only in the {where}; "
            "pass the make_network that built the saved ensemble."
        )
    for name, tensor in expected.items():
        if tensor.shape != stored[name].shape:
            raise FordeError(
                f"'{path}' holds another architecture: '{name}' has shape {list(stored[name].shape)} there and "
                f"{list(tensor.shape)} here; pass the make_network that built the saved ensemble."
            )
        found = stored[name].dtype
        if found != tensor.dtype and not {found, tensor.dtype} <= PRECISIONS:
            raise FordeError(
                f"'{path}' holds another architecture: '{name}' has type {found} there and {tensor.dtype} here; "
                "pass the make_network that built the saved ensemble."
            )
