"""Images for training: bytes on the device, cropped, flipped and normalised there."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import forde
from forde.data.description import Description, Images
from forde.training.image_feed import Augmentation, Draws, ImageFeed, augment, draw

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
CPU = torch.device("cpu")


def images(n: int = 50, side: int = 8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8)


def feed(source: np.ndarray, **options: object) -> ImageFeed:
    labels = np.arange(len(source)) % 5
    return ImageFeed(source, labels, **{"mean": MEAN, "std": STD, "batch_size": 16, "device": CPU, **options})


def expected_inputs(source: np.ndarray) -> torch.Tensor:
    x = (source.astype(np.float64) / 255 - MEAN) / STD
    return torch.from_numpy(x).permute(0, 3, 1, 2).float()


def test_without_augmentation_batches_are_the_normalised_images() -> None:
    source = images()
    order = torch.randperm(50, generator=torch.Generator().manual_seed(3))
    batches = list(feed(source, drop_last=False).epoch(torch.Generator().manual_seed(3)))
    assert [len(y) for _, y in batches] == [16, 16, 16, 2]
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    torch.testing.assert_close(x, expected_inputs(source)[order])
    assert torch.equal(y, (order % 5))


def test_inputs_are_never_augmented() -> None:
    source = images()
    for on_device in (True, False):
        found = torch.cat(list(feed(source, augmentation=Augmentation(), on_device=on_device).inputs()))
        torch.testing.assert_close(found, expected_inputs(source))


def test_every_crop_and_flip_is_where_a_loop_finds_it() -> None:
    source, pad = images(40), 3
    draws = draw(40, Augmentation(pad), torch.Generator().manual_seed(0))
    padded = np.pad(source, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    found = augment(torch.from_numpy(padded), draws, 8, 8)
    for i in range(40):
        row, column = draws.offsets[i].tolist()
        crop = padded[i, row : row + 8, column : column + 8]
        crop = crop[:, ::-1] if draws.flips[i] else crop
        assert np.array_equal(found[i].numpy(), crop)


def test_draws_are_uniform() -> None:
    draws = draw(20_000, Augmentation(2), torch.Generator().manual_seed(0))
    counts = torch.bincount(draws.offsets[:, 0] * 5 + draws.offsets[:, 1], minlength=25)
    assert counts.min() > 650 and counts.max() < 950
    assert 0.48 < float(draws.flips.float().mean()) < 0.52
    assert not draw(100, Augmentation(2, flip=False), torch.Generator()).flips.any()
    assert isinstance(draws.at(torch.tensor([1])), Draws)


def test_device_and_host_give_the_same_batches(tmp_path) -> None:
    source = images()
    np.save(tmp_path / "images.npy", source)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    found = []
    for data, options in ((source, {"on_device": True}), (source, {"on_device": False}), (mapped, {"workers": 2})):
        one = feed(data, augmentation=Augmentation(), **options)
        found.append([x for x, _ in one.epoch(torch.Generator().manual_seed(1))])
    assert feed(mapped).on_device is False and feed(source).on_device is True
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_seed_fixes_an_epoch_and_epochs_differ() -> None:
    one = feed(images(), augmentation=Augmentation())
    a, b = (torch.cat([x for x, _ in one.epoch(torch.Generator().manual_seed(0))]) for _ in range(2))
    assert torch.equal(a, b)
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.cat([x for x, _ in one.epoch(generator)]) for _ in range(2))
    assert torch.equal(first, a) and not torch.equal(first, second)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (images().astype(np.float32), {}, "bytes"),
        (images()[0], {}, r"\[N, H, W, C\]"),
        (images(), {"mean": (0.5,), "std": (0.5,)}, "3 channels"),
    ],
)
def test_other_images_are_refused(source: np.ndarray, options: dict[str, object], message: str) -> None:
    with pytest.raises(forde.FordeError, match=message):
        feed(source, **options)


def test_other_options_are_refused() -> None:
    with pytest.raises(forde.FordeError, match="pad is -1"):
        Augmentation(pad=-1)
    with pytest.raises(forde.FordeError, match="images but 3 labels"):
        ImageFeed(images(), np.arange(3), mean=MEAN, std=STD, batch_size=4, device=CPU)


def test_fit_and_predict_take_images() -> None:
    source = images(60)
    labels = (source[..., 0].mean((1, 2)) > 127).astype(np.int64)
    description = Description("mine", 2, (8, 8, 3), MEAN, STD, {"train": 60}, "made here")
    data = Images(source, labels, description, "test")

    def make() -> torch.nn.Module:
        return forde.models.MLP(192, [16], 2)

    ensemble = forde.Ensemble(make, 2)
    history = forde.fit(
        ensemble, "forde-pca", data, epochs=3, batch_size=20, lr=0.01, augmentation=Augmentation(1), verbose=False
    )
    assert history["loss"][-1] < history["loss"][0]
    pca = history.method.kernel.metric.pca
    x = expected_inputs(source).flatten(1).double()
    assert pca.total_variance == pytest.approx(float(x.square().sum() / 59), rel=1e-4)
    torch.testing.assert_close(
        ensemble.predict(data).probs, ensemble.predict(expected_inputs(source)).probs, rtol=1e-4, atol=1e-5
    )
    with pytest.raises(forde.FordeError, match="augmentation needs images"):
        forde.fit(ensemble, "forde-pca", (x.float(), labels), epochs=1, augmentation=Augmentation())


@pytest.mark.cuda
def test_gpu_gives_the_same_batches() -> None:
    source = images()
    found = []
    for device in ("cpu", "cuda"):
        one = feed(source, augmentation=Augmentation(), device=torch.device(device))
        found.append(torch.cat([x.cpu() for x, _ in one.epoch(torch.Generator().manual_seed(1))]))
    torch.testing.assert_close(*found)


@pytest.mark.cuda
def test_batches_never_wait_for_the_gpu() -> None:
    """After the epoch's draws are sent, the host only issues work."""
    one = feed(images(), augmentation=Augmentation(), device=torch.device("cuda"))
    batches = one.epoch(torch.Generator().manual_seed(0))
    next(batches)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls the mode a prototype, once
            torch.cuda.set_sync_debug_mode("error")
        x, _ = next(batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert x.shape == (16, 3, 8, 8)
