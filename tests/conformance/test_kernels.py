"""The repulsion term: distances, medians, bandwidths, kernels, energies and gradients of the authors' code."""

from __future__ import annotations

import math

import pytest
import torch
from golden import check_close, load, names
from torch import Tensor

from forde.kernels import PCA, RBF, Identity, Median, Metric, PrincipalDirections, Tuned
from forde.kernels.metric import squared_distances
from forde.kernels.rbf import FLOOR, median
from forde.rules import WGD
from forde.vectors import unit

SIZES = [(2, 3, 4), (5, 8, 12), (10, 16, 48)]
VARIANTS = ["identity", "pca", "precision_mix", "lengthscale_mix"]
KNOWN = [
    f"kernel_M{M}_B{B}_D{D}_{variant}_{dtype}" for M, B, D in SIZES for variant in VARIANTS for dtype in ("f64", "f32")
] + ["kernel_edge_identity_f64", "kernel_edge_identity_f32"]
ALPHA = 0.4


def metric_of(name: str, file: dict[str, Tensor]) -> Metric:
    if "_identity_" in name:
        return Identity()
    pca = PrincipalDirections(file["U"], file["lam"], float(file["lam"].sum()))
    if "_pca_" in name:
        return PCA(pca=pca)
    return Tuned(pca=pca, alpha=ALPHA, harmonic="lengthscale" in name)


@pytest.mark.parametrize("name", names("kernel_*", KNOWN))
def test_repulsion_term(name: str) -> None:
    file = load(name)
    G = file["G"].clone().requires_grad_()
    B = G.shape[1]
    metric = metric_of(name, file)

    s = unit(G, float(file["eps"]))
    n = s if isinstance(metric, Identity) else s @ file["U"]
    check_close(n.detach(), file["normalised"], what="normalised")
    if "weighted" in file:
        check_close(metric(s).detach(), file["weighted"], what="weighted")
    q = squared_distances(metric(s), metric(s)).detach()
    check_close(q, file["sqdist"], what="sqdist")
    check_close(median(q, 0), file["median"], what="median")
    check_close(median(q, 0).mean(), file["median_mean"], what="median_mean")
    check_close(Median("column")(q)[0], file["bandwidth"], what="bandwidth")

    kernel = RBF(metric, "per_column")
    similarity = kernel(s, s.detach())
    check_close(similarity.values.detach(), file["kernel_per_sample"], what="kernel_per_sample")
    check_close(similarity.values.mean(-1).detach(), file["kernel_mean"], what="kernel_mean")

    forces = WGD()(kernel, s)
    check_close(forces.energy, file["log_kernel_sum"], what="log_kernel_sum")
    check_close(forces.energy.sum() / B, file["repulsion"], what="repulsion")
    (grad,) = torch.autograd.grad(s, G, forces.cotangent / B)
    check_close(grad, file["grad_G"], what="grad_G")


@pytest.mark.parametrize("name", names("kernel_*", KNOWN))
def test_bandwidth_per_sample(name: str) -> None:
    file = load(name)
    s = unit(file["G"], float(file["eps"]))
    kernel = RBF(metric_of(name, file), "per_sample")
    h = kernel(s, s).bandwidth
    assert h is not None
    check_close(h[0, 0], file["allpairs_bandwidth"], what="allpairs_bandwidth")
    check_close((h[0, 0] - FLOOR) * math.log(len(s)), file["allpairs_median"], what="allpairs_median")
    check_close(WGD()(kernel, s).energy.sum() / s.shape[1], file["allpairs_repulsion"], what="allpairs_repulsion")


@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_edge_samples_have_exactly_zero_gradient(dtype: str) -> None:
    file = load(f"kernel_edge_identity_{dtype}")
    G = file["G"].clone().requires_grad_()
    s = unit(G, float(file["eps"]))
    (grad,) = torch.autograd.grad(s, G, WGD()(RBF(), s).cotangent)
    assert not grad[:, 0].any(), "all gradients zero"
    assert not grad[:, 2].any(), "all members identical"
