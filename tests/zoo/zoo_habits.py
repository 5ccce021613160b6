"""What people do in networks beside layers: changes in place, shared and frozen weights, other dtypes, sizes."""

from __future__ import annotations

import torch
from animals import CLASSES, Then, add, floats, head
from torch import Tensor, nn

S = nn.Sequential
ROW = floats(5)
IMAGE = floats(2, 6, 6)


class ChangesItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = S(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x -= 1
        x *= 0.5
        return self.body(x)


class InPlace(nn.Module):
    """relu_, an in-place residual, and assignment to a slice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu_()
        z = self.second(y)
        z += y
        z[:, 0] = z[:, 1] * 2
        return self.last(z.sigmoid_())


class Tied(nn.Module):
    """One matrix used in both directions, one layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(5, 4), nn.Linear(4, 5)
        self.up.weight = nn.Parameter(self.down.weight.detach().T.clone())
        self.twice, self.again = nn.Linear(5, 5), nn.Linear(5, 5)
        self.again.weight = self.twice.weight
        self.last = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.up(torch.tanh(self.down(x)) @ self.down.weight @ self.down.weight.T))
        return self.last(self.twice(torch.tanh(self.again(torch.tanh(self.twice(x))))))


def frozen_first() -> nn.Module:
    network = S(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    network[0].requires_grad_(False)
    return network


def frozen_batchnorm() -> nn.Module:
    network = S(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), head(4)
    )
    network[1].running_mean.normal_()
    network[1].eval().requires_grad_(False)
    return network


class LoRA(nn.Module):
    """A frozen layer and a trained product of small rank beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(5, 6).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 5)), nn.Parameter(0.1 * torch.randn(6, 2))
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.base(x) + x @ self.a.T @ self.b.T))


class Fourier(nn.Module):
    """A learned filter in the frequency domain."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(2, 6, 4, 2))
        self.last = head(2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.fft.rfft2(x, norm="ortho") * torch.view_as_complex(self.filter)
        return self.last(torch.tanh(torch.fft.irfft2(y, s=x.shape[-2:], norm="ortho")))


class Complex(nn.Module):
    """Complex weights on real inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5, dtype=torch.complex128))
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((x.to(torch.complex128) @ self.weight.T).abs())


class ComplexInputs(nn.Module):
    """Real weights on complex inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.last = S(nn.Linear(10, 6), nn.Tanh(), nn.Linear(6, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([x.real, x.imag], -1))


class Mixed(nn.Module):
    """A body in float32 between two layers in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, CLASSES)
        self.body = nn.Linear(6, 6, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(self.first(x).tanh().float()).double().tanh())


class Detached(nn.Module):
    """A branch without gradient, and a part of the loss's way that is rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, CLASSES)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        return self.last(y + (y.round() - y).detach())


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair, self.last = nn.Bilinear(5, 5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.pair(x, x.flip(1))))


class OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)  # type: ignore[attr-defined]
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return g * x.cos()


class OwnFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(OnceDifferentiable.apply(self.first(x)))


def perceptron(width: int = 6) -> nn.Module:
    return S(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, CLASSES))


add("changes its input in place", ChangesItsInput, ROW, part=True)
add("changes its input in place, deep ensemble", ChangesItsInput, ROW, method="deep-ensemble")
add("changes its input in place, function-RDE", ChangesItsInput, ROW, method="function-rde", part=True)
add("relu_, in-place residual, slices", InPlace, ROW, part=True)
add("tied weights", Tied, ROW, method="forde-identity, log_prob")
add("tied weights under weight-RDE", Tied, ROW, method="weight-rde")
add("frozen layer", frozen_first, ROW, part=True)
add("frozen layer under weight-RDE", frozen_first, ROW, method="weight-rde")
add("frozen BatchNorm in evaluation mode", frozen_batchnorm, IMAGE, part=True)
add("LoRA", LoRA, ROW, method="forde-pca", part=True)
add("FFT layer", Fourier, IMAGE)
add("complex weights", Complex, ROW)
add("complex weights, deep ensemble", Complex, ROW, method="deep-ensemble")
add(
    "complex inputs",
    ComplexInputs,
    lambda batch, g: torch.randn(batch, 5, generator=g, dtype=torch.complex128),
    method="function-rde",
)
add(
    "complex inputs under FoRDE",
    ComplexInputs,
    lambda batch, g: torch.randn(batch, 5, generator=g, dtype=torch.complex128),
    refused=True,
)
add("float32 inside float64", Mixed, ROW, tolerance=1e-4)
add("float32 inside float64 under weight-RDE", Mixed, ROW, method="weight-rde", tolerance=1e-4)
add("straight-through rounding, unused layer", Detached, ROW)
add("unused layer under weight-RDE", Detached, ROW, method="weight-rde")
add("bilinear layer", Bilinear, ROW)
add("own function without second derivative", OwnFunction, ROW, refused=True)
add("own function without second derivative, deep ensemble", OwnFunction, ROW, method="deep-ensemble")
add("members of different widths", [lambda: perceptron(4), lambda: perceptron(6), lambda: perceptron(8)], ROW)
add(
    "members of different kinds",
    [perceptron, lambda: S(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, CLASSES))],
    ROW,
    members=2,
    method="function-rde",
)
add(
    "members of different widths under weight-RDE",
    [lambda: perceptron(4), lambda: perceptron(6)],
    ROW,
    members=2,
    method="weight-rde",
    refused=True,
)
add("one member", perceptron, ROW, members=1)
add("one member under function-RDE", perceptron, ROW, members=1, method="function-rde")
add("two members", perceptron, ROW, members=2, method="forde-pca", part=True)
add("batch of one", perceptron, ROW, batch=1)
add("batch of one, function-RDE", perceptron, ROW, batch=1, method="function-rde")
add("no hidden layer", lambda: nn.Linear(5, CLASSES), ROW, part=True)
add("returns a tuple", lambda: S(nn.Linear(5, CLASSES), Then(lambda x: (x, x))), ROW, refused=True)
add("returns a dictionary", lambda: S(nn.Linear(5, CLASSES), Then(lambda x: {"logits": x})), ROW)
