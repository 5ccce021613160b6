"""Mistakes in the methods that make all members of one network: SWAG and node-BNN."""

from __future__ import annotations

from trying import Mistake

SWAG = "tests/properties/test_swag.py"
NODE = "tests/properties/test_node_bnn.py"

OF_ONE_NETWORK = (
    Mistake(
        "swag-divides-by-the-rows-there-are",
        "methods/moments.py",
        "sqrt(self.rank - 1)",
        "sqrt(len(self.rows) - 1)",
        (f"{SWAG}::TestMoments::test_covariance_of_draws",),
    ),
    Mistake(
        "swag-multiplies-by-the-scale",
        "methods/moments.py",
        "sqrt(scale) * deviation",
        "scale * deviation",
        (f"{SWAG}::TestMoments::test_covariance_of_draws",),
    ),
    Mistake(
        "swag-rows-from-the-mean-before",
        "methods/moments.py",
        "self.mean[name] = mean = theta if mean is None else (n * mean + theta) / (n + 1)\n",
        "self.mean[name] = theta if mean is None else (n * mean + theta) / (n + 1)\n"
        "            mean = theta if mean is None else mean\n",
        (f"{SWAG}::TestMoments::test_rows_are_the_last_deviations_from_the_running_mean",),
    ),
    Mistake(
        "swag-keeps-a-view-of-the-weights",
        "methods/moments.py",
        'value.to("cpu", torch.float64, copy=True)',
        'value.to("cpu", torch.float64)',
        (f"{SWAG}::TestMoments",),
    ),
    Mistake(
        "swag-moments-in-float32",
        "methods/moments.py",
        'value.to("cpu", torch.float64, copy=True)',
        'value.to("cpu", torch.float32, copy=True)',
        (f"{SWAG}::TestMoments::test_small_variances_survive_large_weights",),
    ),
    Mistake(
        "swag-batches-weigh-alike",
        "methods/moments.py",
        "layer.momentum = len(x) / seen",
        "layer.momentum = 1 / -(-seen // 8)",
        (f"{SWAG}::TestBatchNormPass::test_statistics",),
    ),
    Mistake(
        "swag-momentum-not-restored",
        "methods/moments.py",
        "            layer.momentum = momentum\n",
        "            layer.momentum = layer.momentum or momentum\n",
        (f"{SWAG}::TestBatchNormPass",),
    ),
    Mistake(
        "swag-collects-at-the-start-of-the-epoch-after",
        "methods/swag.py",
        "after = epoch + 1 - self.first_epoch(epochs)",
        "after = epoch - self.first_epoch(epochs)",
        (f"{SWAG}::TestSchedule",),
    ),
    Mistake(
        "swag-with-nesterov",
        "methods/swag.py",
        "nesterov=False",
        "nesterov=True",
        (f"{SWAG}::TestRun::test_the_mean_is_that_of_sgd_by_hand",),
    ),
    Mistake(
        "swag-pass-without-the-last-batch",
        "training/trainer.py",
        "whole.drop_last = False",
        "whole.drop_last = True",
        (f"{SWAG}::test_the_log_says_what_was_made",),
    ),
    Mistake(
        "moments-not-in-checkpoints",
        "training/snapshots.py",
        'loop.plan.load(with_prefix(tensors, "plan."))',
        "loop.plan.load(loop.plan.tensors())",
        (f"{SWAG}::TestResume::test_bit_for_bit",),
    ),
    Mistake(
        "no-checkpoint-before-members-are-made",
        "training/running.py",
        "loop.epoch > begun and folder.keeps_last(loop)",
        "loop.epoch < begun and folder.keeps_last(loop)",
        (f"{SWAG}::TestResume::test_the_last_epoch_is_safe_before_members_are_made",),
    ),
    Mistake(
        "noise-shared-by-rows",
        "methods/node_noise.py",
        "epsilon = torch.randn(len(x), mean.shape[1], device=mean.device, dtype=mean.dtype)",
        "epsilon = torch.randn(1, mean.shape[1], device=mean.device, dtype=mean.dtype)",
        (f"{NODE}::TestNoise",),
    ),
    Mistake(
        "bias-without-noise",
        "methods/node_noise.py",
        "        bias.copy_(bias * z)\n",
        "        bias.copy_(bias)\n",
        (f"{NODE}::TestNoise::test_a_folded_network_is_the_noisy_one_with_the_noise_held",),
    ),
    Mistake(
        "inputs-and-outputs-of-transposed-convolutions-swapped",
        "methods/node_noise.py",
        '(side == "in") == isinstance(layer, TRANSPOSED)',
        'side != "in"',
        (f"{NODE}::TestNoise::test_a_folded_network_is_the_noisy_one_with_the_noise_held",),
    ),
    Mistake(
        "rows-of-one-input-meet-one-component",
        "methods/node_bnn.py",
        "return x.repeat_interleave(samples, 0), y.repeat_interleave(samples, 0)",
        "return x.repeat(samples, *[1] * (x.dim() - 1)), y.repeat(samples)",
        (f"{NODE}::TestNoise::test_each_input_meets_each_component_equally_often",),
    ),
    Mistake(
        "entropy-counted-once",
        "methods/variational.py",
        "((self.mean - 1) / prior_std**2 - (1 + gamma) * of_mean) / K",
        "((self.mean - 1) / prior_std**2 - gamma * of_mean) / K",
        (f"{NODE}::TestEntropy::test_gradients",),
    ),
    Mistake(
        "overlap-over-all-layers-together",
        "methods/variational.py",
        "for layer in each.split(self.sizes, -1)",
        "for layer in [each] * len(self.sizes)",
        (f"{NODE}::TestEntropy::test_by_hand",),
    ),
    Mistake(
        "gradient-of-rho-is-that-of-the-deviation",
        "methods/variational.py",
        "of_rho = of_std * rho.sigmoid()",
        "of_rho = of_std",
        (f"{NODE}::TestTraining::test_a_run_by_hand",),
    ),
    Mistake(
        "latents-decay",
        "methods/variational.py",
        "if name not in self.names}",
        "if name is not self.names}",
        (f"{NODE}::TestTraining::test_weight_decay_leaves_latents_alone",),
    ),
    Mistake(
        "latents-with-momentum",
        "methods/node_bnn.py",
        "Group(latents, momentum=0.0, nesterov=False, falls=False)",
        "Group(latents, nesterov=False, falls=False)",
        (f"{NODE}::TestTraining::test_a_run_by_hand",),
    ),
    Mistake(
        "beta-an-epoch-late",
        "methods/node_bnn.py",
        "self.strength.fill_(self.node.beta(epoch, self.epochs) / self.size)",
        "self.strength.fill_(self.node.beta(max(epoch - 1, 0), self.epochs) / self.size)",
        (f"{NODE}::TestTraining::test_a_run_by_hand",),
    ),
    Mistake(
        "latents-learn-at-a-falling-rate",
        "training/optimizer.py",
        "[factor if group.falls else (lambda epoch: 1.0) for group in groups]",
        "[factor for group in groups]",
        (f"{NODE}::TestTraining::test_a_run_by_hand",),
    ),
    Mistake(
        "members-of-one-component",
        "methods/node_bnn.py",
        "component=index % components",
        "component=0",
        (f"{NODE}::TestTraining::test_a_run_by_hand",),
    ),
)
