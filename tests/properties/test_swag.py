"""METHODS 6: SWAG's moments, draws, BatchNorm pass and schedule, against formulas written out and a loop by hand."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_network import (
    ConvNet,
    Interruption,
    bits,
    compare_interrupted,
    image_data,
    member_bits,
    small_data,
    small_ensemble,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import forde
from forde.errors import FordeError
from forde.evaluation import evaluate_robustness, generated_cells
from forde.methods.moments import Moments, refresh_batch_norm
from forde.methods.swag import Swag
from forde.training.schedule import method_factor

FIT: dict[str, Any] = {"epochs": 6, "batch_size": 16, "verbose": False, "engine": "eager"}


def path_of_weights(n: int, size: int = 3) -> Tensor:
    return torch.randn(n, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).cumsum(0)


def collected(path: Tensor, rank: int) -> tuple[nn.Module, Moments]:
    network, moments = nn.Linear(path.shape[1], 1, bias=False).to(path.dtype), Moments(rank)
    for theta in path:
        network.weight.data.copy_(theta)
        moments.collect(network)
    return network, moments


class TestMoments:
    def test_no_scale_gives_the_mean(self) -> None:
        path = path_of_weights(7)
        network, moments = collected(path, 4)
        moments.draw(network, torch.Generator(), scale=0.0)
        torch.testing.assert_close(network.weight[0].detach(), path.mean(0), rtol=1e-13, atol=0)

    def test_one_collection_has_no_width(self) -> None:
        network, moments = collected(path_of_weights(1), 4)
        assert not moments.rows[0]["weight"].any()
        moments.draw(network, torch.Generator(), scale=0.5)
        torch.testing.assert_close(network.weight[0].detach(), path_of_weights(1)[0], rtol=0, atol=1e-7)

    @pytest.mark.parametrize("n", [2, 5, 9])
    def test_rows_are_the_last_deviations_from_the_running_mean(self, n: int) -> None:
        path, rank = path_of_weights(n), 5
        _, moments = collected(path, rank)
        expected = [path[k] - path[: k + 1].mean(0) for k in range(n)][-rank:]
        assert len(moments.rows) == min(n, rank)
        for row, wanted in zip(moments.rows, expected, strict=True):
            torch.testing.assert_close(row["weight"][0], wanted, rtol=1e-12, atol=1e-14)

    @pytest.mark.parametrize("n", [3, 8])
    def test_covariance_of_draws(self, n: int) -> None:
        """scale · (diag + DᵀD/(rank − 1)), also with fewer rows than the rank."""
        path, rank, scale, draws = path_of_weights(n), 5, 0.7, 20_000
        network, moments = collected(path, rank)
        D = torch.stack([path[k] - path[: k + 1].mean(0) for k in range(n)][-rank:])
        expected = scale * (path.var(0, correction=0).diag() + D.T @ D / (rank - 1))
        generator, found = torch.Generator().manual_seed(0), []
        for _ in range(draws):
            moments.draw(network, generator, scale=scale)
            found.append(network.weight[0].detach().clone())
        sample = torch.stack(found)
        length = expected.diag().sqrt()
        error = (sample.T.cov(correction=0) - expected) / torch.outer(length, length)
        assert error.abs().max() < 5 * (2 / draws) ** 0.5
        assert ((sample.mean(0) - path.mean(0)) / length).abs().max() < 5 / draws**0.5

    def test_small_variances_survive_large_weights(self) -> None:
        """θ² − mean² cancels: in float32 nothing would be left of a deviation of 1e-4 around 100."""
        path = 100 + 1e-4 * path_of_weights(8)
        _, moments = collected(path.float(), 4)
        variance = moments.square["weight"] - moments.mean["weight"].square()
        torch.testing.assert_close(variance[0], path.float().double().var(0, correction=0), rtol=1e-3, atol=0)

    def test_frozen_and_complex_parameters(self) -> None:
        network = nn.Linear(2, 2)
        network.bias.requires_grad_(False)
        network.phase = nn.Parameter(torch.tensor([1 + 2j]))
        moments = Moments(3)
        for step in range(3):
            network.weight.data.add_(step)
            network.phase.data.add_(step * 1j)
            moments.collect(network)
        bias = network.bias.clone()
        moments.draw(network, torch.Generator(), scale=0.0)
        assert torch.equal(network.bias, bias)
        torch.testing.assert_close(network.phase.detach(), torch.tensor([1 + 2j + (0 + 1 + 3) / 3 * 1j]))

    def test_everything_comes_back_from_tensors(self) -> None:
        network, moments = collected(path_of_weights(6), 4)
        other = Moments(4)
        other.load({name: tensor.clone() for name, tensor in moments.tensors().items()})
        draws = []
        for each in (moments, other):
            each.collect(network)
            each.draw(copied := nn.Linear(3, 1, bias=False).double(), torch.Generator().manual_seed(2))
            draws.append(copied.weight)
        assert torch.equal(*draws)


class TestBatchNormPass:
    def data(self) -> list[Tensor]:
        x = torch.randn(37, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 3 + 1
        return list(x.split(8))

    def test_statistics(self) -> None:
        """The mean of all samples; the mean of the batches' unbiased variances weighted by size."""
        network = nn.Sequential(nn.BatchNorm1d(4, momentum=0.3), nn.BatchNorm1d(4, momentum=None)).double()
        nn.init.constant_(network[0].running_mean, torch.nan)
        batches = self.data()
        assert refresh_batch_norm([network], batches) == 37
        everything = torch.cat(batches)
        torch.testing.assert_close(network[0].running_mean, everything.mean(0))
        of_batches = sum(len(x) * x.var(0, correction=1) for x in batches) / 37
        torch.testing.assert_close(network[0].running_var, of_batches)
        assert (network[0].running_var / everything.var(0) - 1).abs().max() > 1e-3
        assert network[0].momentum == 0.3 and network[1].momentum is None

    def test_momentum_is_restored_after_an_error(self) -> None:
        network = nn.BatchNorm1d(4, momentum=0.3).double()
        with pytest.raises(ValueError, match="4D input"):
            refresh_batch_norm([network], [torch.zeros(4, 4, 4, 4).double()])
        assert network.momentum == 0.3

    def test_layers_in_evaluation_mode_and_without_statistics_are_left_alone(self) -> None:
        network = nn.Sequential(
            nn.BatchNorm1d(4).eval(), nn.BatchNorm1d(4, track_running_stats=False), nn.BatchNorm1d(4)
        ).double()
        refresh_batch_norm([network], self.data())
        assert not network[0].running_mean.any() and network[2].running_mean.abs().max() < 1e-6
        assert network[2].num_batches_tracked == 5

    def test_a_batch_of_one_is_left_out(self) -> None:
        network = nn.BatchNorm1d(4).double()
        batches = self.data()[:2]
        assert refresh_batch_norm([network], [*batches, batches[0][:1]]) == 16
        torch.testing.assert_close(network.running_mean, torch.cat(batches).mean(0))

    def test_nothing_is_read_without_batch_norm(self) -> None:
        def batches() -> Any:
            raise AssertionError("data was read")
            yield

        assert refresh_batch_norm([nn.Linear(2, 2)], batches()) == 0


class TestSchedule:
    def test_published_numbers(self) -> None:
        """161 of 300 epochs: 139 collections; constant to epoch 80, swa_lr from 145."""
        swag = Swag(swa_lr=0.05)
        assert [swag.collects(e, 300) for e in (160, 161, 299)] == [False, True, True]
        assert swag.collections(300) == 139
        factor = method_factor(forde.method("swag", swa_lr=0.05), 300, 0.1)
        t = 113 / 161
        expected = [0.1, 0.1, 0.1 - 0.05 * (t - 0.5) / 0.4, 0.05, 0.05]
        assert [0.1 * factor(e) for e in (0, 80, 113, 145, 299)] == pytest.approx(expected, rel=1e-12)
        assert 0.1 * factor(81) < 0.1 and 0.1 * factor(144) > 0.05

    @pytest.mark.parametrize("every", [1, 2, 3])
    def test_collected_where_the_published_condition_holds(self, every: int) -> None:
        swag, epochs = Swag(every=every), 29
        start = round(epochs * 161 / 300)
        for e in range(epochs):
            assert swag.collects(e, epochs) == (e + 1 > start and (e + 1 - start) % every == 0)

    def test_of_a_run(self) -> None:
        history = forde.fit(small_ensemble(2), forde.method("swag", swa_lr=0.01), small_data(), **{**FIT, "epochs": 30})
        start = round(30 * 161 / 300)
        assert history["collected"] == [max(0.0, e + 1.0 - start) for e in range(30)]
        assert history["lr"][: start // 2] == [0.1] * (start // 2)
        assert history["lr"][-1] == pytest.approx(0.01)

    def test_half_of_the_learning_rate_if_left_out(self) -> None:
        history = forde.fit(small_ensemble(2), "swag", small_data(), lr=0.04, **FIT)
        assert history["lr"][0] == 0.04 and history["lr"][-1] == pytest.approx(0.02)

    @pytest.mark.parametrize("epochs", [1, 2])
    def test_the_last_epoch_is_always_collected(self, epochs: int) -> None:
        history = forde.fit(
            small_ensemble(2), forde.method("swag", start=0.99), small_data(), **{**FIT, "epochs": epochs}
        )
        assert history["collected"][-1] == 1


def by_hand(data: tuple[Tensor, Tensor], epochs: int = FIT["epochs"]) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    """The authors' training of member 0, and its weights at the end of the epochs that are collected."""
    network = small_ensemble(1).members[0].train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, nesterov=False, weight_decay=3e-4)
    order, (x, y), start = torch.Generator().manual_seed(0), data, round(epochs * 161 / 300)
    weights = []
    for epoch in range(epochs):
        t = epoch / start
        factor = 1.0 if t <= 0.5 else 0.4 if t >= 0.9 else 1 - (1 - 0.4) * (t - 0.5) / 0.4
        optimizer.param_groups[0]["lr"] = 0.1 * factor
        chosen = torch.randperm(len(y), generator=order)
        for index in chosen[: len(y) - len(y) % 16].split(16):
            optimizer.zero_grad()
            F.cross_entropy(network(x[index]), y[index]).backward()
            optimizer.step()
        if epoch + 1 > start:
            weights.append({name: p.detach().clone() for name, p in network.named_parameters()})
    return network, weights


class TestRun:
    def method(self, **options: Any) -> forde.Method:
        return forde.method("swag", weight_decay=3e-4, swa_lr=0.04, **options)

    def test_the_mean_is_that_of_sgd_by_hand(self) -> None:
        data = small_data()
        ensemble = small_ensemble(2)
        forde.fit(ensemble, self.method(scale=0.0), data, **FIT)
        _, weights = by_hand(data)
        for member in ensemble.members:
            for name, parameter in member.named_parameters():
                mean = torch.stack([each[name].double() for each in weights]).mean(0)
                torch.testing.assert_close(parameter.detach().double(), mean, rtol=1e-6, atol=1e-8)

    def test_draws_have_the_spread_of_the_path(self) -> None:
        """(θ − mean)/std over all weights of many draws has variance ½ (1 + Σ_k row_k²/((rank − 1) variance))."""
        data = small_data()
        ensemble = small_ensemble(300)
        forde.fit(ensemble, self.method(rank=4), data, **FIT)
        _, weights = by_hand(data)
        for name in ("0.weight", "4.weight"):
            path = torch.stack([each[name].double() for each in weights])
            rows = torch.stack([path[k] - path[: k + 1].mean(0) for k in range(len(path))])
            expected = 0.5 * (path.var(0, correction=0) + rows.square().sum(0) / 3)
            draws = torch.stack(
                [dict(member.named_parameters())[name].detach().double() for member in ensemble.members]
            )
            ratio = (draws - path.mean(0)).square().mean(0) / expected
            assert ratio.mean() == pytest.approx(1, abs=0.05)

    def test_batch_norm_belongs_to_the_draw(self) -> None:
        x, y = small_data()
        ensemble = small_ensemble(3)
        forde.fit(ensemble, self.method(), (x, y), **FIT)
        for member in ensemble.members:
            seen = member[0](x).double()
            torch.testing.assert_close(member[1].running_mean.double(), seen.mean(0), rtol=1e-4, atol=1e-5)
            assert not torch.allclose(member[1].running_mean, ensemble.members[0][1].running_mean) or (
                member is ensemble.members[0]
            )
            assert member[1].momentum == 0.1
        assert not ensemble.training and not any(layer.training for layer in ensemble.modules())

    def test_scale_0_needs_the_pass_too(self) -> None:
        data = small_data()
        ensemble = small_ensemble(1)
        forde.fit(ensemble, self.method(scale=0.0), data, **FIT)
        trained, _ = by_hand(data)
        assert not torch.allclose(ensemble.members[0][1].running_mean, trained[1].running_mean, rtol=1e-2)

    def test_same_seed_same_draws(self) -> None:
        def run(seed: int, members: int = 3) -> dict[str, Tensor]:
            ensemble = small_ensemble(members)
            forde.fit(ensemble, self.method(), small_data(), seed=seed, **FIT)
            return bits(ensemble)

        first, again, other = run(0), run(0), run(1)
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert not torch.equal(first["members.0.0.weight"], first["members.1.0.weight"])
        assert not torch.equal(first["members.0.0.weight"], other["members.0.0.weight"])
        # Which draw a member is does not depend on how many there are.
        assert torch.equal(first["members.1.0.weight"], run(0, members=2)["members.1.0.weight"])

    @pytest.mark.parametrize(
        "options",
        [
            {"optimizer": lambda p: torch.optim.Adam(p, lr=1e-2)},
            {"optimizer": lambda p: torch.optim.RMSprop(p, lr=1e-3), "non_finite": "skip"},
            {"scheduler": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 6)},
            {"drop_last": False},
            {"precision": "bf16"},
        ],
        ids=["Adam", "RMSprop", "cosine", "all samples", "bf16"],
    )
    def test_around_any_training(self, options: dict[str, Any]) -> None:
        x, y = small_data()
        ensemble = small_ensemble(3)
        history = forde.fit(ensemble, "swag", (x, y), **{**FIT, **options})
        assert history["loss"][-1] < history["loss"][0]
        assert bool(ensemble.predict(x).member_logits.isfinite().all())

    @pytest.mark.parametrize("engine", ["vectorized", "eager"])
    def test_engines_agree(self, engine: str) -> None:
        """One network is trained on either; in float64, so that only the order of sums can differ."""
        x, y = small_data()
        results = []
        for name in ("eager", engine):
            ensemble = small_ensemble(3).double()
            forde.fit(ensemble, "swag", (x.double(), y), **{**FIT, "engine": name})
            results.append(ensemble.predict(x.double()).member_logits)
        torch.testing.assert_close(*results, rtol=1e-7, atol=1e-9)

    @pytest.mark.cuda
    @pytest.mark.parametrize("precision", ["float32", "bf16"])
    def test_on_a_gpu(self, precision: str) -> None:
        """Moments and draws are made on the CPU, members on the GPU; a compiled step comes to the same network."""
        data, means = image_data(), []
        for engine in ("eager", "compiled"):
            ensemble = forde.Ensemble(ConvNet, 3)
            method = forde.method("swag", scale=0.0)
            forde.fit(
                ensemble, method, data, device="cuda", precision=precision, **{**FIT, "engine": engine, "lr": 0.01}
            )
            assert ensemble.device.type == "cuda"
            means.append(ensemble.predict(data).member_logits)
        torch.testing.assert_close(*means, rtol=0.05, atol=0.05)

    def test_loaders_and_augmented_images(self) -> None:
        x, y = small_data()
        loader = DataLoader(TensorDataset(x, y), 16, shuffle=True)
        ensemble = small_ensemble(2)
        forde.fit(ensemble, "swag", loader, **FIT)
        assert ensemble.members[1][1].num_batches_tracked == len(loader)
        images = forde.Ensemble(ConvNet, 2)
        forde.fit(images, "swag", image_data(), augmentation=forde.Augmentation(pad=1), **FIT)
        # All 40 images, in three batches, though an epoch of training drops the last one.
        assert images.members[1].norm.num_batches_tracked == 3

    def test_layers_left_in_evaluation_mode_keep_their_statistics(self) -> None:
        def network() -> nn.Module:
            return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8).eval(), nn.ReLU(), nn.Linear(8, 3))

        ensemble = forde.Ensemble(network, 2)
        forde.fit(ensemble, "swag", small_data(), **FIT)
        assert not ensemble.members[1][1].running_mean.any()

    def test_what_is_frozen_stays(self) -> None:
        def network() -> nn.Module:
            torch.manual_seed(5)
            found = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
            found[0].requires_grad_(False)
            return found

        ensemble = forde.Ensemble(network, 2)
        forde.fit(ensemble, "swag", small_data(), **FIT)
        assert torch.equal(ensemble.members[1][0].weight, network()[0].weight)
        assert not torch.equal(ensemble.members[1][2].weight, ensemble.members[0][2].weight)

    def test_empcov_acts_on_the_network(self) -> None:
        ensembles = [small_ensemble(2) for _ in range(2)]
        for ensemble, prior in zip(ensembles, ("isotropic", "empcov"), strict=True):
            forde.fit(ensemble, forde.method("swag", prior=prior, weight_decay=0.02), small_data(), **FIT)
        assert not torch.equal(ensembles[0].members[0][0].weight, ensembles[1].members[0][0].weight)

    def test_regression(self) -> None:
        x, _ = small_data()
        ensemble = forde.Ensemble(lambda: nn.Linear(5, 2), 3, likelihood="learned-noise-regression")
        forde.fit(ensemble, "swag", (x, x[:, 0]), optimizer=lambda p: torch.optim.Adam(p, lr=1e-2), **FIT)
        prediction = ensemble.predict(x)
        assert prediction.mean.shape == (len(x),) and bool((prediction.epistemic > 0).all())


class TestAfterwards:
    def trained(self) -> forde.Ensemble:
        ensemble = forde.Ensemble(ConvNet, 3)
        forde.fit(ensemble, "swag", image_data(), **FIT)
        return ensemble

    def test_robustness(self) -> None:
        data = image_data()
        cells = generated_cells(data.images, data.labels, ["fog"], [1, 5])
        result = evaluate_robustness(self.trained(), (data.images, data.labels), cells, verbose=False)
        assert result.pooled["nll"].value > 0 and sorted(result.types) == ["fog"]

    def test_loaded_in_another_process(self, tmp_path: Path) -> None:
        ensemble = self.trained()
        data = image_data()
        logits = ensemble.predict(data).member_logits
        assert logits.shape == (3, 40, 3)
        np.savez(tmp_path / "images.npz", images=data.images, labels=data.labels)
        ensemble.save(tmp_path / "ensemble")
        code = (
            "import sys, torch, numpy as np, forde\n"
            "sys.path.insert(0, sys.argv[2])\n"
            "from one_network import ConvNet, image_data\n"
            "ensemble = forde.Ensemble.load(sys.argv[1] + '/ensemble', ConvNet)\n"
            "np.save(sys.argv[1] + '/logits.npy', ensemble.predict(image_data()).member_logits.numpy())\n"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)], check=True)
        assert np.array_equal(np.load(tmp_path / "logits.npy"), logits.numpy())


class TestResume:
    @pytest.mark.parametrize("steps", [0, 7, 20, 24])
    def test_bit_for_bit(self, steps: int, tmp_path: Path) -> None:
        """Of 5 steps an epoch, before, at and after the first collection."""
        compare_interrupted("swag", tmp_path, Interruption(steps=steps))

    def test_members_are_made_again(self, tmp_path: Path) -> None:
        compare_interrupted("swag", tmp_path, Interruption(making_members=True))

    def test_the_last_epoch_is_safe_before_members_are_made(self, tmp_path: Path) -> None:
        """Though no checkpoint was due."""
        trained = compare_interrupted("swag", tmp_path, Interruption(making_members=True), checkpoint_minutes=None)
        assert trained == 0

    def test_a_finished_run_is_loaded(self, tmp_path: Path) -> None:
        first, second = small_ensemble(3), small_ensemble(3)
        for ensemble in (first, second):
            forde.fit(ensemble, "swag", small_data(), run=tmp_path / "r", resume=True, **FIT)
        assert member_bits(first) == member_bits(second)

    def test_other_settings_are_refused(self, tmp_path: Path) -> None:
        forde.fit(small_ensemble(2), "swag", small_data(), run=tmp_path / "r", **FIT)
        with pytest.raises(FordeError, match="scale"):
            method = forde.method("swag", scale=1.0)
            forde.fit(small_ensemble(2), method, small_data(), run=tmp_path / "r", resume=True, **FIT)


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rank": 1}, "rank is 1, but a whole number of at least 2"),
            ({"start": 1.0}, r"start is 1.0, but a share"),
            ({"start": "late"}, "start is 'late'"),
            ({"scale": -1.0}, "scale is -1.0"),
            ({"every": 0}, "every is 0"),
            ({"swa_lr": -0.1}, "swa_lr is -0.1"),
        ],
    )
    def test_settings(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(FordeError, match=message):
            forde.method("swag", **options)

    @pytest.mark.parametrize(
        ("run", "message"),
        [
            (lambda e, d: forde.fit(e, forde.method("swag", every=4), d, **FIT), "no weights would be collected in 6"),
            (lambda e, d: forde.fit(e, "swag", d, mesh=(1, 1), **FIT), "swag trains one network.*leave mesh out"),
            (lambda e, d: forde.fit(e, "swag", d, independent_data=True, **FIT), "leave independent_data out"),
            (
                lambda e, d: forde.fit(forde.Ensemble([lambda: nn.Linear(5, 3), nn.Identity]), "swag", d, **FIT),
                "no parameters|another architecture",
            ),
        ],
    )
    def test_runs(self, run: Callable[[forde.Ensemble, Any], Any], message: str) -> None:
        with pytest.raises(FordeError, match=message):
            run(small_ensemble(2), small_data())

    def test_a_space_beside_one_network(self) -> None:
        with pytest.raises(FordeError, match="nothing can repel"):
            forde.Method(space=forde.spaces.Weights(), one_network=Swag())

    def test_members_of_other_architectures(self) -> None:
        networks = [lambda: nn.Linear(5, 3), lambda: nn.Sequential(nn.Linear(5, 3))]
        with pytest.raises(FordeError, match="member 1 has another architecture"):
            forde.fit(forde.Ensemble(networks), "swag", small_data(), **FIT)


def test_the_log_says_what_was_made(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="forde"):
        forde.fit(small_ensemble(3), "swag", small_data(), **FIT)
    assert "swag: 3 draws from 3 collected weights, BatchNorm statistics from 87 samples" in caplog.text


@pytest.mark.parametrize(("epochs", "said"), [(2, True), (4, False)])
def test_weights_that_are_collected_once_make_members_that_are_the_same(
    epochs: int, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ensemble = small_ensemble(3)
    forde.fit(ensemble, "swag", small_data(), **{**FIT, "epochs": epochs})
    first, second = (list(member.parameters()) for member in list(ensemble.members)[:2])
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True)) == said
    assert ("all members will be the same" in caplog.text) == said
