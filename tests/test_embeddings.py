"""Tokens are compared at the output of the embedding layer: by definition, by finite differences, without padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import forde
from forde.arguments import Arguments
from forde.engine import inspect_step
from forde.kernels import PCA, RBF
from forde.likelihoods import (
    Binary,
    Classification,
    Custom,
    DenseClassification,
    LearnedNoiseRegression,
    Likelihood,
    MultiLabel,
    Regression,
)
from forde.methods import Method
from forde.spaces import InputGradients

PAD, WORDS, B, T = 0, 12, 6, 5


def tokens(*, padded: bool = True) -> Tensor:
    """`[6, 5]`, the last ones of a row padding."""
    found = torch.randint(1, WORDS, (B, T), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([5, 3, 4, 1, 5, 2])
    return torch.where(torch.arange(T) < lengths[:, None], found, PAD) if padded else found


Y = torch.tensor([0, 1, 2, 0, 1, 2])


class Text(nn.Module):
    """Attends to the words that the mask leaves; without a mask, to all that are not padding."""

    def __init__(self, padding_idx: int | None = PAD) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 4, padding_idx=padding_idx), nn.Embedding(16, 4)
        self.score, self.head = nn.Linear(4, 1), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        mask = input_ids != PAD if attention_mask is None else attention_mask != 0
        e = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        weights = self.score(torch.tanh(e)).squeeze(-1).masked_fill(~mask, -1e9).softmax(-1)
        return {"logits": self.head(torch.tanh((weights.unsqueeze(-1) * torch.tanh(e)).sum(1)))}


class AfterEmbedding(Text):
    """Every position counts for the output, padding too."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": self.head(torch.tanh(self.words(input_ids)).mean(1))}


class Tagger(Text):
    """A class for each word, which depends on the others too: `[B, C, T]`."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        e = self.words(input_ids)
        return {"logits": self.head(torch.tanh(e * e.mean(1, keepdim=True))).movedim(-1, 1)}


def method(**options: Any) -> Method:
    return Method(space=InputGradients(of="embeddings", **options), kernel=RBF(), repulsion_scale=0.5)


def ensemble(make: Callable[[], nn.Module] = Text) -> forde.Ensemble:
    return forde.Ensemble(make, 3, seed=0).double().train()


def true_class(logits: Tensor) -> Tensor:
    return logits.gather(1, Y[:, None]).sum()


def represented(member: nn.Module, x: Tensor, counts: Tensor | None, scalar: Callable[[Tensor], Tensor]) -> Tensor:
    """z `[B, T·E]` of a member of class `Text` by the definition: the embedding's rows as leaves of their own."""
    kept: list[Tensor] = []
    handle = member.words.register_forward_hook(lambda *given: kept.append(given[2]))
    logits = member(x)["logits"]
    handle.remove()
    (gradient,) = torch.autograd.grad(scalar(logits), kept[0], create_graph=True)
    if counts is not None:
        gradient = gradient * counts.unsqueeze(-1)
    rows = gradient.flatten(1)
    return rows / (rows.square().sum(1, keepdim=True) + 1e-24).sqrt()


def check(members: forde.Ensemble, given: Tensor | Arguments, x: Tensor, y: Tensor, scalar: Any) -> None:
    """z against the definition, and the repulsion's gradients against central differences in float64."""
    found = inspect_step(members, method(), given, y)
    assert found.z is not None and found.forces is not None and found.z.shape == (3, B, T * 4)
    moved = 0.0
    generator = torch.Generator().manual_seed(1)
    for i, member in enumerate(members.members):
        force = found.forces.cotangent[i]
        torch.testing.assert_close(found.z[i], represented(member, x, x != PAD, scalar).detach())
        for name, parameter in member.named_parameters():
            direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            start, values = parameter.detach().clone(), {}
            for k in (-2, -1, 1, 2):
                with torch.no_grad():
                    parameter.copy_(start + 1e-4 * k * direction)
                values[k] = float((represented(member, x, x != PAD, scalar) * force).sum().detach())
            with torch.no_grad():
                parameter.copy_(start)
            if name == "words.weight":  # torch gives the row of padding no gradient
                continue
            numeric = (values[-2] - 8 * values[-1] + 8 * values[1] - values[2]) / 12e-4
            gradient = found.of_repulsion[i].get(name, torch.zeros_like(parameter))
            scale = float(gradient.norm() * direction.norm())
            assert abs(float((gradient * direction).sum()) - numeric) <= 1e-6 * scale + 1e-9, name
            moved += float(gradient.abs().sum())
        assert found.of_repulsion[i]["words.weight"][1:].any()
    assert moved > 0


@pytest.mark.parametrize("given", ["tokens", "dict"])
def test_z_and_its_gradients_are_those_of_the_definition(given: str) -> None:
    """As one tensor of tokens and in a dict."""
    x = tokens()
    check(ensemble(), x if given == "tokens" else Arguments({"input_ids": x}), x, Y, true_class)


SOFT = torch.tensor([[0.2, 0.3, 0.5], [0.7, 0.2, 0.1]], dtype=torch.float64).repeat(3, 1)
MANY = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 0]]).repeat(2, 1)
TAGS = torch.where(tokens() == PAD, -100, tokens() % 3)
AMOUNTS = torch.linspace(-1, 1, B, dtype=torch.float64)
LIKELIHOODS: dict[str, tuple[Likelihood, int, Tensor, Callable[[Tensor], Tensor]]] = {
    "soft labels": (Classification(label_smoothing=0.1), 3, SOFT, lambda f: (f * SOFT).sum()),
    "ignored labels": (
        Classification(ignore_index=2), 3, Y, lambda f: (f * (Y[:, None] == torch.arange(3)) * (Y != 2)[:, None]).sum()
    ),
    "binary": (Binary(), 1, Y % 2, lambda f: torch.where(Y % 2 == 1, f[:, 0], -f[:, 0]).sum()),
    "multi-label": (MultiLabel(), 3, MANY, lambda f: torch.where(MANY == 1, f, -f).sum()),
    "a class for each token": (
        DenseClassification(ignore_index=-100), 3, TAGS,
        lambda f: (f * (TAGS[:, None] == torch.arange(3)[:, None])).sum(),
    ),
    "regression": (Regression(), 1, AMOUNTS, lambda f: f.sum()),
    "learned noise": (LearnedNoiseRegression(), 2, AMOUNTS, lambda f: f[:, 0].sum()),
    "own": (
        Custom(lambda f, y: (f[:, 0] - y).square(), scalar=lambda f, y: torch.sin(f[:, 0])), 1, AMOUNTS,
        lambda f: torch.sin(f[:, 0]).sum(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_of_every_likelihood(name: str) -> None:
    likelihood, outputs, y, scalar = LIKELIHOODS[name]

    class Sized(Tagger if likelihood.name == "segmentation" else Text):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, outputs)

    members = forde.Ensemble(Sized, 3, likelihood=likelihood).double().train()
    check(members, Arguments({"input_ids": tokens()}), tokens(), y, scalar)


def test_padding_does_not_count() -> None:
    """Where positions of padding matter to the network, their gradients are not zero, and are left out all the same."""
    x, mask = tokens(), (tokens() != PAD).long()
    for network, given in (
        (AfterEmbedding, Arguments({"input_ids": x, "attention_mask": mask})),
        (lambda: AfterEmbedding(padding_idx=None), Arguments({"input_ids": x, "attention_mask": mask})),
        (AfterEmbedding, Arguments({"input_ids": x})),
    ):
        found = inspect_step(ensemble(network), method(), given, Y)
        assert found.z is not None
        rows = found.z.unflatten(-1, (T, 4)).abs().sum(-1)  # [M, B, T]
        assert torch.equal(rows != 0, (mask != 0).expand(3, -1, -1))
    everything = inspect_step(
        ensemble(lambda: AfterEmbedding(padding_idx=None)), method(), Arguments({"input_ids": x}), Y
    )
    assert everything.z is not None and bool(everything.z.unflatten(-1, (T, 4)).any(-1).all())


def test_longer_padding_changes_nothing() -> None:
    """Members are as far from each other as before, and are pushed by the same forces."""
    x = tokens()
    long = F.pad(x, (0, 3), value=PAD)
    one, other = (inspect_step(ensemble(), method(), Arguments({"input_ids": each}), Y) for each in (x, long))
    assert one.z is not None and other.z is not None and one.forces is not None and other.forces is not None
    torch.testing.assert_close(other.z.unflatten(-1, (T + 3, 4))[:, :, :T].flatten(2), one.z)
    torch.testing.assert_close(other.forces.energy, one.forces.energy)
    for a, b in zip(one.total, other.total, strict=True):
        for name in a:
            torch.testing.assert_close(a[name], b[name][: len(a[name])])


class Frozen(Text):
    def __init__(self) -> None:
        super().__init__()
        self.words.requires_grad_(False)


def test_a_frozen_embedding_serves_as_well() -> None:
    thawed, frozen = ensemble(), ensemble(Frozen)
    one, other = (inspect_step(each, method(), Arguments({"input_ids": tokens()}), Y) for each in (thawed, frozen))
    assert one.z is not None and other.z is not None
    torch.testing.assert_close(other.z, one.z)
    assert "words.weight" not in other.of_repulsion[0] and other.of_repulsion[0]["score.weight"].any()


class Chosen(Text):
    def get_input_embeddings(self) -> nn.Module:
        return self.places


class Twice(Text):
    """Two sentences through one embedding."""

    def forward(self, first: Tensor, second: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"logits": self.head(torch.tanh(self.words(first).mean(1) * self.words(second).sum(1)))}


class ChosenFirst(Chosen):
    """Its first embedding is the wrong one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Embedding(3, 3)
        self._modules = {"first": self._modules.pop("first"), **self._modules}

    def get_input_embeddings(self) -> nn.Module:
        return self.words


def test_a_network_says_which_layer_it_is() -> None:
    one, other = (inspect_step(ensemble(network), method(), tokens(), Y) for network in (Text, ChosenFirst))
    assert one.z is not None and other.z is not None and other.z.shape == (3, B, T * 4)
    with pytest.raises(forde.FordeError, match=r"row for each sample .* get_input_embeddings"):
        inspect_step(ensemble(Chosen), method(), tokens(), Y)
    with pytest.raises(forde.FordeError, match="row for each sample"):  # as many places as samples
        inspect_step(ensemble(Chosen), method(), tokens()[:T], Y[:T])


def test_a_layer_that_is_called_twice_counts_twice() -> None:
    found = inspect_step(ensemble(Twice), method(), Arguments([tokens(), tokens(padded=False)[:, :3]]), Y)
    assert found.z is not None and found.z.shape == (3, B, (T + 3) * 4)


@pytest.mark.parametrize("name", ["forde", "forde-identity", "lit"])
def test_a_text_classifier_learns_with_repulsion(name: str) -> None:
    """Whether a word is there decides; the history has the gradients' cosine, at the embeddings too."""
    x = torch.randint(1, WORDS, (96, T), generator=torch.Generator().manual_seed(2))
    y = (x == 3).any(1).long()
    members = forde.Ensemble(Text, 3, seed=0)
    history = forde.fit(
        members, forde.method(name, of="embeddings"), {"input_ids": x, "attention_mask": x != PAD, "labels": y},
        epochs=30, batch_size=32, verbose=False, optimizer=lambda p: torch.optim.Adam(p, lr=0.03),
    )  # fmt: skip
    probs = members.predict({"input_ids": x}).probs
    assert float((probs.argmax(1) == y).double().mean()) > 0.9
    assert -1 <= history["gradient_cosine"][-1] <= 1 and (name == "lit" or history["repulsion"][0] != 0)


def test_four_parts_of_a_batch_are_the_whole() -> None:
    """Of a dict with padding and labels that do not count, over several steps."""
    x = torch.cat([tokens(), tokens()[:2]])
    batch = {"input_ids": x, "attention_mask": x != PAD, "labels": torch.tensor([0, 1, 2, 0, 1, 2, -100, -100])}
    found = []
    for parts in (1, 4):
        members = forde.Ensemble(Text, 3, likelihood=Classification([1.0, 2.0, 3.0], ignore_index=-100)).double()
        forde.fit(
            members, forde.method("forde-identity", of="embeddings", repulsion_weight=5.0), batch, epochs=3,
            batch_size=8, accumulate=parts, lr=0.1, verbose=False,
        )  # fmt: skip
        found.append(torch.cat([tensor.flatten() for tensor in members.state_dict().values()]))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(WORDS, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(x)))


def test_bags_of_words() -> None:
    found = inspect_step(ensemble(Bag), method(), tokens(), Y)
    assert found.z is not None and found.z.shape == (3, B, 4)


class Unused(Text):
    def get_input_embeddings(self) -> nn.Module:
        return nn.Embedding(3, 3)


WRONG = {
    "no layer": (lambda: nn.Linear(T, 3), tokens().float(), "no embedding layer"),
    "unused": (Unused, tokens(), "did not use the embedding layer"),
}


@pytest.mark.parametrize("case", WRONG)
def test_networks_without_embeddings(case: str) -> None:
    network, x, message = WRONG[case]
    with pytest.raises(forde.FordeError, match=message):
        inspect_step(forde.Ensemble(network, 2).train(), method(), x, Y)


@pytest.mark.parametrize("engine", ["vectorized", "compiled"])
def test_engines_that_cannot_say_so(engine: Any) -> None:
    with pytest.raises(forde.FordeError, match=f"engine='{engine}' .* taken of 'embeddings'"):
        inspect_step(ensemble(Bag), method(), tokens(), Y, engine=engine)


def test_a_pca_metric_needs_inputs_that_are_numbers() -> None:
    with pytest.raises(forde.FordeError, match=r"which tokens have none of; use 'forde-identity'"):
        forde.method("forde-pca", of="embeddings")
    with pytest.raises(forde.FordeError, match="metric=Identity"):
        Method(space=InputGradients(of="embeddings"), kernel=RBF(PCA()))


@pytest.mark.parametrize("of", [3.5, [], {"a": 1}, [None, 2.5]])
def test_what_gradients_cannot_be_of(of: Any) -> None:
    with pytest.raises(forde.FordeError, match=r"InputGradients.of="):
        InputGradients(of=of)
