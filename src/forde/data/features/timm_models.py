"""Models of `timm` (https://github.com/huggingface/pytorch-image-models)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from forde.data.features.preprocessing import Preprocessing
from forde.data.features.weights import load_into
from forde.errors import FordeError, first_line, unknown_name


class _BeforeClassifier(nn.Module):
    """`[B, C, H, W]` → what the classifier is given `[B, Q]`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.model.forward_head(self.model.forward_features(x), pre_logits=True)
        return rows


def timm_model(name: str, weights: Path | None = None) -> tuple[nn.Module, Preprocessing, str]:
    """The network without its classifier, its inputs as in its evaluation, and the version of its weights."""
    try:
        import timm
        from timm.data import resolve_model_data_config
    except ModuleNotFoundError as error:
        if error.name not in ("timm", "torchvision"):
            raise
        raise FordeError(
            f"the backbone 'timm:{name}' needs the package {error.name}, which is not installed; run: pip install "
            "'forde[backbones]'."
        ) from None
    if not timm.is_model(name):
        raise unknown_name("model of timm", name, timm.list_models())
    try:
        model = timm.create_model(name, pretrained=weights is None)
    except (OSError, RuntimeError) as error:
        raise FordeError(
            f"the weights of 'timm:{name}' could not be had ({first_line(error).rstrip('.')}); give a file of weights."
        ) from None
    if weights is not None:
        load_into(model, weights)
    return _BeforeClassifier(model).eval(), _preprocessing(resolve_model_data_config(model)), _revision(model, weights)


def _preprocessing(settings: dict[str, Any]) -> Preprocessing:
    """timm resizes the shorter side to size / crop_pct and cuts out the centre, or squashes the whole image."""
    _, height, width = settings["input_size"]
    mode = settings.get("crop_mode", "center")
    if mode not in ("center", "squash") or height != width:
        raise FordeError(
            f"the model takes {height} x {width} pixels with crop_mode '{mode}', which is not known here; build a "
            "forde.data.features.Backbone with a Preprocessing of your own."
        )
    shorter = int(height / float(settings["crop_pct"])) if mode == "center" else None
    return Preprocessing(
        (height, width), tuple(settings["mean"]), tuple(settings["std"]), settings["interpolation"], shorter
    )


def _revision(model: Any, weights: Path | None) -> str:
    if weights is not None:
        return ""
    settings = getattr(model, "pretrained_cfg", None) or {}
    return ".".join(str(settings[key]) for key in ("architecture", "tag") if settings.get(key))
