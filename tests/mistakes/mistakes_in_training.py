"""Mistakes in the training loop, in what feeds it and in what it records."""

from __future__ import annotations

from trying import Mistake

WIRING = "tests/test_wiring.py"
TRAINING = "tests/test_training.py"

IN_TRAINING = (
    Mistake(
        "scheduler-stepped-in-every-step",
        "training/loop.py",
        "        self.step += 1\n",
        "        self.step += 1\n        if self.scheduler is not None:\n            self.scheduler.step()\n",
        (f"{TRAINING}::TestOptimizer",),
    ),
    Mistake(
        "learning-rate-recorded-is-the-first",
        "training/loop.py",
        'self.lr = float(self.optimizer.param_groups[0]["lr"])',
        'self.lr = float(self.optimizer.defaults["lr"])',
        (f"{TRAINING}::TestOptimizer",),
    ),
    Mistake(
        "diagnosed-with-labels-of-other-rows",
        "training/loop.py",
        "y[:PROBE_SIZE]",
        "y[-PROBE_SIZE:]",
        (f"{WIRING}::TestDiagnostics",),
    ),
    Mistake(
        "recorded-repulsion-summed-over-members",
        "training/loop.py",
        "report.repulsion.mean()",
        "report.repulsion.sum()",
        (f"{WIRING}::TestRepulsion::test_weight_rde_is_divided_by_the_number_of_samples",),
    ),
    Mistake(
        "independent-data-in-one-order",
        "training/loop.py",
        "manual_seed(seed + i)",
        "manual_seed(seed)",
        ("tests/properties/test_repulsive_ensembles.py::TestDeepEnsemble::test_independent_data",),
    ),
    Mistake(
        "recorded-bandwidth-is-the-last-of-the-epoch",
        "training/loop.py",
        "self.bandwidth.append(report.bandwidth)",
        "self.bandwidth[:] = [report.bandwidth]",
        (f"{WIRING}::TestRepulsion::test_recorded_repulsion_and_bandwidth_are_means_over_steps",),
    ),
    Mistake(
        "metric-fitted-to-the-first-rows",
        "training/feed.py",
        "zip(self.x.split(INPUT_BATCH), self.y.split(INPUT_BATCH), strict=True)",
        "iter([(self.x[:INPUT_BATCH], self.y[:INPUT_BATCH])])",
        (f"{WIRING}::test_a_metric_is_fitted_to_all_rows",),
    ),
    Mistake(
        "augmentation-not-handed-over",
        "training/preparing.py",
        "            augmentation=batches.augmentation,\n            drop_last=batches.drop_last,\n        )",
        "            drop_last=batches.drop_last,\n        )",
        (f"{WIRING}::test_images_are_augmented_where_that_is_asked_for",),
    ),
    Mistake(
        "images-scaled-by-their-mean",
        "training/preparing.py",
        "std=inputs.std",
        "std=inputs.mean",
        ("tests/test_image_feed.py::test_fit_and_predict_take_images",),
    ),
    Mistake(
        "crops-shifted-alike-in-rows-and-columns",
        "training/image_feed.py",
        "draws.offsets[:, 1:]",
        "draws.offsets[:, :1]",
        ("tests/test_image_feed.py::test_every_crop_and_flip_is_where_a_loop_finds_it",),
    ),
    Mistake(
        "gradients-left-after-fit",
        "training/trainer.py",
        "plan.trained.zero_grad(set_to_none=True)",
        "pass",
        (f"{WIRING}::test_gradients_are_not_left_behind",),
    ),
    Mistake(
        "training-goes-on-in-evaluation-mode",
        "forward.py",
        "module.training = mode",
        "pass",
        (f"{WIRING}::TestDiagnostics",),
    ),
    Mistake(
        "members-disagree-with-themselves",
        "training/diagnostics.py",
        "(votes * (votes - 1)).sum(-1) / (members * (members - 1))",
        "votes.square().sum(-1) / members**2",
        (f"{WIRING}::TestDiagnostics",),
    ),
    Mistake(
        "less-of-every-measure-is-better",
        "training/options.py",
        'HIGHER_IS_BETTER.get(self.monitor, False) if self.mode is None else self.mode == "max"',
        "HIGHER_IS_BETTER.get(self.monitor, False)",
        ("tests/test_validation.py::TestMeasures::test_by_measures_of_which_more_is_better",),
    ),
    Mistake(
        "schedule-one-epoch-early",
        "training/schedule.py",
        "t = epoch / epochs",
        "t = (epoch + 1) / epochs",
        (f"{TRAINING}::TestOptimizer",),
    ),
    Mistake(
        "not-measured-is-zero",
        "training/history.py",
        'record.get(name, float("nan"))',
        "record.get(name, 0.0)",
        (f"{TRAINING}::TestRuns::test_diagnostics_can_be_rare",),
    ),
    Mistake(
        "neighbouring-seeds-share-members",
        "ensemble.py",
        "SeedSequence([seed, index])",
        "SeedSequence([seed + index])",
        (f"{WIRING}::test_no_member_shares_its_start_with_another_of_any_seed",),
    ),
)
