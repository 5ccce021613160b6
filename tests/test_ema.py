"""Averages over the steps: their formula, what is made of them, and what is not."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import forde

DECAY, STEPS, EPOCHS = 0.8, 4, 3


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def data(n: int = 8 * STEPS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=generator), torch.randint(3, (n,), generator=generator)


class Seen:
    """An optimizer after whose steps the members are noted."""

    def __init__(self, ensemble: forde.Ensemble) -> None:
        self.ensemble = ensemble
        self.tensors: list[dict[str, Any]] = []

    def __call__(self, parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        optimizer.register_step_post_hook(lambda *_: self.tensors.append(numbers(self.ensemble)))
        return optimizer


def numbers(ensemble: forde.Ensemble) -> dict[str, Any]:
    return {name: tensor.detach().double().numpy().copy() for name, tensor in ensemble.state_dict().items()}


def train(ensemble: forde.Ensemble, **options: Any) -> forde.History:
    options = {
        "epochs": EPOCHS, "batch_size": 8, "verbose": False, "diagnostics_every": 0, "engine": "eager",
        "ema": DECAY, **options,
    }  # fmt: skip
    return forde.fit(ensemble, options.pop("method", "forde-identity"), options.pop("given", data()), **options)


@pytest.mark.parametrize("engine", ["eager", "vectorized", "auto"])
def test_the_ensemble_ends_as_the_average(engine: str) -> None:
    """Of weights and running statistics; how many batches there were is a count."""
    ensemble = forde.Ensemble(network, 2, seed=1)
    seen = Seen(ensemble)
    train(ensemble, optimizer=seen, engine=engine)
    assert len(seen.tensors) == STEPS * EPOCHS
    average = seen.tensors[0]
    for now in seen.tensors[1:]:
        average = {name: DECAY * value + (1 - DECAY) * now[name] for name, value in average.items()}
    for name, value in numbers(ensemble).items():
        if name.endswith("num_batches_tracked"):
            assert value == STEPS * EPOCHS
            continue
        np.testing.assert_allclose(value, average[name], rtol=1e-5, atol=1e-6)
        assert not np.allclose(value, seen.tensors[-1][name], rtol=1e-3)


def test_training_itself_does_not_notice() -> None:
    plain, averaged = forde.Ensemble(network, 2, seed=1), forde.Ensemble(network, 2, seed=1)
    seen = Seen(plain), Seen(averaged)
    without = train(plain, ema=None, optimizer=seen[0], validation=data(24))
    with_it = train(averaged, optimizer=seen[1], validation=data(24))
    assert without["loss"] == with_it["loss"] and without["validation_nll"] != with_it["validation_nll"]
    for one, two in zip(seen[0].tensors, seen[1].tensors, strict=True):
        assert all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("restore_best", [True, False])
def test_validation_is_of_the_average(restore_best: bool) -> None:
    ensemble, held = forde.Ensemble(network, 2, seed=1), data(24)
    history = train(ensemble, validation=held, restore_best=restore_best, epochs=6, lr=0.5)
    probs = ensemble.predict(held[0]).probs
    nll = -float(probs[torch.arange(24), held[1]].log().mean())
    expected = min(history["validation_nll"]) if restore_best else history["validation_nll"][-1]
    assert nll == pytest.approx(expected, rel=1e-5)


def test_what_is_saved_is_the_average(tmp_path: Path) -> None:
    ensemble = forde.Ensemble(network, 2, seed=1)
    train(ensemble, run=tmp_path / "run", validation=data(24))
    saved = forde.Ensemble.load(tmp_path / "run" / "ensemble", network)
    last = forde.Ensemble.load(tmp_path / "run" / "last", network)
    for name, tensor in ensemble.state_dict().items():
        assert torch.equal(tensor, saved.state_dict()[name])
    alone = forde.Ensemble(network, 2, seed=1)
    train(alone, validation=data(24), restore_best=False)
    for name, tensor in alone.state_dict().items():
        assert torch.equal(tensor, last.state_dict()[name])


def test_frozen_weights_stay_to_the_bit() -> None:
    def frozen() -> nn.Module:
        made = network()
        made[0].requires_grad_(False)
        return made

    ensemble = forde.Ensemble(frozen, 2)
    before = ensemble.members[0][0].weight.clone()
    train(ensemble)
    assert torch.equal(ensemble.members[0][0].weight, before)


def test_skipped_steps_do_not_count() -> None:
    """The same average as without the step that went wrong, and not one that counts the weights before it twice."""

    class Bad(forde.likelihoods.Classification):
        calls = 0

        def loss(self, output: Tensor, y: Tensor) -> Tensor:
            Bad.calls += 1
            return super().loss(output, y) * (float("nan") if Bad.calls in (5, 6) else 1.0)

    ensemble = forde.Ensemble(network, 2, seed=1, likelihood=Bad())
    seen = Seen(ensemble)
    train(ensemble, optimizer=seen, non_finite="skip")
    assert len(seen.tensors) == STEPS * EPOCHS - 1
    average = seen.tensors[0]
    for now in seen.tensors[1:]:
        average = {name: DECAY * value + (1 - DECAY) * now[name] for name, value in average.items()}
    np.testing.assert_allclose(numbers(ensemble)["members.0.0.weight"], average["members.0.0.weight"], rtol=1e-5)


@pytest.mark.parametrize(("decay", "said"), [(0.999, True), (0.5, False)])
def test_an_average_that_is_too_slow_is_said(decay: float, said: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "forde"):
        train(forde.Ensemble(network, 2), ema=decay)
    line = "ema=0.999 is slow for the 12 steps of this run: the weights after the first step still make up 99 %"
    assert (line in caplog.text) == said


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "one": ({"ema": 1.0}, "ema is 1.0, but a decay between 0 and 1 was expected, such as 0.999"),
    "none": ({"ema": 0}, "ema is 0, but a decay between 0 and 1"),
    "negative": ({"ema": -0.5}, "ema is -0.5, but"),
    "words": ({"ema": "0.9"}, "ema is '0.9', but"),
    "swag": ({"method": "swag"}, "swag makes its members of one network when training is done.*leave ema out"),
    "node-bnn": ({"method": "node-bnn"}, "node-bnn makes its members of one network"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_has_no_average_is_said_in_a_sentence(case: str) -> None:
    options, message = BAD[case]
    with pytest.raises(forde.FordeError, match=message):
        train(forde.Ensemble(network, 2), **options)
