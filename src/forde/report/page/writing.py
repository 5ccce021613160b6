"""`write_report_page`: from folders of runs to one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cache
from importlib import resources
from itertools import combinations
from pathlib import Path

from forde._version import __version__
from forde.durable import explaining_writes, make_folder, write_whole
from forde.errors import FordeError
from forde.evaluation.robustness.comparison import Comparison
from forde.evaluation.runs.comparison import compare_runs
from forde.report.page.runs import EvaluatedRun, read_runs

SNIPPET = "window.vegaEmbed = vegaEmbed;"
"""What the bundle of Vega, Vega-Lite and Vega-Embed makes known to the page."""
MOST_BYTES = 5_000_000
CONFIG = {
    "background": None, "font": "system-ui, sans-serif", "view": {"stroke": None},
    "axis": {
        "labelColor": "currentColor", "titleColor": "currentColor", "domainColor": "currentColor",
        "tickColor": "currentColor", "gridColor": "currentColor", "gridOpacity": 0.12, "domainOpacity": 0.4,
        "tickOpacity": 0.4, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal",
        "labelFlush": False,
    },
    "mark": {"aria": False},  # every dot read aloud would hide what the chart's own text says
    "legend": {"labelColor": "currentColor", "titleColor": "currentColor", "labelFontSize": 12, "titleFontSize": 12},
}  # fmt: skip
"""Of all charts: text and lines have the colour of the page's text, whether it is light, dark or printed."""


def write_report_page(folders: Sequence[str | Path], out: str | Path, *, title: str = "Ensemble report") -> list[str]:
    """Write one HTML file that shows evaluated runs beside each other, and needs no network to be read.

    Args:
        folders: of runs that `forde evaluate` has evaluated; the first is the one that others are compared with.
        out: the file; replaced if it is there.

    Returns:
        Remarks: what could not be shown, and why.
    """
    try:
        import altair as _altair  # noqa: F401
        import vl_convert as _vl_convert  # noqa: F401
    except ImportError as error:
        raise FordeError(f"a report needs {error.name}; run: pip install 'forde[report]'") from None
    from jinja2 import Environment, select_autoescape

    from forde.report.page.contents import contents

    runs = read_runs(folders)
    comparisons, remarks = _compared(runs)
    page = Environment(autoescape=select_autoescape(default=True), trim_blocks=True, lstrip_blocks=True)
    html = page.from_string(_asset("report.html.j2")).render(
        title=title, runs=runs, version=__version__, config=CONFIG, remarks=remarks,
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        style=_asset("style.css"), script=_asset("script.js"),
        library=_library(),
        **contents(runs, comparisons),
    )  # fmt: skip
    content = html.encode()
    if len(content) > MOST_BYTES:
        remarks.append(f"the report has {len(content) / 1e6:.1f} MB; name fewer runs for a smaller one")
    path = Path(out)
    with explaining_writes(path.parent, "choose another place with --out"):
        make_folder(path.parent)
        write_whole(path, content)
    return remarks


@cache  # bundling takes seconds
def _library() -> str:
    """The JavaScript of Vega; "</script" in one of its strings would end the element that it stands in."""
    import vl_convert

    return str(vl_convert.javascript_bundle(SNIPPET)).replace("</script", "<\\/script")


def _compared(runs: Sequence[EvaluatedRun]) -> tuple[dict[str, Comparison], list[str]]:
    """Each run against the first, and why where that is not possible."""
    found: dict[str, Comparison] = {}
    remarks = []
    for first, run in combinations(runs, 2):
        if first is runs[0]:
            try:
                found[run.name] = compare_runs(first.folder, run.folder)
            except FordeError as error:
                remarks.append(f"{run.name} is not compared with {first.name}: {error}")
    return found, remarks


def _asset(name: str) -> str:
    return (resources.files("forde.report.page") / "assets" / name).read_text(encoding="utf-8")
