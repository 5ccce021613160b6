"""Mistakes that the tests once did not notice: first of the wiring between `fit` and the step, then of formulas."""

from __future__ import annotations

from trying import Mistake

WIRING = "tests/test_wiring.py"
ORDER = f"{WIRING}::TestOrder"
PROPERTIES = "tests/properties"

NAMED = (
    Mistake(
        "same-order-in-every-epoch",
        "training/loop.py",
        "self.feed.epoch(self.orders[0])",
        "self.feed.epoch(self.orders[0].clone_state())",
        (f"{ORDER}::test_each_epoch_sees_every_row_once_in_an_order_of_its_own",),
    ),
    Mistake(
        "repulsion-every-counted-within-the-epoch",
        "training/loop.py",
        '"step": self.steps',
        '"step": self.step',
        (f"{WIRING}::TestRepulsion::test_every_so_many_steps_are_counted_over_all_epochs",),
    ),
    Mistake(
        "repulsion-weight-one-epoch-ahead",
        "training/loop.py",
        '"epoch": self.epoch, "data_size"',
        '"epoch": self.epoch + 1, "data_size"',
        (f"{WIRING}::TestRepulsion::test_weight_is_that_of_the_epoch",),
    ),
    Mistake(
        "seed-not-used-for-dropout",
        "training/trainer.py",
        "seeded(settings.seed)",
        "seeded(0)",
        (f"{WIRING}::TestDropout::test_the_seed_alone_decides_what_is_dropped",),
    ),
    Mistake(
        "generator-of-a-loader-not-seeded",
        "training/feed.py",
        "self.loader.generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))",
        "pass",
        (
            f"{ORDER}::test_the_seed_alone_decides_the_order",
            f"{ORDER}::test_a_loader_that_was_used_before_gives_the_order_of_a_new_one",
        ),
    ),
    Mistake(
        "drop-last-of-a-dataset-ignored",
        "training/feed.py",
        "drop_last=drop, generator",
        "drop_last=False, generator",
        (f"{ORDER}::test_the_last_batch_is_left_out_where_that_is_asked_for",),
    ),
    Mistake(
        "batch-size-handed-over-as-data-size",
        "training/loop.py",
        '"data_size": self.feed.size',
        '"data_size": len(y)',
        (f"{WIRING}::TestRepulsion::test_weight_rde_is_divided_by_the_number_of_samples",),
    ),
    Mistake(
        "recorded-loss-summed-over-members",
        "training/loop.py",
        "report.losses.mean()",
        "report.losses.sum()",
        (f"{WIRING}::TestRepulsion::test_loss_is_the_mean_over_members_and_samples",),
    ),
    Mistake(
        "fit-leaves-training-mode-on",
        "training/trainer.py",
        "ensemble.eval()",
        "ensemble.train()",
        (f"{WIRING}::TestModes",),
    ),
    Mistake(
        "load-leaves-training-mode-on",
        "ensemble.py",
        "return ensemble.to(device).eval()",
        "return ensemble.to(device)",
        (f"{WIRING}::TestModes",),
    ),
    Mistake(
        "low-memory-keeps-one-graph",
        "step/plain.py",
        '"low": 0}',
        '"low": 1}',
        (f"{WIRING}::test_graphs_that_wait_while_members_are_compared",),
    ),
    Mistake(
        "repulsion-fraction-rounded-down",
        "methods/base.py",
        "math.ceil(self.repulsion_fraction",
        "math.floor(self.repulsion_fraction",
        ("tests/test_part_of_batch.py::test_a_share_that_is_no_whole_number_is_rounded_up",),
    ),
    Mistake(
        "equal-dropout-for-stacked-members",
        "step/stack.py",
        'randomness="different"',
        'randomness="same"',
        (f"{WIRING}::TestDropout::test_members_drop_different_units",),
    ),
    Mistake(
        "input-gradients-normalised-in-half-precision",
        "spaces/input_gradients.py",
        "gradient = gradient.float() if gradient.itemsize < 4 else gradient",
        "pass",
        (f"{PROPERTIES}/test_forde.py::test_half_precision_networks_are_compared_by_whole_directions",),
    ),
    Mistake(
        "learned-noise-swaps-mean-and-variance",
        "likelihoods/regression.py",
        "mean, raw = output.chunk(2, dim=self.axis)",
        "raw, mean = output.chunk(2, dim=self.axis)",
        (f"{PROPERTIES}/test_likelihoods.py",),
    ),
    Mistake(
        "several-targets-averaged",
        "likelihoods/regression.py",
        "nll.sum(_of_a_sample(y))",
        "nll.mean(_of_a_sample(y))",
        (f"{PROPERTIES}/test_likelihoods.py",),
    ),
    Mistake(
        "low-rank-metric-keeps-the-smallest-directions",
        "kernels/pca.py",
        "fitted.directions[:, :rank], fitted.variances[:rank]",
        "fitted.directions[:, -rank:], fitted.variances[-rank:]",
        (f"{PROPERTIES}/test_forde.py::TestPca::test_low_rank_keeps_the_directions_of_largest_variance",),
    ),
    Mistake(
        "low-rank-iteration-keeps-the-smallest-directions",
        "kernels/pca.py",
        "variances, directions = variances.flip(0)[:rank].clamp_min(0), (basis @ rotation.flip(1))[:, :rank]",
        "variances, directions = variances[:rank].clamp_min(0), (basis @ rotation)[:, :rank]",
        (f"{PROPERTIES}/test_forde.py::TestPca::test_low_rank_keeps_the_directions_of_largest_variance",),
    ),
    Mistake(
        "laplace-divides-by-the-bandwidth-itself",
        "kernels/sphere.py",
        "(-distance / h.sqrt())",
        "(-distance / h)",
        (
            f"{PROPERTIES}/test_sphere_kernels.py::test_laplace_divides_by_the_root_of_the_bandwidth",
            f"{PROPERTIES}/test_sphere_kernels.py::test_laplace_with_the_median_weighs_typical_neighbours_alike_at_any_scale",
        ),
    ),
    Mistake(
        "loss-gradients-of-feature-rde-not-normalised",
        "spaces/features.py",
        "gradients = gradients / gradients.abs().amax().clamp_min(torch.finfo(gradients.dtype).tiny)",
        "pass",
        (
            f"{PROPERTIES}/test_repulsive_ensembles.py::TestFeatures"
            "::test_directions_do_not_depend_on_the_size_of_loss_gradients",
        ),
    ),
)
