"""Claims against hand computations, and tables against numpy."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_cells import group_of, made_up, small_cell

from forde.experiments.claims import Claim, Comparison, better, compare, judge, judged_all
from forde.experiments.groups import Group, grouped, number, spread
from forde.report import cost_tables, score_tables
from forde.report.claims import summary

NUMBERS = st.lists(
    st.tuples(*[st.floats(-5, 5, allow_nan=False).map(lambda x: round(x, 3))] * 2), min_size=2, max_size=6
)


def test_a_clear_gain_holds() -> None:
    groups = {"a": group_of("a", nll=[0.30, 0.31, 0.29]), "b": group_of("b", nll=[0.31, 0.33, 0.32])}
    # Gains 0.01, 0.02, 0.03: mean 0.02, standard deviation 0.01, error 0.01 / √3 = 0.00577, 0.02 > 2 × 0.00577.
    found = compare(Comparison("nll", "a", "b"), groups)
    assert found.verdict == "holds" and found.seeds == 3
    assert found.margin == pytest.approx(0.02) and found.error == pytest.approx(0.01 / 3**0.5)
    assert compare(Comparison("nll", "b", "a"), groups).verdict == "does not hold"
    assert compare(Comparison("nll", "a", "b", by=0.01), groups).verdict == "not significant"
    assert compare(Comparison("nll", "b", "a", by=-0.04), groups).verdict == "holds"


@given(NUMBERS)
def test_verdicts_are_those_of_a_paired_t_statistic_beyond_two(pairs: list[tuple[float, float]]) -> None:
    first, second = (list(values) for values in zip(*pairs, strict=True))
    groups = {"a": group_of("a", accuracy=first), "b": group_of("b", accuracy=second)}
    found = compare(Comparison("accuracy", "a", "b"), groups)
    difference = np.subtract(first, second)
    mean, error = difference.mean(), difference.std(ddof=1) / np.sqrt(len(pairs))
    assert found.margin == pytest.approx(mean, abs=1e-9) and found.error == pytest.approx(error, abs=1e-9)
    if abs(abs(mean) - 2 * error) > 1e-9:
        expected = "not significant" if abs(mean) < 2 * error else "holds" if mean > 0 else "does not hold"
        assert found.verdict == expected


def test_seeds_are_paired_and_others_left_out() -> None:
    # Seeds differ by far more than methods, which only a paired comparison sees.
    groups = {"a": group_of("a", cNLL=[1.0, 2.0, 3.0, 9.0]), "b": group_of("b", cNLL=[1.1, 2.11, 3.09])}
    found = compare(Comparison("cNLL", "a", "b"), groups)
    assert found.verdict == "holds" and found.seeds == 3 and found.margin == pytest.approx(0.1)


def test_one_seed_decides_nothing() -> None:
    groups = {"a": group_of("a", nll=[0.1]), "b": group_of("b", nll=[0.9])}
    found = compare(Comparison("nll", "a", "b"), groups)
    assert found.verdict == "not significant" and found.error is None and found.margin == pytest.approx(0.8)


def test_what_is_not_there_is_not_tested() -> None:
    groups = {"a": group_of("a", nll=[0.1, 0.2])}
    assert compare(Comparison("nll", "a", "b"), groups).verdict == "not tested"
    assert compare(Comparison("cECE", "a", "a"), groups).verdict == "not tested"
    assert judge(Claim("", better("nll", "a", "b", "c")), groups).verdict == "not tested"


def trio() -> dict[str, Group]:
    """b is clearly worse than a, c clearly better, d the same."""
    values = {"a": [0.50, 0.52, 0.51], "b": [0.60, 0.62, 0.62], "c": [0.40, 0.42, 0.42], "d": [0.50, 0.52, 0.51]}
    return {name: group_of(name, nll=own) for name, own in values.items()}


@pytest.mark.parametrize(
    ("others", "need", "verdict"),
    [
        ("b", "all", "holds"),
        ("bd", "all", "not significant"),
        ("bc", "all", "does not hold"),
        ("bbc", "most", "holds"),
        ("bcc", "most", "does not hold"),
        ("bdd", "most", "not significant"),
        ("bx", "all", "holds so far"),
        ("cx", "all", "does not hold"),
    ],
)
def test_claims_over_several_others(others: str, need: Any, verdict: str) -> None:
    finding = judge(Claim("", better("nll", "a", *others), need=need), trio())
    assert finding.verdict == verdict


def test_a_claim_of_no_gain() -> None:
    assert judge(Claim("", better("nll", "d", "a"), denied=True), trio()).verdict == "holds"
    assert judge(Claim("", better("nll", "b", "a"), denied=True), trio()).verdict == "holds"
    assert judge(Claim("", better("nll", "c", "a"), denied=True), trio()).verdict == "does not hold"
    single = {"a": group_of("a", nll=[0.1]), "b": group_of("b", nll=[0.9])}
    assert judge(Claim("", better("nll", "a", "b"), denied=True), single).verdict == "not significant"


def test_claims_about_one_data_set_are_judged_there_alone() -> None:
    claims = [Claim("everywhere", better("nll", "a", "b")), Claim("one", better("nll", "a", "b"), data="cifar100")]
    found = {data: [each.claim.text for each in judged_all(claims, trio(), data)] for data in ("cifar10", "cifar100")}
    assert found == {"cifar10": ["everywhere"], "cifar100": ["everywhere", "one"]}


def test_the_comparison_that_decides_is_named() -> None:
    closest = judge(Claim("a beats all", better("nll", "a", "b", "c", "d")), trio()).closest
    assert closest is not None and closest.comparison.second == "c" and closest.margin == pytest.approx(-29 / 300)
    text = summary("data", [judge(Claim("a beats all", better("nll", "a", "b", "c", "d")), trio())])
    assert (
        "| a beats all | the paper | **does not hold** | nll: a against c | -0.0967 ± 0.0033 | 3 | 1 / 1 / 3 of 3 |"
        in text
    )


def test_numbers_by_path() -> None:
    content = {
        "corruptions": {
            "glass_blur": {"1": {"accuracy": 0.8}, "5": {"accuracy": 0.4}},
            "zoom_blur": {"1": {"accuracy": 0.6}, "5": {"accuracy": 0.2}},
            "fog": {"1": {"accuracy": 0.0}, "5": {"accuracy": 0.0}},
        },
        "clean": {"nll": None, "accuracy": 0.9},
    }
    assert number(content, "corruptions.*_blur.*.accuracy") == pytest.approx(0.5)
    assert number(content, "corruptions.*.5.accuracy") == pytest.approx(0.2)
    assert number(content, "accuracy") == 0.9
    assert number(content, "nll") is None and number(content, "cNLL") is None and number(content, "clean") is None


def test_spread_is_numpys() -> None:
    values = [0.3, 0.7, 0.2, 0.9]
    found = spread(values)
    assert found is not None and found.error is not None
    assert (found.mean, found.std, found.n) == (
        pytest.approx(np.mean(values)),
        pytest.approx(np.std(values, ddof=1)),
        4,
    )
    assert spread([]) is None


def test_two_settings_of_one_label_are_refused() -> None:
    results = [made_up(small_cell()), made_up(small_cell("lit"))]
    with pytest.raises(ValueError, match="two settings"):
        grouped(results, lambda cell: "the same")


def test_table_against_the_paper() -> None:
    groups = {
        name: Group(name, small_cell(name), group_of(name, accuracy=accuracy, cNLL=nll).results)
        for name, accuracy, nll in (
            ("deep-ensemble", [0.950, 0.960], [0.80, 0.82]),
            ("forde-pca", [0.949, 0.957], [0.70, 0.74]),
            ("lit", [0.90], [0.71]),
        )
    }
    rows = score_tables.rows_of(groups, "cifar10")
    text = score_tables.markdown(rows, groups, beside_paper=True)
    # Best accuracy 95.50 ± 0.71, and 95.30 is within it; the paper has 96.3 and 96.1. A cNLL of one seed is no best.
    assert "| method | accuracy % | cNLL | seeds |" in text
    assert "| deep-ensemble | **95.50** ± 0.71<br>96.30 (-0.80) | 0.810 ± 0.014<br>0.780 (+0.030) | 2 |" in text
    assert "| forde-pca | 95.30 ± 0.57 †<br>96.10 (-0.80) | **0.720** ± 0.028<br>0.710 (+0.010) | 2 |" in text
    assert "| lit | 90.00<br>96.40 (-6.40) | 0.710<br>0.780 (-0.070) | 1 |" in text
    ours = score_tables.markdown(rows, groups, beside_paper=False)
    assert "| deep-ensemble | **95.50** ± 0.71 | 0.810 ± 0.014 | 2 |" in ours and "96.30" not in ours
    lines = list(csv.DictReader(io.StringIO(score_tables.comma_separated(rows, groups))))
    own = next(line for line in lines if line["setting"] == "forde-pca" and line["score"] == "accuracy")
    assert float(own["mean"]) == pytest.approx(0.953) and float(own["difference"]) == pytest.approx(-0.008)
    assert (own["best"], own["near_best"], own["seeds"]) == ("0", "1", "2")
    tex = score_tables.latex(rows, "50 % of it")
    assert r"\caption{50 \% of it}" in tex and r"$\mathbf{95.50} \pm 0.71$" in tex and tex.count(r"\\") == 7


def test_the_empcov_table_expects_that_prior() -> None:
    cells = {
        "with": small_cell("deep-ensemble", prior="empcov"), "without": small_cell("deep-ensemble"),
        "forde": small_cell("forde-pca"),
    }  # fmt: skip
    groups = {name: Group(name, cell, group_of(name, nll=[0.1, 0.2]).results) for name, cell in cells.items()}
    rows = score_tables.rows_of(groups, "empcov")
    paper = {name: own["nll"].paper for name, own in rows.items() if own["nll"] is not None}
    assert paper == {"with": 0.119, "without": None, "forde": 0.125}


def test_costs_in_those_of_a_deep_ensemble() -> None:
    def group(name: str, step: float, nll: list[float]) -> Group:
        made = {
            seed: made_up(small_cell(name, seed=seed), clean={"nll": value}, seconds={"step": step + 0.001 * seed})
            for seed, value in enumerate(nll)
        }
        return Group(name, small_cell(name), made)

    groups = {
        "deep-ensemble": group("deep-ensemble", 0.010, [0.3, 0.4]),
        "forde": group("forde", 0.014, [0.2, 0.4, 9.0]),
    }
    row = cost_tables.cost_rows(groups)["forde"]
    # Steps 14, 15 and 16 ms against 10 and 11; NLL −0.1 and 0 over the seeds that both have.
    assert row["step_ms"] == pytest.approx(15) and row["times"] == pytest.approx(15 / 10.5)
    assert row["nll"] == pytest.approx(-0.05) and row["cNLL"] is None
    assert "3.26" in cost_tables.markdown(groups)  # 101 s / 31 s


def test_published_numbers_are_the_papers() -> None:
    tables = score_tables.published()["tables"]
    assert {key: len(table["rows"]) for key, table in tables.items()} == {
        "cifar100": 10, "cifar10": 10, "empcov": 5, "tinyimagenet": 8
    }  # fmt: skip
    assert tables["cifar100"]["rows"]["forde-pca"] == {
        "nll": [0.71, 0.0], "accuracy": [0.814, 0.002], "ece": [0.039, 0.002], "cA": [0.561], "cNLL": [1.9],
        "cECE": [0.05],
    }  # fmt: skip
    assert tables["tinyimagenet"]["rows"]["swag"]["ece"] == [0.02, 0.005]
    assert tables["empcov"]["rows"]["feature-rde"]["cNLL"] == [0.74]
