"""Members compared on other data than the batch: what that is, its order, its labels, and what it leaves alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import forde
from forde.data import from_arrays
from forde.kernels import RBF
from forde.likelihoods import Classification, Custom, LearnedNoiseRegression, Likelihood, MultiLabel
from forde.likelihoods.binary import Binary
from forde.likelihoods.dense import DenseClassification
from forde.likelihoods.weighted import Weighted
from forde.rules import SVGD
from forde.spaces import InputGradients, Outputs
from forde.step import MemberLoop, Step
from forde.step.records import Forward
from steps import loop, stack

M, B, D, CLASSES = 3, 8, 5, 3
GLOBAL = RBF(bandwidth="global")
METHODS: dict[str, Callable[[], forde.Method]] = {
    "logit": lambda: forde.method("forde-identity", repulsion_scale=1.0),
    "log-probability": lambda: forde.method("forde-identity", output="log_prob", repulsion_scale=1.0),
    "outputs": lambda: forde.method("function-rde", repulsion_scale=1.0),
    "features": lambda: forde.method("feature-rde", repulsion_scale=1.0, shared_head=False),
    "svgd": lambda: forde.Method(space=InputGradients(), kernel=GLOBAL, rule=SVGD(), repulsion_scale=1.0),
}


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Y = normal(B, D), torch.arange(B) % CLASSES
OTHER = normal(B + 3, D, seed=1)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES))


def members(make: Callable[[], nn.Module] = network, **options: Any) -> forde.Ensemble:
    return forde.Ensemble(make, M, **options).double().train()


def gradients(step: Step, *, repel_on: tuple[Tensor, Tensor] | None = None, y: Tensor = Y) -> Tensor:
    step.update(X, y, repel_on=None if repel_on is None else lambda: repel_on)
    found = torch.cat([gradient.flatten() for gradient in step.runner.member_gradients().values()])
    step.close()
    return found


class TestStep:
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("make", [network, normalised])
    @pytest.mark.parametrize("run", [loop, stack])
    def test_on_the_batch_itself_it_is_the_plain_method(self, method: str, make: Any, run: Any) -> None:
        chosen = METHODS[method]()
        plain = gradients(run(members(make), chosen))
        again = gradients(run(members(make), chosen), repel_on=(X, Y))
        torch.testing.assert_close(again, plain, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("make", [network, normalised])
    @pytest.mark.parametrize("run", [loop, stack])
    def test_elsewhere_it_is_the_formula(self, make: Any, run: Any) -> None:
        """∇ loss on the batch + (∂z/∂θ)ᵀ V of directions on the other data, written out in plain torch."""
        labels = torch.arange(len(OTHER)) % CLASSES
        found = gradients(run(members(make), METHODS["logit"]()), repel_on=(OTHER, labels))
        ensemble = members(make)
        losses, z = [], []
        for member in ensemble.members:
            losses.append(F.cross_entropy(member(X), Y))
            x = OTHER.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(member(x)[torch.arange(len(x)), labels].sum(), x, create_graph=True)
            z.append(gradient / gradient.norm(dim=1, keepdim=True))
        everyone = Forward(torch.zeros(M), torch.stack([each.detach() for each in z]), None)
        forces = loop(ensemble, METHODS["logit"]()).exchange(everyone, 1.0).cotangent
        for member, loss, own, force in zip(ensemble.members, losses, z, forces, strict=True):
            decay = sum(0.5 * 5e-4 * parameter.square().sum() for parameter in member.parameters())
            (loss + (own * force).sum() + decay).backward()
        names = [name for name, _ in ensemble.members[0].named_parameters()]
        expected = [torch.stack([dict(m.named_parameters())[name].grad for m in ensemble.members]) for name in names]
        torch.testing.assert_close(found, torch.cat([e.flatten() for e in expected]), rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("run", [loop, stack])
    def test_running_statistics_follow_the_batch_alone(self, run: Any) -> None:
        plain, moved = members(normalised), members(normalised)
        gradients(run(plain, METHODS["logit"]()))
        gradients(run(moved, METHODS["logit"]()), repel_on=(100 * OTHER, torch.zeros(len(OTHER)).long()))
        for one, other in zip(plain.buffers(), moved.buffers(), strict=True):
            assert torch.equal(one, other)

    @pytest.mark.parametrize("memory", ["balanced", "low"])
    def test_passes_made_again_come_to_the_same(self, memory: Any) -> None:
        chosen, given = METHODS["logit"](), (OTHER, torch.zeros(len(OTHER)).long())
        kept = gradients(loop(members(normalised), chosen), repel_on=given)
        again = gradients(loop(members(normalised), chosen, memory=memory), repel_on=given)
        assert torch.equal(kept, again)

    def test_a_part_of_the_batch_is_left_alone(self) -> None:
        """`repulsion_fraction` says how large batches of other data are, not which part of the batch."""
        chosen = METHODS["logit"]()
        whole, part = (
            gradients(loop(members(), replace(chosen, repulsion_fraction=share)), repel_on=(X, Y)) for share in (1, 0.5)
        )
        assert torch.equal(whole, part)

    def test_it_is_not_asked_where_members_do_not_repel(self) -> None:
        step = loop(members(), forde.method("forde-identity", repulsion_every=2))
        asked: list[int] = []

        def other() -> tuple[Tensor, Tensor]:
            asked.append(1)
            return OTHER, torch.zeros(len(OTHER)).long()

        for number in range(4):
            step.update(X, Y, step=number, repel_on=other)
        assert len(asked) == 2


# Of a whole training


class Noisy(Dataset[Any]):
    """Items that draw random numbers when they are read: as inputs alone, or with labels that are not to be read."""

    def __init__(self, n: int = 20, *, labelled: bool = False) -> None:
        self.x, self.labelled = normal(n, D, seed=2).float(), labelled

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        x = self.x[index] + 0.1 * torch.randn(D) + float(np.random.rand()) + random.random()
        return (x, -1) if self.labelled else x


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, CLASSES))


DATA = normal(50, D).float(), torch.arange(50) % CLASSES


def train(repel_on: Any, *, make: Callable[[], nn.Module] = with_dropout, **options: Any) -> Tensor:
    ensemble = forde.Ensemble(make, M, **({"likelihood": options.pop("likelihood")} if "likelihood" in options else {}))
    method, data = options.pop("method", "forde-identity"), options.pop("data", DATA)
    given = {"epochs": 2, "batch_size": 8, "verbose": False, "diagnostics_every": 0, **options}
    forde.fit(ensemble, method, data, repel_on=repel_on, **given)
    return torch.cat([tensor.detach().flatten().double() for tensor in ensemble.state_dict().values()])


KINDS: dict[str, Callable[[], Any]] = {
    "tensor": OTHER.float,
    "array": lambda: OTHER.float().numpy(),
    "pair": lambda: (OTHER.float(), torch.zeros(len(OTHER))),
    "one-tuple": lambda: (OTHER.float(),),
    "data set": lambda: TensorDataset(OTHER.float()),
    "labelled data set": lambda: TensorDataset(OTHER.float(), torch.zeros(len(OTHER))),
    "loader": lambda: DataLoader(Noisy(), batch_size=5, shuffle=True),
    "labelled loader": lambda: DataLoader(Noisy(labelled=True), batch_size=5, shuffle=True),
    "table": lambda: from_arrays(OTHER.float().numpy(), np.zeros(len(OTHER), dtype=np.int64)),
}


class TestFit:
    @pytest.mark.parametrize("engine", ["eager", "vectorized"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_takes_every_kind_of_data(self, kind: str, engine: Any) -> None:
        make = network if engine == "vectorized" else with_dropout
        found, again = (train(KINDS[kind](), make=make, engine=engine) for _ in range(2))
        assert torch.equal(found, again) and not torch.equal(found, train(None, make=make, engine=engine))

    @pytest.mark.parametrize(("given", "sizes"), [("tensor", {2}), ("data set", {2}), ("loader", {5})])
    def test_batches_are_of_the_methods_share(
        self, given: str, sizes: set[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: set[int] = set()
        run = MemberLoop.run_elsewhere

        def watched(runner: Any, unit: int, batch: Any, **options: Any) -> Any:
            seen.add(len(batch.y))
            return run(runner, unit, batch, **options)

        monkeypatch.setattr(MemberLoop, "run_elsewhere", watched)
        train(KINDS[given](), method="forde", engine="eager")  # a quarter of 8
        assert seen == sizes

    def test_labels_are_not_read(self) -> None:
        assert torch.equal(train(KINDS["tensor"]()), train(KINDS["pair"]()))
        assert torch.equal(train(KINDS["loader"]()), train(KINDS["labelled loader"]()))

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_training_draws_what_it_drew_without(self, kind: str) -> None:
        """Order, dropout and augmentation: with forces of weight 0 nothing else is left of it."""
        silent = {"method": forde.method("forde-identity", repulsion_weight=0.0)}
        silent["data"] = DataLoader(TensorDataset(*DATA), batch_size=8, shuffle=True)
        assert torch.equal(train(KINDS[kind](), **silent), train(None, **silent))

    def test_stacked_members_do_as_a_loop(self) -> None:
        found = [train(OTHER, data=(X, Y), make=lambda: network().double(), engine=e) for e in ("eager", "vectorized")]
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize(
        ("given", "message"),
        [(OTHER + 1, "other data to repel on"), (None, 'training.repel_on = "other data"')],
        ids=["other", "none"],
    )
    def test_is_resumed_with_the_same_only(self, given: Any, message: str, tmp_path: Path) -> None:
        train(OTHER, run=tmp_path / "run", epochs=1)
        with pytest.raises(forde.FordeError, match=message):
            train(given, run=tmp_path / "run", epochs=1, resume=True)

    def test_a_frozen_backbone_sees_it_too(self) -> None:
        backbone = nn.Linear(D, 4)
        ensemble = forde.Ensemble(lambda: nn.Linear(4, CLASSES), M, backbone=backbone)
        history = forde.fit(
            ensemble, "function-rde", DATA, repel_on=OTHER.float(), epochs=1, batch_size=8, verbose=False
        )
        assert history.records[0]["repulsion"] != 0

    def test_inputs_by_name_are_compared_too(self) -> None:
        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(D, CLASSES)

            def forward(self, a: Tensor, b: Tensor) -> Tensor:
                return self.layer(torch.tanh(a) * b)

        data = {"a": DATA[0], "b": DATA[0] + 1, "labels": DATA[1]}
        other = {"a": OTHER.float(), "b": OTHER.float()}
        assert not torch.equal(train(other, make=Two, data=data), train(None, make=Two, data=data))
        with pytest.raises(forde.FordeError, match=r"repel_on have shape 'a' \[N, 5\], but those of the training"):
            train({"a": OTHER.float()}, make=Two, data=data)


LIKELIHOODS: dict[str, tuple[Likelihood, tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "classification": (Classification(), (CLASSES,), lambda f: f.softmax(-1).mean(0).argmax(-1)),
    "binary": (Binary(), (), lambda f: (f.sigmoid().mean(0) > 0.5).long()),
    "multi-label": (MultiLabel(), (4,), lambda f: f.sigmoid().mean(0) > 0.5),
    "segmentation": (DenseClassification(), (CLASSES, 2, 2), lambda f: f.softmax(2).mean(0).argmax(1)),
    "regression": (LearnedNoiseRegression(), (4,), lambda f: f[..., :2].mean(0)),
    "own, of classes": (
        Custom(F.cross_entropy, prediction="classification"), (CLASSES,), lambda f: f.softmax(-1).mean(0).argmax(-1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_labels_are_those_of_the_mean_prediction(name: str) -> None:
    likelihood, shape, expected = LIKELIHOODS[name]
    outputs = normal(M, B, *shape)
    found = likelihood.most_probable(outputs)
    wanted = expected(outputs)
    torch.testing.assert_close(found.to(wanted.dtype), wanted)
    assert likelihood.scalar(outputs[0], found).shape == (B,)


def test_labels_of_weighted_rows_weigh_one() -> None:
    likelihood, _ = Weighted.pack(Classification(), Y, torch.ones(B, M))
    outputs = normal(M, B, CLASSES)
    inner, labels, weights = likelihood.unpack(likelihood.most_probable(outputs), slice(0, M))
    assert torch.equal(labels, inner.most_probable(outputs)) and torch.equal(weights, torch.ones(M, B).double())


def own_loss(output: Tensor, y: Tensor) -> Tensor:
    return (output.squeeze(-1) - y).abs()


def test_an_own_loss_without_labels_can_repel_by_outputs() -> None:
    data = DATA[0], DATA[1].float()
    options: dict[str, Any] = {"make": lambda: nn.Linear(D, 1), "data": data, "likelihood": own_loss}
    repelled = train(OTHER, method="function-rde", **options)
    assert not torch.equal(repelled, train(None, method="function-rde", **options))
    scalar = Custom(own_loss, scalar=lambda output, y: output.squeeze(-1))
    with pytest.raises(forde.FordeError, match="cannot be labelled by the members' mean prediction"):
        train(OTHER, **{**options, "likelihood": scalar})


REFUSED = {
    "no repulsion": ({"method": "deep-ensemble"}, OTHER, "those of deep-ensemble do not"),
    "weights": ({"method": "weight-rde"}, OTHER, "weight-rde compares members by their weights"),
    "shared losses": (
        {"method": forde.Method(space=Outputs(), kernel=GLOBAL, rule=SVGD())},
        OTHER,
        "SVGD in Outputs space shares the gradients",
    ),
    "compiled": ({"engine": "compiled"}, OTHER, "engine='compiled' knows no other data than the batch"),
    "in parts": ({"accumulate": 2}, OTHER, "accumulate knows no other data than the batch"),
    "another shape": ({}, OTHER[:, :3], r"repel_on have shape \[N, 3\], but those of the training data \[N, 5\]"),
    "by name": ({}, {"x": OTHER}, "repel_on have shape 'x'"),
    "nothing": ({}, OTHER[:0], "of the data of repel_on: the data is empty"),
    "an empty data set": ({}, TensorDataset(OTHER[:0]), "of the data of repel_on: the data is empty"),
    "not finite": ({}, OTHER / 0, "of the data of repel_on: the inputs hold NaN or infinite"),
    "a number": ({}, 0.2, "of the data of repel_on: it is a single number, but inputs were expected"),
    "strings": ({}, ["a", "b"], "of the data of repel_on: the inputs have type"),
    "no batch": (
        {}, DataLoader(TensorDataset(OTHER), batch_size=20, drop_last=True), "data of repel_on is empty"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_sentence(name: str) -> None:
    options, given, message = REFUSED[name]
    with pytest.raises(forde.FordeError, match=message) as raised:
        train(given, **options)
    assert str(raised.value).count(". ") == 0
