"""A frozen backbone with M heads: the numbers of heads on its features, computed once, saved once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import forde

N, Q = 96, 6


class Body(nn.Module):
    """Counts its calls; BatchNorm and dropout would show if it were trained or in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, Q))
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return self.layers(x)


def body(seed: int = 0) -> Body:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Body()


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(N, 4, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] > 0).long()


def head() -> nn.Module:
    return nn.Linear(Q, 2)


def trained(
    given: Any, backbone: nn.Module | None, method: str = "forde", **options: Any
) -> tuple[forde.Ensemble, Any]:
    ensemble = forde.Ensemble(head, 3, seed=0, backbone=backbone)
    options = {"epochs": 2, "batch_size": 32, "lr": 0.1, "verbose": False, **options}
    return ensemble, forde.fit(ensemble, method, given, **options)


def heads_of(ensemble: forde.Ensemble) -> list[Tensor]:
    return list(ensemble.member_tensors().values())


def features() -> Tensor:
    with torch.no_grad():
        return body().eval()(data()[0])


@pytest.mark.parametrize("kind", ["tensors", "loader"])
@pytest.mark.parametrize("engine", ["eager", "auto"])
def test_it_is_training_of_heads_on_features(kind: str, engine: str) -> None:
    x, y = data()
    given = {"tensors": (x, y), "loader": DataLoader(TensorDataset(x, y), batch_size=32)}[kind]
    same = {"tensors": (features(), y), "loader": DataLoader(TensorDataset(features(), y), batch_size=32)}[kind]
    ensemble, history = trained(given, body(), engine=engine)
    expected, other = trained(same, None, engine=engine)
    for one, two in zip(heads_of(ensemble), heads_of(expected), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(history["gradient_cosine"], other["gradient_cosine"], rtol=1e-3)
    probs = expected.predict(features()).probs
    torch.testing.assert_close(ensemble.predict(x).probs, probs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ensemble(x).softmax(-1).mean(0), probs, rtol=1e-4, atol=1e-5)


def test_it_never_moves() -> None:
    backbone = body()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    ensemble, _ = trained(data(), backbone)
    assert not backbone.training and not ensemble.train().backbone.training  # type: ignore[union-attr]
    assert all(torch.equal(before[name], tensor) for name, tensor in backbone.state_dict().items())
    assert all(parameter.grad is None for parameter in backbone.parameters())


def test_data_in_memory_runs_through_it_once() -> None:
    """Not once per member, nor once per epoch; a loader's batches once each."""
    for given, times in ((data(), 1), (DataLoader(TensorDataset(*data()), batch_size=32), 5)):
        backbone = body()
        trained(given, backbone, method="deep-ensemble", epochs=5)
        assert N * times <= backbone.seen <= N * times + 2 * 32 + 1  # and what is looked at before the first step


def test_images_run_through_it() -> None:
    images = forde.data.load("digits")
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU())
    ensemble = forde.Ensemble(lambda: nn.Linear(12, 10), 2, backbone=network)
    options: dict[str, Any] = {"epochs": 1, "batch_size": 256, "verbose": False}
    forde.fit(ensemble, "forde-identity", images, **options)
    forde.fit(ensemble, "forde-identity", images, augmentation=forde.Augmentation(pad=1), **options)
    assert ensemble.predict(images).probs.shape == (len(images), 10)


def test_it_is_saved_once_and_loaded(tmp_path: Path) -> None:
    ensemble, _ = trained(data(), body())
    ensemble.save(tmp_path)
    loaded = forde.Ensemble.load(tmp_path, head, backbone=body(seed=7))  # whose weights are overwritten
    assert torch.equal(loaded.predict(data()[0]).probs, ensemble.predict(data()[0]).probs)
    weights = sum(tensor.nbytes for tensor in ensemble.state_dict().values())
    assert (tmp_path / "model.safetensors").stat().st_size < weights + 8192
    with pytest.raises(forde.FordeError, match=r"share a backbone \(Body\).*as backbone="):
        forde.Ensemble.load(tmp_path, head)
    trained((features(), data()[1]), None)[0].save(tmp_path / "heads")
    with pytest.raises(forde.FordeError, match="saved without a backbone; leave backbone out"):
        forde.Ensemble.load(tmp_path / "heads", head, backbone=body())
    with pytest.raises(forde.FordeError, match="another architecture"):
        forde.Ensemble.load(tmp_path, head, backbone=nn.Linear(4, Q))


class StopError(Exception):
    pass


@pytest.mark.parametrize("loader", [False, True])
def test_a_run_resumes_bit_for_bit(tmp_path: Path, loader: bool) -> None:
    def given() -> Any:
        return DataLoader(TensorDataset(*data()), batch_size=32, shuffle=True) if loader else data()

    def stop(record: dict[str, float]) -> None:
        if record["epoch"] == 1:
            raise StopError

    whole, _ = trained(given(), body(), epochs=4)
    with pytest.raises(StopError):
        trained(given(), body(), epochs=4, run=tmp_path, callback=stop)
    checkpoint = max(tmp_path.rglob("*.safetensors"), key=lambda path: path.stat().st_mtime)
    assert b"backbone" not in checkpoint.read_bytes()[:4096]
    with pytest.raises(forde.FordeError, match=r"backbone\.weights"):
        trained(given(), body(seed=3), epochs=4, run=tmp_path, resume=True)
    resumed, _ = trained(given(), body(), epochs=4, run=tmp_path, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(heads_of(whole), heads_of(resumed), strict=True))
    loaded = forde.load_run(tmp_path, head, backbone=body(seed=5))
    assert torch.equal(loaded.ensemble.predict(data()[0]).probs, whole.predict(data()[0]).probs)


def test_validation_goes_through_it() -> None:
    x, y = data()
    ensemble, history = trained(data(), body(), validation=(x, y), restore_best=False)
    expected = float(forde.evaluation.nll(ensemble.predict(x).member_logits, y))
    assert history["validation_nll"][-1] == pytest.approx(expected, rel=1e-5)
    held, records = trained(data(), body(), validation=0.25, patience=1, epochs=3)
    assert len(records["validation_nll"]) >= 1 and held.backbone is not None


WRONG = {
    "a function": (lambda: nn.Linear(4, Q), r"backbone is a function, .* pass the network itself"),
    "other features": (nn.Linear(4, Q + 1), r"failed on a batch of shape \[32, 7\]"),
    "other inputs": (nn.Linear(5, Q), r"failed on a batch of shape \[1, 4\]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_backbones_that_do_not_fit(case: str) -> None:
    backbone, message = WRONG[case]
    with pytest.raises(forde.FordeError, match=message):
        trained(data(), backbone)


def test_heads_that_hold_it() -> None:
    backbone = body()
    with pytest.raises(forde.FordeError, match=r"builds heads.* leave backbone out"):
        forde.Ensemble(lambda: nn.Sequential(backbone, nn.Linear(Q, 2)), 1, backbone=backbone)


@pytest.mark.parametrize("method", ["swag", "node-bnn", "feature-rde", "weight-rde"])
def test_other_methods_take_it(method: str) -> None:
    def deep() -> nn.Module:
        return nn.Sequential(nn.Linear(Q, 8), nn.ReLU(), nn.Linear(8, 2))

    ensemble = forde.Ensemble(deep, 2, backbone=body())
    forde.fit(ensemble, method, DataLoader(TensorDataset(*data()), batch_size=32), epochs=2, verbose=False)
    assert bool(ensemble.predict(data()[0]).probs.isfinite().all())


def test_dicts_go_through_it() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, Q)

        def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
            return {"pooled": self.layer(left) + right.mean()}

    x, y = data()
    ensemble = forde.Ensemble(head, 2, backbone=Both())
    forde.fit(ensemble, "forde", {"left": x, "right": x[:, 0], "labels": y}, epochs=1, batch_size=32, verbose=False)
    assert ensemble.predict({"left": x, "right": x[:, 0]}).probs.shape == (N, 2)
