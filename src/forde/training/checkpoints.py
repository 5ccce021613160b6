"""Checkpoints on the disk: `000007.safetensors` with the tensors, `000007.json` with the rest and both checksums.

A checkpoint exists once its JSON file does, which is written last; both are written whole or not at all. An older one
is deleted only when a newer one has been read back. No file can hold code.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from forde.durable import TEMPORARY, make_folder, write_whole
from forde.errors import FordeError
from forde.hashing import canonical, sha256

log = logging.getLogger(__name__)

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """All that a training needs to go on."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]
    """JSON: position, history, settings of the optimizer and the scheduler."""


class Checkpoints:
    """The newest `keep` checkpoints of one run.

    Args:
        folder: made when the first one is written.
        keep: how many stay.
        run: names the run's settings; checkpoints of another run are not used.

    >>> import tempfile, torch
    >>> kept = Checkpoints(Path(tempfile.mkdtemp()), keep=2, run="a")
    >>> for step in range(3):
    ...     kept.write(Checkpoint({"weight": torch.ones(2)}, {"step": step}))
    >>> [checkpoint.state for _, checkpoint in kept.newest_first()]
    [{'step': 2}, {'step': 1}]
    """

    def __init__(self, folder: Path, *, keep: int, run: str) -> None:
        self.folder, self.keep, self.run = folder, keep, run
        self._unusable: set[int] = set()

    def __len__(self) -> int:
        return len(self._serials())

    def write(self, checkpoint: Checkpoint) -> None:
        """Write one, read it back, and only then delete those that are no longer kept."""
        from safetensors.torch import save

        serial = max(self._serials(), default=0) + 1
        content = save(
            {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in checkpoint.tensors.items()}
        )
        manifest = {
            "format": FORMAT,
            "run": self.run,
            "tensors": {"bytes": len(content), "sha256": sha256(content)},
            "state": checkpoint.state,
        }
        manifest["sha256"] = sha256(canonical(manifest))
        make_folder(self.folder)
        tensors, text = self._paths(serial)
        try:
            write_whole(tensors, content)
            write_whole(text, json.dumps(manifest, indent=1).encode())
            self._verified(serial)
        except (OSError, FordeError):
            for path in (text, tensors):  # what is left of it takes space that may just have run out
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            raise
        self._prune()

    def newest_first(self) -> Iterator[tuple[str, Checkpoint]]:
        """Whole checkpoints, each with its name; a damaged one is named in the log and passed over."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        for serial in reversed(self._serials()):
            name = str(self._paths(serial)[1])
            try:
                manifest, content = self._verified(serial)
                yield name, Checkpoint(load(content), manifest["state"])
            except (FordeError, SafetensorError) as error:
                self.refuse(name, str(error))

    def refuse(self, name: str, reason: str) -> None:
        """Say in the log that a checkpoint cannot be used, and why; it goes when a good one has been written."""
        self._unusable.add(int(Path(name).stem))
        log.warning("checkpoint '%s' is passed over: %s", name, reason)

    def clear(self, *, but_newest: bool = False) -> None:
        """Delete all, or all but the newest one, once the result of the run is safe."""
        if but_newest:
            self.keep = 1
            self._prune()
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _paths(self, serial: int) -> tuple[Path, Path]:
        return self.folder / f"{serial:06d}.safetensors", self.folder / f"{serial:06d}.json"

    def _serials(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdecimal())

    def _verified(self, serial: int) -> tuple[dict[str, Any], bytes]:
        """Manifest and tensors of one checkpoint, as bytes whose checksum is right; nothing is parsed before that."""
        tensors, text = self._paths(serial)
        try:
            manifest = json.loads(text.read_bytes())
            content = tensors.read_bytes()
        except OSError as error:
            raise FordeError(f"it cannot be read ({error.strerror}).") from None
        except (ValueError, RecursionError):
            raise FordeError("its JSON file is truncated or damaged.") from None
        if not isinstance(manifest, dict):
            raise FordeError("its JSON file is truncated or damaged.")
        if manifest.get("format") != FORMAT:
            raise FordeError(f"it has format {manifest.get('format')!r}, but {FORMAT} was expected.")
        stated = manifest.pop("sha256", None)
        if stated != sha256(canonical(manifest)):
            raise FordeError("its JSON file does not match its checksum.")
        if manifest.get("run") != self.run:
            raise FordeError("it belongs to a run with other settings.")
        found = {"bytes": len(content), "sha256": sha256(content)}
        if manifest.get("tensors") != found:
            raise FordeError(f"its tensors do not match their checksum ({len(content)} bytes were found).")
        if not isinstance(manifest.get("state"), dict):
            raise FordeError("its JSON file has no state.")
        return manifest, content

    def _prune(self) -> None:
        usable = [serial for serial in self._serials() if serial not in self._unusable]
        kept = {path.name for serial in usable[-self.keep :] for path in self._paths(serial)}
        for path in sorted(self.folder.iterdir()):  # JSON before tensors: what has no JSON is not a checkpoint
            ours = path.suffix in (".json", ".safetensors", TEMPORARY) and path.name.split(".")[0].isdecimal()
            if ours and path.name not in kept:
                path.unlink(missing_ok=True)


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin with it, by the rest of their names.

    >>> import torch
    >>> sorted(with_prefix({"now.a": torch.ones(1), "best.a": torch.ones(1)}, "now."))
    ['a']
    """
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
