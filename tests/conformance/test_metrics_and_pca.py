"""Metrics and PCA of the authors' code."""

from __future__ import annotations

import pytest
import torch
from golden import check_close, load, names

from forde.evaluation import accuracy, ece, mixture, nll, nll_per_sample
from forde.kernels import fit_pca
from forde.prediction import ClassificationPrediction

EXACT = 1e-9
FLOAT32_LOG = 1e-7
"""The reference uses a float32 ln M, and float32 bin accuracies, even in its float64 files (3e-8 and 3e-9 off)."""


@pytest.mark.parametrize("name", names("metrics_*", ["metrics_f64", "metrics_f32"]))
def test_metrics(name: str) -> None:
    file = load(name)
    logits, y = file["member_logits"], file["labels"].long()
    probs = mixture(logits.double().softmax(-1))
    loose = 1e-5 if name.endswith("f32") else FLOAT32_LOG
    check_close(logits.softmax(-1), file["member_probs"], what="member_probs")
    check_close(probs.to(logits.dtype), file["mixture_probs"], what="mixture_probs")
    check_close(torch.tensor(nll(logits, y), dtype=torch.float64), file["nll"], relative=loose, what="nll")
    check_close(
        torch.tensor(nll(logits, y), dtype=torch.float64), file["f64_nll_exact"], relative=EXACT, what="exact nll"
    )
    wrong = probs.argmax(-1) != y
    check_close(
        nll_per_sample(logits, y)[wrong].mean(), file["nll_misclassified"], relative=loose, what="nll of errors"
    )
    n_bins = int(file["n_bins"])
    check_close(torch.tensor(ece(probs, y, n_bins), dtype=torch.float64), file["ece"], relative=loose, what="ece")
    check_close(
        torch.tensor(ece(probs, y, n_bins), dtype=torch.float64),
        file["f64_ece_exact"],
        relative=EXACT,
        what="exact ece",
    )
    for k in (1, 2, 3):
        assert accuracy(probs, y, k) == pytest.approx(float(file[f"top{k}"]), rel=1e-6)
    prediction = ClassificationPrediction(logits)
    for kind in ("total", "aleatoric", "epistemic"):
        values = getattr(prediction, kind)
        check_close(values, file[f"{kind}_entropy"], what=kind)
        check_close(values.mean(), file[f"{kind}_mean"], what=f"{kind} mean")
        check_close(values.std(correction=0), file[f"{kind}_std"], what=f"{kind} std")


@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("name", names("pca*", ["pca"]))
def test_pca(name: str, centre: bool) -> None:
    file = load(name)
    data = file["data"]
    kind = "centred" if centre else "uncentred"
    pca = fit_pca(lambda: iter(data.split(7)), center=centre)
    moment = file["covariance_centred" if centre else "second_moment"]
    check_close(pca.variances, file[f"eigval_{kind}"], what="eigenvalues")
    check_close(pca.directions @ torch.diag(pca.variances) @ pca.directions.T, moment, what="moment")
    overlap = (pca.directions.T @ file[f"U_{kind}"]).abs()
    check_close(overlap, torch.eye(len(overlap), dtype=overlap.dtype), what="directions up to sign")
    assert pca.total_variance == pytest.approx(float(moment.trace()), rel=EXACT)
    if not centre:
        check_close(pca.variances.sqrt().float(), file["f32_official_eigenvalues_sqrt"], what="saved multipliers")
