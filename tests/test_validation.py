"""Validation data: what is measured, what it changes (nothing), when training stops, and what the ensemble ends as."""

from __future__ import annotations

import logging
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import forde
from forde.data import from_arrays
from forde.training.history import History
from forde.training.splitting import held_out

CLASSES = 3


def network(outputs: int = CLASSES) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, outputs))


def noisy(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A signal, and enough noise in the labels that a few epochs are better than many."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator)
    y = (x[:, 0] + 1.5 * torch.randn(n, generator=generator)).mul(1.2).round().clamp(-1, 1).long() + 1
    return x, y


TRAIN, HELD = noisy(64), noisy(96, seed=1)


def train(given: Any = TRAIN, *, ensemble: forde.Ensemble | None = None, **options: Any) -> tuple[History, Any]:
    ensemble = forde.Ensemble(network, 2) if ensemble is None else ensemble
    options = {"epochs": 12, "batch_size": 16, "verbose": False, "diagnostics_every": 0, "lr": 0.3, **options}
    return forde.fit(ensemble, options.pop("method", "forde-identity"), given, **options), ensemble


def weights(ensemble: forde.Ensemble) -> Tensor:
    return torch.cat([tensor.detach().flatten().double() for tensor in ensemble.state_dict().values()])


class TestMeasures:
    def test_of_the_mixture_of_the_members(self) -> None:
        history, ensemble = train(validation=HELD, restore_best=False, epochs=2)
        x, y = HELD
        with torch.no_grad():
            logits = np.stack([member(x).double().numpy() for member in ensemble.members])
        odds = np.exp(logits - logits.max(-1, keepdims=True))
        probs = (odds / odds.sum(-1, keepdims=True)).mean(0)
        labels, last = y.numpy(), history.records[-1]
        assert last["validation_nll"] == pytest.approx(-np.log(probs[np.arange(len(y)), labels]).mean(), rel=1e-6)
        assert last["validation_accuracy"] == pytest.approx((probs.argmax(-1) == labels).mean())
        assert last["validation_brier"] == pytest.approx(((probs - np.eye(CLASSES)[labels]) ** 2).sum(-1).mean())
        assert 0 < last["validation_ece"] < 1
        assert len(history["validation_nll"]) == 2

    def test_of_regression(self) -> None:
        ensemble = forde.Ensemble(lambda: network(2), 3, likelihood="learned-noise-regression")
        (x, _), (held_x, _) = TRAIN, HELD
        pairs = (x, x.sum(1)), (held_x, held_x.sum(1))
        history, _ = train(pairs[0], ensemble=ensemble, validation=pairs[1], epochs=2, lr=0.01, restore_best=False)
        prediction, y = ensemble.predict(held_x), held_x.sum(1)
        density = [
            torch.distributions.Normal(mean, variance.sqrt()).log_prob(y).exp()
            for mean, variance in zip(prediction.member_means, prediction.member_variances, strict=True)
        ]
        last = history.records[-1]
        assert last["validation_nll"] == pytest.approx(-float(torch.stack(density).mean(0).log().mean()), rel=1e-4)
        assert last["validation_rmse"] == pytest.approx(float((prediction.mean - y).square().mean().sqrt()), rel=1e-5)
        assert last["validation_crps"] > 0 and "validation_accuracy" not in last

    def test_under_an_own_loss(self) -> None:
        ensemble = forde.Ensemble(lambda: network(1), 2, likelihood=lambda output, y: (output[:, 0] - y).abs().mean())
        history, _ = train((TRAIN[0], TRAIN[0].sum(1)), ensemble=ensemble, validation=0.25, monitor="loss", epochs=3,
                           method="deep-ensemble", lr=0.01)  # fmt: skip
        assert history.best_epoch == int(np.argmin(history["validation_loss"]))

    def test_labels_that_do_not_count_are_left_out(self) -> None:
        likelihood = forde.likelihoods.Classification(ignore_index=-1)
        x, y = HELD
        marked = torch.where(torch.arange(len(y)) % 3 == 0, -1, y)
        measured = [
            train(ensemble=forde.Ensemble(network, 2, likelihood=likelihood), validation=given, epochs=1)[0].records[0]
            for given in ((x, marked), (x[marked >= 0], y[marked >= 0]))
        ]
        assert measured[0]["validation_nll"] == pytest.approx(measured[1]["validation_nll"], rel=1e-6)

    @pytest.mark.parametrize("engine", ["eager", "vectorized"])
    def test_changes_nothing_of_the_training(self, engine: str) -> None:
        """Dropout and a shuffling loader draw random numbers; those of the training come out the same."""
        shuffled = DataLoader(TensorDataset(*HELD), batch_size=20, shuffle=True)
        _, plain = train(epochs=3, engine=engine)
        history, watched = train(epochs=3, engine=engine, validation=shuffled, restore_best=False)
        assert torch.equal(weights(plain), weights(watched))
        whole, _ = train(epochs=3, engine=engine, validation=HELD, restore_best=False)
        assert history["validation_nll"] == pytest.approx(whole["validation_nll"], rel=1e-9)

    def test_by_measures_of_ones_own(self) -> None:
        history, ensemble = train(
            validation=forde.Validation(
                HELD,
                monitor="worst",
                mode="min",
                measures=lambda outputs, y: {"worst": float(outputs.logsumexp(-1).max())},
            )
        )
        assert history.best_epoch == int(np.argmin(history["validation_worst"]))
        with torch.no_grad():
            found = ensemble(HELD[0]).logsumexp(-1).max()
        assert float(found) == pytest.approx(min(history["validation_worst"]), rel=1e-6)
        with pytest.raises(forde.FordeError, match="unknown quantity 'validation_nll'"):
            history["validation_nll"]

    @pytest.mark.parametrize("mode", ["min", "max"])
    def test_by_measures_of_which_more_is_better(self, mode: Any) -> None:
        """As of accuracy, measured by hand; or, where less of it is asked for, the worst epoch."""
        measures = lambda outputs, y: {  # noqa: E731
            "right": (outputs.softmax(-1).mean(0).argmax(-1) == y).double().mean()
        }
        history, _ = train(validation=forde.Validation(HELD, monitor="right", mode=mode, measures=measures))
        expected, _ = train(validation=HELD, monitor="accuracy")
        assert history["validation_right"] == expected["validation_accuracy"]
        of = {"min": np.argmin, "max": np.argmax}[mode]
        assert history.best_epoch == int(of(expected["validation_accuracy"]))
        rates = train(
            validation=forde.Validation(HELD, monitor="right", mode="max", measures=measures), lr=None,
            optimizer=lambda p: torch.optim.SGD(p, lr=0.3), epochs=1,
            scheduler=lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, mode="max"),
        )[0]  # fmt: skip
        assert rates["lr"] == [0.3]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"monitor": "f1", "measures": len}, "'f1' is a measure of your own, .*; say mode='max' if more is better"),
            ({"monitor": "nll", "mode": "max"}, "mode is 'max', but of nll less is better; leave mode out"),
            ({"monitor": "accuracy", "mode": "min"}, "but of accuracy more is better"),
            ({"mode": "higher"}, "unknown mode 'higher'"),
        ],
    )
    def test_which_way_is_better_is_known(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(forde.FordeError, match=message):
            forde.Validation(HELD, **options)
        assert forde.Validation(HELD, monitor="accuracy", mode="max").higher_is_better

    def test_by_measures_that_return_tensors(self, tmp_path: Path) -> None:
        measures = lambda outputs, y: {"f1": torch.tensor(0.5), "g": np.float32(2)}  # noqa: E731
        history, _ = train(
            validation=forde.Validation(HELD, monitor="f1", mode="max", measures=measures),
            run=tmp_path / "run",
            epochs=1,
        )
        assert history["validation_f1"] == [0.5] and history["validation_g"] == [2.0]

    def test_every_few_epochs_and_after_the_last(self) -> None:
        each, _ = train(validation=HELD, epochs=8)
        some, _ = train(validation=forde.Validation(HELD, every=3, patience=100), epochs=8)
        nll = [value if epoch in (2, 5, 7) else math.nan for epoch, value in enumerate(each["validation_nll"])]
        assert some["validation_nll"] == pytest.approx(nll, nan_ok=True)
        with pytest.raises(forde.FordeError, match="every"):
            forde.Validation(HELD, every=0)

    def test_a_scheduler_that_follows_it_waits_for_the_next_value(self) -> None:
        def factory(optimizer: torch.optim.Optimizer) -> Any:
            return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=1e9)

        options = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1), "scheduler": factory, "epochs": 7, "lr": None}
        history, _ = train(validation=forde.Validation(HELD, every=2), **options)
        assert history["lr"] == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.0125])


class TestStopping:
    def test_when_nothing_gets_better_any_more(self) -> None:
        seen: list[Tensor] = []
        ensemble = forde.Ensemble(network, 2)
        history, _ = train(
            ensemble=ensemble, validation=HELD, patience=2, epochs=40, callback=lambda _: seen.append(weights(ensemble))
        )
        nll = history["validation_nll"]
        assert history.best_epoch == int(np.argmin(nll)) == len(history) - 3
        assert len(history) < 40 and history.stopped is not None and "2 epochs ago" in history.stopped
        assert torch.equal(weights(ensemble), seen[history.best_epoch])
        assert not torch.equal(weights(ensemble), seen[-1])

    def test_patience_counts_epochs_also_where_only_some_are_measured(self) -> None:
        history, _ = train(validation=forde.Validation(HELD, every=3, patience=5), epochs=60)
        assert history.best_epoch is not None and history.best_epoch % 3 == 2
        assert len(history) - 1 - history.best_epoch == 6

    def test_without_patience_all_epochs_are_run(self) -> None:
        history, _ = train(validation=HELD)
        assert len(history) == 12 and history.stopped is None

    def test_a_higher_accuracy_is_better(self) -> None:
        history, ensemble = train(validation=HELD, monitor="accuracy")
        accuracy = history["validation_accuracy"]
        assert history.best_epoch == int(np.argmax(accuracy)) and min(accuracy) < max(accuracy)
        found = (ensemble.predict(HELD[0]).labels == HELD[1]).double().mean()
        assert float(found) == pytest.approx(max(accuracy))

    def test_the_last_epoch_may_be_kept(self) -> None:
        _, plain = train()
        history, kept = train(validation=HELD, restore_best=False)
        assert torch.equal(weights(plain), weights(kept)) and history.best_epoch != 11


class TestRunFolder:
    def test_has_the_best_and_the_last(self, tmp_path: Path) -> None:
        best, _ = train(validation=HELD, run=tmp_path / "best")
        train(validation=HELD, run=tmp_path / "last", restore_best=False)
        loaded = {
            f"{run}/{name}": weights(forde.Ensemble.load(tmp_path / run / name, network))
            for run, name in (("best", "ensemble"), ("best", "last"), ("last", "ensemble"), ("last", "best"))
        }
        assert torch.equal(loaded["best/ensemble"], loaded["last/best"])
        assert torch.equal(loaded["best/last"], loaded["last/ensemble"])
        assert not torch.equal(loaded["best/ensemble"], loaded["best/last"])
        ensemble = forde.Ensemble(network, 2)
        again, _ = train(ensemble=ensemble, validation=HELD, run=tmp_path / "best", resume=True)
        assert (again.best_epoch, again.stopped) == (best.best_epoch, None) and list(again) == list(best)
        assert torch.equal(weights(ensemble), loaded["best/ensemble"])

    def test_one_that_stopped_early_is_whole(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        first, _ = train(validation=HELD, patience=1, epochs=40, run=tmp_path / "run")
        with caplog.at_level(logging.WARNING, logger="forde"):
            again, _ = train(validation=HELD, patience=1, epochs=40, run=tmp_path / "run", resume=True)
        assert again.stopped == first.stopped is not None and not caplog.messages

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"validation": 0.25}, "training.validation.share"),
            ({"validation": HELD, "patience": 3}, "training.validation.patience = null, but 3"),
            ({}, "training.validation = "),
            ({"validation": (HELD[0] + 1, HELD[1])}, "other validation data"),
        ],
    )
    def test_is_resumed_with_the_same_only(self, changed: dict[str, Any], message: str, tmp_path: Path) -> None:
        train(validation=HELD, run=tmp_path / "run", epochs=1)
        with pytest.raises(forde.FordeError, match=message):
            train(**changed, run=tmp_path / "run", epochs=1, resume=True)


class TestHeldOut:
    def test_is_drawn_from_each_class_alike(self) -> None:
        y = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
        (x_left, y_left), (x_held, y_held) = held_out((torch.arange(100), y), 0.2, seed=0, by_class=True)
        assert Counter(y_held.tolist()) == {0: 10, 1: 6, 2: 4} and len(y_left) == 80
        assert sorted([*x_left.tolist(), *x_held.tolist()]) == list(range(100))
        assert torch.equal(y[x_held], y_held) and torch.equal(y[x_left], y_left)

    def test_follows_the_seed(self) -> None:
        draws = [held_out(TRAIN, 0.3, seed=seed, by_class=True)[1][0] for seed in (0, 0, 1)]
        assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])

    @pytest.mark.parametrize("kind", ["arrays", "images", "table", "data set"])
    def test_of_every_kind_of_data(self, kind: str) -> None:
        x, y = (part.numpy() for part in TRAIN)
        pixels = (np.abs(x).reshape(64, 2, 2, 1) * 50).astype(np.uint8)
        given: Any = {
            "arrays": (x, y),
            "images": from_arrays(pixels, y) if kind == "images" else None,
            "table": from_arrays(x, y) if kind == "table" else None,
            "data set": TensorDataset(*TRAIN),
        }[kind]
        ensemble = forde.Ensemble(lambda: nn.Sequential(nn.Flatten(), network()), 2)
        history, _ = train(given, ensemble=ensemble, validation=0.25, epochs=2)
        assert all(math.isfinite(value) for value in history["validation_nll"])
        assert history.best_epoch is not None

    def test_is_not_trained_on(self) -> None:
        (x, y), held = held_out(TRAIN, 0.25, seed=0, by_class=True)
        _, by_share = train(validation=0.25, restore_best=False, epochs=2)
        _, by_hand = train((x, y), validation=held, restore_best=False, epochs=2)
        assert torch.equal(weights(by_share), weights(by_hand))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patience": 3}, "patience=3 is about validation data, and there is none; pass validation=0.2"),
        ({"monitor": "nll"}, "is about validation data"),
        ({"validation": 0.2, "monitor": "nl"}, "unknown monitor 'nl'; did you mean 'nll'"),
        ({"validation": 0.2, "monitor": "rmse"}, "unknown monitor 'rmse'"),
        ({"validation": 0.2, "patience": 0}, "patience is 0, but a whole number of at least 1"),
        ({"validation": 2}, "validation is 2, but data, or a share of the training data between 0 and 1"),
        ({"validation": True}, "validation is True"),
        ({"validation": 0.001}, "leaves 64 for training and 0 for validation"),
        (
            {"validation": (HELD[0][:, :3], HELD[1])},
            r"have shape \[N, 3\], but those of the training data \[N, 4",
        ),
        ({"validation": (HELD[0], HELD[1][:5])}, "of the validation data: there are 96 inputs but 5 targets"),
        ({"validation": (HELD[0], HELD[1] + 2)}, "of the validation data: label 4 is outside the 3 classes"),
        ({"validation": (HELD[0][:0], HELD[1][:0])}, "of the validation data: the data is empty"),
        ({"validation": forde.Validation(0.2), "patience": 2}, r"as Validation\(patience=2\)"),
        (
            {"validation": forde.Validation(HELD, measures=lambda outputs, y: 0.5)},
            "measures= returned a float, but numbers by name were expected",
        ),
        (
            {"validation": forde.Validation(HELD, measures=lambda outputs, y: {"nll": outputs})},
            "measures= returned {'nll': 'Tensor'}, but one number for each name",
        ),
        ({"validation": 0.2, "method": "swag"}, "swag makes its members when training is done"),
    ],
)
def test_what_does_not_fit_is_said_before_training(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(forde.FordeError, match=message):
        train(**options)


def test_validation_data_that_nothing_is_known_of() -> None:
    ensemble = forde.Ensemble(network, 2, likelihood=forde.likelihoods.Classification(ignore_index=-1))
    with pytest.raises(forde.FordeError, match="of the validation data: all labels are -1, which does not count"):
        train(ensemble=ensemble, validation=(HELD[0], torch.full_like(HELD[1], -1)))


def test_outputs_that_do_not_fit_are_said_as_in_training() -> None:
    """Classes on the last axis, as networks of the transformers package have them for tokens."""
    ensemble = forde.Ensemble(lambda: nn.Linear(4, CLASSES), 2, likelihood="segmentation")
    x, y = torch.randn(20, 6, 4), torch.arange(120).view(20, 6) % CLASSES
    with pytest.raises(forde.FordeError, match=r"move the classes to axis 1 with output.movedim\(-1, 1\)"):
        train((x, y), ensemble=ensemble, validation=0.25)


def test_no_share_of_a_loader_is_held_out() -> None:
    with pytest.raises(forde.FordeError, match="a DataLoader draws batches of its own"):
        train(DataLoader(TensorDataset(*TRAIN), batch_size=16), validation=0.2)
