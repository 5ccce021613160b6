"""Gradients of loss and repulsion for every likelihood and space: formulas written out, and finite differences."""

from __future__ import annotations

import pytest
import torch
from tasks import ROWS, TASKS, Task, normal, perceptron
from torch import Tensor, nn

import forde
from forde.engine import inspect_step
from forde.kernels import RBF
from forde.likelihoods import Custom
from forde.methods import Method
from forde.spaces import Features, InputGradients, Outputs, Space, Weights
from steps import compiled, compiled_stack, is_plain

M = 3
OWN = Task(
    Custom(
        lambda output, y: (output.squeeze(-1) - y).cosh().log(),
        scalar=lambda output, y: torch.sin(output.squeeze(-1)) + y * output.squeeze(-1),
    ),
    perceptron(1), "0", ROWS, normal(8, seed=13), lambda output, y: (output[:, 0] - y).cosh().log().mean(),
    lambda output, y: (torch.sin(output[:, 0]) + y * output[:, 0]).sum(), None,
)  # fmt: skip
"""A loss of one's own with a named scalar, neither of which is linear."""
TASKS = {**TASKS, "own loss": OWN}
SPACES = ("weights", "outputs", "probs", "features", "logit", "log_prob", "auto")
CASES = [
    (task, space)
    for task, found in TASKS.items()
    for space in SPACES
    if found.log_prob is not None or space not in ("log_prob", "probs")
]
every_case = pytest.mark.parametrize(("case", "space"), CASES)


def space_of(task: Task, name: str) -> Space:
    if name in ("logit", "log_prob", "auto"):
        return InputGradients(output=name)
    spaces = {"weights": Weights(), "outputs": Outputs(), "probs": Outputs(of="probs")}
    return spaces.get(name) or Features(layer=task.hidden)


def method_of(task: Task, name: str) -> Method:
    return Method(space=space_of(task, name), kernel=RBF(), repulsion_scale=0.5)


def ensemble_of(task: Task) -> forde.Ensemble:
    return forde.Ensemble(task.make_network, M, seed=0, likelihood=task.likelihood).double().train()


def represented(task: Task, member: nn.Module, name: str) -> Tensor:
    """z of one member by the definitions, `[S·D]`."""
    if name == "weights":
        return torch.cat([parameter.flatten() for parameter in member.parameters()])
    if name == "features":
        kept: list[Tensor] = []
        handle = member.get_submodule(task.hidden).register_forward_hook(lambda *given: kept.append(given[2]))
        member(task.x)
        handle.remove()
        return kept[0].flatten()
    if name == "outputs":
        return member(task.x).flatten()
    if name == "probs":
        output = member(task.x)
        yes_or_no = task.likelihood.name in ("binary", "multi-label")
        return (output.sigmoid() if yes_or_no else output.softmax(1)).flatten()
    x = task.x.clone().requires_grad_()
    formula = task.log_prob if name == "log_prob" or (name == "auto" and task.log_prob is not None) else task.scalar
    assert formula is not None
    (gradient,) = torch.autograd.grad(formula(member(x), task.y), x, create_graph=True)
    rows = gradient.flatten(1)
    norms = rows.norm(dim=1, keepdim=True)
    return (rows / torch.where(norms > 0, norms, 1)).flatten()


def central_difference(function, parameter: Tensor, direction: Tensor, step: float = 1e-4) -> float:
    start, values = parameter.detach().clone(), {}
    for k in (-2, -1, 1, 2):
        with torch.no_grad():
            parameter.copy_(start + k * step * direction)
        values[k] = float(function().detach())
    with torch.no_grad():
        parameter.copy_(start)
    return (values[-2] - 8 * values[-1] + 8 * values[1] - values[2]) / (12 * step)


@pytest.mark.parametrize("engine", ["eager", "vectorized"])
@every_case
def test_gradients_are_those_of_the_formulas(case: str, space: str, engine: str) -> None:
    task = TASKS[case]
    ensemble = ensemble_of(task)
    found = inspect_step(ensemble, method_of(task, space), task.x, task.y, engine=engine)
    assert found.z is not None and found.forces is not None
    generator = torch.Generator().manual_seed(1)
    repelled = 0.0
    for i, member in enumerate(ensemble.members):
        force = found.forces.cotangent[i].flatten()
        torch.testing.assert_close(found.losses[i], task.loss(member(task.x), task.y).detach())
        torch.testing.assert_close(found.z[i].flatten(), represented(task, member, space).detach())
        for name, parameter in member.named_parameters():
            direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parts = (
                (found.of_objective, lambda member=member: task.loss(member(task.x), task.y)),
                (
                    found.of_repulsion,
                    lambda member=member, force=force: (represented(task, member, space) * force).sum(),
                ),
            )
            for gradients, function in parts:
                gradient = gradients[i].get(name, torch.zeros_like(parameter))
                numeric = central_difference(function, parameter, direction)
                scale = float(gradient.norm() * direction.norm())
                assert abs(float((gradient * direction).sum()) - numeric) <= 1e-6 * scale + 1e-9, f"member {i}, {name}"
            repelled += float(found.of_repulsion[i].get(name, torch.zeros(())).square().sum())
    assert repelled > 0


def gradients_of(ensemble: forde.Ensemble, step: forde.step.Step, task: Task) -> list[Tensor]:
    for _ in range(2):  # the second one is traced
        step.update(task.x, task.y)
    assert not is_plain(step)
    found = [p.grad.clone() for group in step.runner.groups for p in group.values() if p.grad is not None]
    step.close()
    return found


@pytest.mark.parametrize("make", [compiled, compiled_stack], ids=["loop", "stack"])
@every_case
def test_traced_steps_have_the_same_gradients(case: str, space: str, make) -> None:
    """As the plain step, which the test above compares with differences."""
    task = TASKS[case]
    ensemble, twin = ensemble_of(task), ensemble_of(task)
    method = method_of(task, space)
    expected = inspect_step(ensemble, method, task.x, task.y).total
    found = gradients_of(twin, make(twin, method, fuse=False), task)
    if make is compiled:
        flat = [gradient for member in expected for gradient in member.values()]
    else:
        flat = [torch.stack([member[name] for member in expected]) for name in expected[0]]
    for one, other in zip(found, flat, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", ["segmentation", "tokens", "multi-label"])
def test_features_of_any_shape_repel_along_loss_gradients_too(case: str) -> None:
    """With the published method's projection and prior, members stacked and one by one."""
    task = TASKS[case]
    method = forde.method("feature-rde", layer=task.hidden, shared_head=False)
    eager, stacked = (
        inspect_step(ensemble_of(task), method, task.x, task.y, engine=engine) for engine in ("eager", "vectorized")
    )
    assert eager.loss_gradients is not None and eager.loss_gradients.any()
    for one, other in zip(eager.total, stacked.total, strict=True):
        for name, gradient in one.items():
            torch.testing.assert_close(other[name], gradient, rtol=1e-8, atol=1e-11)
