"""`docs/networks.md`: a row for each animal, sentences numbered below the table."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from animals import PART, ZOO, Animal
from trials import DRAWN, ENGINES, EXACT, PLAIN, Outcome, Trial

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"
HEADINGS = ["network", "method", "eager", "vectorized", "compiled", "memory low", "part of the batch"]
TORCH = ".".join(torch.__version__.split(".")[:2])
"""Other versions of torch can stack and trace other operations."""
ABOUT = f"""# Networks

What each engine makes of {len(ZOO)} networks. `tests/zoo/` trains each for two steps with the method beside it, and
compares losses, gradients and buffers with a step written from the formulas in plain PyTorch, in float64.
`python tests/zoo/write_table.py` writes this page, and the tests compare it with what they find.

- **{EXACT}**: every tensor of every member agrees to 1e-8 of its size (1e-4 where a network computes in float32).
- **{PLAIN}**: the same. Its steps could not be traced, so the plain ones are made, and the log says why.
- **{DRAWN}**: members draw random numbers in another order than a loop would; losses and gradients have the
  same means over many draws. Where the numbers are known the step is exact (*dropout with a mask that is known*).
- **(1)**: this sentence, below the table, is raised instead, and nothing is computed.

`engine="auto"` is exact wherever `"eager"` is. *Memory low* is of the eager and the compiled engine: `"vectorized"`
refuses it. *Part of the batch* is `repulsion_fraction={PART}`, tried where the cell is filled. Made with torch {TORCH}.
Models of Hugging Face are tried where `transformers` is installed.

"""

Cell = dict[str, str]
"""What each engine came to."""


def row(animal: Animal, found: dict[Trial, Outcome]) -> list[Cell]:
    """Cells from the third column on."""

    def cell(memory: str, engines: tuple[str, ...], *, part: bool) -> Cell:
        return {engine: found[Trial(engine, memory, part)].cell for engine in engines}

    whole = [cell("speed", (engine,), part=False) for engine in ENGINES]
    low = cell("low", ("eager", "compiled"), part=False)
    return [*whole, low, cell("speed", ENGINES, part=True) if animal.part else {}]


def line(animal: Animal, cells: list[Cell], sentences: list[str]) -> str:
    """A line of the table. Sentences that are not in the list yet are added to it."""

    def short(text: str) -> str:
        if text in (EXACT, PLAIN, DRAWN) or not text.endswith("."):
            return text
        if text not in sentences:
            sentences.append(text)
        return f"({sentences.index(text) + 1})"

    def written(cell: Cell) -> str:
        texts = {engine: short(text) for engine, text in cell.items()}
        if len(set(texts.values())) <= 1:
            return next(iter(texts.values()), "")
        return "; ".join(f"{engine}: {text}" for engine, text in texts.items())

    return f"| {' | '.join([animal.name, animal.method, *map(written, cells)])} |"


def page(rows: dict[str, list[Cell]]) -> str:
    """The whole page."""
    sentences: list[str] = []
    lines = [line(ZOO[name], cells, sentences) for name, cells in rows.items()]
    table = "\n".join([f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|", *lines])
    said = "\n".join(f"{number}. {text}" for number, text in enumerate(sentences, start=1))
    return f"{ABOUT}{table}\n\n{said}\n"


def sentences_of(text: str) -> list[str]:
    """The numbered sentences of a page."""
    return re.findall(r"^\d+\. (.*)$", text, re.MULTILINE)


def names_of(text: str) -> list[str]:
    """The networks of a page, in order."""
    return re.findall(r"^\| (.*?) \|", text, re.MULTILINE)[1:]


def cells_in(text: str, name: str) -> list[Cell]:
    """A network's cells on a page, for one that cannot be built here."""
    sentences = sentences_of(text)

    def full(short: str) -> str:
        return sentences[int(short[1:-1]) - 1] if re.fullmatch(r"\(\d+\)", short) else short

    def read(cell: str) -> Cell:
        by_engine = re.findall(r"(eager|vectorized|compiled): (.*?)(?:; |$)", cell)
        return {engine: full(short) for engine, short in by_engine or [("eager", cell)] if short}

    (found,) = (each for each in text.splitlines() if each.startswith(f"| {name} |"))
    return [read(cell.strip()) for cell in found.strip("|").split("|")[2:]]
