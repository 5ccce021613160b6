"""What the processes of a mesh train, and one process alone trains for comparison."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import forde
from forde.kernels import RBF
from forde.priors import Cauchy, Isotropic
from forde.rules import SVGD
from forde.spaces import Features, InputGradients, Outputs, Weights
from forde.training.history import History

MEMBERS, BATCH, STEPS, EPOCHS, CLASSES = 4, 8, 5, 2, 3
"""Ten steps in all."""


class ConvBatchNorm(nn.Module):
    """BatchNorm over images and over vectors, with other layers around it; smooth."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.inner, self.flat_norm = nn.Linear(4, 5), nn.BatchNorm1d(5, affine=False)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        pooled = torch.tanh(self.norm(self.conv(x))).mean((-2, -1))
        return self.head(self.dropout(torch.tanh(self.flat_norm(self.inner(pooled)))))


class Perceptron(nn.Sequential):
    """Nothing in it sees more than one sample, so members can be stacked on data shards too; smooth."""

    def __init__(self, dropout: float = 0.0) -> None:
        dropped = (nn.Dropout(dropout),) if dropout else ()
        super().__init__(nn.Flatten(), nn.Linear(50, 6), nn.Tanh(), *dropped, nn.Linear(6, CLASSES))


NETWORKS: dict[str, Callable[[float], nn.Module]] = {"convolution": ConvBatchNorm, "perceptron": Perceptron}


def svgd(space: Any) -> forde.Method:
    return forde.Method(space=space, kernel=RBF(bandwidth="global"), rule=SVGD(), prior=(Cauchy(0.1), Isotropic()))


SPACES: dict[str, Callable[[], forde.Method]] = {
    "deep-ensemble": lambda: forde.method("deep-ensemble"),
    "weights": lambda: forde.method("weight-rde", repulsion_scale=1.0),
    "outputs": lambda: forde.method("function-rde", cauchy=0.1),
    "features, projected, shared head": lambda: forde.method("feature-rde"),
    "input gradients, PCA": lambda: forde.method("forde-pca"),
}
VARIANTS: dict[str, Callable[[], forde.Method]] = {
    "outputs per sample": lambda: forde.Method(space=Outputs(per_sample=True)),
    "all features": lambda: forde.Method(space=Features(), prior=(Cauchy(0.1, on="features"), Isotropic())),
    "every second step on half of the batch": lambda: forde.method(
        "forde-identity", repulsion_every=2, repulsion_fraction=0.5
    ),
    "input gradients of the mean loss": lambda: forde.method(
        "lit", output="ce", reduction="sum", eps=1e-6, strength=0.01
    ),
    "SVGD, weights": lambda: svgd(Weights()),
    "SVGD, outputs": lambda: svgd(Outputs()),
    "SVGD, input gradients": lambda: svgd(InputGradients()),
}
METHODS = {**SPACES, **VARIANTS}

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "low memory": {"memory": "low"},
    "looking at gradients": {"non_finite": "skip"},
    "adam": {"optimizer": lambda p: torch.optim.Adam(p, lr=1e-2), "lr": None},
    "an order for each member": {"independent_data": True},
    "loader": {},
    "in parts": {"accumulate": 2},
    "averaged": {"ema": 0.5},
    "last, smaller batch": {"drop_last": False, "n": BATCH * (STEPS - 1) + 4},
}


def data(dtype: torch.dtype = torch.float64, n: int = BATCH * STEPS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, 5, 5, generator=generator, dtype=torch.float64)
    x = x * torch.linspace(0.5, 2, 50, dtype=torch.float64).view(2, 5, 5)  # PCA then differs from the identity
    return x.to(dtype), torch.arange(n) % CLASSES


def ensemble(
    dtype: torch.dtype = torch.float64, members: int = MEMBERS, dropout: float = 0.0, network: str = "convolution"
) -> forde.Ensemble:
    return forde.Ensemble(lambda: NETWORKS[network](dropout), members).to(dtype)


def fit(trained: forde.Ensemble, method: str = "input gradients, PCA", given: Any = None, **options: Any) -> History:
    defaults = {"epochs": EPOCHS, "batch_size": BATCH, "lr": 0.05, "verbose": False, "engine": "eager"}
    given = data() if given is None else given
    return forde.fit(trained, METHODS[method](), given, **{**defaults, **options})


def state_of(trained: forde.Ensemble) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in trained.state_dict().items()}


def train(
    method: str, dtype: str = "float64", option: str = "plain", network: str = "convolution", **more: Any
) -> dict[str, Any]:
    """The state of all members after training, and the records."""
    kind, options = getattr(torch, dtype), dict(OPTIONS[option])
    trained, given = ensemble(kind, network=network), data(kind, options.pop("n", BATCH * STEPS))
    loader = DataLoader(TensorDataset(*given), BATCH, shuffle=True) if option == "loader" else given
    records = fit(trained, method, loader, **options, **more).records
    return {"state": state_of(trained), "records": records}


class StopAfter:
    """Raises out of training after some whole steps, in the forward pass of every process."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if module.training:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("the plug was pulled")


def pull_the_plug(record: object) -> None:
    raise RuntimeError("the plug was pulled")


def crash(run: Path, steps: int, **options: Any) -> None:
    """A run with a checkpoint after every step that dies after this many; of stacked members, after the first epoch."""
    network = options.pop("network", "convolution")
    trained = ensemble(dropout=options.pop("dropout", 0.0), network=network)
    if options.get("engine") == "vectorized":
        options["callback"] = pull_the_plug
    else:
        for member in trained.members:
            member.register_forward_hook(StopAfter(steps))
    try:
        fit(trained, run=run, checkpoint_minutes=0.0, **options)
    except RuntimeError as error:
        assert "plug" in str(error), error
    else:
        raise AssertionError("the run was to be interrupted")


def resume(run: Path, **options: Any) -> dict[str, Any]:
    trained = ensemble(dropout=options.pop("dropout", 0.0), network=options.pop("network", "convolution"))
    records = fit(trained, run=run, resume=True, checkpoint_minutes=0.0, **options).records
    return {"state": state_of(trained), "records": records}


def spoil_loss(trained: forde.Ensemble, member: int, step: int) -> None:
    """The member's output is NaN in one step."""
    steps = iter(range(1000))

    def spoil(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        return output * float("nan") if module.training and next(steps) == step else None

    trained.members[member].register_forward_hook(spoil)


def spoil_gradient(trained: forde.Ensemble, member: int, step: int) -> None:
    """A gradient of the member is infinite in one step."""
    steps = iter(range(1000))
    parameter = trained.members[member].head.bias
    parameter.register_hook(lambda gradient: gradient / 0 if next(steps) == step else gradient)


def spoiled(kind: str, **options: Any) -> dict[str, Any]:
    """A deep ensemble that skips the step in which the last member went wrong."""
    trained = ensemble()
    {"loss": spoil_loss, "gradient": spoil_gradient}[kind](trained, MEMBERS - 1, 2)
    records = fit(trained, "deep-ensemble", **{"non_finite": "skip", **options}).records
    return {"state": state_of(trained), "records": records}


class Branching(Perceptron):
    """Python looks at the data, so the network cannot be traced."""

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = super().forward(x)
        return output if float(x.detach().mean()) > 100 else -output


NETWORKS["branching"] = lambda dropout: Branching()


class Functional(ConvBatchNorm):
    """Its BatchNorm is a function, which no list of layers shows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.flat_norm = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.batch_norm(x, None, None, training=True))


NETWORKS["functional"] = lambda dropout: Functional()


def changed(members: range, **options: Any) -> dict[str, Any]:
    """What members hold besides tensors is another after the first epoch."""
    trained = ensemble()

    def change(record: object) -> None:
        for index in members:
            trained.members[index].norm.eps = 0.01

    records = fit(trained, "outputs", callback=change, diagnostics_every=0, **options).records
    return {"state": state_of(trained), "records": records}


def five_steps_on_gpu(method: str, network: str, **options: Any) -> dict[str, Tensor]:
    """What comes of the weights in float32, on the host; of a compiled step the third is captured."""
    trained = ensemble(torch.float32, network=network)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        fit(
            trained, method, data(torch.float32), epochs=1, engine="compiled", device="cuda:0", diagnostics_every=0,
            **options,
        )  # fmt: skip
    return {name: tensor.cpu() for name, tensor in state_of(trained).items()}
