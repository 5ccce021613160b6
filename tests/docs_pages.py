"""The Markdown pages of the repository, and what they show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}[^\n]*\n)+")
SHELL = {"bash", "console", "sh", "shell"}


class Block(NamedTuple):
    language: str
    code: str
    file: str | None
    """The name of the file that a block is shown as."""


def blocks(page: Path) -> list[Block]:
    """The fenced blocks in their order, without the indent that a list or a tab gives them."""
    found = []
    for indent, language, rest, code in FENCE.findall(page.read_text(encoding="utf-8")):
        file = re.search(r'title="([^"]+)"', rest)
        found.append(Block(language, re.sub(f"^{indent}", "", code, flags=re.MULTILINE), file and file[1]))
    return found


def indented_blocks(page: Path) -> list[str]:
    """What is shown by an indent alone: lines of a shell, formulas, names of files."""
    return INDENTED.findall(FENCE.sub("", page.read_text(encoding="utf-8")))


def without_blocks(page: Path) -> str:
    return INDENTED.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))


def lines_of(code: str) -> list[str]:
    """The commands of a shell's block; a line that ends with a backslash goes on."""
    lines = (line.strip().removeprefix("$ ") for line in code.replace("\\\n", " ").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def shell_lines(page: Path) -> list[str]:
    shown = [*(block.code for block in blocks(page) if block.language in SHELL), *indented_blocks(page)]
    return [line for code in shown for line in lines_of(code)]


def forde_words(line: str) -> list[str] | None:
    """The words after `forde` of a command, None for other lines."""
    found = re.match(r"(?:[A-Z_]+=\S+ +)*(?:torchrun .*-m |python -m )?forde(?= )(?! *=)(.*)", line)
    return shlex.split(re.split(r"\s[|>&;]", found[1])[0], comments=True) if found else None


def commands_in_sentences(page: Path) -> list[list[str]]:
    """The same for commands within sentences, where they may be cut short: `forde train`."""
    quoted = re.findall(r"`([^`]+)`", without_blocks(page))
    return [words for code in quoted if (words := forde_words(" ".join(code.split())))]
