"""`fit`'s options: in groups, by themselves, and what is said where they do not fit."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import forde
from forde import Batching, Checkpointing, Execution, Optimization, Reporting, Validation
from forde.training.history import History
from forde.training.settings import Groups, Settings, Shorthands, grouped
from forde.training.writers import JsonLines

GROUPS = {
    "optimization": Optimization,
    "batches": Batching,
    "execution": Execution,
    "reporting": Reporting,
    "checkpoint": Checkpointing,
}


def train(method: str = "deep-ensemble", **options: Any) -> tuple[History, forde.Ensemble]:
    torch.manual_seed(0)
    x, y = torch.randn(30, 4), torch.randint(3, (30,))
    ensemble = forde.Ensemble(lambda: nn.Linear(4, 3), 2, seed=0)
    options = {"epochs": 2, "batch_size": 8, "engine": "eager", **options}
    return forde.fit(ensemble, method, (x, y), **options), ensemble


def weights(ensemble: forde.Ensemble) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in ensemble.parameters()])


def test_a_group_and_its_shorthands_train_the_same(tmp_path: Path) -> None:
    by_group, ensemble = train(
        batches=Batching(drop_last=False, independent=True),
        execution=Execution(memory="low", non_finite="skip"),
        reporting=Reporting(verbose=False, diagnostics_every=0, writers=[JsonLines(tmp_path / "group")]),
        checkpoint=Checkpointing(every=1, minutes=None, keep=1, about={"units": "m"}),
        run=tmp_path / "a",
    )
    by_itself, other = train(
        drop_last=False, independent_data=True, memory="low", non_finite="skip", verbose=False, diagnostics_every=0,
        writers=[JsonLines(tmp_path / "itself")], checkpoint_every=1, checkpoint_minutes=None, keep=1,
        about={"units": "m"}, run=tmp_path / "b",
    )  # fmt: skip
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in "ab"]
    assert configs[0] == configs[1]
    assert configs[0]["how"]["keep"] == 1 and configs[0]["training"]["drop_last"] is False
    assert torch.equal(weights(ensemble), weights(other))
    assert by_group["loss"] == by_itself["loss"] and "disagreement" not in by_group.records[0]
    assert (
        len((tmp_path / "group").read_text().splitlines()) == len((tmp_path / "itself").read_text().splitlines()) == 2
    )
    _, plain = train(verbose=False)
    assert not torch.equal(weights(ensemble), weights(plain))  # the options above are not without effect


def test_every_shorthand_is_an_option_of_one_group() -> None:
    in_the_group_only = {
        "data",
        "every",
        "measures",
        "mode",
    }  # `fit(validation=...)` is the data, and others are named alike
    of_validation = set(Validation.__dataclass_fields__) - in_the_group_only
    marks = {name: object() for name in Shorthands.__annotations__ if name not in of_validation}
    checked = {
        "non_finite": "skip",
        "diagnostics_every": 7,
        "verbose": False,
        "checkpoint_every": 8,
        "checkpoint_minutes": 9.0,
        "keep": 6,
        "clip_norm": 5.0,
        "accumulate": 3,
        "ema": 0.5,
        "scheduler_every": "step",
    }
    for name, value in {**marks, **checked}.items():
        groups = grouped({name: value})
        changed = [
            (group, option)
            for group, kind in GROUPS.items()
            for option in kind.__dataclass_fields__
            if getattr(groups[group], option) != getattr(kind(), option)  # type: ignore[literal-required]
        ]
        assert len(changed) == 1, (name, changed)
        ((group, option),) = changed
        assert getattr(groups[group], option) is value  # type: ignore[literal-required]
    options = sum(len(kind.__dataclass_fields__) for kind in GROUPS.values())
    assert len(marks) == options, "an option of a group has no shorthand, or two"
    assert of_validation < set(Shorthands.__annotations__)
    for name, other in (("monitor", "ece"), ("patience", 7), ("restore_best", False)):
        given = grouped({name: other}, validation=0.5)["validation"]
        assert given is not None and getattr(given, name) == other and given.data == 0.5


def test_the_groups_have_defaults_of_their_own() -> None:
    assert grouped({}) == {"validation": None, **{name: kind() for name, kind in GROUPS.items()}}
    assert set(Groups.__annotations__) == {"validation", *GROUPS}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint": Checkpointing(), "keep": 3}, r"checkpoint=Checkpointing\(\.\.\.\) and keep=3 were both given"),
        ({"batches": Batching(), "independent_data": True}, r"as Batching\(independent=True\)"),
        ({"reporting": {"verbose": False}}, "but a forde.Reporting was expected"),
        ({"learning_rate": 0.1}, "fit has no argument 'learning_rate'; here it is lr"),
        ({"max_grad_norm": 1.0}, "here it is clip_norm"),
        ({"early_stopping_patience": 3}, "here it is patience, beside validation"),
        ({"num_workers": 2}, "here it is the DataLoader's, which is given as data"),
        ({"epoch": 3}, "unknown argument of fit 'epoch'; did you mean 'epochs'"),
        ({"checkpoints": Checkpointing()}, "did you mean 'checkpoint'"),
        ({"execution": Execution(non_finite="roll_back")}, "give a folder"),
        ({"checkpoint": Checkpointing(about={})}, "give one as run="),
    ],
)
def test_what_does_not_fit_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(forde.FordeError, match=message):
        train(**options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Checkpointing(every=0), "checkpoint_every is 0"),
        (lambda: Checkpointing(minutes=-1.0), "checkpoint_minutes is -1"),
        (lambda: Checkpointing(keep=0), "keep is 0"),
        (lambda: Execution(non_finite="ignore"), "unknown non_finite 'ignore'"),
        (lambda: Reporting(diagnostics_every=-1), "diagnostics_every is -1"),
    ],
)
def test_a_group_is_checked_where_it_is_made(make: Any, message: str) -> None:
    with pytest.raises(forde.FordeError, match=message):
        make()


def test_fit_stays_readable() -> None:
    """The docstring names every argument, and the body is a sequence of phases."""
    parameters = list(inspect.signature(forde.fit).parameters)
    documented = re.findall(r"^ {8}(\w+):", forde.fit.__doc__ or "", re.MULTILINE)
    assert documented == parameters
    assert set(Settings.__dataclass_fields__) == set(parameters) - {"ensemble", "method", "data", "shorthands"}
    tree = ast.parse(inspect.getsource(forde.fit)).body[0]
    assert isinstance(tree, ast.FunctionDef) and tree.end_lineno is not None
    assert tree.end_lineno - tree.body[1].lineno + 1 < 40
    assert len(parameters) <= 22


def test_a_wrong_engine_is_named_before_a_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(forde.FordeError, match="did you mean 'vectorized'"):
        forde.fit(
            forde.Ensemble(lambda: torch.nn.Linear(4, 3), 2), "forde-pca", (torch.randn(8, 4), torch.arange(8) % 3),
            epochs=1, engine="vectorised", run=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_strength_and_repulsion_weight_are_not_both_taken() -> None:
    with pytest.raises(forde.FordeError, match="give one of them"):
        forde.method("forde", strength=3, repulsion_weight=2)
    assert forde.method("forde-pca", repulsion_weight=2).repulsion_weight == 2


def test_a_quantity_that_no_record_has_is_named() -> None:
    history = forde.fit(
        forde.Ensemble(lambda: torch.nn.Linear(4, 3), 2), "deep-ensemble", (torch.randn(8, 4), torch.arange(8) % 3),
        epochs=1, verbose=False, diagnostics_every=0,
    )  # fmt: skip
    with pytest.raises(forde.FordeError, match="did you mean 'loss'"):
        history["los"]
    assert history["gradient_cosine"] != history["gradient_cosine"]  # NaN: it was not measured


def test_images_with_channels_first_are_not_taken_for_others() -> None:
    ensemble = forde.Ensemble(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3)), 2)
    images, labels = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 0])
    with pytest.raises(forde.FordeError, match=r"\[N, H, W, C\] were expected"):
        forde.evaluation.evaluate_robustness(ensemble, (images, labels))
    result = forde.evaluation.evaluate_robustness(ensemble, (images, labels), transform=lambda given: given)
    expected = float((ensemble.predict(images).probs.argmax(-1) == labels).double().mean())
    assert result.clean["accuracy"].value == pytest.approx(expected)
