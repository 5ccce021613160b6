"""`features`: the last hidden layer of a pretrained network over a data set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from forde.data.description import Images
from forde.data.features.backbones import Backbone
from forde.data.features.extracting import SAVE_SECONDS
from forde.data.features.files import read_file
from forde.data.features.reading import SUFFIX, Features
from forde.data.features.sources import Source, source_of
from forde.data.features.storing import Settings, compute, opened, store
from forde.errors import FordeError


def features(
    backbone: Backbone,
    data: Any,
    file: str | os.PathLike[str] | None = None,
    *,
    name: str = "",
    batch_size: int | None = None,
    device: str | torch.device | None = None,
    precision: str = "float32",
    dtype: str = "",
    save_seconds: float = SAVE_SECONDS,
) -> Features:
    """Features `[N, Q]` of all samples, one row each, in their order.

    Args:
        backbone: from `forde.data.features.backbone`, or a `Backbone` of any network; it is moved to the device.
        data: `forde.data.Images`, images uint8 `[N, H, W, C]` or a pair of them and labels `[N]`, a Dataset, or a
            loader of batches. Bytes are resized and normalised as the backbone needs it; floats are taken for inputs
            that are ready. A loader must give the same samples in the same order each time.
        file: a `.safetensors` file to keep them in. A file that is there is read, if it was made from the same samples
            in the same way. One that was begun is gone on with: shards beside it hold what was computed.
        name: of the data set; the one in its description if left out.
        batch_size: 256 on a GPU and 16 on a CPU, if left out; ignored for a loader.
        device: a GPU where there is one, if left out.
        precision: "float32", or "bf16" under autocast.
        dtype: "float32", "bfloat16" or "float16" in the file; by default bfloat16 for "bf16", else float32.
        save_seconds: write a shard after so many seconds.

    >>> from torch import nn
    >>> from forde.data import load
    >>> from forde.data.features import Backbone, Preprocessing
    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))
    >>> own = Backbone("own", network, Preprocessing((8, 8), (0.5,), (0.5,)), layer="3", at="input")
    >>> found = features(own, load("digits", "test"))
    >>> found.x.shape, found.y.shape, found.about["data"]["name"]
    (torch.Size([899, 5]), torch.Size([899]), 'digits')
    """
    chosen = str(device) if device is not None else "cuda" if torch.cuda.is_available() else "cpu"
    settings = Settings(batch_size, chosen, precision, dtype, save_seconds)
    source = source_of(data, settings.images_per_batch)
    about = described(data, source, name)
    path = None if file is None else Path(file).expanduser()
    if path is not None and path.suffix != SUFFIX:
        raise FordeError(f"the file of features is '{path}', but a name that ends in {SUFFIX} was expected.")
    with opened(backbone, settings) as extractor:
        if path is not None:
            store(path, source, about, extractor)
            rows, written = read_file(path)
        else:
            rows = compute(extractor, source)
            data_about = {**about, "rows": len(rows.labels), "fingerprint": source.fingerprint}
            written = extractor.describe(data_about)
    return Features(rows.features.float(), rows.labels, written)


def described(data: Any, source: Source, name: str = "") -> dict[str, Any]:
    """A data set in JSON; of a loader's samples neither number nor fingerprint are known yet."""
    about: dict[str, Any] = {"name": name or type(data).__name__}
    if isinstance(data, Images):
        about = {
            "name": name or data.description.name,
            "n_classes": data.description.n_classes,
            "classes": list(data.description.classes),
        }
    if source.n is not None:
        about |= {"rows": source.n, "fingerprint": source.fingerprint}
    return about
