"""Mistakes in estimators, metrics, saving and the command line."""

from __future__ import annotations

from trying import Mistake

ESTIMATORS = "tests/test_estimators.py"
CALIBRATION = "tests/estimators/test_calibration.py"
OPTIONS = "tests/test_train_options.py::test_every_option_reaches_the_run"
CLASSIFICATION = "tests/evaluation/test_classification_metrics.py"
REGRESSION = "tests/evaluation/test_regression_metrics.py"

ELSEWHERE = (
    Mistake(
        "weight-decay-of-an-estimator-ignored",
        "estimators/base.py",
        '{"weight_decay": self.weight_decay, **(self.method_options or {})}',
        "(self.method_options or {})",
        (f"{ESTIMATORS}::test_every_option_of_training_reaches_it",),
    ),
    Mistake(
        "options-of-an-estimators-method-overruled",
        "estimators/base.py",
        '{"weight_decay": self.weight_decay, **(self.method_options or {})}',
        '{**(self.method_options or {}), "weight_decay": self.weight_decay}',
        (f"{ESTIMATORS}::test_options_of_the_method_come_before_those_of_the_estimator",),
    ),
    Mistake(
        "learning-rate-of-an-estimator-ignored",
        "estimators/training.py",
        "Adam(parameters, lr=self._lr)",
        "Adam(parameters)",
        (f"{ESTIMATORS}::test_every_option_of_training_reaches_it",),
    ),
    Mistake(
        "estimator-without-a-schedule",
        "estimators/training.py",
        "method_factor(options.method, options.epochs, options.lr)",
        "lambda epoch: 1.0",
        (f"{ESTIMATORS}::test_every_option_of_training_reaches_it",),
    ),
    Mistake(
        "batch-norm-of-an-estimator-ignored",
        "estimators/base.py",
        "n_outputs, batch_norm=self.batch_norm",
        "n_outputs",
        (f"{ESTIMATORS}::test_every_option_of_training_reaches_it",),
    ),
    Mistake(
        "order-of-an-estimator-not-from-its-random-state",
        "estimators/training.py",
        "seed=options.seed,\n        device",
        "seed=0,\n        device",
        (f"{ESTIMATORS}::test_random_state_decides_the_start_and_the_order",),
    ),
    Mistake(
        "start-of-an-estimator-not-from-its-random-state",
        "estimators/training.py",
        "n_networks, seed=options.seed",
        "n_networks, seed=0",
        (f"{ESTIMATORS}::test_random_state_decides_the_start_and_the_order",),
    ),
    Mistake(
        "estimator-kept-in-float32",
        "estimators/training.py",
        'ensemble.to(device="cpu", dtype=torch.float64)',
        'ensemble.to(device="cpu")',
        (f"{ESTIMATORS}::test_a_row_predicts_the_same_alone_as_in_a_batch",),
    ),
    Mistake(
        "noise-and-disagreement-swapped",
        "estimators/classifier.py",
        "prediction.aleatoric.numpy(), prediction.epistemic.numpy()",
        "prediction.epistemic.numpy(), prediction.aleatoric.numpy()",
        (f"{ESTIMATORS}::test_uncertainty_of_a_classifier_adds_up_and_grows_away_from_the_data",),
    ),
    Mistake(
        "rows-judged-by-twins-that-have-seen-them",
        "estimators/left_out.py",
        "rows, unseen.float())",
        "rows, 1.0 - unseen.float())",
        (
            f"{CALIBRATION}::TestLeftOut::test_members_see_all_rows_and_each_is_judged_by_twins_that_were_not_trained_on_it",
        ),
    ),
    Mistake(
        "twins-trained-on-what-they-leave-out",
        "estimators/training.py",
        "weights = of_rows[rows.trained, None] * rows.seen",
        "weights = of_rows[rows.trained, None] * torch.ones_like(rows.seen)",
        (f"{CALIBRATION}::TestFit::test_members_see_all_rows_and_twins_do_not_see_what_they_leave_out",),
    ),
    Mistake(
        "noise-scale-not-used",
        "estimators/regressor.py",
        "with_noise_scale(self._outputs(X), torch.from_numpy(np.squeeze(self.noise_scale_)))",
        "self._outputs(X)",
        (f"{CALIBRATION}::TestFit::test_intervals_cover_where_members_overfit",),
    ),
    Mistake(
        "gradient-distance-of-uneven-batches",
        "evaluation/diversity.py",
        "total += len(part) *",
        "total += batch_size *",
        (CLASSIFICATION,),
    ),
    Mistake(
        "confidence-on-an-edge-in-the-upper-bin",
        "metrics/classification.py",
        "(values * n_bins).ceil().long().clamp(1, n_bins) - 1",
        "(values * n_bins).long().clamp(0, n_bins - 1)",
        ("tests/test_evaluation.py::test_ece_by_hand",),
    ),
    Mistake(
        "joint-density-averaged-over-outputs",
        "metrics/regression.py",
        "log_prob.flatten(2).sum(-1)",
        "log_prob.flatten(2).mean(-1)",
        (REGRESSION,),
    ),
    Mistake(
        "interval-too-narrow",
        "metrics/regression.py",
        "(1 - level) / 2)",
        "1 - level)",
        (REGRESSION,),
    ),
    Mistake(
        "checksum-of-weights-not-compared",
        "saving.py",
        "checksum != _checksum(state)",
        "False",
        ("tests/hostile/test_hostile_ensembles.py",),
    ),
    Mistake(
        "stored-precision-lost",
        "saving.py",
        "module.load_state_dict(stored, assign=True)",
        "module.load_state_dict(stored)",
        ("tests/test_saving.py",),
    ),
    Mistake(
        "known-normalisation-not-used-for-bytes",
        "ensemble.py",
        "self.inputs is not None and self.inputs.are_images",
        "False",
        ("tests/test_known_inputs.py",),
    ),
    Mistake(
        "known-units-not-undone",
        "ensemble.py",
        "prediction if units is None else units.undo(prediction)",
        "prediction",
        ("tests/test_known_inputs.py",),
    ),
    Mistake(
        "another-transform-evaluated-without-a-word",
        "evaluation/robustness/evaluate.py",
        "inputs.shape != expected.shape or not torch.allclose(inputs.float(), expected, atol=1e-3)",
        "False",
        ("tests/test_known_inputs.py",),
    ),
    Mistake(
        "altered-network-described-as-the-library's",
        "models/building.py",
        "repr(network) == repr(other)",
        "True",
        ("tests/test_known_inputs.py",),
    ),
    Mistake(
        "method-of-the-command-ignored",
        "commands/preparing.py",
        "return method(name, **",
        'return method("forde-pca", **',
        (OPTIONS,),
    ),
    Mistake("batch-size-of-the-command-ignored", "commands/train.py", "batch_size=batch_size,", "", (OPTIONS,)),
    Mistake("learning-rate-of-the-command-ignored", "training/usual.py", '{"lr": lr}', '{"lr": 0.5}', (OPTIONS,)),
    Mistake("weight-decay-of-the-command-ignored", "commands/train.py", ", weight_decay=weight_decay", "", (OPTIONS,)),
    Mistake("memory-of-the-command-ignored", "commands/train.py", "memory=memory,", "", (OPTIONS,)),
    Mistake("precision-of-the-command-ignored", "commands/train.py", "precision=precision,", "", (OPTIONS,)),
    Mistake(
        "order-not-from-the-seed-of-the-command",
        "commands/train.py",
        "seed=seed,\n            device=device",
        "device=device",
        (OPTIONS,),
    ),
    Mistake(
        "augmentation-of-the-command-ignored",
        "commands/train.py",
        "forde.Augmentation() if augment else None",
        "None",
        (OPTIONS,),
    ),
    Mistake(
        "first-loss-printed",
        "commands/outcome.py",
        "records[-1]",
        "records[0]",
        ("tests/test_train_options.py::test_what_is_printed_is_the_last_record",),
    ),
    Mistake(
        "split-of-corrupt-ignored",
        "commands/corrupt.py",
        "load_images(source, split,",
        'load_images(source, "test",',
        ("tests/test_cli.py::test_corrupt_takes_the_split_and_the_constants_that_are_asked_for",),
    ),
    Mistake(
        "preset-of-corrupt-ignored",
        "commands/corrupt.py",
        "preset=preset",
        "preset=None",
        ("tests/test_cli.py::test_corrupt_takes_the_split_and_the_constants_that_are_asked_for",),
    ),
)
