"""Reading and writing an ensemble's folder: `config.json` and `model.safetensors`, and never any code.

Both files are written beside their destination and renamed, so that a crash leaves the old ones whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from forde.errors import FordeError

FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
REQUIRED = {"n_members": int, "seed": int, "likelihood": dict}


def save(folder: str | Path, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Path:
    """Write both files into `folder` (made if missing) and return it."""
    from safetensors.torch import save as to_bytes

    path = Path(folder)
    # Clones: safetensors refuses tensors that share memory, as tied or stacked weights do.
    weights = to_bytes({name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()})
    text = json.dumps({"format": FORMAT, **config}, indent=2) + "\n"
    try:
        path.mkdir(parents=True, exist_ok=True)
        _write(path / WEIGHTS, weights)
        _write(path / CONFIG, text.encode())
    except OSError as error:
        raise FordeError(f"could not write '{path}': {error.strerror}; choose a writable folder.") from None
    return path


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_config(folder: str | Path) -> dict[str, Any]:
    """The settings in `config.json`, checked."""
    path = Path(folder) / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise FordeError(f"'{path}' cannot be read; expected a folder written by Ensemble.save.") from None
    except ValueError:
        raise FordeError(f"'{path}' is not valid JSON; the file is damaged, so save the ensemble again.") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        found = config.get("format") if isinstance(config, dict) else None
        raise FordeError(f"'{path}' has format {found!r}, but {FORMAT} was expected; use the version that wrote it.")
    for key, kind in REQUIRED.items():
        if not isinstance(config.get(key), kind) or isinstance(config[key], bool):
            raise FordeError(f"'{path}' lacks a valid '{key}'; the file was altered, so save the ensemble again.")
    return config


def load_weights(folder: str | Path, module: nn.Module) -> None:
    """Copy the tensors of `model.safetensors` into `module`, whose architecture must match exactly."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(folder) / WEIGHTS
    try:
        state = load_file(path)
    except FileNotFoundError:
        raise FordeError(f"'{path}' is missing; expected a folder written by Ensemble.save.") from None
    except (SafetensorError, OSError, ValueError):
        raise FordeError(f"'{path}' is truncated or damaged; save the ensemble again.") from None
    expected = module.state_dict()
    if difference := set(expected) ^ set(state):
        name = min(difference)
        where = "file" if name in state else "network"
        raise FordeError(
            f"'{path}' holds another architecture: '{name}' is only in the {where}; "
            "pass the make_network that built the saved ensemble."
        )
    for name, tensor in expected.items():
        if tensor.shape != state[name].shape:
            raise FordeError(
                f"'{path}' holds another architecture: '{name}' has shape {list(state[name].shape)} there and "
                f"{list(tensor.shape)} here; pass the make_network that built the saved ensemble."
            )
    module.load_state_dict(state, assign=True)  # keeps the stored precision
