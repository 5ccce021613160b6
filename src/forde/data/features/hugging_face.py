"""Vision models of the Hugging Face hub, or of a folder with their files, through `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from forde.data.features.network import Pool
from forde.data.features.preprocessing import Interpolation, Preprocessing
from forde.errors import FordeError, first_line

SETTINGS = "preprocessor_config.json"
INTERPOLATIONS: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}
"""Pillow's numbers."""


class Vision(NamedTuple):
    """What a `Backbone` is made of."""

    network: nn.Module
    preprocessing: Preprocessing
    pool: Pool
    revision: str


class _LastHiddenState(nn.Module):
    """`[B, C, H, W]` → `[B, T, Q]`, or `[B, Q, H, W]` of a convolutional network."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        hidden: Tensor = self.model(pixel_values=pixel_values).last_hidden_state
        return hidden


def hugging_face(name: str, revision: str | None = None) -> Vision:
    """The last hidden state of a vision model: of its class token where it has one, else the mean over positions."""
    try:
        from transformers import AutoModel
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise FordeError(
            f"the backbone '{name}' needs the package transformers, which is not installed; run: pip install "
            "'forde[backbones]'."
        ) from None
    local = Path(name).expanduser().is_dir()
    if local and revision is not None:
        raise FordeError(f"revision belongs to models of the Hugging Face hub, and '{name}' is a folder; leave it out.")
    source = str(Path(name).expanduser()) if local else name
    try:
        settings = _settings(source, revision)
        model, loading = AutoModel.from_pretrained(
            source, revision=revision or "main", local_files_only=local, output_loading_info=True
        )
    except (OSError, ValueError) as error:
        if isinstance(error, FordeError):
            raise
        where = "has not all files of a model" if local else "could not be had from the Hugging Face hub"
        raise FordeError(
            f"'{name}' {where} ({first_line(error).rstrip('.')}); "
            f"{'get it again' if local else 'get its files elsewhere and give their folder'}."
        ) from None
    _drop_untrained(model, loading, name)
    has_token = any(part.rpartition(".")[2] == "cls_token" for part, _ in model.named_parameters())
    pool: Pool = "first" if has_token else "mean"
    commit = "" if local else str(getattr(model.config, "_commit_hash", None) or revision or "")
    return Vision(_LastHiddenState(model.float().eval()), preprocessing_of(settings, name), pool, commit)


def _settings(source: str, revision: str | None) -> dict[str, Any]:
    from transformers.utils import cached_file

    path = cached_file(source, SETTINGS, revision=revision or "main")
    settings: dict[str, Any] = json.loads(Path(str(path)).read_text(encoding="utf-8"))
    return settings


def _drop_untrained(model: Any, loading: dict[str, Any], name: str) -> None:
    """A head of the model's that the files have no weights for would be random: a pooler goes, all else is refused."""
    missing = sorted(str(each) for each in loading["missing_keys"])
    if others := [each for each in missing if not each.startswith("pooler.")]:
        raise FordeError(
            f"the files of '{name}' have no weights for '{others[0]}', which would be random; give a folder of one "
            "pretrained model."
        )
    if missing:
        model.pooler = None


def preprocessing_of(settings: dict[str, Any], name: str) -> Preprocessing:
    """What `preprocessor_config.json` says.

    >>> old = {"size": 224, "resample": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    >>> preprocessing_of(old, "vit").size
    (224, 224)
    """
    try:
        size, shorter = _sizes(settings)
        channels = len(settings["image_mean"])
        normalise = settings.get("do_normalize", True)
        if not settings.get("do_resize", True) or abs(255 * settings.get("rescale_factor", 1 / 255) - 1) > 1e-6:
            raise KeyError("do_resize, rescale_factor")
        return Preprocessing(
            size,
            tuple(settings["image_mean"]) if normalise else (0.0,) * channels,
            tuple(settings["image_std"]) if normalise else (1.0,) * channels,
            INTERPOLATIONS[int(settings["resample"])],
            shorter,
        )
    except (KeyError, TypeError) as error:
        raise FordeError(
            f"the {SETTINGS} of '{name}' asks for what is not known here ({first_line(error)}); build a "
            "forde.data.features.Backbone with a Preprocessing of your own."
        ) from None


def _sizes(settings: dict[str, Any]) -> tuple[tuple[int, int], int | None]:
    """Height and width that the network takes, and the shorter side before the centre is cut out."""
    size, crop = settings["size"], settings.get("crop_size")
    if not settings.get("do_center_crop", False):
        return _pair(size), None
    shorter = size["shortest_edge"] if isinstance(size, dict) else size
    return _pair(crop if crop is not None else size), int(shorter)


def _pair(size: Any) -> tuple[int, int]:
    return (int(size["height"]), int(size["width"])) if isinstance(size, dict) else (int(size), int(size))
