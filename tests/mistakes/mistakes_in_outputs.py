"""Mistakes in what outputs mean: likelihoods and predictions."""

from __future__ import annotations

from trying import Mistake

LIKELIHOODS = "tests/properties/test_likelihoods.py"
PREDICTIONS = "tests/properties/test_predictions.py"

TRAININGS = "tests/likelihoods/test_likelihood_training.py"
NEW_TASKS = "tests/likelihoods/test_formulas.py"

IN_OUTPUTS = (
    Mistake(
        "ignored-labels-still-repel",
        "likelihoods/classification.py",
        "torch.where(self.counts(y), found, 0)",
        "found",
        (NEW_TASKS,),
    ),
    Mistake(
        "weights-of-ignored-labels-counted",
        "likelihoods/classification.py",
        "[torch.where(counts, y, 0).long()] * counts",
        "[torch.where(counts, y, 0).long()]",
        (NEW_TASKS,),
    ),
    Mistake(
        "soft-labels-scored-as-their-likeliest-class",
        "metrics/statistics.py",
        "drawn.gather(-1, label.unsqueeze(-1)).squeeze(-1)",
        "(drawn.argmax(-1) == label).double()",
        (f"{TRAININGS}::test_scores_under_soft_labels_are_those_of_labels_drawn_from_them",),
    ),
    Mistake(
        "every-output-against-every-target",
        "likelihoods/regression.py",
        "else output.unsqueeze(-1)",
        "else output",
        (f"{TRAININGS}::test_a_number_for_each_sample_with_and_without_an_axis",),
    ),
    Mistake(
        "absent-labels-not-differentiated",
        "likelihoods/binary.py",
        "((2 * y.to(output.dtype) - 1) * output).sum(-1)",
        "(y.to(output.dtype) * output).sum(-1)",
        ("tests/likelihoods/test_gradients.py",),
    ),
    Mistake(
        "classes-of-pixels-on-another-axis",
        "prediction.py",
        "return self.member_logits.softmax(2)",
        "return self.member_logits.softmax(-1)",
        ("tests/likelihoods/test_likelihood_training.py",),
    ),
    Mistake(
        "noise-taken-for-a-variance",
        "likelihoods/regression.py",
        "self.noise**2",
        "self.noise",
        (LIKELIHOODS,),
    ),
    Mistake(
        "variance-without-a-floor",
        "likelihoods/regression.py",
        "F.softplus(raw) + VARIANCE_FLOOR",
        "F.softplus(raw)",
        (LIKELIHOODS,),
    ),
    Mistake(
        "log-probability-not-normalised",
        "likelihoods/classification.py",
        "self.scalar(output.log_softmax(-1), y)",
        "self.scalar(output, y)",
        (LIKELIHOODS,),
    ),
    Mistake(
        "settings-of-a-likelihood-not-saved",
        "likelihoods/regression.py",
        '{"name": self.name, **asdict(self)}',
        '{"name": self.name}',
        (LIKELIHOODS, "tests/test_saving.py::test_precision_and_likelihood_come_back"),
    ),
    Mistake(
        "own-loss-summed-over-samples",
        "likelihoods/custom.py",
        "return value.mean()",
        "return value.sum()",
        (LIKELIHOODS,),
    ),
    Mistake(
        "labels-of-averaged-logits",
        "prediction.py",
        "self.probs.argmax(-1)",
        "self.member_logits.mean(0).argmax(-1)",
        (PREDICTIONS,),
    ),
    Mistake(
        "averaged-log-probabilities",
        "prediction.py",
        "members.logsumexp(0) - math.log(members.shape[0])",
        "members.mean(0)",
        (PREDICTIONS,),
    ),
    Mistake(
        "negative-mutual-information",
        "prediction.py",
        "(self.total - self.aleatoric).clamp_min(0)",
        "self.total - self.aleatoric",
        (PREDICTIONS,),
    ),
    Mistake(
        "variance-of-own-outputs-with-bessels-correction",
        "prediction.py",
        "self.member_outputs.var(0, correction=0)",
        "self.member_outputs.var(0)",
        (PREDICTIONS,),
    ),
    Mistake(
        "std-without-disagreement",
        "prediction.py",
        "return self.total.sqrt()",
        "return self.aleatoric.sqrt()",
        (PREDICTIONS,),
    ),
    Mistake(
        "images-predicted-without-their-mean",
        "ensemble.py",
        "normalise(x.description.mean, x.description.std",
        "normalise([0.0] * len(x.description.mean), x.description.std",
        ("tests/test_image_feed.py::test_fit_and_predict_take_images",),
    ),
    Mistake(
        "folded-with-another-eps",
        "inference/folding.py",
        "norm.running_var, norm.eps,",
        "norm.running_var, 1e-5,",
        ("tests/test_inference.py::TestFolded",),
    ),
)
