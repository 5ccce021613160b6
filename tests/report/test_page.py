"""The report in a browser, as a colleague sees it: drawn, sorted, toggled, saved, printed, and read to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DESKTOP, PHONE = (1280, 900), (390, 844)
PRINTED = (688, 1017)
"""Pixels of an A4 page within its margins."""

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def opened(browser: Any, pages: dict[str, Path]) -> Iterator[Open]:
    """A page at a size, which tests share and leave as they found it.

    Complaints in its console and requests that leave it are kept in `page.heard`.
    """
    kept: dict[Any, Any] = {}

    def open_page(name: str, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> Any:
        if (name, size, scheme) in kept:
            return kept[name, size, scheme]
        page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
        page.heard = []
        page.on("console", lambda said: page.heard.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: page.heard.append(str(error)))
        page.on(
            "request", lambda asked: None if asked.url.startswith(("file:", "data:")) else page.heard.append(asked.url)
        )
        page.goto(pages[name].as_uri())
        page.wait_for_selector("html[data-drawn]", timeout=30_000)
        kept[name, size, scheme] = page
        return page

    yield open_page
    for page in kept.values():
        page.close()


@pytest.fixture(scope="module")
def digits(opened: Open) -> Any:
    return opened("digits")


FIGURES = {
    "digits": {"severity", "heat", "reliability-clean", "reliability-corrupted", "epistemic-0", "epistemic-1",
               "risk-clean", "risk-corrupted", "history-loss", "history-repulsion", "history-bandwidth",
               "history-gradient_cosine"},
    "table": {"severity", "heat", "intervals-0", "coverage", "residuals-0", "epistemic-0", "risk-clean", "history-loss",
              "contributions-0-0"},
    "kinds": {"severity", "heat", "reliability-clean", "reliability-corrupted", "epistemic-0", "risk-clean",
              "history-validation_nll", "contributions-0-0"},
}  # fmt: skip


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("name", [*FIGURES])
def test_every_figure_is_drawn_and_nothing_is_asked_of_the_network(
    opened: Open, name: str, size: tuple[int, int]
) -> None:
    page = opened(name, size)
    assert page.heard == []
    found = page.eval_on_selector_all(
        "figure",
        """figures => figures.map(figure => {
            const chart = figure.querySelector(".chart"), svg = chart.querySelector("svg");
            const box = svg.getBoundingClientRect();
            const marks = svg.querySelectorAll(".role-mark path").length;
            const outside = at => at.width && (at.left < box.left - 2 || at.right > box.right + 2);
            const cut = Array.from(svg.querySelectorAll("text"))
                .filter(text => outside(text.getBoundingClientRect())).map(text => text.textContent);
            return {id: figure.id, cut, width: box.width, height: box.height, right: box.right, marks,
                    label: figure.querySelector(".alternative").textContent, named: chart.getAttribute("aria-label")};
        })""",
    )
    assert {figure["id"] for figure in found} >= FIGURES[name]
    for figure in found:
        assert figure["width"] > 200 and figure["height"] > 100 and figure["marks"] > 0, figure
        assert figure["right"] <= size[0] and figure["cut"] == [], figure
        assert len(figure["label"]) > 40 and figure["label"] == figure["named"], figure


def test_text_of_a_table_is_text_and_no_code(opened: Open) -> None:
    page = opened("table")
    assert page.inner_text("h1") == "Prices <b>here</b>"
    assert "</script>" in page.inner_text("#contributions-0-0") or "</script>" in page.inner_text("#disputed")
    assert page.eval_on_selector_all("body b", "found => found.length") == 0


def test_verdict_is_three_sentences_with_numbers_of_the_scores(digits: Any, runs: Path) -> None:
    from forde.evaluation.runs import RunScores, compare_runs

    said = digits.eval_on_selector_all("#verdict .sentence", "found => found.map(each => each.textContent)")
    assert len(said) == 3 and all(sentence.strip().endswith(".") for sentence in said)
    scores = {name: RunScores.load(runs / name).result for name in "ab"}
    best = min(scores, key=lambda name: scores[name].cell_average["nll"].value)
    assert f"{best} labels {100 * scores[best].clean['accuracy'].value:.1f} % of 899" in said[0]
    compared = compare_runs(runs / "a", runs / "b")
    corrupted, clean = said[1].split("; on clean data")
    for part, difference in ((corrupted, compared.cell_average["nll"]), (clean, compared.clean["nll"])):
        within = abs(difference.value) <= 2 * difference.error
        assert ("within the noise" in part) == within


class TestTables:
    def column(self, page: Any, table: str, number: int) -> list[str]:
        return page.eval_on_selector_all(  # type: ignore[no-any-return]
            f"#{table} tbody tr", f"rows => rows.map(row => row.cells[{number}].dataset.order)"
        )

    def test_a_click_sorts_and_another_turns_round(self, opened: Open) -> None:
        page = opened("digits")
        before = [float(value) for value in self.column(page, "table-metrics", 3)]
        heading = page.locator("#table-metrics thead th").nth(3)
        for order, turned in (("ascending", False), ("descending", True)):
            heading.locator("button").click()
            assert heading.get_attribute("aria-sort") == order
            found = [float(value) for value in self.column(page, "table-metrics", 3)]
            assert found == sorted(before, reverse=turned)
        page.locator("#table-metrics thead th button").first.click()
        assert self.column(page, "table-metrics", 0) == ["a", "a", "b", "b"]
        assert heading.get_attribute("aria-sort") is None

    def test_numbers_are_those_of_the_scores(self, digits: Any, runs: Path) -> None:
        from forde.evaluation.runs import RunScores

        found = digits.eval_on_selector_all(
            "#table-corruptions-accuracy tbody tr",
            "rows => rows.map(row => Array.from(row.cells, c => c.dataset.order))",
        )
        types = {name: RunScores.load(runs / name).result.types for name in "ab"}
        assert {row[0]: [float(row[1]), float(row[2])] for row in found} == {
            name: [types["a"][name]["accuracy"].value, types["b"][name]["accuracy"].value] for name in types["a"]
        }


class TestCorruptions:
    def marks(self, page: Any, figure: str) -> int:
        return int(page.eval_on_selector_all(f"#{figure} .mark-rect path", "found => found.length"))

    def shown(self, page: Any) -> list[str]:
        rows = "#table-corruptions-accuracy tbody tr:not([hidden])"
        return page.eval_on_selector_all(rows, "rows => rows.map(row => row.dataset.corruption)")  # type: ignore[no-any-return]

    def test_one_that_is_switched_off_leaves_charts_and_table(self, opened: Open) -> None:
        page = opened("digits")
        curve = page.get_attribute("#severity .mark-line path", "d")
        assert self.marks(page, "heat") == 6 and len(self.shown(page)) == 3
        page.uncheck("input[value=fog]")
        page.wait_for_function("document.querySelectorAll('#heat .mark-rect path').length === 4")
        assert self.shown(page) == ["contrast", "jpeg_compression"]
        assert page.get_attribute("#severity .mark-line path", "d") != curve
        page.click("#no-corruptions")
        page.wait_for_function("document.querySelectorAll('#heat .mark-rect path').length === 0")
        page.click("#all-corruptions")
        page.wait_for_function("document.querySelectorAll('#heat .mark-rect path').length === 6")
        assert page.get_attribute("#severity .mark-line path", "d") == curve and page.heard == []

    def test_another_metric(self, opened: Open) -> None:
        page = opened("digits")
        before = page.text_content("#heat svg")
        page.select_option("#metric", "nll")
        page.wait_for_function("before => document.querySelector('#heat svg').textContent !== before", arg=before)
        assert page.is_visible("#table-corruptions-nll") and not page.is_visible("#table-corruptions-accuracy")
        page.select_option("#metric", "accuracy")
        page.wait_for_function("before => document.querySelector('#heat svg').textContent === before", arg=before)


def test_members_say_what_they_predict_and_where_they_look(digits: Any, opened: Open, runs: Path) -> None:
    """Pictures with text for images, and for rows a dot of each member for each column; as the saved members say."""
    from forde.evaluation.runs.examples import Examples

    shown = digits.eval_on_selector_all(
        "#disputed article",
        """articles => articles.map(each => ({title: each.querySelector("h4").textContent,
            said: Array.from(each.querySelectorAll("li"), li => li.textContent),
            drawn: Array.from(each.querySelectorAll("img"), i => i.naturalWidth === 8 && i.alt.length > 10)}))""",
    )
    saved = [Examples.load(runs / name / "evaluation") for name in "ab"]
    expected = [found.members[:, k] for found in saved if found is not None for k in range(len(found.rows))]
    assert len(shown) == len(expected) == 12
    for article, probs in zip(shown, expected, strict=True):
        assert article["said"] == [f"{each.argmax()} ({100 * each.max():.0f} %)" for each in probs]
        assert f": predicted {probs.mean(0).argmax()} (" in article["title"]
        assert len(article["drawn"]) == 4 and all(article["drawn"])
    table = opened("table")
    dots = table.eval_on_selector_all("#contributions-0-0 .mark-symbol path", "found => found.length")
    assert dots == 3 * 3 and table.locator("#disputed article").first.locator(".said span").count() == 3


def test_settings_say_what_differs_first(digits: Any) -> None:
    rows = digits.eval_on_selector_all(
        "#table-settings tbody tr",
        "rows => rows.map(r => [r.cells[0].textContent, r.cells[2].textContent, r.cells[1].className])",
    )
    found = {name: value for name, value, _ in rows}
    assert rows[0] == ["method", "forde-pca", "best"] and ["epochs", "2", ""] in rows
    assert found["members compared by"] == "input gradients" and found["strength of the repulsion"] == "1.00"
    assert "weight decay 0.0005" in found["prior"]


@pytest.mark.parametrize(("kind", "begins"), [("svg", b"<svg"), ("png", b"\x89PNG")])
def test_figures_are_saved(digits: Any, tmp_path: Path, kind: str, begins: bytes) -> None:
    with digits.expect_download() as waiting:
        digits.click(f"button[data-save={kind}][data-of=severity]")
    waiting.value.save_as(tmp_path / "saved")
    content = (tmp_path / "saved").read_bytes()
    assert waiting.value.suggested_filename == f"severity.{kind}" and content.startswith(begins)
    assert b"currentColor" not in content and len(content) > 2000


def serious(page: Any, **options: Any) -> list[str]:
    """Rules that axe finds broken, those that shut somebody out. What a chart draws is hidden from readers."""
    from axe_core_python.sync_playwright import Axe

    # Of rules that hold one element each is enough: axe is several times faster so.
    found = Axe().run(page, context={"exclude": [[".chart svg"]]}, options={"resultTypes": ["violations"], **options})
    assert found["passes"]
    return [each["id"] for each in found["violations"] if each["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("name", ["digits", "table"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_serious(opened: Open, name: str, size: tuple[int, int]) -> None:
    page = opened(name, size)
    assert serious(page) == []
    # Nothing but tables may be wider than the screen, and these scroll by themselves.
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_the_dark_page_has_contrast(opened: Open) -> None:
    page = opened("digits", scheme="dark")
    assert serious(page, runOnly=["color-contrast"]) == []
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"


@pytest.mark.parametrize("name", [*FIGURES])
def test_printed_figures_are_whole(opened: Open, name: str) -> None:
    """No figure is wider than the paper, taller than a page or split between two, and controls are left out."""
    page = opened(name)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": PRINTED[0], "height": PRINTED[1]})
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    boxes = page.eval_on_selector_all(
        "figure, article",
        """all => all.map(each => { const box = each.getBoundingClientRect(), svg = each.querySelector("svg");
            const drawn = svg ? svg.getBoundingClientRect() : box;
            const texts = svg ? Array.from(svg.querySelectorAll("text"), text => text.getBoundingClientRect()) : [];
            const cut = texts.filter(at => at.width && (at.left < drawn.left - 2 || at.right > drawn.right + 2)).length;
            return {id: each.id, cut, left: Math.min(box.left, drawn.left), right: Math.max(box.right, drawn.right),
                    height: box.height, inside: drawn.width <= box.width + 1,
                    split: getComputedStyle(each).breakInside}; })""",
    )
    assert boxes
    for box in boxes:
        assert box["left"] >= -1 and box["right"] <= PRINTED[0] + 1 and box["inside"] and not box["cut"], box
        assert box["height"] < PRINTED[1] and box["split"] == "avoid", box
    assert not page.is_visible("nav") and not page.is_visible("#severity .save")
    widths = "window.widths = Array.from(document.querySelectorAll('.chart svg'), svg => svg.width.baseVal.value)"
    page.evaluate(f"window.addEventListener('beforeprint', () => {{ {widths} }})")
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
    page.wait_for_timeout(100)
    before = page.evaluate(widths)
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
    # Charts are drawn anew for paper, where letters keep their size, and then again for the screen.
    assert set(page.evaluate("window.widths")) == {320}
    page.wait_for_function(f"JSON.stringify({widths}) === '{json.dumps(before, separators=(',', ':'))}'")
