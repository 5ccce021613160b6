"""Cells: what decides their names, which experiments share them, and in which order they are run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, replace

import pytest
from small_cells import small_cell

from forde.errors import FordeError
from forde.experiments import experiments, frontier
from forde.experiments.budgets import BUDGETS, adjusted, budget
from forde.experiments.cell_methods import method_of
from forde.experiments.cells import Cell, options_of, unique
from forde.experiments.estimates import COMPILING, cost_of, seconds_of, timetable
from forde.experiments.groups import grouped
from forde.experiments.paper import RECIPE, image_cell, label_of
from forde.experiments.results import Result
from forde.methods import method

NAMES = (
    "table-cifar100", "table-cifar10", "table-empcov", "table-tinyimagenet", "fig-1d", "fig-2d", "fig-transfer",
    "fig-sizes", "fig-diversity", "fig-corruptions", "fig-empcov", "fig-alpha", "cost", "frontier", "width", "plan",
    "strengths",
)  # fmt: skip
EVERY = [(name, level) for name in NAMES for level in BUDGETS]


def cells_of(name: str, level: str) -> list[Cell]:
    return list(experiments()[name].cells(budget(level)))


def test_all_experiments_are_registered() -> None:
    assert set(experiments()) == set(NAMES)


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_a_cell_is_its_identity(name: str, level: str) -> None:
    cells = cells_of(name, level)
    assert cells
    for cell in cells:
        again = Cell.of(json.loads(json.dumps(cell.identity)))
        assert again == cell and again.name == cell.name
    assert len({cell.name for cell in cells}) == len(set(cells))


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_labels_tell_settings_apart(name: str, level: str) -> None:
    cells = cells_of(name, level)
    if name == "plan":
        return
    label = experiments()[name].label
    for data in {cell.data for cell in cells}:
        groups = grouped([Result(cell, {}) for cell in cells if cell.data == data], label)
        assert len(groups) == len({cell.setting for cell in cells if cell.data == data})


@pytest.mark.parametrize("name", NAMES)
def test_claims_are_about_settings_that_there_are(name: str) -> None:
    """At the full budget: a claim about a label that no cell has would be called not tested for ever."""
    each = experiments()[name]
    labels = {each.label(cell) for cell in cells_of(name, "full")}
    named = {label for claim in each.claims for one in claim.comparisons for label in (one.first, one.second)}
    assert named <= labels
    assert {claim.data for claim in each.claims} <= {None, *(cell.data for cell in cells_of(name, "full"))}
    assert len({claim.text for claim in each.claims}) == len(each.claims)


def test_the_name_ends_in_a_hash_of_what_is_not_default() -> None:
    cell = image_cell(budget("short"), "cifar10", "deep-ensemble", 0)
    identity = {
        "kind": "images", "data": "cifar10", "model": "resnet18", "method": "deep-ensemble", "members": 5,
        "epochs": 12, "precision": "bf16",
    }  # fmt: skip
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    assert cell.identity == identity
    assert cell.name == f"cifar10-resnet18-m5-e12-deep-ensemble-s0-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def test_names_of_results_on_disk_stay() -> None:
    """These are in use: if one changes, what was computed under it is not found again."""
    short = budget("short")
    names = [image_cell(short, "cifar10", method, 1).name.rpartition("-")[2] for method in ("forde-pca", "forde-tuned")]
    assert names == ["0e5207fd", "7421271d"]


def test_every_field_decides() -> None:
    cell = small_cell()
    changes = {
        "kind": "features", "data": "mnist", "model": "mlp-8", "method": "lit", "members": 4, "epochs": 9,
        "options": (("rank", 3),), "prior": "empcov", "seed": 5, "precision": "bf16", "batch_size": 32, "lr": 0.2,
        "augment": True, "corruptions": ("fog",), "severities": (2,), "train_size": 100, "test_size": 50,
    }  # fmt: skip
    assert set(changes) == {field.name for field in fields(Cell)}
    names = {replace(cell, **{name: value}).name for name, value in changes.items()}
    assert len(names | {cell.name}) == len(changes) + 1
    assert {replace(cell, seed=seed).setting for seed in range(3)} == {cell.setting}


def test_options_do_not_depend_on_how_they_are_written() -> None:
    first = small_cell("forde", options=options_of(strength=10, repulsion_fraction=0.25))
    assert first == small_cell("forde", options=options_of(repulsion_fraction=0.25, strength=10.0))


@pytest.mark.parametrize("level", ["full", "long", "short"])
def test_experiments_share_cells(level: str) -> None:
    table = {cell.name for cell in cells_of("table-cifar10", level)}
    for other in ("cost", "fig-corruptions", "frontier", "fig-alpha", "fig-diversity", "fig-empcov"):
        assert table & {cell.name for cell in cells_of(other, level)}, other
    assert table == {cell.name for cell in cells_of("cost", level)}
    ends = {cell.name for cell in cells_of("fig-alpha", level) if cell.method in ("forde-identity", "forde-pca")}
    assert ends & table


def test_the_full_budget_is_the_papers() -> None:
    cells = cells_of("table-cifar10", "full")
    drawn = {(cell.method, cell.members) for cell in cells if cell.members != 10}
    assert drawn == {("swag", 30), ("node-bnn", 32)}
    assert {(cell.epochs, cell.model, cell.precision) for cell in cells} == {(300, "resnet18", "float32")}
    assert {cell.seed for cell in cells} == set(range(5)) and len({cell.method for cell in cells}) == 11
    tiny = cells_of("table-tinyimagenet", "full")
    assert {(cell.epochs, cell.model) for cell in tiny} == {(150, "preact_resnet18")}
    alphas = {dict(cell.options).get("alpha") for cell in cells_of("fig-alpha", "full")}
    assert alphas == {None, 0.1, 0.2, 0.4, 0.8}
    assert {cell.members for cell in cells_of("fig-sizes", "full")} >= {10, 30}
    (tuned,) = {cell.options for cell in cells if cell.method == "forde-tuned"}
    assert dict(tuned) == {"alpha": 0.2}
    (feature,) = {c.options for c in cells_of("table-cifar100", "full") if c.method == "feature-rde"}
    assert dict(feature) == {"cauchy": 5e-3}


def test_the_recipe_stands_in_its_cells_in_full() -> None:
    """So that another default later does not give old results a new meaning."""
    for cell in cells_of("table-cifar10", "short"):
        if cell.method == "forde":
            assert dict(cell.options) == RECIPE and "strength" in RECIPE
            assert method("forde", **RECIPE).repulsion_weight == RECIPE["strength"]


def test_the_plan_begins_with_what_tells_most() -> None:
    cells = cells_of("plan", "short")
    named = [(cell.method, cell.seed, {n: v for n, v in cell.options if n != "repulsion_fraction"}) for cell in cells]
    ten, five, seven, twenty = ({"strength": strength} for strength in (10, 5, 7, 20))
    falling = {"last_strength": 0}
    assert named[:7] == [
        ("deep-ensemble", 0, {}), ("forde-pca", 0, {}), ("forde", 0, ten),
        ("deep-ensemble", 1, {}), ("forde", 1, ten), ("deep-ensemble", 2, {}), ("forde", 2, ten),
    ]  # fmt: skip
    # Which strength the recipe should have, then everything else with as many seeds.
    assert named[7:13] == [("forde", seed, options) for seed in range(3) for options in (five, ten | falling)]
    assert named[13:15] == [("forde", 0, options) for options in (twenty | falling, seven)]
    assert named[15:17] == [("forde-pca", seed, {}) for seed in (1, 2)]
    assert named[17:21] == [("forde", seed, options) for seed in (1, 2) for options in (twenty | falling, seven)]
    assert [(cell.method, cell.seed) for cell in cells[21:27]] == [
        (name, seed) for name in ("forde-identity", "forde-tuned") for seed in range(3)
    ]
    assert {cell.data for cell in cells} == {"cifar10"} and len(set(cells)) == len(cells)
    assert [(cell.method, cell.seed) for cell in cells_of("plan", "long")[:3]] == [
        ("deep-ensemble", 0), ("forde-pca", 0), ("forde", 0)
    ]  # fmt: skip


@pytest.mark.parametrize("level", BUDGETS)
def test_the_plan_has_no_cell_of_its_own(level: str) -> None:
    """What it runs is shown somewhere."""
    elsewhere = {cell.name for name in NAMES if name != "plan" for cell in cells_of(name, level)}
    assert {cell.name for cell in cells_of("plan", level)} <= elsewhere


def test_the_frontier_has_all_that_the_plan_asks_of_the_recipe() -> None:
    asked = {cell.name for cell in cells_of("plan", "short")[:27] if cell.method == "forde"}
    assert asked <= {cell.name for cell in cells_of("frontier", "short")} and len(asked) == 15


def test_lines_of_the_frontier_differ_in_strength_alone() -> None:
    lines: dict[str, set[tuple[tuple[str, object], ...]]] = {}
    for cell in cells_of("frontier", "short"):
        if (line := frontier.family(cell)) is not None:
            rest = tuple((n, v) for n, v in cell.options if n not in ("strength", "repulsion_weight"))
            lines.setdefault(line, set()).add(rest)
    assert all(len(rest) == 1 for rest in lines.values()), lines
    assert {"log-prob, 1/4 of the batch", "log-prob, falling to 0, 1/4 of the batch",
            "log-prob, α = 0.4, 1/4 of the batch", "logit"} <= set(lines)  # fmt: skip


def test_a_falling_strength_is_a_line_over_the_epochs() -> None:
    cell = image_cell(budget("short"), "cifar10", *frontier.on_a_quarter(10)[:1], 0, options=frontier.FALLING[0][1])
    built = method_of(cell)
    factors = [built.factor(step=0, epoch=epoch, batch_size=128) for epoch in range(cell.epochs)]
    assert factors == pytest.approx([10 / 128 * (12 - epoch) / 12 for epoch in range(12)]) and min(factors) > 0
    plain = method("forde", strength=10, repulsion_fraction=0.25)
    assert (built.space, built.kernel, built.repulsion_fraction) == (
        plain.space, plain.kernel, plain.repulsion_fraction
    )  # fmt: skip
    assert built.name == "forde" and cost_of(cell) == cost_of(replace(cell, options=options_of(**RECIPE)))


def test_seeds_precision_and_features_can_be_chosen() -> None:
    chosen = adjusted(budget("short"), "float32", "4,7", "lite0")
    cells = experiments()["table-cifar10"].cells(chosen)
    assert {cell.seed for cell in cells} == {4, 7} and {cell.precision for cell in cells} == {"float32"}
    assert experiments()["fig-transfer"].cells(chosen)[0].data == "cifar10@lite0"
    for wrong in ("", "a", "-1", "1,,2"):
        with pytest.raises(FordeError, match="whole numbers"):
            adjusted(budget("short"), seeds=wrong)
    with pytest.raises(FordeError, match="precision"):
        adjusted(budget("short"), precision="fp8")
    with pytest.raises(FordeError, match="did you mean 'short'"):
        budget("shrot")


def test_labels_name_what_differs_from_the_tables() -> None:
    short = budget("short")
    assert label_of(image_cell(short, "cifar10", "forde-tuned", 0, options={"alpha": 0.4})) == "forde-tuned alpha=0.4"
    assert label_of(image_cell(short, "cifar100", "forde-tuned", 0)) == "forde-tuned"
    assert label_of(image_cell(short, "cifar10", "forde", 0, options={"strength": 5})) == (
        "forde strength=5 no repulsion_fraction"
    )


def test_unique_keeps_the_first() -> None:
    first, second = small_cell(), small_cell("lit")
    assert unique([first, second, first]) == [first, second]


def test_draws_of_one_network_are_expected_to_take_their_time() -> None:
    """SWAG passes over the training data for each draw; without draws it is one network's training."""
    many = image_cell(budget("short"), "cifar10", "swag", 0)
    assert seconds_of(many) > seconds_of(replace(many, members=10)) + 20 * 3.0
    draws, members = (
        next(cell for cell in cells_of("fig-transfer", "short") if cell.method == name) for name in ("swag", "lit")
    )
    longer = [seconds_of(replace(cell, epochs=2 * cell.epochs)) - seconds_of(cell) for cell in (draws, members)]
    assert longer[0] < longer[1] / 5


def test_expected_times_follow_the_work() -> None:
    short, full = (image_cell(budget(name), "cifar10", "deep-ensemble", 0) for name in ("short", "full"))
    assert seconds_of(full) > 20 * seconds_of(short)
    costs = [
        cost_of(image_cell(budget("short"), "cifar10", name, 0)) for name in ("deep-ensemble", "forde", "forde-pca")
    ]
    assert costs == sorted(costs) and costs[0] < costs[2]


def test_repulsion_in_some_steps_costs_less() -> None:
    always, rarely = (
        image_cell(budget("short"), "cifar10", "forde", 0, options={**RECIPE, **more})
        for more in ({}, {"repulsion_every": 4})
    )
    assert cost_of(rarely) - 1 == pytest.approx((cost_of(always) - 1) / 4)


def test_the_timetable_compiles_each_program_once() -> None:
    first, second = (image_cell(budget("short"), "cifar10", "forde", seed) for seed in (0, 1))
    other = image_cell(budget("short"), "cifar10", "forde-pca", 0)
    times = dict(timetable([first, second, other, small_cell()]))
    assert times[first] == times[second] + COMPILING == seconds_of(first) + COMPILING
    assert times[other] == seconds_of(other) + COMPILING and times[small_cell()] == seconds_of(small_cell())
