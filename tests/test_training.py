"""`forde.fit`: what it accepts, what it promises, and when it stops."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import forde
from forde.engine import make_engine
from forde.models import MLP
from forde.step import MemberLoop, MemberStack, PlainStep, StepReport
from steps import loop, stack

OPTIONS = {"epochs": 2, "batch_size": 16, "verbose": False}


def data(n: int = 64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    return torch.randn(n, 4, generator=generator) + y.unsqueeze(1), y


def ensemble(members: int = 3, **options: object) -> forde.Ensemble:
    return forde.Ensemble(lambda: MLP(4, [16], 3), members, **options)


def weights(trained: forde.Ensemble) -> Tensor:
    return torch.cat([p.detach().flatten() for p in trained.parameters()])


class TestData:
    def test_tensors_arrays_and_lists_are_the_same(self) -> None:
        x, y = data()
        found = []
        frozen = x.numpy().copy()
        frozen.setflags(write=False)
        for form in ((x, y), (x.numpy(), y.numpy()), (frozen, y), [x.double(), y.int()], (x.tolist(), y.tolist())):
            trained = ensemble()
            forde.fit(trained, "forde-pca", form, **OPTIONS)
            found.append(weights(trained))
        assert all(torch.equal(found[0], other) for other in found[1:])

    def test_predict_takes_what_fit_takes(self) -> None:
        import pandas as pd

        x, y = data()
        trained = ensemble()
        expected = trained.predict(x).probs
        loader = DataLoader(TensorDataset(x, y), batch_size=16)
        for form in (x.numpy(), x.tolist(), pd.DataFrame(x.numpy()), x.double(), loader, list(x.split(10))):
            torch.testing.assert_close(trained.predict(form).probs, expected)

    @pytest.mark.parametrize("method", ["forde-pca", "deep-ensemble"])
    def test_integer_features_are_not_made_floats_in_silence(self, method: str) -> None:
        x, y = data()
        whole = (4 * x).round()
        for form in (whole.int(), whole.numpy().astype("int8")):
            with pytest.raises(forde.FordeError, match="floats"):
                forde.fit(ensemble(), method, (form, y), **OPTIONS)
            with pytest.raises(forde.FordeError, match="convert the inputs to floats"):
                ensemble().predict(form)

    def test_dataset_and_loader_train(self) -> None:
        dataset = TensorDataset(*data())
        for source in (dataset, DataLoader(dataset, batch_size=16, shuffle=True)):
            found = []
            for _ in range(2):
                trained = ensemble()
                history = forde.fit(trained, "forde-pca", source, seed=3, **OPTIONS)
                found.append(weights(trained))
            assert torch.equal(*found), "the seed fixes the order of a loader too"
            assert history["loss"][-1] < history["loss"][0]

    def test_loader_that_yields_something_else(self) -> None:
        loader = DataLoader(data()[0], batch_size=16)
        with pytest.raises(forde.FordeError, match="pairs"):
            forde.fit(ensemble(), "deep-ensemble", loader, **OPTIONS)

    def test_last_batch(self) -> None:
        x, y = data(20)
        sizes: list[int] = []

        class Counting(MLP):
            def forward(self, inputs: Tensor) -> Tensor:
                if self.training:
                    sizes.append(len(inputs))
                return super().forward(inputs)

        for drop, expected in ((True, [16]), (False, [16, 4])):
            sizes.clear()
            forde.fit(
                forde.Ensemble(lambda: Counting(4, [5], 3), 1),
                "deep-ensemble",
                (x, y),
                epochs=1,
                batch_size=16,
                drop_last=drop,
                verbose=False,
            )
            assert sizes == expected

    def test_batch_larger_than_the_data(self) -> None:
        history = forde.fit(ensemble(), "forde-pca", data(20), epochs=1, batch_size=500, verbose=False)
        assert len(history) == 1


class TestOptimizer:
    def test_own_optimizer_and_scheduler(self) -> None:
        trained = ensemble()
        history = forde.fit(
            trained,
            "forde-pca",
            data(),
            optimizer=lambda p: torch.optim.Adam(p, lr=1e-2),
            scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.1),
            **OPTIONS,
        )
        assert history["lr"] == pytest.approx([1e-2, 1e-3])

    def test_paper_schedule_is_the_default(self) -> None:
        history = forde.fit(ensemble(), "deep-ensemble", data(), epochs=10, lr=0.1, verbose=False)
        assert history["lr"] == pytest.approx(
            [0.1 * forde.training.schedule.paper_factor(epoch, 10) for epoch in range(10)]
        )

    @pytest.mark.parametrize(("epoch", "factor"), [(0, 1), (150, 1), (210, 0.505), (270, 0.01), (299, 0.01)])
    def test_schedule_values(self, epoch: int, factor: float) -> None:
        assert forde.training.schedule.paper_factor(epoch, 300) == pytest.approx(factor)

    def test_double_weight_decay_warns(self) -> None:
        with pytest.warns(UserWarning, match="decay the weights"):
            forde.fit(ensemble(), "deep-ensemble", data(), optimizer=lambda p: torch.optim.AdamW(p, 1e-3), **OPTIONS)


class TestCheaperRepulsion:
    def reports(self, **options: object) -> list[StepReport]:
        x, y = data()
        trained = ensemble()
        engine = loop(trained.train(), forde.method("forde-identity", **options))
        return [engine.update(x, y, step=step, epoch=step) for step in range(4)]

    def test_every_other_step(self) -> None:
        active = [bool(report.repulsion.any()) for report in self.reports(repulsion_every=2)]
        assert active == [True, False, True, False]

    def test_weight_schedule(self) -> None:
        plain, scheduled = self.reports(), self.reports(repulsion_weight=lambda epoch: 3.0 - epoch)
        for epoch in range(3):
            torch.testing.assert_close(scheduled[epoch].repulsion, (3 - epoch) * plain[epoch].repulsion)
        assert scheduled[3].z is None, "weight 0 costs nothing"

    @pytest.mark.parametrize("engine", [loop, stack])
    def test_fraction_of_the_batch(self, engine: Callable[..., PlainStep]) -> None:
        x, y = data()
        trained = forde.Ensemble(lambda: MLP(4, [16], 3, batch_norm=True), 3).train()
        runner = engine(trained, forde.method("forde-identity", repulsion_fraction=0.25, prior=()))
        report = runner.update(x, y)
        assert report.z.shape == (3, 16, 4)
        runner.close()
        counts = [int(m.body[1].num_batches_tracked) for m in trained.members]
        assert counts == [1, 1, 1], "running statistics see the whole batch once"
        # The same repulsion as on the smaller batch alone, normalised as the whole one, at the strength 1/B of that.
        alone = forde.Ensemble(lambda: MLP(4, [16], 3, batch_norm=True), 3)
        for member in alone.members:
            layer = member.body[1]
            layer.momentum = 1.0
            member.train()(x)
            layer.running_var.mul_(63 / 64)  # BatchNorm normalises by the variance without Bessel's correction
            layer.eval()
        small = engine(alone, forde.method("forde-identity", prior=())).update(x[:16], y[:16])
        torch.testing.assert_close(report.z, small.z)
        torch.testing.assert_close(report.repulsion, small.repulsion * 16 / 64)

    def test_exact_scale_over_the_data(self) -> None:
        x, y = data()
        for scale, expected in (("batch", 1 / 64), ("data", 1 / 640), (0.3, 0.3)):
            engine = loop(ensemble().train(), forde.method("forde-identity", repulsion_scale=scale))
            report = engine.update(x, y, data_size=640)
            unscaled = loop(ensemble().train(), forde.method("forde-identity", repulsion_scale=1.0)).update(x, y)
            torch.testing.assert_close(report.repulsion, expected * unscaled.repulsion)


class TestTasks:
    def test_regression_with_known_noise(self) -> None:
        x = torch.linspace(-2, 2, 100).unsqueeze(1)
        features = torch.cat([x, x**2], dim=1)
        y = x.squeeze() ** 2 + 0.1 * torch.randn(100, generator=torch.Generator().manual_seed(0))
        trained = forde.Ensemble(lambda: MLP(2, [32], 1), 4, likelihood=forde.likelihoods.Regression(noise=0.1))
        forde.fit(
            trained, "forde-identity", (features, y), epochs=100, verbose=False,
            optimizer=lambda p: torch.optim.Adam(p, 1e-2),
        )  # fmt: skip
        prediction = trained.predict(features)
        assert prediction.mean.shape == (100,)
        assert float((prediction.mean - y).square().mean().sqrt()) < 0.2
        torch.testing.assert_close(prediction.aleatoric, torch.full((100,), 0.01))

    def test_learned_noise_follows_the_data(self) -> None:
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(600, 2, generator=generator) * 2 - 1
        noise = torch.where(x[:, 0] > 0, 0.5, 0.05)
        y = x.sum(1) + noise * torch.randn(600, generator=generator)
        trained = forde.Ensemble(lambda: MLP(2, [32], 2), 3, likelihood="learned-noise-regression")
        # Not FoRDE: y is linear in x, where pushing gradients apart keeps some members from the noise for long.
        forde.fit(
            trained, "deep-ensemble", (x, y), epochs=150, verbose=False,
            optimizer=lambda p: torch.optim.Adam(p, 3e-2),
        )  # fmt: skip
        std = trained.predict(torch.tensor([[0.5, 0.0], [-0.5, 0.0]])).aleatoric.sqrt()
        assert float(std[0]) == pytest.approx(0.5, rel=0.3)
        assert float(std[1]) == pytest.approx(0.05, abs=0.05)

    def test_several_targets(self) -> None:
        x = torch.randn(64, 4)
        y = torch.stack([x[:, 0], -x[:, 1]], dim=1)
        trained = forde.Ensemble(lambda: MLP(4, [16], 4), 2, likelihood="learned-noise-regression")
        forde.fit(trained, "forde-pca", (x, y), **OPTIONS)
        assert trained.predict(x).mean.shape == (64, 2)

    def test_own_loss(self) -> None:
        x, _ = data()
        y = x.sum(1)
        loss = forde.likelihoods.Custom(
            lambda output, y: (output.sum(-1) - y).abs(), scalar=lambda output, y: output.sum(-1)
        )
        trained = ensemble(likelihood=loss)
        history = forde.fit(trained, "forde-identity", (x, y), epochs=20, lr=0.01, verbose=False)
        assert history["loss"][-1] < history["loss"][0]
        assert trained.predict(x).mean.shape == (64, 3)

    def test_any_scalar_of_the_output(self) -> None:
        x, y = data()
        method = forde.Method(space=forde.spaces.InputGradients(output=lambda output, y: output[:, 0] - output[:, 1]))
        found = []
        for engine in (loop, stack):
            found.append(engine(ensemble().train(), method).update(x, y).z)
        torch.testing.assert_close(*found)


class TestRuns:
    def test_bf16_autocast(self) -> None:
        trained, full = ensemble(), ensemble()
        half = forde.fit(trained, "forde-pca", data(), precision="bf16", **OPTIONS)
        reference = forde.fit(full, "forde-pca", data(), **OPTIONS)
        assert next(trained.parameters()).dtype == torch.float32
        assert half["loss"] == pytest.approx(reference["loss"], rel=0.02)
        assert half["loss"] != reference["loss"]

    def test_bf16_convolution_with_batchnorm(self) -> None:
        x, y = torch.randn(24, 3, 8, 8), torch.arange(24) % 3
        small = lambda: nn.Sequential(  # noqa: E731
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
        )
        history = forde.fit(forde.Ensemble(small, 2), "forde-pca", (x, y), precision="bf16", **OPTIONS)
        assert all(np.isfinite(history["loss"])) and all(np.isfinite(history["repulsion"]))

    def test_dropout_is_seeded_and_differs_between_members(self) -> None:
        make = lambda: nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 3))  # noqa: E731
        for engine in ("eager", "vectorized"):
            found = []
            for _ in range(2):
                trained = forde.Ensemble(make, 2)
                forde.fit(trained, "forde-pca", data(), engine=engine, **OPTIONS)
                found.append(weights(trained))
            assert torch.equal(*found)

    def test_global_random_state_is_left_alone(self) -> None:
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        forde.fit(ensemble(), "forde-pca", data(), **OPTIONS)
        assert torch.equal(torch.rand(3), expected)

    def test_heterogeneous_members(self) -> None:
        trained = forde.Ensemble([lambda: MLP(4, [8], 3), lambda: MLP(4, [16, 16], 3), lambda: nn.Linear(4, 3)])
        for name in ("forde-pca", "function-rde", "lit"):
            history = forde.fit(trained, name, data(), **OPTIONS)
            assert all(np.isfinite(history["loss"]))
        assert trained.predict(data()[0]).member_probs.shape == (3, 64, 3)

    def test_tied_weights_stay_tied(self) -> None:
        class Tied(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
                self.second.weight = self.first.weight

            def forward(self, x: Tensor) -> Tensor:
                return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))

        found = []
        for engine in ("eager", "vectorized"):
            trained = forde.Ensemble(Tied, 2)
            forde.fit(trained, "forde-pca", data(), engine=engine, **OPTIONS)
            assert all(member.first.weight is member.second.weight for member in trained.members)
            found.append(weights(trained))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)

    def test_frozen_parameters_stay(self) -> None:
        def make() -> nn.Module:
            network = MLP(4, [8], 3)
            network.body.requires_grad_(False)
            return network

        for engine in ("eager", "vectorized"):
            trained = forde.Ensemble(make, 2)
            before = trained.members[0].body[0].weight.clone()
            head = trained.members[0].head.weight.clone()
            forde.fit(trained, "forde-pca", data(), engine=engine, **OPTIONS)
            assert torch.equal(trained.members[0].body[0].weight, before)
            assert not torch.equal(trained.members[0].head.weight, head)
            assert not trained.members[0].body[0].weight.requires_grad

    def test_auto_chooses_and_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "forde")
        method = forde.method("deep-ensemble")
        engine = make_engine("auto", ensemble(), method, "float32")
        assert isinstance(engine.runner, MemberStack)
        engine.close()
        assert isinstance(make_engine("auto", ensemble(1), method, "float32").runner, MemberLoop)
        convolution = forde.Ensemble(lambda: forde.models.wrn16_4(3), 2)
        assert isinstance(make_engine("auto", convolution, method, "float32").runner, MemberLoop)
        assert "engine: vectorized" in caplog.text and "engine: eager" in caplog.text

    def test_explained_variance_is_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "forde")
        history = forde.fit(ensemble(), forde.method("forde-pca", rank=2), data(), **OPTIONS)
        assert "its metric follows 2 of 4 principal directions of the inputs (" in caplog.text
        assert 0 < float(history.method.kernel.metric.pca.explained_variance_ratio.sum()) < 1

    def test_a_method_can_be_used_again_on_other_data(self) -> None:
        method = forde.method("forde-pca")
        forde.fit(ensemble(), method, data(), **OPTIONS)
        assert method.kernel.metric.pca is None
        other = forde.Ensemble(lambda: MLP(7, [8], 3), 2)
        forde.fit(other, method, (torch.randn(64, 7), data()[1]), **OPTIONS)

    def test_callback_sees_every_epoch(self) -> None:
        seen: list[float] = []
        forde.fit(ensemble(), "forde-pca", data(), callback=lambda record: seen.append(record["epoch"]), **OPTIONS)
        assert seen == [0.0, 1.0]

    def test_diagnostics_can_be_rare(self) -> None:
        history = forde.fit(ensemble(), "deep-ensemble", data(), epochs=5, diagnostics_every=3, verbose=False)
        measured = [not np.isnan(value) for value in history["gradient_cosine"]]
        assert measured == [True, False, False, True, True]

    def test_forde_separates_gradients(self) -> None:
        """The point of it all: on the same data, members' input gradients are less alike."""
        cosines = {}
        for name in ("deep-ensemble", "forde-identity"):
            trained = ensemble(5)
            history = forde.fit(trained, forde.method(name, repulsion_weight=5.0), data(), epochs=40, verbose=False)
            cosines[name] = history["gradient_cosine"][-1]
        assert cosines["forde-identity"] < cosines["deep-ensemble"] - 0.1

    def test_attention_works_in_input_gradient_space(self) -> None:
        """Fused attention has no second derivative; the math backend is chosen by itself."""

        class Attention(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.qkv, self.head = nn.Linear(4, 12), nn.Linear(4, 3)

            def forward(self, x: Tensor) -> Tensor:
                q, k, v = self.qkv(x.unsqueeze(1).expand(-1, 3, -1)).chunk(3, dim=-1)
                return self.head(nn.functional.scaled_dot_product_attention(q, k, v).mean(1))

        history = forde.fit(forde.Ensemble(Attention, 2), "forde-pca", data(), **OPTIONS)
        assert all(np.isfinite(history["repulsion"]))
