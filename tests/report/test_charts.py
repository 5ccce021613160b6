"""What charts write beside their lines, without a browser."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from forde.report.page.charts.corruption import severity_figure
from forde.report.page.parts import SHOWN


def test_a_flat_curve_stands_at_its_own_number() -> None:
    import vl_convert

    found = {metric: SimpleNamespace(value=0.5) for metric in SHOWN["classification"]}
    result = SimpleNamespace(
        cells={"fog": {1: found, 5: found}}, clean=found, severities_cell_average={1: found, 5: found}
    )
    run: Any = SimpleNamespace(name="a", of_rows=False, scores=SimpleNamespace(task="classification", result=result))
    drawn = vl_convert.vegalite_to_svg({**severity_figure([run]).spec, "width": 400}, vl_version="5.20")
    texts = [part.partition("<")[0] for part in drawn.split(">")]
    assert "0.5" in texts and texts.count("1") == 1  # which is the severity
