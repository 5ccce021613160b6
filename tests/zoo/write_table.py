"""Run the zoo and write `docs/networks.md`: `python tests/zoo/write_table.py`."""

from __future__ import annotations

import importlib.util
import sys

import torch
from animals import ZOO
from networks_page import PAGE, cells_in, page, row
from trials import outcomes


def main() -> int:
    """Write the page, and say what is wrong; 1 where something is."""
    torch.set_num_threads(1)
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    rows, faults = {}, 0
    for name, animal in ZOO.items():
        if animal.needs is not None and importlib.util.find_spec(animal.needs) is None:
            print(f"{name} | needs {animal.needs}; its row stays as it was")
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
    sys.exit(main())
