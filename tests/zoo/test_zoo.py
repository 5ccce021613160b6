"""Every engine agrees with the formulas on every network of the zoo, or says in one sentence why it does not try."""

from __future__ import annotations

import pytest
from networks_table import outcomes
from zoo import ZOO


@pytest.mark.parametrize("name", ZOO)
def test_right_or_one_sentence(name: str) -> None:
    animal = ZOO[name]
    if animal.needs is not None:
        pytest.importorskip(animal.needs)
    faults = [f"{trial}: {outcome.fault}" for trial, outcome in outcomes(animal).items() if outcome.fault]
    assert not faults, "\n" + "\n".join(faults)
