"""Every engine agrees with the formulas on every network of the zoo, or says in one sentence why it does not try."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import independent_step
import pytest
import torch
from animals import ZOO
from independent_step import Recipe, independent_steps
from networks_page import PAGE, TORCH, line, names_of, row, sentences_of
from torch import Tensor, nn
from trials import differences, outcomes


@pytest.fixture(autouse=True)
def no_records_of_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch describes every traced tensor in a record that pytest would keep."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)


@pytest.mark.parametrize("name", ZOO)
def test_right_or_one_sentence(name: str) -> None:
    animal = ZOO[name]
    if animal.needs is not None:
        pytest.importorskip(animal.needs)
    found = outcomes(animal)
    faults = [f"{trial}: {outcome.fault}" for trial, outcome in found.items() if outcome.fault]
    assert not faults, "\n" + "\n".join(faults)
    text = PAGE.read_text(encoding="utf-8")
    if f"torch {TORCH}." in text:
        assert line(animal, row(animal, found), sentences_of(text)) in text.splitlines(), "run tests/zoo/write_table.py"


def test_the_page_has_every_network() -> None:
    assert names_of(PAGE.read_text(encoding="utf-8")) == list(ZOO)


class TestIndependentStep:
    """That the step itself is what it says, by properties that need no other code."""

    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.tensor([0, 1, 1, 0])

    def members(self, n: int, *, equal: bool = False) -> list[nn.Module]:
        found = []
        for i in range(n):
            torch.manual_seed(0 if equal else i)
            found.append(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double())
        return found

    def gradients(self, members: list[nn.Module], recipe: Recipe) -> Tensor:
        moment = self.x.T @ self.x / 3
        (step,) = independent_steps(members, recipe, [(self.x, self.y)], data_size=20, lr=0.1, second_moment=moment)
        return torch.stack([torch.cat([g.flatten() for g in member.values()]) for member in step.moved])

    def test_it_imports_nothing_of_the_library(self) -> None:
        tree = ast.parse(Path(independent_step.__file__).read_text(encoding="utf-8"))
        names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert names and not any(name.startswith("forde") for name in names)

    @pytest.mark.parametrize("method", ["weight-rde", "function-rde", "forde"])
    def test_equal_members_do_not_repel(self, method: str) -> None:
        cauchy = {"cauchy": 0.0}
        found = self.gradients(self.members(3, equal=True), Recipe(method, **cauchy))  # type: ignore[arg-type]
        alone = self.gradients(self.members(1, equal=True), Recipe("deep-ensemble"))
        torch.testing.assert_close(found, alone.expand_as(found), rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("recipe", [Recipe("forde"), Recipe("forde", pca=True), Recipe("forde", output="log_prob")])
    def test_repulsion_by_the_closed_form(self, recipe: Recipe) -> None:
        """∂(B·R_i)/∂s̃_ib = −Σ_j w_ijb · 2(s̃_ib − s̃_jb)/h_jb, w_i the softmax over (j, b) of −d/h."""
        members, M, B = self.members(3), 3, 4
        root = torch.linalg.cholesky(self.x.T @ self.x / 3) if recipe.pca else torch.eye(3, dtype=torch.float64)
        graphs, unit = [], []
        for member in members:
            x = self.x.clone().requires_grad_()
            output = member(x)
            output = output if recipe.output == "logit" else output.log_softmax(-1)
            (J,) = torch.autograd.grad(output[range(B), self.y].sum(), x, create_graph=True)
            graphs.append(J / J.norm(dim=-1, keepdim=True) @ root)
            unit.append(graphs[-1].detach())
        s = torch.stack(unit)
        d = (s[:, None] - s[None]).square().sum(-1)  # [i, j, b]
        h = d.median(0).values / torch.log(torch.tensor(3.0, dtype=torch.float64)) + 1e-12  # M odd: the middle one
        w = (-d / h).flatten(1).softmax(1).view(M, M, B)
        cotangent = -(w / h).unsqueeze(-1).mul(2 * (s[:, None] - s[None])).sum(1) / B
        found = self.gradients(self.members(3), recipe) - self.gradients(self.members(3), Recipe("deep-ensemble"))
        for i, member in enumerate(members):
            parts = torch.autograd.grad(graphs[i], list(member.parameters()), cotangent[i], allow_unused=True)
            flat = [torch.zeros_like(p) if g is None else g for g, p in zip(parts, member.parameters(), strict=True)]
            torch.testing.assert_close(found[i], torch.cat([g.flatten() for g in flat]), rtol=1e-8, atol=1e-11)

    def test_a_difference_is_noticed(self) -> None:
        steps = independent_steps(self.members(2), Recipe("forde"), [(self.x, self.y)], data_size=20, lr=0.1)
        other = independent_steps(self.members(2), Recipe("forde"), [(self.x, self.y)], data_size=20, lr=0.1)
        assert not differences(steps, other, 1e-8)
        other[0].moved[1]["0.bias"][0] *= 1 + 1e-6
        assert differences(steps, other, 1e-8)
