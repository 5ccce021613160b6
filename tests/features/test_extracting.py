"""Features against the network run by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_backbones import HALF, N, Small, images, inputs, small
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from forde.data.features import Backbone, Preprocessing, features
from forde.errors import FordeError


def test_the_classifiers_input_is_what_the_formula_gives() -> None:
    backbone, data = small(), images()
    found = features(backbone, data, batch_size=7)
    assert torch.allclose(found.x, backbone.network.by_hand(inputs(data)), atol=1e-5)  # type: ignore[operator]
    assert found.x.dtype == torch.float32 and found.y.tolist() == [i % 4 for i in range(N)]


def test_a_layers_output_and_the_whole_network() -> None:
    data, network = images(), Small().eval()
    with torch.no_grad():
        logits = network(inputs(data))
    for layer in ("", "classifier"):
        found = features(small(layer=layer, at="output"), data)
        assert torch.allclose(found.x, logits, atol=1e-5)


def test_positions_are_averaged_or_the_first_is_taken() -> None:
    data = images()
    with torch.no_grad():
        z = Small().conv(inputs(data))
    assert torch.allclose(features(small(layer="conv", at="output", pool="mean"), data).x, z.mean((2, 3)), atol=1e-5)
    tokens = nn.Sequential(nn.Conv2d(3, 4, 4, stride=4), nn.Flatten(2), _Swap())
    with torch.no_grad():
        z = tokens(inputs(data))
    for pool, expected in (("first", z[:, 0]), ("mean", z.mean(1))):
        assert torch.allclose(features(Backbone("t", tokens, HALF, pool=pool), data).x, expected, atol=1e-5)  # type: ignore[arg-type]
    with pytest.raises(FordeError, match=r"shape \[23, 4, 4\].*pool='none'.*use pool='first'"):
        features(Backbone("tokens", tokens, HALF), data, batch_size=N)
    with pytest.raises(FordeError, match=r"shape \[23, 10\].*use pool='none'"):
        features(small(layer="", at="output", pool="first"), data, batch_size=N)


class _Swap(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def test_every_kind_of_data_gives_the_same_rows_and_fingerprint() -> None:
    data, backbone = images(), small()
    pixels, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    given = [
        data,
        (data.images, data.labels),
        (pixels, labels),
        (_read_only(data.images), list(labels)),
        TensorDataset(pixels, labels),
        DataLoader(TensorDataset(pixels, labels), batch_size=5),
        [(pixels[:20], labels[:20]), (pixels[20:], labels[20:])],
    ]
    found = [features(backbone, each, batch_size=6) for each in given]
    for each in found:
        assert torch.allclose(each.x, found[0].x, atol=1e-5) and torch.equal(each.y, labels)
        assert each.about["data"]["fingerprint"] == found[0].about["data"]["fingerprint"]
        assert each.about["data"]["rows"] == N
    other = features(backbone, (data.images, labels.flip(0)))
    assert other.about["data"]["fingerprint"] != found[0].about["data"]["fingerprint"]


def _read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def test_samples_without_labels() -> None:
    found = features(small(), images().images)
    assert found.y.tolist() == [-1] * N


def test_floats_are_inputs_that_are_ready() -> None:
    data, backbone = images(), small()
    found = features(backbone, DataLoader(TensorDataset(inputs(data).double(), torch.zeros(N).long()), batch_size=9))
    assert torch.allclose(found.x, features(backbone, data).x, atol=1e-5)


def test_bf16_is_stored_in_16_bits_and_close() -> None:
    exact, coarse = features(small(), images()), features(small(), images(), precision="bf16")
    assert coarse.about["dtype"] == "bfloat16" and coarse.about["precision"] == "bf16"
    assert torch.equal(coarse.x, coarse.x.bfloat16().float()) and not torch.equal(coarse.x, exact.x)
    assert (coarse.x - exact.x).abs().max() < 0.03 * exact.x.abs().max()


def test_the_network_is_left_as_it_was() -> None:
    backbone = small()
    network = backbone.network.train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    features(backbone, images(), precision="bf16")
    features(backbone, images())
    assert network.training and all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert not any(part._forward_hooks for part in network.modules())


def test_about_names_the_weights_and_all_that_decides_the_numbers() -> None:
    about = features(small(), images()).about
    assert about["backbone"]["layer"] == "classifier" and about["backbone"]["at"] == "input"
    assert about["backbone"]["preprocessing"]["std"] == [0.25, 0.25, 0.25]
    assert about["data"]["name"] == "pixels" and about["data"]["n_classes"] == 4
    assert about["made"]["torch"] == torch.__version__ and about["made"]["device"] == "cpu"
    names = {small(seed).about["weights"] for seed in (0, 0, 1)}
    assert len(names) == 2


def test_mistakes_are_said_in_a_sentence() -> None:
    with pytest.raises(FordeError, match=r"unknown layer 'clasifier'; did you mean 'classifier'?"):
        small(layer="clasifier")
    with pytest.raises(FordeError, match=r"unknown value of at 'inputs'; did you mean 'input'?"):
        small(at="inputs")
    with pytest.raises(FordeError, match=r"\[23, 3, 8, 8\].*images.permute\(0, 2, 3, 1\)"):
        features(small(), images().images.transpose(0, 3, 1, 2), batch_size=N)
    with pytest.raises(FordeError, match=r"int64, but levels 0..255 as uint8"):
        features(small(), images().images.astype(np.int64))
    with pytest.raises(FordeError, match=r"23 samples and labels of shape \[22\]"):
        features(small(), (images().images, np.zeros(22, int)))
    with pytest.raises(FordeError, match="unknown precision 'fp16'"):
        features(small(), images(), precision="fp16")
    with pytest.raises(FordeError, match=r"a name that ends in .safetensors"):
        features(small(), images(), "features.npz")
    with pytest.raises(FordeError, match="the data is a int"):
        features(small(), 3)
    with pytest.raises(FordeError, match="failed on a batch of shape"):
        features(Backbone("own", nn.Linear(3, 2), HALF), images())
    with pytest.raises(FordeError, match="the data is empty"):
        features(small(), [])
    unused = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    unused.register_module("spare", nn.Linear(3, 2))
    unused.forward = lambda x: unused[1](unused[0](x))  # type: ignore[method-assign]
    with pytest.raises(FordeError, match="the layer 'spare' was given no tensor"):
        features(Backbone("own", unused, HALF, layer="spare"), images())


@pytest.mark.cuda
def test_a_gpu_gives_what_a_cpu_gives() -> None:
    data = images(600)
    exact = features(small(), data, device="cpu")
    for precision, share in (("float32", 1e-3), ("bf16", 0.03)):
        runs = [features(small(), data, device="cuda", precision=precision, batch_size=64) for _ in range(2)]
        assert (runs[0].x - exact.x).abs().max() < share * exact.x.abs().max()
        assert torch.equal(runs[0].x, runs[1].x)
        whole = [
            features(small(layer="", at="output"), data, device=device, precision=precision, batch_size=64)
            for device in ("cuda", "cpu")
        ]
        assert (whole[0].x - whole[1].x).abs().max() < share * whole[1].x.abs().max()


def test_preprocessing_is_checked() -> None:
    with pytest.raises(FordeError, match="did you mean 'bicubic'"):
        Preprocessing((8, 8), (0.5,), (0.5,), "bicubix")  # type: ignore[arg-type]
    with pytest.raises(FordeError, match="one of each for every channel"):
        Preprocessing((8, 8), (0.5,), (0.5, 0.5))
    with pytest.raises(FordeError, match="a shorter side of at least 8"):
        Preprocessing((8, 8), (0.5,), (0.5,), shorter_side=4)
