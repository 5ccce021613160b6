"""Result files: whole, small, checked; and the schema's own checker, rule by rule."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from small_cells import RUN, small_cell

from forde.corruptions import NAMES
from forde.errors import FordeError
from forde.experiments.cells import Cell
from forde.experiments.results import path_of, read_result, results_in, without_folders, write_result
from forde.experiments.schema import problem_with, schema

SCORES = {"accuracy": 0.912345678, "nll": 0.3, "ece": 0.01}
FOUND: dict[str, Any] = {"clean": SCORES, "seconds": {"training": 1.23456789}, "run": RUN}


def test_a_result_comes_back(tmp_path: Path) -> None:
    cell = small_cell()
    path = write_result(cell, {**FOUND, "history": [{"epoch": 0.0, "loss": math.nan}]}, tmp_path / "cells")
    result = read_result(path)
    assert result.cell == cell and path.stem == cell.name == result.content["name"]
    assert result.content["clean"]["accuracy"] == 0.912346 and result.content["seconds"]["training"] == 1.23457
    assert result.content["history"] == [{"epoch": 0.0, "loss": None}]
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_cell_of_the_paper_takes_tens_of_kilobytes(tmp_path: Path) -> None:
    scores = dict.fromkeys(("accuracy", "nll", "ece", "epistemic", "disagreement"), 0.123456)
    corruptions = {name: {str(level): scores for level in range(1, 6)} for name in NAMES}
    record = dict.fromkeys(("epoch", "loss", "repulsion", "bandwidth", "lr", "disagreement", "seconds"), 0.123456)
    path = write_result(small_cell(), {**FOUND, "corruptions": corruptions, "history": [record] * 100}, tmp_path)
    assert path.stat().st_size < 50_000


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[: len(text) // 2], "damaged or not JSON"),
        (lambda text: "[]", "is no result: the whole is"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "'format' is 2, but 1 was expected"),
        (lambda text: text.replace('"members": 3', '"members": "three"'), "'cell.members' is \"three\""),
        (lambda text: text.replace('"mlp-16"', '"mlp-17"'), "holds the cell digits-mlp-17"),
        (lambda text: text.replace('"seconds"', '"minutes"'), "the whole has no 'seconds'"),
        (lambda text: text.replace('"kind": "images"', '"kind": "images", "color": 1'), "'cell.color' is not known"),
    ],
)
def test_damage_is_named(damage: Any, said: str, tmp_path: Path) -> None:
    path = write_result(small_cell(), FOUND, tmp_path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(FordeError, match="delete it") as caught:
        read_result(path)
    assert said in str(caught.value)


def test_a_result_that_does_not_fit_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(FordeError, match=r"'clean.nll' is \"low\", but number or null was expected"):
        write_result(small_cell(), {**FOUND, "clean": {"nll": "low"}}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_all_seeds_that_are_there_are_found(tmp_path: Path) -> None:
    cells = [small_cell(name, seed=seed) for name in ("lit", "forde-pca") for seed in (3, 0)]
    for cell in [*cells, small_cell("weight-rde")]:
        write_result(cell, FOUND, tmp_path)
    path_of(cells[0], tmp_path).write_text("{")
    found, problems = results_in(tmp_path, [small_cell("forde-pca"), small_cell("lit")])
    assert [(one.cell.method, one.cell.seed) for one in found] == [("forde-pca", 0), ("forde-pca", 3), ("lit", 0)]
    assert len(problems) == 1 and cells[0].name in problems[0]


def test_absolute_folders_are_not_kept(tmp_path: Path) -> None:
    command = "forde reproduce plan --data /home/me/my_data/ --out results/short --features '/x/lite0' --minutes=9"
    path = write_result(small_cell(), {**FOUND, "run": {**RUN, "command": command}}, tmp_path)
    kept = read_result(path).content["run"]["command"]
    assert kept == "forde reproduce plan --data my_data/ --out results/short --features 'lite0' --minutes=9"
    assert without_folders("Parquet files in '/data/cifar10'") == "Parquet files in 'cifar10'"
    assert without_folders("3/4 of a/b at https://a.b/c") == "3/4 of a/b at https://a.b/c"


RULES: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "type": ({"type": "integer"}, [0, -3], [1.5, "1", True, None, []]),
    "types": ({"type": ["number", "null"]}, [1, 1.5, None], ["1", True, {}]),
    "boolean": ({"type": "boolean"}, [True], [0, "true"]),
    "const": ({"const": 1}, [1], [2, "1"]),
    "enum": ({"enum": ["a", "b"]}, ["a"], ["c", None]),
    "minimum": ({"type": "integer", "minimum": 1}, [1, 9], [0, -1]),
    "items": ({"type": "array", "items": {"type": "string"}}, [[], ["a"]], [[1], ["a", None], "a"]),
    "required": ({"type": "object", "required": ["a"]}, [{"a": 1, "b": 2}], [{}, {"b": 1}]),
    "properties": ({"type": "object", "properties": {"a": {"type": "string"}}}, [{}, {"a": "x"}, {"b": 1}], [{"a": 1}]),
    "closed": ({"properties": {"a": {}}, "additionalProperties": False}, [{"a": 1}], [{"b": 1}]),
    "others": ({"type": "object", "additionalProperties": {"type": "number"}}, [{"a": 1}], [{"a": "1"}]),
    "reference": ({"$ref": "#/$defs/scores"}, [{"a": 1.0}], [{"a": []}, 3]),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules_of_the_schema(rule: str) -> None:
    rules, fitting, others = RULES[rule]
    assert [problem_with(value, rules) for value in fitting] == [None] * len(fitting)
    assert all(problem_with(value, rules) for value in others)


def test_the_checker_knows_every_word_of_the_schema() -> None:
    known = {"type", "const", "enum", "required", "properties", "additionalProperties", "items", "minimum", "$ref"}
    comments = {"$schema", "title", "$defs"}

    def words(rules: Any, named: bool = False) -> set[str]:
        if not isinstance(rules, dict):
            return set()
        own = set() if named else set(rules)
        return own.union(*(words(value, not named and key in ("properties", "$defs")) for key, value in rules.items()))

    assert words(schema()) <= known | comments


def test_the_schema_knows_every_field_of_a_cell() -> None:
    assert set(schema()["properties"]["cell"]["properties"]) == set(Cell.__dataclass_fields__)
    assert json.loads(json.dumps(small_cell().identity)) == small_cell().identity
