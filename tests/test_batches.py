"""Batches of several inputs, and outputs in dicts and objects: every part takes them as it would one tensor."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import forde
from forde.arguments import Arguments
from forde.engine import inspect_step
from forde.kernels import RBF
from forde.methods import Method
from forde.spaces import InputGradients, Outputs

N = 48


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Four numbers, two further ones, and a class that depends on both."""
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(N, 4, generator=generator), torch.randn(N, 2, generator=generator)
    return left, right, (left[:, 0] + right[:, 0] > 0).long()


class Joined(nn.Module):
    """One perceptron of both inputs, however they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))

    def forward(self, left: Tensor, right: Tensor | None = None) -> Tensor:
        return self.layers(left if right is None else torch.cat([left, right], dim=1))


@dataclass
class Answer:
    logits: Tensor
    hidden: Tensor


class Answering(Joined):
    """Its logits are in an object beside others."""

    def forward(self, left: Tensor, right: Tensor | None = None) -> Any:
        logits = super().forward(left, right)
        return Answer(logits, left)


class Rows(Dataset):  # type: ignore[type-arg]
    def __init__(self, item: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
        self.item = item

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return self.item(*(column[index] for column in data()))


FORMS: dict[str, Callable[[], Any]] = {
    "dict and targets": lambda: ({"left": data()[0], "right": data()[1]}, data()[2]),
    "dict of arrays": lambda: {"left": data()[0].numpy(), "right": data()[1].tolist(), "labels": data()[2].numpy()},
    "tuple and targets": lambda: (data()[:2], data()[2]),
    "object like a dict": lambda: UserDict({"left": data()[0], "right": data()[1], "label": data()[2]}),
}
LOADERS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "dict with labels": lambda left, right, y: {"left": left, "right": right, "labels": y},
    "dict and target": lambda left, right, y: ({"left": left, "right": right}, y),
    "tuple and target": lambda left, right, y: ((left, right), y),
}


def trained(given: Any, network: Callable[[], nn.Module] = Joined, **options: Any) -> tuple[forde.Ensemble, Any]:
    ensemble = forde.Ensemble(network, 2, seed=0)
    options = {"epochs": 2, "batch_size": 16, "lr": 0.1, "verbose": False, "engine": "eager", **options}
    return ensemble, forde.fit(ensemble, options.pop("method", "forde-pca"), given, **options)


def same(one: forde.Ensemble, other: forde.Ensemble) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in pairs)


@pytest.fixture(scope="module")
def as_one() -> dict[str, forde.Ensemble]:
    """Trained on one tensor that holds what the others have in two."""
    left, right, y = data()
    return {name: trained((torch.cat([left, right], dim=1), y), method=name)[0] for name in ("forde-pca", "lit")}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("network", [Joined, Answering])
def test_several_inputs_are_trained_and_predicted_as_one_tensor_would_be(
    form: str, network: type[nn.Module], as_one: dict[str, forde.Ensemble]
) -> None:
    """With PCA over both and gradients by both; the answer in an object changes nothing."""
    ensemble, _ = trained(FORMS[form](), network)
    assert same(ensemble, as_one["forde-pca"])
    left, right, _y = data()
    expected = as_one["forde-pca"].predict(torch.cat([left, right], dim=1))
    for given in ({"left": left, "right": right}, {"left": left, "right": right, "labels": left}, (left, right)):
        torch.testing.assert_close(ensemble.predict(given, batch_size=20).probs, expected.probs, rtol=1e-4, atol=1e-5)
    outputs = ensemble({"left": left, "right": right, "labels": left})
    torch.testing.assert_close(outputs, as_one["forde-pca"](torch.cat([left, right], dim=1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("item", LOADERS)
def test_loaders_of_dicts_and_tuples(item: str) -> None:
    """In a given order each comes to what the same batches in memory do, and predicts from the loader itself."""
    ensembles = []
    for name in (item, "dict with labels"):
        loader = DataLoader(Rows(LOADERS[name]), batch_size=16)
        ensemble, _ = trained(loader, method="lit")
        ensembles.append((ensemble, ensemble.predict(loader).probs))
    assert same(ensembles[0][0], ensembles[1][0])
    torch.testing.assert_close(ensembles[0][1], ensembles[1][1])
    assert ensembles[0][1].shape == (N, 2)


@pytest.mark.parametrize("memory", ["low", "balanced"])
def test_passes_that_are_made_again_see_all_inputs(memory: str, as_one: dict[str, forde.Ensemble]) -> None:
    assert same(trained(FORMS["dict and targets"](), method="lit", memory=memory)[0], as_one["lit"])


def test_a_part_of_the_batch_repels() -> None:
    left, right, y = data()
    method = forde.method("forde-identity", repulsion_fraction=0.25)
    one = trained((torch.cat([left, right], dim=1), y), method=method)[0]
    assert same(trained(FORMS["dict and targets"](), method=method)[0], one)


@pytest.mark.parametrize("method", ["swag", "node-bnn", "feature-rde", "function-rde", "weight-rde"])
def test_methods_that_need_no_input_gradients(method: str) -> None:
    ensemble, history = trained(FORMS["dict of arrays"](), method=method)
    assert np.isfinite(history["loss"]).all()
    probs = ensemble.predict(dict(zip(("left", "right"), data()[:2], strict=True))).probs
    assert probs.shape == (N, 2) and bool(probs.isfinite().all())


class Written(Joined):
    """Works in place."""

    def forward(self, left: Tensor, right: Tensor | None = None) -> Tensor:
        assert right is not None
        return super().forward(left.mul_(1.0), right.add_(0.0))


def test_a_forward_pass_may_write_to_its_inputs(as_one: dict[str, forde.Ensemble]) -> None:
    given = FORMS["dict and targets"]()
    before = {name: tensor.clone() for name, tensor in given[0].items()}
    ensemble, _ = trained(given, Written, method="lit")
    ensemble.predict(given[0])
    ensemble(given[0])
    assert same(ensemble, as_one["lit"])
    assert all(torch.equal(before[name], given[0][name]) for name in before)


def stopped_at(epoch: int) -> Callable[[Any], None]:
    def stop(record: dict[str, float]) -> None:
        if record["epoch"] == epoch:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("loader", [False, True])
def test_a_run_of_dicts_resumes_bit_for_bit(tmp_path: Path, loader: bool) -> None:
    def given() -> Any:
        if loader:
            return DataLoader(Rows(LOADERS["dict with labels"]), batch_size=16, shuffle=True)
        return FORMS["dict and targets"]()

    whole, _ = trained(given(), epochs=3, run=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(given(), epochs=3, run=tmp_path / "parts", callback=stopped_at(1))
    resumed, _ = trained(given(), epochs=3, run=tmp_path / "parts", resume=True)
    pairs = zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


VALIDATION: dict[str, Any] = {
    "dict": lambda left, right, y: {"left": left, "right": right, "labels": y},
    "pair": lambda left, right, y: ((left, right), y),
    "loader": lambda left, right, y: DataLoader(Rows(LOADERS["dict and target"]), batch_size=20),
}


@pytest.mark.parametrize("form", VALIDATION)
def test_validation_takes_them_too(form: str) -> None:
    """Measured on the training data itself, it says what `predict` and the metrics do."""
    given = FORMS["dict and targets" if form != "pair" else "tuple and targets"]()
    ensemble, history = trained(given, method="lit", validation=VALIDATION[form](*data()), restore_best=False)
    expected = forde.evaluation.nll(ensemble.predict(given[0]).member_logits, data()[2])
    assert history["validation_nll"][-1] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_share_is_held_out_of_them(form: str) -> None:
    """The same samples as of one tensor."""
    left, right, y = data()
    one = trained((torch.cat([left, right], dim=1), y), method="deep-ensemble", validation=0.25)[1]
    other = trained(FORMS[form](), method="deep-ensemble", validation=0.25)[1]
    np.testing.assert_allclose(one["validation_nll"], other["validation_nll"], rtol=1e-4)


def test_validation_of_another_shape() -> None:
    left, right, y = data()
    with pytest.raises(forde.FordeError, match=r"have shape 'left' \[N, 3\], 'right' \[N, 2\], but .* 'left' \[N, 4\]"):
        trained(FORMS["dict and targets"](), validation=({"left": left[:, :3], "right": right}, y))


@pytest.mark.parametrize("key", ["left", "right"])
def test_a_run_of_dicts_knows_its_data_again(tmp_path: Path, key: str) -> None:
    trained(FORMS["dict and targets"](), epochs=1, method="deep-ensemble", run=tmp_path)
    other = FORMS["dict and targets"]()
    other[0][key][0, 0] += 1
    with pytest.raises(forde.FordeError, match="content"):
        trained(other, epochs=1, method="deep-ensemble", run=tmp_path, resume=True)


# What gradients are taken of


def gradients_of(ensemble: forde.Ensemble, x: Arguments, y: Tensor, of: Any) -> list[Tensor]:
    """By the definition: directions of ∂ f_y / ∂ (chosen inputs), `[B, D]` for each member."""
    found = []
    for member in ensemble.members:
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in x.tensors.items()}
        scalar = member(**leaves).gather(1, y[:, None]).sum()
        gradient = torch.cat(torch.autograd.grad(scalar, [leaves[name] for name in of]), dim=1)
        found.append(gradient / gradient.norm(dim=1, keepdim=True))
    return found


@pytest.mark.parametrize(
    ("of", "chosen"), [(None, ("left", "right")), ("right", ("right",)), (("right", "left"), ("right", "left"))]
)
def test_gradients_are_of_the_inputs_that_are_named(of: Any, chosen: tuple[str, ...]) -> None:
    left, right, y = data()
    ensemble = forde.Ensemble(Joined, 2, seed=0).double().train()
    x = Arguments({"left": left.double(), "right": right.double()})
    method = Method(space=InputGradients(of=of), kernel=RBF())
    found = inspect_step(ensemble, method, x, y)
    assert found.z is not None
    for z, expected in zip(found.z, gradients_of(ensemble, x, y, chosen), strict=True):
        torch.testing.assert_close(z, expected)


@pytest.mark.parametrize("engine", ["vectorized", "compiled"])
def test_engines_that_take_one_tensor_say_so(engine: str) -> None:
    with pytest.raises(forde.FordeError, match=f"engine='{engine}' .*several inputs; use engine='eager' or 'auto'"):
        trained(FORMS["dict and targets"](), engine=engine)


def test_auto_says_why_it_loops(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="forde"):
        trained(FORMS["dict and targets"](), engine="auto", epochs=1)
    assert [m for m in caplog.messages if m.startswith("engine: eager") and "a batch has several inputs" in m]


class Counted(Joined):
    def forward(self, left: Tensor, kind: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(torch.cat([left, torch.nn.functional.one_hot(kind, 2).to(left)], dim=1))


WRONG = {
    "unknown": ("rigth", "unknown input 'rigth'; did you mean 'right'"),
    "whole numbers": ("kind", "the input 'kind' has type torch.int64, so it has no gradients"),
    "no embedding": ("embeddings", "no embedding layer"),
}


@pytest.mark.parametrize("case", WRONG)
def test_gradients_of_what_has_none(case: str) -> None:
    of, message = WRONG[case]
    left, right, y = data()
    method = Method(space=InputGradients(of=of), kernel=RBF())
    given: Any = {"left": left, "kind": (right[:, 0] > 0).long()} if case == "whole numbers" else None
    with pytest.raises(forde.FordeError, match=message):
        trained((given or {"left": left, "right": right}, y), Counted if given else Joined, method=method)


def test_gradients_of_a_name_in_a_batch_that_has_none() -> None:
    left, _, y = data()
    method = Method(space=InputGradients(of="left"), kernel=RBF())
    with pytest.raises(forde.FordeError, match="a batch is one tensor; leave `of` out"):
        trained((left, y), lambda: nn.Linear(4, 2), method=method)


def test_tokens_alone_have_no_gradients() -> None:
    tokens = {"tokens": torch.arange(N)[:, None] % 5, "mask": torch.ones(N, 1).long()}
    with pytest.raises(forde.FordeError, match=r"none of the inputs .'tokens', 'mask'. holds floats"):
        trained((tokens, data()[2]), method=Method(space=InputGradients(), kernel=RBF()))


OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "dict with logits": lambda logits: {"hidden": logits[:, :1], "logits": logits},
    "dict of one": lambda logits: {"scores": logits, "loss": None},
    "tuple of one": lambda logits: (logits, None, ()),
    "object": lambda logits: Answer(logits, logits[:, :1]),
}


class Wrapped(nn.Module):
    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layers, self.wrap = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.layers(x))


@pytest.mark.parametrize("engine", ["eager", "auto", "vectorized", "compiled"])
@pytest.mark.parametrize("case", OUTPUTS)
def test_outputs_in_containers_under_every_engine(case: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forde.compile.step.can_fuse", lambda device: False)
    left, _, y = data()
    bare, _ = trained((left, y), lambda: Wrapped(lambda logits: logits), epochs=1)
    found, _ = trained((left, y), lambda: Wrapped(OUTPUTS[case]), epochs=1, engine=engine)
    assert same(found, bare)
    torch.testing.assert_close(found.predict(left).probs, bare.predict(left).probs, rtol=1e-4, atol=1e-5)


def test_a_list_of_batches_is_predicted_batch_by_batch() -> None:
    left, right, y = data()
    ensemble, _ = trained(FORMS["dict and targets"](), epochs=1)

    def batches() -> Iterator[dict[str, Tensor]]:
        for start in (0, 20, 40):
            yield {"left": left[start : start + 20], "right": right[start : start + 20], "labels": y}

    whole = ensemble.predict({"left": left, "right": right}).probs
    torch.testing.assert_close(ensemble.predict(list(batches())).probs, whole)
    torch.testing.assert_close(ensemble.predict(batches()).probs, whole)


def test_outputs_repel_too() -> None:
    method = Method(space=Outputs(), kernel=RBF())
    left, right, y = data()
    x = Arguments([left, right])
    found = inspect_step(forde.Ensemble(Joined, 2, seed=0).train(), method, x, y)
    assert found.z is not None and found.z.shape == (2, 1, 2 * N)


@pytest.mark.parametrize(("batch_size", "said"), [(8, True), (16, False), (128, False)])
def test_a_batch_size_that_a_loader_does_not_take_is_said(
    batch_size: int, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    loader = DataLoader([(torch.randn(4), 0), (torch.randn(4), 1)] * 16, batch_size=16)
    ensemble = forde.Ensemble(lambda: nn.Linear(4, 2), 2)
    forde.fit(ensemble, "deep-ensemble", loader, epochs=1, batch_size=batch_size, verbose=False)
    assert (f"batch_size={batch_size} is not that of the DataLoader" in caplog.text) == said
