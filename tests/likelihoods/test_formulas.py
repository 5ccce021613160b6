"""What likelihoods promise beyond gradients: torch's losses, batches without labels, saving, and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tasks import HARD, MASKED, TASKS, WEIGHTS, normal
from torch import Tensor, nn

import forde
from forde.distributed.mesh import Axis, Mesh
from forde.engine import make_engine
from forde.errors import FordeError
from forde.likelihoods import (
    NAMED,
    Binary,
    Classification,
    DenseClassification,
    LearnedNoiseRegression,
    Likelihood,
    MultiLabel,
    Regression,
    as_likelihood,
    likelihood_from_config,
)
from forde.training.configuration import describe_ensemble

every_task = pytest.mark.parametrize("case", TASKS)


@every_task
def test_loss_is_that_of_torch_and_stacks_are_each_members(case: str) -> None:
    task = TASKS[case]
    outputs = torch.stack([task.make_network().double()(task.x).detach() * 3 for _ in range(3)])
    expected = torch.stack([task.loss(output, task.y) for output in outputs])
    for output, loss in zip(outputs, expected, strict=True):
        torch.testing.assert_close(task.likelihood.loss(output, task.y), loss)
    if task.likelihood.takes_stacks:
        torch.testing.assert_close(task.likelihood.loss(outputs, task.y), expected)
        scalars = torch.stack([task.likelihood.scalar(output, task.y) for output in outputs])
        torch.testing.assert_close(task.likelihood.scalar(outputs, task.y), scalars)


@every_task
def test_scalar_and_log_prob_are_one_for_each_sample_by_itself(case: str) -> None:
    task = TASKS[case]
    output = task.make_network().double()(task.x).detach()
    for formula in (task.likelihood.scalar, *([task.likelihood.log_prob] if task.likelihood.has_log_prob else [])):
        together = formula(output, task.y)
        assert together.shape == (len(task.y),)
        alone = torch.cat([formula(output[i : i + 1], task.y[i : i + 1]) for i in range(len(output))])
        torch.testing.assert_close(together, alone)


def test_soft_labels_that_are_certain_are_labels() -> None:
    logits, one_hot = normal(8, 3), nn.functional.one_hot(HARD, 3).double()
    plain = Classification(label_smoothing=0.1)
    for formula in (plain.loss, plain.scalar, plain.log_prob):
        torch.testing.assert_close(formula(logits, one_hot), formula(logits, HARD))


@pytest.mark.parametrize("likelihood", [Classification(ignore_index=9), Classification(WEIGHTS, ignore_index=9)])
def test_a_batch_without_labels_has_no_loss_and_no_gradient(likelihood: Classification) -> None:
    logits, y = normal(4, 3).requires_grad_(), torch.full((4,), 9)
    loss = likelihood.loss(logits, y) + likelihood.log_prob(logits, y).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    assert float(loss.detach()) == 0 and not gradient.any()


def test_samples_that_are_ignored_change_nothing() -> None:
    logits, y = normal(6, 3), torch.tensor([0, 1, 7, 2, 7, 1])
    likelihood = Classification(class_weights=WEIGHTS, ignore_index=7, label_smoothing=0.1)
    kept = y != 7
    expected = replace(likelihood, ignore_index=None).loss(logits[kept], y[kept])
    torch.testing.assert_close(likelihood.loss(logits, y), expected)


def test_huge_logits_have_finite_losses() -> None:
    assert float(Binary().loss(torch.tensor([1e4, -1e4]), torch.tensor([0, 1]))) == pytest.approx(1e4)
    assert float(MultiLabel().loss(torch.tensor([[1e4, -1e4]]), torch.tensor([[0, 0]]))) == pytest.approx(1e4)


@every_task
def test_settings_are_json_and_come_back(case: str) -> None:
    likelihood = TASKS[case].likelihood
    assert likelihood_from_config(json.loads(json.dumps(likelihood.config()))) == likelihood


def test_tensors_and_lists_of_weights_are_the_same_settings() -> None:
    assert Classification(class_weights=torch.tensor(WEIGHTS)) == Classification(class_weights=tuple(WEIGHTS))


@every_task
def test_saved_and_loaded_in_a_new_process(case: str, tmp_path: Path) -> None:
    """The other process has the network's code, and finds the likelihood in the files."""
    task = TASKS[case]
    ensemble = forde.Ensemble(task.make_network, 2, likelihood=task.likelihood).double()
    ensemble.save(tmp_path / "e")
    code = (
        "import sys, torch, forde; from tasks import TASKS; task = TASKS[sys.argv[1]];"
        "e = forde.Ensemble.load(sys.argv[2], task.make_network);"
        "assert e.likelihood == task.likelihood, e.likelihood;"
        "torch.save(vars(e.predict(task.x)), sys.argv[3])"
    )
    if case not in ("class weights and smoothing", "multi-label", "learned noise of images"):  # a process takes seconds
        loaded = forde.Ensemble.load(tmp_path / "e", task.make_network)
        found = vars(loaded.predict(task.x))
        assert loaded.likelihood == task.likelihood
    else:
        command = [sys.executable, "-c", code, case, str(tmp_path / "e"), str(tmp_path / "p")]
        path = {"PYTHONPATH": ":".join([str(Path(__file__).parent), *sys.path])}
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=path)
        assert result.returncode == 0, result.stderr
        found = torch.load(tmp_path / "p")
    for name, value in vars(ensemble.predict(task.x)).items():
        assert torch.equal(found[name], value)


@pytest.mark.parametrize("name", NAMED)
def test_names(name: str) -> None:
    assert as_likelihood(name) == NAMED[name]()


@pytest.mark.parametrize(
    ("name", "nearest"), [("segmentatoin", "segmentation"), ("multilabel", "multi-label"), ("binry", "binary")]
)
def test_unknown_names_are_told_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(FordeError, match=f"did you mean '{nearest}'"):
        as_likelihood(name)


SETTINGS: list[tuple[Any, dict[str, Any], str]] = [
    (Classification, {"class_weights": [1.0, -1.0]}, "class_weights is"),
    (Classification, {"class_weights": "balanced"}, "class_weights is balanced"),
    (Classification, {"class_weights": [0.0, 0.0]}, "not all 0"),
    (Classification, {"class_weights": 2.0}, "class_weights is 2.0"),
    (Classification, {"label_smoothing": 1.0}, "label_smoothing is 1.0"),
    (Classification, {"label_smoothing": "0.1"}, "label_smoothing is '0.1'"),
    (DenseClassification, {"ignore_index": 2.5}, "ignore_index is 2.5"),
    (Binary, {"pos_weight": 0.0}, "pos_weight is 0.0"),
    (MultiLabel, {"pos_weight": [float("nan")]}, "pos_weight is"),
    (LearnedNoiseRegression, {"axis": 1}, "axis is 1"),
]


@pytest.mark.parametrize(("cls", "options", "words"), SETTINGS)
def test_bad_settings_are_a_sentence(cls: type[Likelihood], options: dict[str, Any], words: str) -> None:
    with pytest.raises(FordeError, match=words):
        cls(**options)
    with pytest.raises(FordeError, match=words):
        likelihood_from_config({"name": cls.name, **options})


def images_to(channels: int) -> nn.Module:
    return nn.Conv2d(2, channels, 1)


ROWS, IMAGES = normal(8, 5).float(), normal(8, 2, 4, 4).float()
BAD: list[tuple[Likelihood, Any, Tensor, Tensor, str]] = [
    (Classification([1.0, 2.0]), lambda: nn.Linear(5, 3), ROWS, HARD, "2 class weights, but the network has 3"),
    (Classification(), lambda: nn.Linear(5, 3), ROWS, HARD - 1, "pass ignore_index=-1"),
    (Classification(ignore_index=7), lambda: nn.Linear(5, 3), ROWS, torch.full((8,), 7), "no target has a label"),
    (Classification(), lambda: nn.Linear(5, 3), ROWS, torch.rand(8, 3), "do not sum to 1"),
    (Classification(), lambda: nn.Linear(5, 3), ROWS, torch.full((8, 2), 0.5), "one probability for each class"),
    (Classification(ignore_index=7), lambda: nn.Linear(5, 2), ROWS, torch.full((8, 2), 0.5), "has no meaning"),
    (Binary(), lambda: nn.Linear(5, 1), ROWS, HARD, "values other than 0 to 1"),
    (Binary(), lambda: nn.Linear(5, 1), ROWS, torch.ones(8), "all 8 labels are class 1"),
    (Binary(), lambda: nn.Linear(5, 2), ROWS, HARD % 2, "a single logit"),
    (Binary(), lambda: nn.Linear(5, 2), ROWS, torch.zeros(8, 2), "'multi-label'"),
    (MultiLabel(), lambda: nn.Linear(5, 3), ROWS, HARD, r"\[N, K\], was expected"),
    (MultiLabel(), lambda: nn.Linear(5, 3), ROWS, torch.zeros(8, 4), "one logit for each label"),
    (MultiLabel([1.0, 2.0]), lambda: nn.Linear(5, 3), ROWS, torch.zeros(8, 3), "pos_weight has 2 numbers"),
    (MultiLabel(), lambda: nn.Linear(5, 3), ROWS, torch.full((8, 3), torch.nan), "other than 0 to 1"),
    (DenseClassification(), lambda: images_to(3), IMAGES, MASKED, "label 255 is outside the 3 classes"),
    (DenseClassification(), lambda: images_to(3), IMAGES, HARD, "one integer for each pixel"),
    (DenseClassification(), lambda: images_to(3), IMAGES, MASKED[:, :2] % 3, r"\[8, C, 2, 4\]"),
    (DenseClassification(), lambda: nn.Linear(4, 3), IMAGES[:, 0], HARD.repeat(4, 1).T, r"output.movedim\(-1, 1\)"),
    (Regression(), lambda: images_to(3), IMAGES, torch.zeros(8, 2, 4, 4), "expected for regression"),
    (LearnedNoiseRegression(axis=-3), lambda: images_to(2), IMAGES, torch.zeros(8, 4, 4), "an axis of channels"),
]


@pytest.mark.parametrize(("likelihood", "make", "x", "y", "words"), BAD)
def test_bad_data_is_a_sentence(likelihood: Likelihood, make: Any, x: Tensor, y: Tensor, words: str) -> None:
    ensemble = forde.Ensemble(make, 2, likelihood=likelihood)
    before = [parameter.clone() for parameter in ensemble.parameters()]
    with pytest.raises(FordeError, match=words) as caught:
        forde.fit(ensemble, "deep-ensemble", (x, y), epochs=1, verbose=False)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    assert all(torch.equal(*pair) for pair in zip(before, ensemble.parameters(), strict=True))


@pytest.mark.parametrize(("likelihood", "outputs"), [(Binary(), 1), (MultiLabel(), 3)])
def test_a_sigmoid_at_the_end_is_reported(
    likelihood: Likelihood, outputs: int, caplog: pytest.LogCaptureFixture
) -> None:
    x, y = normal(32, 5).float(), torch.arange(32 * outputs).view(32, outputs) % 2
    for last, reported in ((nn.Sigmoid(), True), (nn.Identity(), False)):
        caplog.clear()
        ensemble = forde.Ensemble(
            lambda last=last: nn.Sequential(nn.Linear(5, outputs), last), 2, likelihood=likelihood
        )
        forde.fit(ensemble, "deep-ensemble", (x, y), epochs=1, verbose=False)
        assert ("as after a sigmoid" in caplog.text) == reported


def test_regressions_have_no_probabilities_to_compare() -> None:
    ensemble = forde.Ensemble(lambda: nn.Linear(5, 1), 2, likelihood="regression")
    with pytest.raises(FordeError, match="no probabilities"):
        forde.fit(ensemble, forde.method("function-rde", of="probs"), (ROWS, ROWS[:, 0]), epochs=1, verbose=False)


def test_which_losses_processes_can_share() -> None:
    for task in TASKS.values():
        output = task.make_network().double()(task.x).detach()
        first, second = (task.likelihood.loss(output[part], task.y[part]) for part in (slice(3), slice(3, None)))
        if task.likelihood.adds_up:
            torch.testing.assert_close((3 * first + 5 * second) / 8, task.likelihood.loss(output, task.y))
    refused = {case for case, task in TASKS.items() if not task.likelihood.adds_up}
    assert {"ignored labels", "segmentation", "tokens", "class weights and smoothing"} <= refused
    assert not refused & {"multi-label", "binary [B]", "segmentation, soft labels", "regression of images"}


def test_processes_that_share_a_batch_refuse_losses_of_the_whole_batch() -> None:
    mesh = Mesh(data=Axis(size=2))
    ensemble = forde.Ensemble(lambda: nn.Linear(5, 3), 2, likelihood=Classification(WEIGHTS))
    with pytest.raises(FordeError, match="use shards of members only"):
        make_engine("eager", ensemble, forde.method("deep-ensemble"), mesh=mesh)


def test_records_of_a_run_have_the_options_that_are_used() -> None:
    """So that a run of before there were such options can be resumed."""

    def noted(likelihood: Likelihood) -> Any:
        return describe_ensemble(forde.Ensemble(lambda: nn.Linear(5, 3), 2, likelihood=likelihood))["likelihood"]

    assert noted(Classification()) == {"name": "classification", "settings": {"type": "Classification"}}
    assert noted(Classification(WEIGHTS)) != noted(Classification([1.0, 2.0, 3.0])) != noted(Classification())
    assert noted(Regression(noise=0.5))["settings"]["noise"] == 0.5
