"""Run the zoo and write `docs/networks.md`: `python tests/zoo/write_table.py`, or only the rows whose names have a word
in them: `python tests/zoo/write_table.py LSTM GRU`.
"""

from __future__ import annotations

import importlib.util
import sys

import torch
from animals import ZOO
from networks_page import PAGE, cells_in, names_of, page, row
from trials import outcomes


def main(words: list[str]) -> int:
    """Write the page, and say what is wrong; 1 where something is."""
    torch.set_num_threads(1)
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    known = set(names_of(before))
    rows, faults = {}, 0
    for name, animal in ZOO.items():
        missing = animal.needs is not None and importlib.util.find_spec(animal.needs) is None
        if missing:
            print(f"{name} | needs {animal.needs}; its row stays as it was")
        if missing or (name in known and words and not any(word in name for word in words)):
            rows[name] = cells_in(before, name)
            continue
        found = outcomes(animal)
        rows[name] = row(animal, found)
        for trial, outcome in found.items():
            if outcome.fault:
                faults += 1
                print(f"{name} | {trial} | {outcome.fault}", flush=True)
    PAGE.write_text(page(rows), encoding="utf-8")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
