"""Schedules, named parameters and clipping, against torch's own loop written by hand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.data import DataLoader, IterableDataset

import forde
from forde.engine import make_engine
from forde.training.clipping import clip_before_each_step

EPOCHS, STEPS, BATCH = 3, 4, 8


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def data(n: int = STEPS * BATCH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=generator), torch.randint(3, (n,), generator=generator)


class Rates:
    """An optimizer that notes the learning rates of each of its steps."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def __call__(self, parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        optimizer.register_step_pre_hook(lambda o, *_: self.seen.append([g["lr"] for g in o.param_groups]))
        return optimizer

    @property
    def first(self) -> list[float]:
        return [rates[0] for rates in self.seen]


def train(ensemble: forde.Ensemble | None = None, given: Any = None, **options: Any) -> forde.History:
    ensemble = forde.Ensemble(network, 2) if ensemble is None else ensemble
    options = {"epochs": EPOCHS, "batch_size": BATCH, "verbose": False, "diagnostics_every": 0, **options}
    return forde.fit(ensemble, options.pop("method", "deep-ensemble"), data() if given is None else given, **options)


def by_hand(make: Callable[[torch.optim.Optimizer], LRScheduler], *, steps: int, per: int) -> list[float]:
    """Learning rates of so many steps under torch's scheduler, stepped after each `per` of them."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
    scheduler, rates = make(optimizer), []
    for step in range(1, steps + 1):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        if step % per == 0:
            scheduler.step()
    return rates


def warm_up(optimizer: torch.optim.Optimizer, total_steps: int) -> LRScheduler:
    first = LinearLR(optimizer, 0.1, total_iters=3)
    return SequentialLR(optimizer, [first, CosineAnnealingLR(optimizer, total_steps - 3)], [3])


class TestSchedules:
    @pytest.mark.parametrize("engine", ["eager", "vectorized"])
    @pytest.mark.parametrize(
        "make",
        [
            lambda o, n: OneCycleLR(o, 0.3, total_steps=n),
            CosineAnnealingLR,
            warm_up,
        ],
        ids=["one cycle", "cosine", "warm-up"],
    )
    @pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")  # torch 2.6 warns of itself
    def test_two_arguments_mean_steps(self, make: Any, engine: str) -> None:
        rates, total = Rates(), EPOCHS * STEPS
        train(optimizer=rates, scheduler=make, engine=engine)
        assert rates.first == pytest.approx(by_hand(lambda o: make(o, total), steps=total, per=1))

    def test_two_arguments_and_epochs(self) -> None:
        rates = Rates()
        train(optimizer=rates, scheduler=CosineAnnealingLR, scheduler_every="epoch")
        expected = by_hand(lambda o: CosineAnnealingLR(o, EPOCHS), steps=EPOCHS * STEPS, per=STEPS)
        assert rates.first == pytest.approx(expected)

    @pytest.mark.parametrize(("every", "per"), [(None, STEPS), ("epoch", STEPS), ("step", 1)])
    def test_one_argument(self, every: Any, per: int) -> None:
        rates = Rates()
        train(optimizer=rates, scheduler=lambda o: StepLR(o, 1, 0.5), scheduler_every=every)
        assert rates.first == pytest.approx(by_hand(lambda o: StepLR(o, 1, 0.5), steps=EPOCHS * STEPS, per=per))

    @pytest.mark.parametrize(("made_for", "per"), [(EPOCHS, STEPS), (EPOCHS * STEPS, 1)])
    def test_one_cycle_is_stepped_as_often_as_it_was_made_for(
        self, made_for: int, per: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        rates = Rates()
        with caplog.at_level(logging.INFO, "forde"):
            train(optimizer=rates, scheduler=lambda o: OneCycleLR(o, 0.3, made_for))
        said = [line for line in caplog.messages if "OneCycleLR is stepped after each step (12 of them)" in line]
        assert len(said) == (per == 1)
        assert rates.first == pytest.approx(
            by_hand(lambda o: OneCycleLR(o, 0.3, made_for), steps=EPOCHS * STEPS, per=per)
        )

    @pytest.mark.parametrize(("monitor", "mode"), [("nll", "min"), ("accuracy", "max")])
    def test_plateau_follows_the_validation_value(self, monitor: str, mode: Any) -> None:
        """Against torch's own, told the recorded values."""
        rates = Rates()
        history = train(
            optimizer=rates, scheduler=lambda o: ReduceLROnPlateau(o, mode, patience=0, factor=0.5), epochs=6,
            validation=data(30), monitor=monitor, batch_size=STEPS * BATCH,
        )  # fmt: skip
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        scheduler, expected = ReduceLROnPlateau(optimizer, mode, patience=0, factor=0.5), []
        for value in history[f"validation_{monitor}"]:
            expected.append(optimizer.param_groups[0]["lr"])
            scheduler.step(value)
        assert rates.first == expected and expected[-1] < 0.1

    def test_steps_that_are_skipped_count(self) -> None:
        """So that a schedule made for the run's steps ends with it."""
        rates = Rates()
        train(
            forde.Ensemble(network, 2, likelihood=FirstIsBad()), optimizer=rates, engine="eager",
            scheduler=lambda o, n: StepLR(o, 1, 0.9), non_finite="skip",
        )  # fmt: skip
        assert rates.first == pytest.approx([0.1 * 0.9**step for step in range(1, EPOCHS * STEPS)])


class FirstIsBad(forde.likelihoods.Classification):
    """Of the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return super().loss(output, y) * (float("nan") if self.calls <= 2 else 1.0)


def head_faster(named_parameters: list[tuple[str, Tensor]]) -> torch.optim.Optimizer:
    head = [p for name, p in named_parameters if name.startswith("2.")]
    body = [p for name, p in named_parameters if not name.startswith("2.")]
    return torch.optim.SGD([{"params": body, "lr": 0.01}, {"params": head, "lr": 0.1}], lr=1.0)


class TestNamedParameters:
    @pytest.mark.parametrize("engine", ["eager", "vectorized"])
    def test_body_and_head_have_rates_of_their_own(self, engine: Any) -> None:
        """One step moves each by its rate times its gradient, whether members are looped over or stacked."""
        x, y = data(BATCH)
        ensemble, other = (forde.Ensemble(network, 2, seed=1) for _ in range(2))
        method = forde.method("deep-ensemble", prior=())
        before = {name: t.clone() for name, t in ensemble.member_tensors().items()}
        train(ensemble, (x, y), optimizer=head_faster, epochs=1, engine=engine, method=method)
        for member in other.members:
            nn.functional.cross_entropy(member(x), y).backward()
        gradients = {f"{i}.{n}": p.grad for i, m in enumerate(other.members) for n, p in m.named_parameters()}
        after = ensemble.member_tensors()
        assert len(gradients) == 8
        for name, gradient in gradients.items():
            full = next(key for key in after if key.endswith(name))
            rate = 0.1 if name[2:].startswith("2.") else 0.01
            assert gradient is not None
            torch.testing.assert_close(after[full], before[full] - rate * gradient, rtol=1e-5, atol=1e-6)

    def test_pairs_as_torch_takes_them(self) -> None:
        """`SGD(named_parameters)` is allowed by torch itself."""
        history = train(optimizer=lambda named_parameters: torch.optim.SGD(list(named_parameters), lr=0.1))
        assert len(history) == EPOCHS


def gradients_of(ensemble: forde.Ensemble) -> list[list[Tensor]]:
    return [[p.grad for p in member.parameters() if p.grad is not None] for member in ensemble.members]


class TestClipping:
    @pytest.mark.parametrize(
        ("engine", "name"),
        [(e, n) for e in ("eager", "vectorized") for n in ("deep-ensemble", "forde-identity", "weight-rde")]
        + [("compiled", "forde-identity")],
    )
    def test_each_member_is_clipped_by_itself_after_priors_and_repulsion(self, engine: Any, name: str) -> None:
        """Against torch's clipping of the gradients that a step without it leaves."""
        (x, y), limit = data(BATCH), 0.5
        method = forde.method(name, repulsion_weight=30.0) if name != "deep-ensemble" else forde.method(name)
        ensemble, other = (forde.Ensemble(network, 3, seed=1).train().double() for _ in range(2))
        for each in (ensemble, other):
            with torch.no_grad():  # one member's gradient is far longer, and one's is shorter than the limit
                each.members[0][0].weight.mul_(8)
                each.members[2][2].weight.mul_(1e-3)
        plain = make_engine("eager", other, method)
        plain.update(x.double(), y)
        expected, lengths = gradients_of(other), []
        for parameters, member in zip(expected, other.members, strict=True):
            lengths.append(float(clip_grad_norm_(member.parameters(), limit)))
            assert len(parameters) == 4
        assert max(lengths) > limit
        step = make_engine(engine, ensemble, method, example=(x.double(), y), fuse=False)
        optimizer = torch.optim.SGD(step.runner.parameters(), lr=1.0)
        clip_before_each_step(optimizer, step.runner, limit)
        before = [[p.detach().clone() for p in member.parameters()] for member in ensemble.members]
        step.update(x.double(), y, optimizer)
        for old, member, gradients in zip(before, ensemble.members, expected, strict=True):
            moved = [a - b.detach() for a, b in zip(old, member.parameters(), strict=True)]
            for found, gradient in zip(moved, gradients, strict=True):
                torch.testing.assert_close(found, gradient, rtol=1e-5, atol=1e-7)
        step.close()

    def test_members_do_not_share_a_limit(self) -> None:
        """A member of short gradients moves as without clipping, however long the others' are."""
        ensemble, other = (forde.Ensemble(network, 2, seed=1) for _ in range(2))
        for each in (ensemble, other):
            with torch.no_grad():
                each.members[0][2].weight.mul_(100)
        options: dict[str, Any] = {"engine": "vectorized", "epochs": 1, "optimizer": lambda p: torch.optim.SGD(p, 0.1)}
        train(ensemble, clip_norm=3.0, **options)
        train(other, **options)
        same = [
            all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
            for one, two in zip(ensemble.members, other.members, strict=True)
        ]
        assert same == [False, True]

    def test_sparse_gradients(self) -> None:
        def embedding() -> nn.Module:
            return nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3))

        given = torch.randint(10, (16, 2)), torch.arange(16) % 3
        ensemble = forde.Ensemble(embedding, 2)
        before = [p.detach().clone() for p in ensemble.members[0].parameters()]
        train(
            ensemble, given, clip_norm=1e-3, method=forde.method("deep-ensemble", prior=()), epochs=1, batch_size=16,
            optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
        )  # fmt: skip
        moved = [(a - b.detach()).norm() for a, b in zip(before, ensemble.members[0].parameters(), strict=True)]
        assert float(torch.stack(moved).norm()) == pytest.approx(1e-3, rel=1e-2)


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(*data(16), strict=True)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "plateau without validation": (
        {"scheduler": ReduceLROnPlateau},
        "ReduceLROnPlateau follows a value on validation data, and there is none; pass validation=0.2",
    ),
    "plateau per step": (
        {"scheduler": ReduceLROnPlateau, "scheduler_every": "step", "validation": 0.25},
        "follows validation_nll, which is there after each epoch only",
    ),
    "plateau the wrong way": (
        {"scheduler": ReduceLROnPlateau, "validation": 0.25, "monitor": "accuracy"},
        "mode='min', but of validation_accuracy more is better; give it mode='max'",
    ),
    "one cycle of another length": (
        {"scheduler": lambda o: OneCycleLR(o, 0.1, total_steps=7)},
        "made for 7 steps, but the run has 3 epochs and 12 steps",
    ),
    "one cycle too short": (
        {"scheduler": lambda o: OneCycleLR(o, 0.1, total_steps=7), "scheduler_every": "step"}, "made for 7 steps",
    ),
    "a scheduler of nothing": ({"scheduler": lambda: None}, r"scheduler is a function of \(nothing\)"),
    "a scheduler of three": (
        {"scheduler": lambda o, a, b: None}, r"of \(o, a, b\), but one of \(optimizer\) or \(optimizer, total_steps\)",
    ),
    "a class of two": ({"scheduler": StepLR}, r"of \(optimizer, step_size\), but one of"),
    "no scheduler": ({"scheduler": lambda o: None}, "returned a NoneType, but a scheduler"),
    "another optimizer's": (
        {"scheduler": lambda o: StepLR(torch.optim.SGD([torch.zeros(1)], lr=0.1), 1)}, "is for another optimizer",
    ),
    "an unknown period": ({"scheduler_every": "batch"}, "unknown scheduler_every 'batch'"),
    "a period of the default": ({"scheduler_every": "step"}, "the default one falls epoch by epoch"),
    "a period of nothing": (
        {"scheduler_every": "step", "optimizer": lambda p: torch.optim.SGD(p, 0.1)}, "and there is none",
    ),
    "an optimizer of two": ({"optimizer": lambda p, lr: None}, r"optimizer is a function of \(p, lr\), but one of"),
    "a dict of names": (
        {"optimizer": lambda named_parameters: torch.optim.SGD(dict(named_parameters).values(), 0.1),
         "engine": "eager"},
        "holds '0.weight' of 1 members out of 2; a name comes once for each member",
    ),
    "no limit": ({"clip_norm": 0.0}, "clip_norm is 0, so nothing would move"),
    "a negative limit": ({"clip_norm": -1}, "clip_norm is -1, but 0 or a positive number"),
    "a limit in words": ({"clip_norm": "1"}, "clip_norm is '1', but"),
    "a group and a shorthand": (
        {"optimization": forde.Optimization(), "clip_norm": 1.0}, r"as Optimization\(clip_norm=1.0\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_said_in_a_sentence(case: str) -> None:
    options, message = BAD[case]
    with pytest.raises(forde.FordeError, match=message) as raised:
        train(**options)
    assert str(raised.value).count("\n") == 0


def test_a_loader_without_a_length_has_no_number_of_steps() -> None:
    class Sized(Endless):
        pass

    loader = DataLoader(Sized(), batch_size=8)
    with pytest.raises(forde.FordeError, match="which nobody knows for a loader without a length"):
        train(given=loader, scheduler=CosineAnnealingLR)
