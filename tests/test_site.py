"""The documentation's site: it builds without a warning, shows examples as code, and works from disk in a browser."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import forde
from docs_pages import PAGES, ROOT, blocks

mkdocs = pytest.importorskip("mkdocs", reason="the site needs the extra 'docs'")


def build(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=folder,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT, folder)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.parametrize("link", ["nowhere.md", "index.md#nowhere", "index.md#title"])
def test_a_dead_link_fails_the_build(link: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Title\n\n[A link]({link})\n", encoding="utf-8")
    # As the site is set up, without the reference and the other pages.
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings = re.sub(r"^nav:\n(?: .*\n)+|^  - mkdocstrings:\n(?: {4,}.*\n)+", "", settings, flags=re.MULTILINE)
    (tmp_path / "mkdocs.yml").write_text(settings, encoding="utf-8")
    built = build(tmp_path, tmp_path / "site")
    if "nowhere" in link:
        assert built.returncode != 0 and "nowhere" in built.stderr + built.stdout
    else:
        assert built.returncode == 0, built.stderr


def test_examples_are_fenced() -> None:
    fence = runpy.run_path(str(ROOT / "docs" / "extensions" / "docstring_examples.py"))["fence_examples"]
    text = "One more.\n\n{}>>> 1 + 1{}\n2\n{}\nThe end.\n\n>>> 0\n0"
    assert fence(text.format("", "  # doctest: +SKIP", "")) == text.format("```pycon\n", "", "```\n").replace(
        "\n>>> 0\n0", "\n```pycon\n>>> 0\n0\n```"
    )


class Text(HTMLParser):
    """The text of a page, that within `pre` apart."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.depth, self.code, self.prose = 0, "", ""
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[Any]) -> None:
        self.depth += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag == "pre"

    def handle_data(self, data: str) -> None:
        if self.depth:
            self.code += data
        else:
            self.prose += data


def test_examples_of_docstrings_are_code(site: Path) -> None:
    text = Text(site / "reference.html")
    assert ">>> ensemble = Ensemble(" in text.code
    assert text.code.count(">>> ") > 300  # the reference has an example for nearly everything public
    assert ">>>" not in text.prose and "doctest:" not in text.prose + text.code


PUBLIC = ["methods", "estimators", "corruptions", "training", "tuning", "experiments"]
"""Packages that users import from beside those in `forde.__all__`."""


def shown_imports() -> Iterator[tuple[str, str]]:
    """Each `from forde… import name` of a page."""
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python":
                for node in ast.walk(ast.parse(block.code)):
                    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "forde":
                        yield from ((str(node.module), alias.name) for alias in node.names)


def defined(path: str) -> Any:
    """What `package.module.Class.name` leads to; a function may have the name of the module that it is in."""
    parts = path.split(".")
    for split in range(len(parts) - 1, 0, -1):
        if (found := sys.modules.get(".".join(parts[:split]))) is not None:
            return functools.reduce(lambda within, part: getattr(within, part, None), parts[split:], found)
    return None


def test_the_reference_has_everything_public(site: Path) -> None:
    """What packages export, and what any page imports, from wherever it stands there."""
    described = set(re.findall(r' id="?(forde[\w.]+)', (site / "reference.html").read_text(encoding="utf-8")))
    packages = [*(name for name in forde.__all__ if inspect.ismodule(getattr(forde, name))), *PUBLIC]
    modules = [forde, *(importlib.import_module(f"forde.{name}") for name in packages)]
    exported = {(module.__name__, name) for module in modules for name in getattr(module, "__all__", [])}
    assert len(exported) > 150
    missing = []
    for module, name in sorted(exported | {*shown_imports()}):
        found = getattr(importlib.import_module(module), name)
        alike = (each for each in described if each.endswith(f".{name}"))
        if not (inspect.ismodule(found) or name.startswith("_") or any(defined(each) is found for each in alike)):
            missing.append(f"{module}.{name}")
    assert not missing, f"docs/reference.md lacks {missing}"


def test_pages_ask_no_other_host(site: Path) -> None:
    """Links may lead elsewhere; what a browser fetches by itself may not."""
    for page in site.rglob("*.html"):
        for tag in re.findall(r"<(?!a )[^>]+(?:src|href)=\"?(?:https?:)?//[^>]+>", page.read_text(encoding="utf-8")):
            raise AssertionError(f"{page.name}: {tag}")


def test_the_front_page_shows_a_figure_and_the_result(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    figures = page.locator("article img").evaluate_all("images => images.map(i => [i.naturalWidth > 0, i.alt])")
    assert figures and all(drawn and alt for drawn, alt in figures)
    assert "deep-ensemble" in page.locator("article table").first.inner_text()
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_code_have_contrast(site: Path, browser: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_core_python.sync_playwright").Axe()
    page = browser.new_page(color_scheme=scheme)
    page.goto((site / "tutorials" / "pytorch.html").as_uri())
    found = axe.run(page, options={"resultTypes": ["violations"], "runOnly": ["color-contrast"]})
    assert found["passes"] and not found["violations"], found["violations"][0]["nodes"][0]["html"]
    page.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_search_works_from_disk(site: Path, browser: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    asked, wrong = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.goto((site / "index.html").as_uri())
    if not page.locator("input[name=query]").is_visible():
        page.click("label.md-header__button[for=__search]")
    page.locator("input[name=query]").press_sequentially("bandwidth")
    page.wait_for_selector(".md-search-result__item")
    results = page.locator(".md-search-result__link").evaluate_all("links => links.map(link => link.href)")
    assert any("reference.html" in address for address in results), results
    page.goto(results[0])
    assert "bandwidth" in page.locator("article").inner_text().lower()
    assert not wrong and all(address.startswith("file:") for address in asked), [*wrong, *asked]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
        "the page is wider than the window"
    )
    page.close()
