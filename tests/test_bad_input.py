"""Bad input gets one sentence that says what was wrong, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, Dataset, IterableDataset

import forde
from forde.models import MLP
from forde.step.checks import refuse_once_differentiable


def fit(x: Tensor, y: Tensor, *, method: str = "forde-pca", network=None, **options: object) -> None:
    make = network or (lambda: MLP(4, [8], 3))
    ensemble = forde.Ensemble(make, 2, likelihood=options.pop("likelihood", "classification"))
    forde.fit(ensemble, method, (x, y), **{"epochs": 3, "batch_size": 8, "verbose": False, **options})


def x(n: int = 32) -> Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(0))


def y(n: int = 32) -> Tensor:
    return torch.arange(n) % 3


def check_sentence(error: pytest.ExceptionInfo[BaseException]) -> None:
    text = str(error.value)
    assert text.endswith(".") and "\n" not in text and len(text) < 400, text


NAN, INFINITE = x(), x()
NAN[3, 2] = float("nan")
INFINITE[0, 0] = float("inf")

DATA = {
    "label above the classes": (x(), y() + 1, "label 3 is outside the 3 classes"),
    "negative label": (x(), y() - 1, "label -1 is negative"),
    "float labels": (x(), y().float(), "one integer per sample"),
    "one-hot labels": (x(), torch.eye(3)[y()].long(), "one integer per sample"),
    "NaN": (NAN, y(), "NaN or infinite"),
    "infinite": (INFINITE, y(), "NaN or infinite"),
    "empty": (x(0), y(0), "empty"),
    "one class": (x(), torch.zeros(32, dtype=torch.long), "all 32 labels are class 0"),
    "mismatched lengths": (x(32), y(30), "32 inputs but 30 targets"),
}


@pytest.mark.parametrize("engine", ["eager", "vectorized"])
@pytest.mark.parametrize("case", DATA)
def test_data(case: str, engine: str) -> None:
    inputs, targets, message = DATA[case]
    with pytest.raises(forde.FordeError, match=message) as error:
        fit(inputs, targets, engine=engine)
    check_sentence(error)


def test_strings_are_not_numbers() -> None:
    with pytest.raises(forde.FordeError, match="numbers were expected"):
        fit([["a", "b"]], [0])


def test_data_of_the_wrong_kind() -> None:
    with pytest.raises(forde.FordeError, match=r"pair \(x, y\)") as error:
        forde.fit(forde.Ensemble(lambda: MLP(4, [8], 3), 2), "lit", {"x": x()}, epochs=1)
    check_sentence(error)


def test_regression_targets() -> None:
    with pytest.raises(forde.FordeError, match="regression targets"):
        fit(x(), y(), network=lambda: MLP(4, [8], 1), likelihood="regression")
    with pytest.raises(forde.FordeError, match="NaN or infinite"):
        fit(x(), NAN[:, 2], network=lambda: MLP(4, [8], 1), likelihood="regression")
    with pytest.raises(forde.FordeError, match=r"\[8, 2\] was expected"):
        fit(x(), x()[:, 0], network=lambda: MLP(4, [8], 1), likelihood="learned-noise-regression")


@pytest.mark.parametrize("members", [0, -1])
def test_too_few_members(members: int) -> None:
    with pytest.raises(forde.FordeError, match="at least 1") as error:
        forde.Ensemble(lambda: MLP(4, [8], 3), members)
    check_sentence(error)


@pytest.mark.parametrize("members", [2.5, None, "3", True])
def test_members_that_are_no_number(members: object) -> None:
    with pytest.raises(forde.FordeError, match="whole number"):
        forde.Ensemble(lambda: MLP(4, [8], 3), members)


def test_network_instead_of_factory() -> None:
    with pytest.raises(forde.FordeError, match="function that builds one"):
        forde.Ensemble(MLP(4, [8], 3), 3)
    with pytest.raises(forde.FordeError, match=r"torch\.nn\.Module was expected"):
        forde.Ensemble(lambda: "network", 3)


def test_members_that_share_parameters() -> None:
    network = MLP(4, [8], 3)
    with pytest.raises(forde.FordeError, match=r"share the parameter 'body\.0\.weight'") as error:
        forde.Ensemble(lambda: network, 3)
    check_sentence(error)


def test_members_that_start_alike_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return MLP(4, [8], 3)

    forde.Ensemble(make, 3)
    assert "same weights" in caplog.text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: forde.method("forde-pcs"), "unknown method 'forde-pcs'; did you mean 'forde-pca'"),
        (lambda: forde.method("forde-tuned", alfa=0.3), "did you mean 'alpha'"),
        (lambda: forde.method("lit", repulsion_evry=2), "did you mean 'repulsion_every'"),
        (lambda: forde.method("lit", prior="empcv"), "did you mean 'empcov'"),
        (lambda: forde.method("forde-pca", bandwidth="per_colum"), "did you mean 'per_column'"),
        (lambda: forde.method("forde-pca", output="logits"), "'logit', 'log_prob'"),
        (lambda: forde.method("forde-tuned", alpha=1.5), "between 0"),
        (lambda: forde.method("forde-pca", repulsion_every=0), "whole number"),
        (lambda: forde.method("forde-pca", repulsion_weight=-1), "repulsion_weight is -1"),
        (lambda: forde.method("forde-pca", repulsion_weight=float("nan")), "repulsion_weight is nan"),
        (lambda: forde.method("forde-pca", repulsion_weight=float("inf")), "repulsion_weight is inf"),
        (lambda: forde.method("forde-pca", repulsion_weight="strong"), "repulsion_weight is 'strong'"),
        (lambda: forde.method("forde-pca", repulsion_weight=None), "repulsion_weight is None"),
        (lambda: forde.method("forde-pca", repulsion_scale=-0.5), "repulsion_scale is -0.5"),
        (lambda: forde.method("forde-pca", repulsion_scale="bach"), "'batch', 'data' or 0"),
        (lambda: fit(x(), y(), method=forde.method("lit", repulsion_weight=lambda epoch: 1.0 - epoch)), r"\(2\) is -1"),
        (lambda: fit(x(), y(), method=forde.method("lit", repulsion_weight=lambda epoch: None)), r"\(0\) is None"),
        (lambda: forde.method("forde-pca", repulsion_fraction=0), r"\(0, 1\]"),
        (lambda: forde.method("forde-pca", repulsion_fraction="a quarter"), r"'a quarter', but a number in \(0, 1\]"),
        (lambda: forde.method("forde-pca", bandwidth=-1.0), "positive"),
        (lambda: forde.method("lit", weight_decay=-1.0), "0 or a positive number"),
        (lambda: forde.method("function-rde", of="labels"), "'logits' or 'probs'"),
        (lambda: forde.method("feature-rde", projection=0), "at least 1 direction"),
        (lambda: forde.kernels.PCA(rank=0).prepare(lambda: iter([x()])), "at least 1 direction"),
        (lambda: forde.kernels.PCA()(x().unsqueeze(0)), "not fitted"),
        (lambda: forde.Ensemble(lambda: MLP(4, [8], 3), 2, likelihood="clasification"), "'classification'"),
        (
            lambda: forde.Method(space=forde.spaces.Weights(), kernel=forde.kernels.RBF(forde.kernels.PCA())),
            "PCA metric",
        ),
        (lambda: fit(x(), y(), engine="vectorised"), "did you mean 'vectorized'"),
        (lambda: fit(x(), y(), precision="fp16"), "'bf16'"),
        (lambda: fit(x(), y(), epochs=0), "at least 1"),
        (lambda: fit(x(), y(), batch_size=0), "at least 1"),
        (lambda: fit(x(), y(), device="gpu"), "unknown device"),
    ],
)
def test_options(call, message: str) -> None:
    with pytest.raises(forde.FordeError, match=message):
        call()


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze(-1)


class PerPixel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).unsqueeze(-1).expand(-1, -1, 2)


@pytest.mark.parametrize("network", [Flat, PerPixel, lambda: MLP(4, [8], 1)])
def test_output_that_is_not_batch_by_classes(network) -> None:
    for method in ("deep-ensemble", "forde-pca"):
        with pytest.raises(forde.FordeError, match="the network returned shape") as error:
            fit(x(), y(), network=network, method=method)
        check_sentence(error)


class Detached(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach())


class Rounded(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.round())


@pytest.mark.parametrize("engine", ["eager", "vectorized"])
@pytest.mark.parametrize("network", [Detached, Rounded])
def test_input_gradient_of_zero(network: type[MLP], engine: str) -> None:
    with pytest.raises(forde.FordeError, match="depend on its input") as error:
        fit(x(), y(), network=lambda: network(4, [8], 3), engine=engine)
    check_sentence(error)
    fit(x(), y(), network=lambda: network(4, [8], 3), method="function-rde")


def test_a_loader_whose_labels_are_all_ignored() -> None:
    likelihood = forde.likelihoods.Classification(ignore_index=-100)
    ensemble = forde.Ensemble(lambda: MLP(4, [8], 3), 2, likelihood=likelihood)
    loader = DataLoader(list(zip(x(), torch.full((32,), -100), strict=True)), batch_size=8)
    with pytest.raises(forde.FordeError, match="no target in the first 3 batches has a label") as error:
        forde.fit(ensemble, "forde-identity", loader, epochs=1, verbose=False)
    check_sentence(error)


def test_integer_inputs() -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(10, 4), nn.Linear(4, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.table(tokens).mean(1))

    tokens = torch.randint(10, (32, 5))
    with pytest.raises(forde.FordeError, match="cannot be differentiated") as error:
        fit(tokens, y(), network=Embedded, method="forde-identity")
    check_sentence(error)
    fit(tokens, y(), network=Embedded, method="function-rde")


class OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient


class UsesOnce(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(OnceDifferentiable.apply(x))


class CompiledFunctionBackward(torch.autograd.Function):
    """Named as torch names the derivative of what `torch.compile` compiled."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return 2 * gradient


def test_a_compiled_derivative_is_refused_before_its_own_is_asked_for() -> None:
    z = CompiledFunctionBackward.apply(torch.ones(2, requires_grad=True)).exp()
    with pytest.raises(forde.FordeError, match=r"aot_autograd.*without torch\.compile") as error:
        refuse_once_differentiable(z)
    check_sentence(error)


class FusedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.view(-1, 1, 1, 4).expand(-1, 1, 3, 4)).chunk(3, dim=-1)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # insists, so that the automatic choice cannot help
            return self.head(nn.functional.scaled_dot_product_attention(q, k, v).mean((1, 2)))


def hard() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Hardsigmoid(), nn.Linear(8, 3))


@pytest.mark.parametrize("engine", ["eager", "vectorized", "compiled"])
def test_hardsigmoid_gets_advice_of_its_own(engine: str) -> None:
    with pytest.raises(forde.FordeError, match=r"hardsigmoid.*nn\.Sigmoid") as error:
        fit(x(), y(), network=hard, engine=engine)
    check_sentence(error)
    assert "attention" not in str(error.value)
    fit(x(), y(), network=hard, method="function-rde", engine="eager")


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("engine", ["eager", "compiled", "auto"])
def test_compiled_members_get_advice_of_their_own(engine: str) -> None:
    torch._dynamo.reset()
    with pytest.raises(forde.FordeError, match=r"pass the network without torch\.compile") as error:
        fit(x(), y(), network=lambda: torch.compile(MLP(4, [8], 3), backend="aot_eager"), engine=engine)
    check_sentence(error)
    assert "attention" not in str(error.value)


@pytest.mark.parametrize("network", [lambda: UsesOnce(4, [8], 3), FusedAttention])
def test_operation_without_second_derivative(network) -> None:
    with pytest.raises(forde.FordeError, match="without a second derivative") as error:
        fit(x(), y(), network=network, engine="eager")
    assert "sdpa_kernel" in str(error.value) and "\n" not in str(error.value)
    fit(x(), y(), network=network, method="deep-ensemble", engine="eager")


@pytest.mark.cuda
def test_recurrent_layer_without_second_derivative() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x.unsqueeze(1).expand(-1, 3, -1).contiguous())[0][:, -1])

    with pytest.raises(forde.FordeError, match=r"cudnn\.flags") as error:
        fit(x(), y(), network=Recurrent, engine="eager", device="cuda")
    assert "\n" not in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the GPU that the test wants absent")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_cuda_asked_for_and_absent(device: str) -> None:
    with pytest.raises(forde.FordeError, match="no NVIDIA GPU") as error:
        fit(x(), y(), device=device)
    check_sentence(error)


@pytest.mark.parametrize(
    ("memory", "advice"), [("speed", "memory='low' (it was 'speed'), a smaller"), ("low", "use a smaller")]
)
def test_running_out_of_memory_says_what_to_set(memory: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: you tried to allocate 8589934592 bytes."
        )

    monkeypatch.setattr("forde.step.PlainStep.update", fail)
    with pytest.raises(forde.FordeError, match=r"at least 8.0 GiB were needed") as error:
        fit(x(), y(), memory=memory, engine="eager")
    assert advice in str(error.value)
    check_sentence(error)


def test_loss_that_is_not_finite_names_member_and_step() -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    ensemble = forde.Ensemble(network, 3)
    with torch.no_grad():
        ensemble.members[1][2].bias[0] = float("inf")
    before = ensemble.members[0][0].weight.clone()
    with pytest.raises(forde.FordeError, match="the loss of member 1 is nan at step 0") as error:
        forde.fit(ensemble, "forde-pca", (x(), y()), epochs=1, verbose=False)
    check_sentence(error)
    assert torch.equal(ensemble.members[0][0].weight, before)


def test_diverging_run_stops_and_keeps_what_was_trained() -> None:
    ensemble = forde.Ensemble(lambda: MLP(4, [8], 3), 2)
    records: list[dict[str, float]] = []
    with pytest.raises(forde.FordeError, match="lower the learning rate"):
        forde.fit(
            ensemble, "deep-ensemble", (1e3 * x(), y()), epochs=200, lr=1e8, verbose=False, callback=records.append
        )
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in ensemble.parameters())


def test_one_feature_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    fit(x()[:, :1], y(), network=lambda: MLP(1, [8], 3))
    assert "one feature" in caplog.text


def test_nothing_to_predict() -> None:
    with pytest.raises(forde.FordeError, match="nothing to predict"):
        forde.Ensemble(lambda: MLP(4, [8], 3), 2).predict(torch.zeros(0, 4))


class Wrapped(nn.Module):
    """Returns its logits inside of something else."""

    def __init__(self, wrap: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.layer, self.wrap = nn.Linear(4, 3), wrap

    def forward(self, x: Tensor) -> object:
        return self.wrap(self.layer(x))


class Answer:
    def __init__(self, values: Tensor) -> None:
        self.values = values


OUTPUTS = {
    "tuple": (lambda logits: (logits, logits), "a tuple of 2 tensors, .* the one that holds the outputs"),
    "dict": (lambda logits: {"out": logits, "aux": logits}, "a dict of 2 tensors, .* its 'out' alone, or name one"),
    "empty": (lambda logits: {}, "a dict of 0 tensors"),
    "object": (Answer, "an object of type Answer, .* the tensor in it"),
    "nothing": (lambda logits: None, "nothing, .* return"),
}


@pytest.mark.parametrize("engine", ["eager", "vectorized", "compiled"])
@pytest.mark.parametrize("case", OUTPUTS)
def test_output_that_is_no_tensor(case: str, engine: str) -> None:
    wrap, message = OUTPUTS[case]
    for method in ("deep-ensemble", "forde-pca"):
        with pytest.raises(forde.FordeError, match=message) as error:
            fit(x(), y(), network=lambda: Wrapped(wrap), method=method, engine=engine)
        check_sentence(error)
    for call in (forde.Ensemble(lambda: Wrapped(wrap), 2).predict, forde.Ensemble(lambda: Wrapped(wrap), 2)):
        with pytest.raises(forde.FordeError, match=message):
            call(x())


def test_lazy_layers() -> None:
    def lazy() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyBatchNorm1d(), nn.LazyLinear(3))

    with pytest.raises(forde.FordeError, match=r"'0\.weight'.*run one batch through the network") as error:
        forde.Ensemble(lazy, 2)
    check_sentence(error)

    def complete() -> nn.Module:
        network = lazy()
        network(torch.zeros(2, 4))
        return network

    fit(x(), y(), network=complete)


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


CALLS = {
    "too few features": (lambda: nn.Linear(5, 3), x(), r"shape \[8, 4\] and type float32 .*size that it was built for"),
    "channels last": (convolution, torch.zeros(32, 9, 9, 3), r"\[8, 9, 9, 3\].*channels.*permute\(0, 3, 1, 2\)"),
    "another number of channels": (convolution, torch.zeros(32, 1, 9, 9), r"\[8, 1, 9, 9\].*3 channels"),
    "too small": (convolution, torch.zeros(32, 3, 2, 2), r"\[8, 3, 2, 2\]"),
    "too many dimensions": (
        lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)),
        x().view(32, 1, 1, 4),
        r", 1, 1, 4\].*size that",
    ),
    "two arguments": (
        lambda: nn.Bilinear(4, 4, 3),
        x(),
        r"missing 1 required positional argument.*the inputs and nothing else",
    ),
    "bytes": (lambda: MLP(4, [8], 3), (x() > 0).byte(), r"type uint8 .*convert the inputs to floats, divided by 255"),
    "truth values": (lambda: MLP(4, [8], 3), x() > 0, r"type bool .*convert the inputs to floats"),
    "floats for tokens": (lambda: nn.EmbeddingBag(5, 3), x().abs(), r"give an embedding its tokens as whole numbers"),
    "unknown tokens": (lambda: nn.EmbeddingBag(5, 3), torch.full((32, 4), 5), r"give an embedding more rows"),
}


@pytest.mark.parametrize("case", CALLS)
def test_inputs_that_do_not_fit_the_network(case: str) -> None:
    network, inputs, message = CALLS[case]
    with pytest.raises(forde.FordeError, match=message) as error:
        fit(inputs, y(), network=network, method="deep-ensemble", engine="eager")
    check_sentence(error)
    assert error.value.__cause__ is not None  # torch's own words, for those who need all of them
    with pytest.raises(forde.FordeError, match=message.replace("[8,", "[32,")):
        forde.Ensemble(network, 2).predict(inputs)


@pytest.mark.parametrize("engine", ["vectorized", "compiled", "auto"])
def test_inputs_of_the_wrong_size_under_every_engine(engine: str) -> None:
    for method in ("deep-ensemble", "forde-identity", "feature-rde"):
        with pytest.raises(forde.FordeError, match=r"failed on a batch of shape \[8, 4\]") as error:
            fit(x(), y(), network=lambda: MLP(5, [8], 3), method=method, engine=engine)
        check_sentence(error)


def test_a_batch_of_one_under_batch_norm() -> None:
    with pytest.raises(forde.FordeError, match=r"shape \[1, 8\]|\[1, 4\].*at least 2") as error:
        fit(x(9), y(9), network=lambda: MLP(4, [8], 3, batch_norm=True), method="lit", drop_last=False, engine="eager")
    check_sentence(error)


def of_width(width: int) -> Callable[[], nn.Module]:
    return lambda: MLP(4, [width], 3)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("weight-rde", "Weights as 67 and 75 numbers"),
        (forde.method("feature-rde", shared_head=False), "Features as 64 and 72 numbers"),
        (forde.method("feature-rde", shared_head=False, projection=2), "Features as 64 and 72 numbers"),
    ],
)
def test_members_that_differ_where_they_are_compared(method: object, message: str) -> None:
    ensemble = forde.Ensemble([of_width(8), of_width(9)])
    before = [p.clone() for p in ensemble.parameters()]
    with pytest.raises(forde.FordeError, match=message) as error:
        forde.fit(ensemble, method, (x(), y()), epochs=1, batch_size=8, verbose=False)
    check_sentence(error)
    assert all(torch.equal(a, b) for a, b in zip(before, ensemble.parameters(), strict=True))


def test_members_with_different_numbers_of_outputs() -> None:
    factories = [lambda: nn.Linear(4, 3), lambda: nn.Linear(4, 5)]
    with pytest.raises(forde.FordeError, match="as many outputs") as error:
        forde.fit(forde.Ensemble(factories), "function-rde", (x(), y()), epochs=1, batch_size=8, verbose=False)
    check_sentence(error)
    with pytest.raises(forde.FordeError, match=r"\[32, 3\] and \[32, 5\]"):
        forde.Ensemble(factories).predict(x())


class Items(Dataset):  # type: ignore[type-arg]
    def __init__(self, make: Callable[[Tensor, Tensor], object]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> object:
        return self.make(x()[index], y()[index])


WRONG_NAME = "'pixels' .*unexpected keyword argument 'pixels'.* leave out of the batch"
TOO_MANY = "failed on a batch of 0 .*positional argument.* no more and no fewer"
ITEMS = {
    "dict": (lambda x, y: {"pixels": x, "label": y}, WRONG_NAME),
    "dict without labels": (
        lambda x, y: {"pixels": x, "lables": y},
        "no 'labels'; did you mean 'lables'. It has: lables, pixels; put the targets",
    ),
    "dict with two labels": (lambda x, y: {"x": x, "labels": y, "label": y}, "both 'labels' and 'label'"),
    "dict of labels": (lambda x, y: {"labels": y}, "no inputs"),
    "dict of text": (lambda x, y: {"text": "words", "label": y}, "inputs 'text' have type .* encode"),
    "dict with a scalar": (lambda x, y: {"x": x, "kind": [1.0], "label": y}, "'x' and 'kind' have 8 and 1 rows"),
    "three": (lambda x, y: (x, y, 1.0), "a list of 3"),
    "one": (lambda x, y: (x,), "a list of 1"),
    "inputs in a dict": (lambda x, y: ({"pixels": x}, y), WRONG_NAME),
    "two inputs": (lambda x, y: ((x, x), y), TOO_MANY),
    "targets in a dict": (lambda x, y: (x, {"label": y}), "the targets of a batch are a dict of 'label'"),
}


@pytest.mark.parametrize("case", ITEMS)
def test_items_that_are_no_pairs(case: str) -> None:
    make, message = ITEMS[case]
    for data in (Items(make), DataLoader(Items(make), batch_size=8)):
        with pytest.raises(forde.FordeError, match=message) as error:
            forde.fit(forde.Ensemble(of_width(8), 2), "lit", data, epochs=1, batch_size=8, verbose=False)
        check_sentence(error)


@pytest.mark.parametrize("case", ["dict", "inputs in a dict", "two inputs"])
def test_items_that_cannot_be_predicted(case: str) -> None:
    for data in (Items(ITEMS[case][0]), DataLoader(Items(ITEMS[case][0]), batch_size=8)):
        with pytest.raises(forde.FordeError, match=r"unexpected keyword|positional argument") as error:
            forde.Ensemble(of_width(8), 2).predict(data)
        check_sentence(error)


def test_data_that_are_three_arrays() -> None:
    with pytest.raises(forde.FordeError, match="a tuple of 3"):
        forde.fit(forde.Ensemble(of_width(8), 2), "lit", (x(), y(), y()), epochs=1, verbose=False)


def test_iterable_dataset() -> None:
    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return iter(list(zip(x(), y(), strict=True)))

    with pytest.raises(forde.FordeError, match="pass a DataLoader") as error:
        forde.fit(forde.Ensemble(of_width(8), 2), "lit", Stream(), epochs=1, verbose=False)
    check_sentence(error)
    forde.fit(forde.Ensemble(of_width(8), 2), "lit", DataLoader(Stream(), 8), epochs=1, verbose=False)


OPTIMISERS = {
    "name": ("adam", "'adam', but a function that builds one"),
    "instance": (torch.optim.Adam(nn.Linear(1, 1).parameters()), "type Adam, but a function that builds one"),
    "LBFGS": (torch.optim.LBFGS, "LBFGS .*needs no closure"),
    "not an optimizer": (list, "returned a list"),
    "of other parameters": (
        lambda parameters: torch.optim.Adam(nn.Linear(1, 1).parameters()),
        "holds none of these parameters",
    ),
}


@pytest.mark.parametrize("engine", ["eager", "vectorized"])
@pytest.mark.parametrize("case", OPTIMISERS)
def test_optimizer_that_cannot_train(case: str, engine: str) -> None:
    given, message = OPTIMISERS[case]
    with pytest.raises(forde.FordeError, match=message) as error:
        fit(x(), y(), optimizer=given, engine=engine)
    check_sentence(error)


def test_scheduler_that_is_finished() -> None:
    finished = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), 30)
    with pytest.raises(forde.FordeError, match="scheduler is of type StepLR, but a function"):
        fit(x(), y(), scheduler=finished)


@pytest.mark.parametrize("engine", ["eager", "vectorized", "compiled"])
def test_nothing_to_train(engine: str) -> None:
    for network, why in ((lambda: MLP(4, [8], 3).requires_grad_(False), "frozen"), (nn.Identity, "no parameters")):
        with pytest.raises(forde.FordeError, match=f"member 0 has nothing to train.*{why}") as error:
            fit(x(), y(), network=network, engine=engine)
        check_sentence(error)


def test_one_member_with_nothing_to_train() -> None:
    ensemble = forde.Ensemble(of_width(8), 2)
    ensemble.members[1].requires_grad_(False)
    with pytest.raises(forde.FordeError, match="member 1 has nothing to train"):
        forde.fit(ensemble, "lit", (x(), y()), epochs=1, verbose=False)


@pytest.mark.parametrize("engine", ["eager", "vectorized", "compiled"])
@pytest.mark.parametrize("method", ["deep-ensemble", "forde-pca"])
def test_probabilities_in_place_of_logits_are_reported_once(
    method: str, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    fit(x(), y(), network=lambda: nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)), method=method, engine=engine)
    assert caplog.text.count("remove the softmax") == 1


@pytest.mark.parametrize("last", [nn.LogSoftmax(-1), nn.Sigmoid(), nn.ReLU(), nn.Identity()])
def test_other_outputs_are_not_taken_for_probabilities(last: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    fit(x(), y(), network=lambda: nn.Sequential(MLP(4, [8], 3), last))
    assert "softmax" not in caplog.text


def test_bytes_that_reach_the_network_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Casting(MLP):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.float())

    levels = torch.arange(128, dtype=torch.uint8).reshape(32, 4)
    fit(levels, y(), network=lambda: Casting(4, [8], 3), method="function-rde")
    assert caplog.text.count("The inputs are bytes up to 127") == 1
    caplog.clear()
    fit(levels % 2, y(), network=lambda: Casting(4, [8], 3), method="function-rde")

    class Embedding(nn.EmbeddingBag):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens.long())

    fit(levels, y(), network=lambda: Embedding(128, 3), method="function-rde", engine="eager")
    assert "bytes" not in caplog.text


@pytest.mark.parametrize(("calls", "message"), [(0, "the licence has run out"), (3, "the size of the licence")])
def test_an_error_that_is_not_about_the_inputs_stays_the_users(calls: int, message: str) -> None:
    """Neither one that speaks of something else, nor one of a network that has taken such a batch before."""

    class Failing(MLP):
        left = calls

        def forward(self, x: Tensor) -> Tensor:
            if not self.left:
                raise RuntimeError(message)
            self.left -= 1
            return super().forward(x)

    with pytest.raises(RuntimeError, match=f"^{message}$"):
        fit(x(), y(), network=lambda: Failing(4, [8], 3), engine="eager")


@pytest.mark.parametrize(("independent", "fraction", "checks"), [(False, 1.0, 1), (False, 0.5, 1), (True, 1.0, 3)])
def test_labels_are_looked_at_once_per_batch(
    independent: bool, fraction: float, checks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look is a wait for the GPU."""
    looked: list[int] = []
    check = forde.likelihoods.Classification.check_labels
    monkeypatch.setattr(
        forde.likelihoods.Classification,
        "check_labels",
        lambda self, o, y, **options: (looked.append(len(y)), check(self, o, y, **options)),
    )
    x, y = torch.randn(16, 4), torch.arange(16) % 3
    method = forde.method("deep-ensemble" if independent else "forde-identity", repulsion_fraction=fraction)
    ensemble = forde.Ensemble(lambda: torch.nn.Linear(4, 3), 3)
    forde.fit(
        ensemble, method, (x, y), epochs=1, batch_size=16, engine="eager", independent_data=independent, verbose=False
    )
    assert looked == [16] * checks


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 2.5}, "epochs is 2.5, but a whole number"),
        ({"epochs": True}, "epochs is True"),
        ({"epochs": "3"}, "epochs is '3'"),
        ({"batch_size": 32.5}, "batch_size is 32.5"),
        ({"batch_size": "32"}, "batch_size is '32'"),
        ({"diagnostics_every": -1}, "diagnostics_every is -1"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"seed": -1}, "seed is -1"),
        ({"lr": "0.1"}, "lr is '0.1', but 0 or a positive number"),
        ({"lr": -1}, "lr is -1"),
        ({"lr": 0.5, "optimizer": torch.optim.Adam}, "lr=0.5 is for the default optimizer"),
    ],
)
def test_numbers_of_fit(options: dict[str, Any], words: str) -> None:
    ensemble = forde.Ensemble(lambda: torch.nn.Linear(4, 3), 2)
    data = torch.randn(16, 4), torch.arange(16) % 3
    with pytest.raises(forde.FordeError, match=words):
        forde.fit(ensemble, "deep-ensemble", data, **{"epochs": 1, "verbose": False, **options})


@pytest.mark.parametrize("seed", [-1, None, 1.5, "0", True])
def test_seeds_of_ensembles(seed: Any) -> None:
    with pytest.raises(forde.FordeError, match=r"seed is .*, but a whole number of at least 0 was expected"):
        forde.Ensemble(lambda: torch.nn.Linear(4, 3), 2, seed=seed)


def test_other_things_than_asked_for() -> None:
    data = torch.randn(16, 4), torch.arange(16) % 3
    with pytest.raises(forde.FordeError, match="method is None"):
        forde.fit(forde.Ensemble(lambda: torch.nn.Linear(4, 3), 2), None, data, epochs=1)
    with pytest.raises(forde.FordeError, match="make_network is 'mlp'"):
        forde.Ensemble("mlp", 2)
    with pytest.raises(forde.FordeError, match="likelihood is None"):
        forde.Ensemble(lambda: torch.nn.Linear(4, 3), 2, likelihood=None)


def test_predictions_of_nan_are_said(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(16, 4)
    ensemble = forde.Ensemble(lambda: torch.nn.Linear(4, 3), 2)
    ensemble.predict(x)
    assert not caplog.text
    x[3, 1] = float("nan")
    ensemble.predict(x)
    assert "The outputs for 1 of 16 inputs are NaN or infinite" in caplog.text
