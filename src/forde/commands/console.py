"""Where commands print to: text appears as it is, so that a path like `runs/[b]` or `:a:` can be copied."""

from __future__ import annotations

from typing import Any

from rich.console import Console

PLAIN_WIDTH = 160
"""Columns where the output is no terminal and so has no width of its own."""


def plain_console(**options: Any) -> Console:
    """A console that takes nothing in a text for markup or an emoji; `rich.text.Text` carries styles instead.

    Without a terminal it is wide, so that a line of a table stays a line for `grep`.

    >>> plain_console(soft_wrap=True).print("wrote runs/[b]/:smile:")
    wrote runs/[b]/:smile:
    """
    console = Console(markup=False, emoji=False, **options)
    if not console.is_terminal:
        console.width = max(PLAIN_WIDTH, console.width)
    return console
