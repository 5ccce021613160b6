"""Whole steps of the authors' code through an MLP and a convolution with BatchNorm: gradients and three updates."""

from __future__ import annotations

import math

import pytest
import torch
from golden import RELATIVE, check_close, load, names
from torch import Tensor, nn

import forde
from forde.engine import EngineName, inspect_step, make_engine
from forde.kernels import PCA, RBF, Identity, PrincipalDirections
from forde.kernels.metric import squared_distances
from forde.kernels.rbf import FLOOR
from forde.priors import Isotropic
from forde.spaces import InputGradients
from forde.step import Step

RUNS = [(output, ls) for output in ("logit", "logsoftmax") for ls in ("identity", "pca")]
ENGINES = ["eager", "vectorized"]
MLP = names("mlp_step_*", [f"mlp_step_{act}_{dtype}" for act in ("tanh", "relu") for dtype in ("f64", "f32")])
CONV = names("convbn_step_*", ["convbn_step_f64", "convbn_step_f32"])


def mlp(file: dict[str, Tensor], name: str) -> tuple[forde.Ensemble, dict[str, str]]:
    hidden, inputs = file["param__W1"].shape[1:]
    classes = file["param__W2"].shape[1]
    activation = nn.Tanh if "tanh" in name else nn.ReLU

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, hidden), activation(), nn.Linear(hidden, classes))

    return forde.Ensemble(make, len(file["param__W1"])), {
        "W1": "0.weight",
        "b1": "0.bias",
        "W2": "2.weight",
        "b2": "2.bias",
    }


class GlobalMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-2, -1))


def convbn(file: dict[str, Tensor], name: str) -> tuple[forde.Ensemble, dict[str, str]]:
    members, outputs, inputs, size, _ = file["param__conv_w"].shape
    classes = file["param__fc_w"].shape[1]
    eps, momentum = float(file["bn_eps"]), 1 - float(file["bn_decay"])

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False),
            nn.BatchNorm2d(outputs, eps=eps, momentum=momentum),
            nn.ReLU(),
            GlobalMean(),
            nn.Linear(outputs, classes),
        )

    layout = {"conv_w": "0.weight", "bn_scale": "1.weight", "bn_offset": "1.bias", "fc_w": "4.weight", "fc_b": "4.bias"}
    return forde.Ensemble(make, members), layout


def basis(file: dict[str, Tensor]) -> Tensor:
    if "U" in file:
        return file["U"]
    factors = [file[f"U_factor_{axis}"] for axis in "hwc"]
    h, w, c = (len(factor) for factor in factors)
    u = torch.kron(torch.kron(factors[0], factors[1]), factors[2])
    u = u.reshape(h, w, c, h * w * c).permute(2, 0, 1, 3).reshape(h * w * c, h * w * c)
    probe = u.T @ (torch.arange(h * w * c).to(u) / (h * w * c))
    check_close(probe, file["U_chw_probe"], what="layout of the basis")
    check_close(u[5], file["U_chw_row5"], what="layout of the basis")
    return u


def method_of(file: dict[str, Tensor], output: str, ls: str) -> forde.Method:
    metric = Identity()
    if ls == "pca":
        metric = PCA(pca=PrincipalDirections(basis(file), file["lam"], float(file["lam"].sum())))
    scalar = "logit" if output == "logit" else "log_prob"
    return forde.Method(
        space=InputGradients(output=scalar, eps=float(file["eps"])),
        kernel=RBF(metric),
        prior=Isotropic(float(file["weight_decay"])),
    )


def load_members(ensemble: forde.Ensemble, layout: dict[str, str], file: dict[str, Tensor]) -> forde.Ensemble:
    ensemble.to(file["x"].dtype)
    with torch.no_grad():
        for i, member in enumerate(ensemble.members):
            for key, name in layout.items():
                member.get_parameter(name).copy_(file[f"param__{key}"][i])
            for module in member.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.reset_running_stats()
    return ensemble.train()


def stacked(ensemble: forde.Ensemble, name: str) -> Tensor:
    return torch.stack([member.get_parameter(name).detach() for member in ensemble.members])


def of(gradients: list[dict[str, Tensor]], name: str) -> Tensor:
    """All members' gradients of a parameter, `[M, ...]`."""
    return torch.stack([member[name] for member in gradients])


def without(method: forde.Method, **changes: object) -> forde.Method:
    from dataclasses import replace

    return replace(method, **changes)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("output", "ls"), RUNS)
@pytest.mark.parametrize("name", MLP + CONV)
def test_step(name: str, output: str, ls: str, engine: EngineName) -> None:
    file = load(name)
    build = mlp if name.startswith("mlp") else convbn
    x, y, run = file["x"], file["y"].long(), f"{output}_{ls}"
    method = method_of(file, output, ls)
    ensemble, layout = build(file, name)

    def fresh() -> forde.Ensemble:
        return load_members(ensemble, layout, file)

    alone = without(method, space=None, kernel=None, rule=None, prior=())
    found = inspect_step(fresh(), alone, x, y, engine=engine)
    check_close(found.losses.sum(), file["ce_loss_sum_over_members"], what="ce")
    for key, parameter in layout.items():
        check_close(of(found.total, parameter), file[f"grad_ce__{key}"], what=f"grad_ce {key}")

    found = inspect_step(fresh(), method, x, y, engine=engine)
    assert found.z is not None and found.forces is not None
    reference = file[f"input_grad_{output}"].flatten(2)
    check_close(found.z, reference / reference.norm(dim=-1, keepdim=True), what="input gradient")
    check_repulsion_gradients(file, found.of_repulsion, layout, run)
    B, energy = len(y), found.forces.energy
    q = squared_distances(*2 * [method.kernel.metric(found.z)])
    check_close(q, file[f"sqdist__{run}"], what="sqdist")
    similarity = method.kernel(found.z, found.z)
    check_close(similarity.bandwidth[0], file[f"bandwidth__{run}"], what="bandwidth")
    check_close(similarity.values.mean(-1), file[f"kernel_mean__{run}"], what="kernel_mean")
    check_close(energy * B, file[f"log_kernel_sum__{run}"], what="log_kernel_sum")
    check_close(energy.sum(), file[f"repulsion__{run}"], what="repulsion")
    for key, parameter in layout.items():
        check_close(of(found.total, parameter), file[f"grad_total__{run}__{key}"], what=f"grad_total {key}")
    check_three_steps(file, make_engine(engine, fresh(), method), layout, run)


def check_repulsion_gradients(
    file: dict[str, Tensor], found: list[dict[str, Tensor]], layout: dict[str, str], run: str
) -> None:
    """The repulsion alone, pulled back through the input gradients to the parameters."""
    largest = max(float(file[f"grad_rep__{run}__{key}"].abs().max()) for key in layout)
    for key, name in layout.items():
        expected = file[f"grad_rep__{run}__{key}"]
        if expected.any():
            check_close(of(found, name), expected, what=f"grad_rep {key}")
        elif name in found[0]:  # exactly zero in the reference: biases of a ReLU network, say
            assert float(of(found, name).abs().max()) <= RELATIVE[expected.dtype] * largest, f"grad_rep {key}"


def check_three_steps(file: dict[str, Tensor], engine: Step, layout: dict[str, str], run: str) -> None:
    """SGD with Nesterov momentum on the same batch, as logged by the reference."""
    x, y = file["x"], file["y"].long()
    optimizer = torch.optim.SGD(
        engine.runner.parameters(), lr=float(file["lr"]), momentum=float(file["momentum"]), nesterov=True
    )
    batchnorms = [
        (i, module)
        for i, member in enumerate(engine.runner.ensemble.members)
        for module in member.modules()
        if isinstance(module, nn.BatchNorm2d)
    ]
    for step in range(3):
        report = engine.update(x, y, step=step)
        optimizer.step()
        M = len(report.losses)
        check_close(report.losses.sum() / M, file[f"logged_ce_per_member__{run}"][step], what=f"logged ce {step}")
        logged = file[f"logged_repulsion_per_member__{run}"][step]
        check_close(report.repulsion.sum() / M, logged, what=f"logged repulsion {step}")
        median_mean = (report.bandwidth.double() - FLOOR) * math.log(M)
        check_close(median_mean.to(x.dtype), file[f"logged_median_mean__{run}"][step], what=f"logged median {step}")
        if step in (0, 2):
            for key, parameter in layout.items():
                expected = file[f"param_after{step + 1}__{run}__{key}"]
                check_close(stacked(engine.runner.ensemble, parameter), expected, what=f"param_after{step + 1} {key}")
            for i, module in batchnorms:
                check_batchnorm(file, module, i, step + 1, run)
    for key, parameter in layout.items():
        expected = file[f"velocity_after3__{run}__{key}"]
        velocity = [optimizer.state[unit[parameter]]["momentum_buffer"] for unit in engine.runner.leaves]
        check_close(torch.stack(velocity) if len(velocity) > 1 else velocity[0], expected, what=f"velocity {key}")
    engine.close()
    if batchnorms:
        check_evaluation(file, engine.runner.ensemble, run)


def check_batchnorm(file: dict[str, Tensor], module: nn.BatchNorm2d, i: int, t: int, run: str) -> None:
    """torch's running averages hold the reference's once start value and variance correction are accounted for."""
    decay = float(file["bn_decay"])
    samples = file["x"].numel() // file["x"].shape[1]
    mean = module.running_mean
    variance = (module.running_var - decay**t) * (samples - 1) / samples  # starts at 1; unbiased → biased
    check_close(mean, file[f"bn_mean_hidden_after{t}__{run}"][i], what="running mean")
    check_close(variance, file[f"bn_var_hidden_after{t}__{run}"][i], what="running variance")
    check_close(mean / (1 - decay**t), file[f"bn_mean_average_after{t}__{run}"][i], what="debiased mean")
    check_close(variance / (1 - decay**t), file[f"bn_var_average_after{t}__{run}"][i], what="debiased variance")
    assert int(module.num_batches_tracked) == int(file[f"bn_mean_counter_after{t}__{run}"][i]) == t


def check_evaluation(file: dict[str, Tensor], ensemble: forde.Ensemble, run: str) -> None:
    """With the reference's averages in place, evaluation mode gives the reference's outputs."""
    for i, member in enumerate(ensemble.members):
        for module in member.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.copy_(file[f"bn_mean_average_after3__{run}"][i])
                module.running_var.copy_(file[f"bn_var_average_after3__{run}"][i])
    ensemble.eval()
    with torch.no_grad():
        output = ensemble(file["x"])
    output = output.log_softmax(-1) if run.startswith("logsoftmax") else output
    check_close(output, file[f"eval_out_after3__{run}"], what="evaluation output")


@pytest.mark.parametrize("name", MLP + CONV)
def test_outputs(name: str) -> None:
    file = load(name)
    ensemble, layout = (mlp if name.startswith("mlp") else convbn)(file, name)
    output = load_members(ensemble, layout, file)(file["x"]).detach()
    check_close(output, file["logits"], what="logits")
    if "logsoftmax" in file:
        check_close(output.log_softmax(-1), file["logsoftmax"], what="logsoftmax")
