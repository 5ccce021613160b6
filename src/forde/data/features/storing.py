"""One file of features: begun, gone on with, finished, or found to be there already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forde._version import __version__
from forde.data.features.backbones import Backbone
from forde.data.features.extracting import SAVE_SECONDS, Watcher, extract, inputs_of
from forde.data.features.files import FORMAT, read_about, write_file
from forde.data.features.network import PRECISIONS, extracting
from forde.data.features.shards import Rows, Shards, alone_in, first_difference, shards_of
from forde.data.features.sources import Source
from forde.errors import FordeError, number_from_0, unknown_name, whole_number

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BATCH_SIZES = {"cuda": 256, "cpu": 16}
"""Images of 224 x 224 take gigabytes in a network; on a CPU this memory comes anew from the system each time."""
LOADERS_OWN = ("rows", "fingerprint")
"""What is known of a loader's data only after all of it has passed."""


@dataclass(frozen=True)
class Settings:
    """How features are computed and stored."""

    batch_size: int | None = None
    """None: 256 on a GPU, 16 on a CPU."""
    device: str = "cpu"
    precision: str = "float32"
    """"float32", or "bf16" under autocast."""
    dtype: str = ""
    """In which features are stored; if empty, bfloat16 for "bf16", which loses nothing, else float32."""
    save_seconds: float = SAVE_SECONDS

    def __post_init__(self) -> None:
        whole_number("batch_size", self.images_per_batch, at_least=1)
        number_from_0("save_seconds", self.save_seconds)
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        if self.dtype and self.dtype not in DTYPES:
            raise unknown_name("dtype of features", self.dtype, DTYPES)
        if self.kind == "cuda" and not torch.cuda.is_available():
            raise FordeError(f"the device is '{self.device}', but torch sees no GPU; give device='cpu'.")

    @property
    def images_per_batch(self) -> int:
        """What was asked for, or what suits the device."""
        return self.batch_size if self.batch_size is not None else BATCH_SIZES.get(self.kind, BATCH_SIZES["cpu"])

    @property
    def kind(self) -> str:
        """The device's, without its number."""
        try:
            return torch.device(self.device).type
        except RuntimeError:
            raise unknown_name("device", self.device, ("cpu", "cuda", "mps")) from None

    @property
    def stored(self) -> str:
        """The name of the type that features are stored in."""
        return self.dtype or ("bfloat16" if self.precision == "bf16" else "float32")


@dataclass(frozen=True)
class Extractor:
    """A backbone that is ready to run."""

    about: dict[str, Any]
    """The backbone in JSON."""
    run: Callable[[Tensor], Tensor]
    """Images `[B, H, W, C]` or inputs `[B, ...]` → features `[B, Q]`."""
    settings: Settings

    def describe(self, data: dict[str, Any]) -> dict[str, Any]:
        """All that decides the numbers of a file, and under "made" what could change their last digits."""
        settings = self.settings
        return {
            "format": FORMAT,
            "backbone": self.about,
            "data": data,
            "precision": settings.precision,
            "dtype": settings.stored,
            "made": {
                "batch_size": settings.images_per_batch,
                "device": settings.kind,
                "torch": torch.__version__,
                "forde": __version__,
            },
        }


@contextmanager
def opened(backbone: Backbone, settings: Settings) -> Iterator[Extractor]:
    """A backbone on its device, in evaluation mode inside."""
    device = torch.device(settings.device)
    about, inputs = backbone.about, inputs_of(backbone.preprocessing, device)
    with extracting(
        backbone.network,
        layer=backbone.layer,
        at=backbone.at,
        pool=backbone.pool,
        device=device,
        precision=settings.precision,
    ) as run:
        yield Extractor(about, lambda x: run(inputs(x)), settings)


def compute(extractor: Extractor, source: Source) -> Rows:
    """Features in memory only."""
    rows = extract(source, extractor.run, DTYPES[extractor.settings.stored])
    assert rows is not None  # nobody can ask for a stop
    return rows


def finished(path: Path, wanted: dict[str, Any]) -> bool:
    """Whether the file is there; an error where it was made in another way."""
    if not path.exists():
        return False
    there = read_about(path)
    known = {key for key in LOADERS_OWN if key not in wanted["data"]}
    if found := first_difference(_identity(there, known), _identity(wanted, known)):
        raise FordeError(
            f"'{path}' was made with {found[0]} {found[1]!r}, but {found[2]!r} is given; give the same, delete the "
            "file, or choose another folder."
        )
    return True


def store(
    path: Path, source: Source, data: dict[str, Any], extractor: Extractor, watcher: Watcher | None = None
) -> bool:
    """Complete the file of these samples; False where a stop was asked for before it was complete."""
    settings = extractor.settings
    wanted = extractor.describe(data)
    if finished(path, wanted):
        if source.n is None:
            _check_loader(path, source)
        return True
    with alone_in(shards_of(path)):
        if finished(path, wanted):  # by the process that has just left
            return True
        shards = Shards(path, {**_identity(wanted), "made": wanted["made"]})
        rows = extract(
            source,
            extractor.run,
            DTYPES[settings.stored],
            shards=shards,
            save_seconds=settings.save_seconds,
            watcher=watcher,
        )
        if rows is None:
            return False
        known = {"rows": len(rows.labels), "fingerprint": source.fingerprint}
        write_file(path, rows, {**wanted, "data": {**known, **data}})
        shards.delete()
    return True


def _check_loader(path: Path, source: Source) -> None:
    """Go through a loader once, to know whether the file is of the same samples."""
    n = sum(len(batch.y) for batch in source.batches())
    there = read_about(path)["data"]
    if (there["rows"], there["fingerprint"]) != (n, source.fingerprint):
        raise FordeError(
            f"'{path}' holds features of other samples than the loader gives; turn shuffling and augmentation off, or "
            "delete the file."
        )


def _identity(about: dict[str, Any], without: set[str] = frozenset()) -> dict[str, Any]:  # type: ignore[assignment]
    """What must be the same: not the machine, and not the name under which the same weights were published."""
    kept = {key: value for key, value in about.items() if key not in ("made", "sha256")}
    backbone, data = dict(about.get("backbone", {})), about.get("data", {})
    backbone.pop("revision", None)
    return {**kept, "backbone": backbone, "data": {key: value for key, value in data.items() if key not in without}}
