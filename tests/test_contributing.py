"""Every example in CONTRIBUTING.md works: it is defined, trained with, and compared with its formula."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import forde
from forde.engine import inspect_step, make_engine
from forde.kernels import RBF, InverseMultiquadric
from forde.methods import registry
from forde.rules import WGD
from forde.spaces import InputGradients, Outputs

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"
EPS = 1e-6
CLASSES = 3


def blocks() -> dict[str, str]:
    """The Python blocks by the name of the one class or function that each defines."""
    found = {}
    for code in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        defined = re.findall(r"^(?:class|def) (\w+)", code, re.MULTILINE)
        assert len(defined) == 1, defined
        found[defined[0]] = code
    return found


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Runs a block and returns what it defines; a method is registered for one test only."""
    monkeypatch.setattr(registry, "_RECIPES", dict(registry._RECIPES))

    def run(name: str) -> Any:
        space: dict[str, Any] = {"__name__": "contributed"}
        exec(blocks()[name], space)
        return space[name]

    return run


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(16, 4, generator=generator, dtype=torch.float64), torch.arange(16) % CLASSES


def ensemble_of(members: int = 3, outputs: int = CLASSES, likelihood: Any = "classification") -> forde.Ensemble:
    """Smooth and in float64, so that finite differences are exact to many digits."""
    build = lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)).double()  # noqa: E731
    return forde.Ensemble(build, members, seed=0, likelihood=likelihood)


def trained(method: forde.Method | str, engine: str, **options: Any) -> tuple[Tensor, forde.History]:
    """All weights after two steps, and the history."""
    ensemble = ensemble_of(**options)
    x, y = data() if ensemble.likelihood.name != "poisson" else (data()[0], counts())
    history = forde.fit(ensemble, method, (x, y), epochs=1, batch_size=8, engine=engine, verbose=False)
    return torch.cat([parameter.detach().flatten() for parameter in ensemble.parameters()]), history


def counts() -> Tensor:
    return (torch.arange(16) % 4).double().unsqueeze(1)


def both_engines_agree(method: forde.Method | str, **options: Any) -> forde.History:
    """Two steps of members one by one and stacked come to the same; and they move the weights."""
    (one, history), (other, _) = (trained(method, engine, **options) for engine in ("eager", "vectorized"))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    alone, _ = trained(forde.Method(), "eager", **options)
    assert not torch.allclose(one, alone, rtol=1e-9, atol=1e-11)
    return history


def pull_back_is_right(method: forde.Method) -> Any:
    """The gradient of the repulsion is that of ⟨V_i, z_i(θ_i)⟩, by finite differences along a random direction."""
    ensemble, (x, y) = ensemble_of().train(), data()
    found = inspect_step(ensemble, method, x, y)
    assert found.z is not None and found.forces is not None and bool(found.forces.cotangent.any())
    generator = torch.Generator().manual_seed(0)
    for i, member in enumerate(ensemble.members):
        start = nn.utils.parameters_to_vector(member.parameters()).detach().clone()
        direction = torch.randn(start.shape, generator=generator, dtype=start.dtype)
        ends = []
        for sign in (1, -1):
            nn.utils.vector_to_parameters(start + sign * EPS * direction, member.parameters())
            z = inspect_step(ensemble, method, x, y).z
            assert z is not None
            ends.append((found.forces.cotangent[i] * z[i]).sum())
        nn.utils.vector_to_parameters(start, member.parameters())
        numeric = (ends[0] - ends[1]) / (2 * EPS)
        zeros = {name: torch.zeros_like(parameter) for name, parameter in member.named_parameters()}
        gradients = {**zeros, **found.of_repulsion[i]}
        exact = torch.cat([gradient.flatten() for gradient in gradients.values()]) @ direction
        torch.testing.assert_close(exact, numeric, rtol=1e-5, atol=1e-9)
    return found


def cotangent_is_that_of(energy: Callable[[Tensor, Tensor], Tensor], rule: Any, kernel: Any) -> None:
    """The rule's cotangents against finite differences of `energy(live, frozen) [M]`."""
    z = torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    forces = rule(kernel, z)
    torch.testing.assert_close(forces.energy, energy(z, z))
    for i, s, d in [(0, 0, 0), (1, 1, 3), (2, 0, 2)]:
        moved = torch.zeros_like(z)
        moved[i, s, d] = EPS
        numeric = (energy(z + moved, z) - energy(z - moved, z)).sum() / (2 * EPS)
        torch.testing.assert_close(forces.cotangent[i, s, d], numeric, rtol=1e-6, atol=1e-9)


def try_method(define: Callable[[str], Any]) -> None:
    recipe = define("my_method")
    assert forde.methods()["my-method"].startswith("One line")
    built_in = forde.Method(space=InputGradients(), kernel=InverseMultiquadric(exponent=0.5), rule=WGD())
    torch.testing.assert_close(trained("my-method", "eager")[0], trained(built_in, "eager")[0])
    both_engines_agree("my-method")
    pull_back_is_right(recipe(exponent=0.7))


def try_space(define: Callable[[str], Any]) -> None:
    space = define("Probabilities")()
    built_in = forde.Method(space=Outputs(of="probs", per_sample=True))
    torch.testing.assert_close(trained(forde.Method(space=space), "eager")[0], trained(built_in, "eager")[0])
    both_engines_agree(forde.Method(space=space))
    pull_back_is_right(forde.Method(space=space))


def try_input_gradient_space(define: Callable[[str], Any]) -> None:
    """The scalar is the log-probability of the true class, so the space is that of the built-in one with it."""
    space, (x, y) = define("MarginGradients")(), data()
    method = forde.Method(space=space, kernel=RBF(metric=forde.kernels.PCA()))
    both_engines_agree(method)
    pull_back_is_right(forde.Method(space=space))
    found = inspect_step(ensemble_of().train(), forde.Method(space=space), x, y)
    same = inspect_step(ensemble_of().train(), forde.Method(space=InputGradients(output="log_prob")), x, y)
    assert found.z is not None
    torch.testing.assert_close(found.z, same.z)
    torch.testing.assert_close(found.z.square().sum(-1), torch.ones(3, 16, dtype=torch.float64))


def try_kernel(define: Callable[[str], Any]) -> None:
    kernel = define("Cauchy")(bandwidth=2.0)

    def energy(live: Tensor, frozen: Tensor) -> Tensor:
        values = [[sum(1 / (1 + (a - b).square().sum() / 2) for a, b in zip(one, other, strict=True)) / len(one)
                   for other in frozen] for one in live]  # fmt: skip
        return torch.stack([torch.stack(row).sum().log() for row in values])

    cotangent_is_that_of(energy, WGD(), kernel)
    method = forde.Method(space=Outputs(per_sample=True), kernel=kernel)
    assert both_engines_agree(method)["bandwidth"] == [2.0]
    pull_back_is_right(method)


def try_rule(define: Callable[[str], Any]) -> None:
    rule, kernel = define("Squared")(), RBF(bandwidth=3.0)

    def energy(live: Tensor, frozen: Tensor) -> Tensor:
        q = (live.unsqueeze(1) - frozen.unsqueeze(0)).square().sum(-1)
        return 0.5 * (-q / 3).exp().mean(-1).square().sum(1)

    cotangent_is_that_of(energy, rule, kernel)
    method = forde.Method(space=InputGradients(), kernel=kernel, rule=rule)
    both_engines_agree(method)
    found = pull_back_is_right(method)
    torch.testing.assert_close(found.forces.energy, rule(kernel, found.z).energy)  # neither 1/B nor 1/N


def try_prior(define: Callable[[str], Any]) -> None:
    """A step from the formula, by hand."""
    method, (x, y) = forde.Method(prior=define("Laplace")(scale=0.1)), data()
    ensemble = ensemble_of().train()
    found = inspect_step(ensemble, method, x, y)
    for member, total in zip(ensemble.members, found.total, strict=True):
        parameters = dict(member.named_parameters())
        loss = F.cross_entropy(member(x), y)
        for (name, parameter), gradient in zip(
            parameters.items(), torch.autograd.grad(loss, list(parameters.values())), strict=True
        ):
            torch.testing.assert_close(total[name], gradient + 0.1 * parameter.detach().sign())
    both_engines_agree(method)


def try_likelihood(define: Callable[[str], Any]) -> None:
    likelihood, x, y = define("Poisson")(), data()[0], counts()
    options = {"outputs": 1, "likelihood": likelihood}
    found = inspect_step(ensemble_of(**options).train(), forde.Method(prior=()), x, y)
    for member, loss, gradients in zip(ensemble_of(**options).members, found.losses, found.total, strict=True):
        expected = F.poisson_nll_loss(member(x), y)
        torch.testing.assert_close(loss, expected.detach())
        by_hand = torch.autograd.grad(expected, list(member.parameters()))
        for gradient, own in zip(by_hand, gradients.values(), strict=True):
            torch.testing.assert_close(own, gradient)
    both_engines_agree("forde-identity", **options)
    prediction = ensemble_of(**options).predict(x)
    assert bool((prediction.mean > 0).all()) and prediction.mean.shape == (16, 1)


def try_engine(define: Callable[[str], Any]) -> None:
    kind, (x, y), method = define("ClippedStep"), data(), forde.method("forde-identity")
    gradients, rates = {}, []
    for name in ("eager", "vectorized", "clipped"):
        ensemble = ensemble_of().train()
        inner = make_engine("eager" if name == "clipped" else name, ensemble, method)  # type: ignore[arg-type]
        step = kind(inner, limit=0.05) if name == "clipped" else inner
        optimizer = torch.optim.SGD(step.runner.parameters(), lr=0.1)
        reports = [step.update(x, y, optimizer, step=i) for i in range(2)]
        rates.append([report.losses.mean() for report in reports])
        step.close()
        one = ensemble_of().train()
        inner = make_engine("eager", one, method)
        step = kind(inner, limit=0.05) if name == "clipped" else inner
        step.update(x, y)
        gradients[name] = [torch.cat([p.grad.flatten() for p in group.values()]) for group in step.runner.groups]
    assert all(rate[1] < rate[0] for rate in rates)
    for clipped, plain in zip(gradients["clipped"], gradients["eager"], strict=True):
        assert float(plain.norm()) > 0.05
        torch.testing.assert_close(clipped, plain * (0.05 / plain.norm()), rtol=1e-4, atol=1e-9)


TRIALS: dict[str, Callable[[Callable[[str], Any]], None]] = {
    "my_method": try_method,
    "Probabilities": try_space,
    "MarginGradients": try_input_gradient_space,
    "Cauchy": try_kernel,
    "Squared": try_rule,
    "Laplace": try_prior,
    "Poisson": try_likelihood,
    "ClippedStep": try_engine,
}


@pytest.mark.parametrize("name", TRIALS)
def test_the_example_works(name: str, define: Callable[[str], Any]) -> None:
    TRIALS[name](define)


def test_every_example_is_tried() -> None:
    assert list(blocks()) == list(TRIALS)


def test_there_is_a_recipe_for_each_kind_of_piece() -> None:
    headings = re.findall(r"^## Add an? (\w+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == ["method", "space", "kernel", "rule", "prior", "likelihood", "engine"]


def folders() -> list[str]:
    return re.findall(r"\| `src/forde/([\w./]+)` \|", PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("folder", folders())
def test_the_table_names_folders_that_are_there(folder: str) -> None:
    assert (PAGE.parent / "src" / "forde" / folder).exists()
