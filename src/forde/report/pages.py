"""Pages of the documentation whose numbers are filled in from result files, never by hand.

A page asks for a file of the results folder in a pair of comments; what stands between them is replaced:

    <!-- results: short/table-cifar10/table.md -->
    <!-- end of results -->
"""

from __future__ import annotations

import re
from pathlib import Path

from forde.durable import explaining_writes, write_whole
from forde.errors import FordeError

BLOCK = re.compile(r"(<!-- results: (\S+) -->\n)(.*?)(<!-- end of results -->)", re.DOTALL)


def fill_page(page: Path, out: Path) -> str:
    """Fill in a page; returns a line for people.

    A figure is copied beside the page, into `images`. A file that is not there leaves one line that says so.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise FordeError(f"'{page}' is no readable page; name a Markdown file.") from None
    asked = [found[2] for found in BLOCK.finditer(text)]
    if not asked:
        raise FordeError(f"'{page}' asks for no results; put '<!-- results: short/table-cifar10/table.md -->' and "
                         "'<!-- end of results -->' on lines of their own where they belong.")  # fmt: skip
    filled = BLOCK.sub(lambda found: f"{found[1]}{_content(found[2], page, out)}{found[4]}", text)
    with explaining_writes(page.parent, "make it writable"):
        write_whole(page, filled.encode())
    there = sum((out / name).exists() for name in asked)
    return f"'{page}': {there} of {len(asked)} tables and figures filled in"


def _content(name: str, page: Path, out: Path) -> str:
    source = out / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise FordeError(f"'{page}' asks for '{name}', but a file inside the results folder was expected.")
    if not source.is_file():
        return "\nNot run yet.\n\n"
    if source.suffix in (".png", ".svg"):
        copy = page.parent / "images" / f"results-{name.replace('/', '-')}"
        with explaining_writes(copy.parent, "make it writable"):
            copy.parent.mkdir(exist_ok=True)
            write_whole(copy, source.read_bytes())
        return f"\n![{Path(name).parent.name}](images/{copy.name})\n\n"
    return f"\n{source.read_text(encoding='utf-8').strip()}\n\n"
