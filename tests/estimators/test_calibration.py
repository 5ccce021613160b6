"""Calibration on rows that members have not seen: who sees what, what is fitted, and what it is good for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from sklearn.datasets import make_classification
from sklearn.metrics import log_loss
from torch import nn

from forde import Ensemble, FordeClassifier, FordeError, FordeRegressor, Method, method
from forde.estimators.calibration import calibrated
from forde.estimators.judge import Judge
from forde.estimators.left_out import chosen, left_out
from forde.likelihoods import LearnedNoiseRegression, Weighted
from forde.metrics.regression import gaussian_mixture_nll, interval_coverage
from forde.prediction import ClassificationPrediction, RegressionPrediction

QUICK: dict[str, Any] = {"hidden": (32,), "batch_size": 32, "lr": 0.01, "method": "deep-ensemble", "random_state": 0}
BOTH = pytest.mark.parametrize("estimator", [FordeClassifier, FordeRegressor])


def line(n: int, columns: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """One column counts; the noise is as large as the signal."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, columns))
    return X, X[:, 0] + rng.normal(size=n)


class TestLeftOut:
    @pytest.mark.parametrize("members", [1, 3, 5, 10, 12])
    def test_members_see_all_rows_and_each_is_judged_by_twins_that_were_not_trained_on_it(self, members: int) -> None:
        rows = left_out("out-of-fold", 53, members, share=0.1, seed=1, labels=None)
        twins = max(members, 10)
        assert np.array_equal(rows.trained, np.arange(53)) and np.array_equal(rows.judged, np.arange(53))
        assert rows.seen.shape == (53, members + twins) and bool(rows.seen[:, :members].all())
        assert torch.equal(rows.seen[:, members:], 1 - rows.by)
        assert set(rows.seen[:, members:].sum(0).tolist()) <= {42.0, 43.0}, "each twin leaves out a fifth"
        assert bool((rows.by.sum(1) >= 2).all())

    def test_classes_are_in_all_folds_alike(self) -> None:
        labels = np.repeat([0, 1], [90, 10])
        rows = left_out("out-of-fold", 100, 5, share=0.1, seed=0, labels=labels)
        assert (rows.by[torch.from_numpy(labels == 1)].sum(0) == 2).all()

    def test_a_holdout_is_seen_by_nobody(self) -> None:
        rows = left_out("holdout", 50, 3, share=0.2, seed=0, labels=None)
        assert sorted([*rows.trained, *rows.judged]) == list(range(50)) and len(rows.judged) == 10
        assert bool(rows.seen.all()) and bool(rows.by.all())

    def test_what_auto_comes_to(self) -> None:
        assert [chosen("auto", n, Method()) for n in (39, 40, 10_000, 10_001)] == [
            None,
            "out-of-fold",
            "out-of-fold",
            "holdout",
        ]
        assert chosen("auto", 100, method("swag")) is None
        assert [chosen("auto", n, Method(), needed=True) for n in (4, 5)] == [None, "out-of-fold"]

    def test_what_cannot_be_is_refused(self) -> None:
        X, y = line(60)
        for options, message in (
            ({"calibration": "folds"}, "unknown calibration 'folds'"),
            ({"calibration": "out-of-fold", "method": "swag"}, "rows cannot be left out"),
            ({"calibration": "holdout", "validation_fraction": 0.001}, "holds out 0"),
            ({"calibration": "holdout", "validation_fraction": 1}, "validation_fraction is 1, but a share between"),
        ):
            with pytest.raises(FordeError, match=message):
                FordeRegressor(**{**QUICK, **options}).fit(X, y)
        with pytest.raises(FordeError, match="at least 5 rows"):
            FordeRegressor(calibration="out-of-fold").fit(X[:4], y[:4])


class TestScales:
    def mixture(self) -> tuple[RegressionPrediction, torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        means, y = torch.randn(3, 40, 2, generator=generator), 3 * torch.randn(40, 2, generator=generator)
        weights = torch.ones(3, 40)
        weights[1:, ::2] = 0  # the first member alone judges every second row
        weights[:, 7] *= 2
        return RegressionPrediction(means, torch.rand(3, 40, 2, generator=generator) + 0.2), y, weights

    def test_a_noise_scale_minimises_the_likelihood_of_the_members_that_count(self) -> None:
        prediction, y, weights = self.mixture()
        found, total = calibrated(prediction, y, weights), 0.0

        for k in range(2):

            def nll(log_scale: float, k: int = k) -> float:
                terms = []
                for n in range(40):
                    who = weights[:, n] > 0
                    mean, variance = prediction.member_means[who, n, k], prediction.member_variances[who, n, k]
                    one = gaussian_mixture_nll(mean[:, None], variance[:, None] * math.exp(log_scale), y[n : n + 1, k])
                    stray = float(norm.pdf(y[n, k]))  # one target in a thousand, whatever members say
                    terms += [-math.log(0.999 * math.exp(-one) + 0.001 * stray)] * int(weights[:, n].max())
                return float(np.mean(terms)) + log_scale**2 / 80  # the prior: ln scale is standard normal

            best = minimize_scalar(nll, bounds=(-3, 3), method="bounded")
            assert math.log(float(found.scale[k])) == pytest.approx(best.x, abs=2e-3)
            total += best.fun
        assert found.nll == pytest.approx(total, abs=1e-5)

    def test_a_row_far_from_all_others_does_not_decide(self) -> None:
        """Of a hundred rows whose errors have the std that is stated, one is off by a thousand of these."""
        y = 0.05 * torch.randn(100, generator=torch.Generator().manual_seed(0))
        prediction = RegressionPrediction(torch.zeros(1, 100), torch.full((1, 100), 0.0025))
        usual = calibrated(prediction, y, torch.ones(1, 100))
        means = torch.zeros(1, 100)
        means[0, 0] = 50.0
        far = calibrated(RegressionPrediction(means, prediction.member_variances), y, torch.ones(1, 100))
        assert float(far.scale) == pytest.approx(float(usual.scale), rel=0.1) and far.nll < usual.nll + 0.15

    def test_rows_that_nobody_judges_are_left_out(self) -> None:
        prediction, y, weights = self.mixture()
        weights[:, 30:] = 0
        found = calibrated(prediction, y, weights)
        part = RegressionPrediction(prediction.member_means[:, :30], prediction.member_variances[:, :30])
        expected = calibrated(part, y[:30], weights[:, :30])
        torch.testing.assert_close(found.scale, expected.scale)
        assert found.nll == pytest.approx(expected.nll)

    def test_a_temperature_minimises_the_likelihood_of_the_labels(self) -> None:
        generator = torch.Generator().manual_seed(0)
        logits, y = 4 * torch.randn(2, 60, 3, generator=generator), torch.arange(60) % 3
        logits[:, torch.arange(60), y] += 2

        def nll(log_temperature: float) -> float:
            probs = (logits.double() / math.exp(log_temperature)).softmax(-1).mean(0)
            return float(log_loss(y, probs)) + log_temperature**2 / 120

        found = calibrated(ClassificationPrediction(logits), y, torch.ones(2, 60))
        best = minimize_scalar(nll, bounds=(-3, 3), method="bounded")
        assert math.log(float(found.scale)) == pytest.approx(best.x, abs=2e-3)
        assert found.nll == pytest.approx(best.fun, abs=1e-5)

    def test_two_of_ten_members_stand_for_ten(self) -> None:
        """Members scatter; the likelihood of a mixture of two is worse than that of all ten, and not taken for it."""
        generator = torch.Generator().manual_seed(0)
        rows, two = 4000, torch.zeros(10, 4000)
        two[:2] = 1
        logits = torch.randn(rows, 3, generator=generator) + 0.8 * torch.randn(10, rows, 3, generator=generator)
        y = torch.arange(rows) % 3
        logits[:, torch.arange(rows), y] += 1
        of_all = calibrated(ClassificationPrediction(logits), y, torch.ones(10, rows))
        of_two = calibrated(ClassificationPrediction(logits), y, two)
        alone = calibrated(ClassificationPrediction(logits[:2]), y, torch.ones(2, rows))
        assert abs(of_two.nll - of_all.nll) < 0.4 * abs(alone.nll - of_all.nll)
        assert abs(of_two.scale - of_all.scale) < 0.6 * abs(alone.scale - of_all.scale)

    def test_the_scale_is_for_as_many_members_as_there_will_be(self) -> None:
        """Two networks disagree about each row; one alone is worse than their mixture, and ten are better."""
        generator = torch.Generator().manual_seed(0)
        prediction = RegressionPrediction(torch.randn(2, 2000, generator=generator), torch.ones(2, 2000))
        y = torch.randn(2000, generator=generator)
        found = [calibrated(prediction, y, torch.ones(2, 2000), n_members=m) for m in (1, 2, 10)]
        assert found[0].nll > found[1].nll + 0.02 and found[1].nll > found[2].nll + 0.02
        assert found[0].scale > found[1].scale > found[2].scale


class TestJudge:
    @pytest.mark.parametrize(("lenient", "expected"), [(True, 3), (False, 1)])
    def test_the_latest_epoch_that_is_not_clearly_worse_is_kept(self, lenient: bool, expected: int) -> None:
        """Epoch 1 is the best; 2 is worse by more than the standard error over rows, and 3 by less."""
        ensemble = Ensemble(lambda: nn.Linear(1, 2), 3)
        y = torch.randn(500, generator=torch.Generator().manual_seed(0))
        likelihood, packed = Weighted.pack(LearnedNoiseRegression(), y, torch.ones(500, 2))
        judge = Judge(ensemble, likelihood, n_judged=2, n_members=1, lenient=lenient)
        noise = torch.randn(500, generator=torch.Generator().manual_seed(1))
        for epoch, off in enumerate((1.0, 0.2, 0.6, 0.205)):
            with torch.no_grad():
                for parameter in ensemble.parameters():
                    parameter.fill_(epoch)
            outputs = torch.zeros(3, 500, 2)
            outputs[0, :, 0] = 100.0  # a member, which has seen the rows and is not judged
            # Each epoch is off at other rows, so that differences scatter.
            outputs[1:, :, 0] = y + off * noise.roll(epoch)
            judge.measures(outputs, packed)
            judge.after_epoch({"epoch": float(epoch), "validation_calibrated_nll": 0.0})
            judge.after_epoch({"epoch": 50.0})  # after which nothing was measured
        kept = judge.restore()
        assert kept is not None and kept.epoch == expected
        assert all(bool((parameter == expected).all()) for parameter in ensemble.parameters())

    def test_rows_that_count_more_decide_more_on_what_is_worse(self) -> None:
        y = torch.zeros(4)
        weights = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
        one = calibrated(RegressionPrediction(torch.tensor([[0.0, 1.0, 2.0, 0.0]]), torch.ones(1, 4)), y, weights)
        other = calibrated(RegressionPrediction(torch.tensor([[0.0, 1.0, 2.0, 9.0]]), torch.ones(1, 4)), y, weights)
        assert other.worse_than(one) == (0.0, 0.0), "the last row has no weight"
        by_three = calibrated(
            RegressionPrediction(torch.tensor([[0.0, 1.0, 2.0]]), torch.ones(1, 3)), y[:3], torch.ones(1, 3)
        )
        assert by_three.nll == pytest.approx(one.nll)


class TestFit:
    def fitted_to_chance(self, **options: Any) -> tuple[FordeClassifier, np.ndarray, np.ndarray]:
        """Labels are chance, so that networks predict better than chance only what they were trained on."""
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(60, 20)), rng.integers(0, 2, 60)
        model = FordeClassifier(5, **QUICK, epochs=60, **options).fit(X, y)
        networks = model._start.ensemble  # members and twins
        logits = networks.predict(model.input_scaler_.transform(X)).member_logits.numpy()
        return model, y[:, None] == logits.argmax(-1).T, y

    @pytest.mark.parametrize("batch_norm", [False, True])
    def test_members_see_all_rows_and_twins_do_not_see_what_they_leave_out(self, batch_norm: bool) -> None:
        model, right, y = self.fitted_to_chance(batch_norm=batch_norm)
        seed = int(np.random.RandomState(0).randint(np.iinfo(np.int32).max))
        unseen = left_out("out-of-fold", 60, 5, share=0.1, seed=seed, labels=y).by.bool().numpy()
        members, twins = right[:, :5], right[:, 5:]
        assert twins.shape == (60, 10) and model.ensemble_.n_members == 5
        assert twins[~unseen].mean() > 0.75 and twins[unseen].mean() < 0.65
        assert members[unseen[:, :5]].mean() > 0.75, "members know what the twins leave out"

    def test_members_are_those_of_a_fit_without_calibration(self) -> None:
        """Where they do not repel and the last epoch is kept: calibration costs them nothing."""
        X, _ = line(200, columns=3)
        y = X[:, 0] + np.abs(X[:, 1])
        model = FordeRegressor(5, **QUICK, epochs=12).fit(X, y)
        alone = FordeRegressor(5, **QUICK, epochs=12, calibration=None).fit(X, y)
        assert model.n_epochs_ == 12 and model.noise_scale_ != 1
        np.testing.assert_allclose(model.predict(X), alone.predict(X), rtol=1e-3, atol=1e-4)

    def test_an_epoch_is_kept_after_which_rows_left_out_were_predicted_well(self) -> None:
        X, y = line(150)
        model = FordeRegressor(5, **QUICK, epochs=60).fit(X, y)
        nll = np.array(model.history_["validation_calibrated_nll"])
        assert np.isfinite(nll).sum() == 10
        best = int(np.nanargmin(nll))
        assert best + 1 <= model.n_epochs_ < 60 and nll[model.n_epochs_ - 1] < nll[best] + 0.1
        assert nll[-1] > nll[best] + 0.1, "it overfits"

    def test_intervals_cover_where_members_overfit(self) -> None:
        X, y = line(150)
        X_new, y_new = line(2000, seed=1)
        cover, nll = {}, {}
        for calibration in (None, "out-of-fold", "holdout"):
            model = FordeRegressor(5, **QUICK, epochs=60, calibration=calibration, validation_fraction=0.25).fit(X, y)
            prediction, target = model._in_units(X_new), torch.from_numpy(y_new)
            found = prediction.member_means, prediction.member_variances, target
            cover[calibration], nll[calibration] = interval_coverage(*found, level=0.95), gaussian_mixture_nll(*found)
            assert model.calibration_ == calibration
            assert (model.noise_scale_ == 1) == (calibration is None)
        assert cover[None] < 0.85 and 0.9 < cover["out-of-fold"] < 0.99 and 0.88 < cover["holdout"] <= 1
        assert nll["out-of-fold"] < nll[None] - 0.3

    def test_probabilities_hold_where_members_overfit(self) -> None:
        X, y = make_classification(900, 10, n_informative=3, flip_y=0.3, random_state=0)
        found = {}
        for calibration in (None, "out-of-fold", "holdout"):
            model = FordeClassifier(5, **QUICK, epochs=60, calibration=calibration, validation_fraction=0.25)
            probs = model.fit(X[:200], y[:200]).predict_proba(X[200:])
            found[calibration] = log_loss(y[200:], probs)
            np.testing.assert_allclose(np.log(probs), model.predict_log_proba(X[200:]))
            assert (model.temperature_ == 1) == (calibration is None)
        assert max(found["out-of-fold"], found["holdout"]) < found[None] - 0.1

    def test_every_target_has_a_scale_of_its_own(self) -> None:
        X, _ = line(200)
        rng = np.random.default_rng(1)
        y = np.column_stack([X[:, 0], X[:, 1] + rng.normal(size=200)])
        model = FordeRegressor(5, **QUICK, epochs=40).fit(X, y)
        assert model.noise_scale_.shape == (2,) and model.noise_scale_[0] != model.noise_scale_[1]
        assert model.predict_uncertainty(X).aleatoric.shape == (200, 2)

    def test_known_noise_stays_what_it_is(self) -> None:
        X, y = line(100)
        model = FordeRegressor(3, **QUICK, epochs=10, noise=1.0).fit(X, y)
        assert model.calibration_ == "out-of-fold" and model.noise_scale_ == 1
        np.testing.assert_allclose(model.predict_uncertainty(X).aleatoric, 1.0)

    @BOTH
    def test_rows_of_weight_0_decide_nothing(self, estimator: type) -> None:
        """Neither in training nor in calibration, nor do they move the standardisation."""
        X, y = line(80)
        y = y > 0 if estimator is FordeClassifier else y
        wrong_y, weights = y.copy(), np.ones(80)
        weights[::4] = 0
        wrong_y[::4] = ~y[::4] if estimator is FordeClassifier else 1e6
        # Folds are drawn by class, so that labels of rows without weight decide who sees others.
        options = {**QUICK, "epochs": 8, "calibration": None if estimator is FordeClassifier else "auto"}
        found = [estimator(5, **options).fit(X, labels, weights) for labels in (y, wrong_y)]
        if estimator is FordeRegressor:
            assert found[0].noise_scale_ != 1, "rows that count calibrate it"
        np.testing.assert_allclose(*(model.predict_uncertainty(X).total for model in found), rtol=1e-5)

    @BOTH
    def test_wrong_weights_are_refused(self, estimator: type) -> None:
        X, y = line(20)
        for weights, message in ((np.zeros(20), "is zero"), (-np.ones(20), r"of row 0 is -1\.0")):
            with pytest.raises(ValueError, match=message):
                estimator(2, **QUICK, epochs=1).fit(X, y > 0, weights)


class TestThreads:
    @BOTH
    def test_one_thread_inside_and_as_many_as_before_afterwards(
        self, estimator: type, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        X, y = line(60)
        before, asked = torch.get_num_threads(), []
        monkeypatch.setattr("forde.estimators.threads.torch.set_num_threads", asked.append)
        estimator(2, **QUICK, epochs=1).fit(X, y > 0).predict(X)
        assert asked == [1, before] * 3, "training, importances, prediction"
        asked.clear()
        with pytest.raises(FordeError):
            estimator(2, **QUICK, epochs=1, device="abacus", n_jobs=3).fit(X, y > 0)
        assert asked == [3, before]
