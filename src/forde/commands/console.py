"""Where commands print to: text appears as it is, so that a path like `runs/[b]` or `:a:` can be copied."""

from __future__ import annotations

from typing import Any

from rich.console import Console


def plain_console(**options: Any) -> Console:
    """A console that takes nothing in a text for markup or an emoji; `rich.text.Text` carries styles instead.

    >>> plain_console(soft_wrap=True).print("wrote runs/[b]/:smile:")
    wrote runs/[b]/:smile:
    """
    return Console(markup=False, emoji=False, **options)
