"""Principal directions of training inputs, from a stream of batches.

    S = XᵀX/(N−1) = U diag(λ) Uᵀ        (X centred first with `center=True`)

The authors' code does not centre (it only normalises channels); the paper's text says "centered". Three ways to the
same numbers, by what fits: the D×D moment where D ≤ N, the N×N Gram matrix where D > N, and randomised subspace
iteration, which never forms either, where only the top `rank` directions are wanted of a large input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from forde.errors import FordeError

Batches = Callable[[], Iterator[Tensor]]

LARGE_INPUT = 4096
"""Above this many input values a low-rank fit uses randomised iteration instead of the D×D moment."""
OVERSAMPLING = 16
MAX_PASSES = 12
CONVERGED = 1e-5


@dataclass(frozen=True)
class PrincipalDirections:
    """The result of `fit_pca`."""

    directions: Tensor
    """U `[D, R]`, orthonormal columns, by descending variance; R ≤ D (all directions of non-zero variance)."""
    variances: Tensor
    """λ `[R]` eigenvalues of S (second moments where not centred)."""
    total_variance: float
    """Trace of S, over all D directions."""

    @property
    def explained_variance_ratio(self) -> Tensor:
        """`[R]` share of the total variance along each direction."""
        return self.variances / self.total_variance if self.total_variance > 0 else self.variances


def fit_pca(batches: Batches, *, center: bool = False, rank: int | None = None) -> PrincipalDirections:
    """Fit by streaming: `batches()` starts a pass over tensors `[B, ...]`, which are flattened to `[B, D]`.

    >>> x = torch.randn(100, 3) * torch.tensor([3.0, 1.0, 0.1])
    >>> pca = fit_pca(lambda: iter(x.split(10)))
    >>> pca.directions.shape, bool(pca.explained_variance_ratio[0] > 0.8)
    (torch.Size([3, 3]), True)
    """
    if rank is not None and rank < 1:
        raise FordeError(f"rank is {rank}, but at least 1 direction, or None for all, was expected.")
    count, size, mean = _count(batches, center)
    if count < 2:
        raise FordeError(f"PCA needs at least 2 training samples, but {count} was given.")

    def rows() -> Iterator[Tensor]:
        for batch in batches():
            x = batch.flatten(1)
            x = x if x.dtype == torch.float64 else x.float()
            yield x if mean is None else x - mean.to(x)

    if rank is not None and size > LARGE_INPUT and rank + OVERSAMPLING < min(count, size):
        return _randomised(rows, count, size, rank)
    fitted = _gram(rows, count) if size > count else _moment(rows, count)
    return _top(fitted, rank)


def _count(batches: Batches, center: bool) -> tuple[int, int, Tensor | None]:
    """Number of samples, size of one, and (where wanted) their mean in float64."""
    count, size, total = 0, 0, None
    for batch in batches():
        flat = batch.flatten(1)
        if not bool(flat.isfinite().all()):
            raise FordeError(
                "the training inputs hold NaN or infinite values; remove those rows or fill in the values."
            )
        count, size = count + len(flat), flat.shape[1]
        if center:
            part = flat.sum(0, dtype=torch.float64)
            total = part if total is None else total + part
    return count, size, None if total is None else total / count


def _moment(rows: Batches, count: int) -> PrincipalDirections:
    moment: Tensor | None = None
    for x in rows():
        part = (x.T @ x).double()
        moment = part if moment is None else moment.add_(part)
    assert moment is not None
    variances, directions = torch.linalg.eigh(moment / (count - 1))
    return PrincipalDirections(directions.flip(1), variances.flip(0).clamp_min(0), float(moment.trace() / (count - 1)))


def _gram(rows: Batches, count: int) -> PrincipalDirections:
    """XXᵀ shares its non-zero eigenvalues with XᵀX; U = Xᵀ V (λ (N−1))^{-1/2}."""
    x = _fill(rows, count)
    gram = sum((part @ part.T for part in _double_columns(x)), x.new_zeros(count, count, dtype=torch.float64))
    variances, vectors = torch.linalg.eigh(gram / (count - 1))
    kept = variances > variances[-1].clamp_min(0) * 1e-12
    variances, vectors = variances[kept].flip(0), vectors[:, kept].flip(1)
    vectors = vectors / (variances * (count - 1)).sqrt()
    directions = torch.cat([part.T @ vectors for part in _double_columns(x)])
    return PrincipalDirections(directions, variances, float(variances.sum()))


def _fill(rows: Batches, count: int) -> Tensor:
    """All rows in one tensor, allocated once."""
    x: Tensor | None = None
    start = 0
    for batch in rows():
        x = batch.new_empty(count, batch.shape[1]) if x is None else x
        x[start : start + len(batch)] = batch
        start += len(batch)
    assert x is not None
    return x


def _double_columns(x: Tensor) -> Iterator[Tensor]:
    return (part.double() for part in x.split(1024, dim=1))


def _randomised(rows: Batches, count: int, size: int, rank: int) -> PrincipalDirections:
    """Subspace iteration Q ← orth(S Q), one pass over the data each, until the kept eigenvalues settle."""
    first = next(iter(rows()))
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(size, rank + OVERSAMPLING, generator=generator, dtype=torch.float64).to(first.device)
    basis = torch.linalg.qr(basis).Q
    previous = torch.zeros(rank, dtype=torch.float64, device=first.device)
    for _ in range(MAX_PASSES):
        image = torch.zeros_like(basis)
        total = 0.0
        for x in rows():
            image += (x.T @ (x @ basis.to(x))).double()
            total += float(x.square().sum(dtype=torch.float64))
        image /= count - 1
        variances, rotation = torch.linalg.eigh(basis.T @ image)
        variances, directions = variances.flip(0)[:rank].clamp_min(0), (basis @ rotation.flip(1))[:, :rank]
        if bool((variances - previous).abs().max() <= CONVERGED * variances[0]):
            break
        previous, basis = variances, torch.linalg.qr(image).Q
    return PrincipalDirections(directions, variances, total / (count - 1))


def _top(fitted: PrincipalDirections, rank: int | None) -> PrincipalDirections:
    if rank is None:
        return fitted
    return PrincipalDirections(fitted.directions[:, :rank], fitted.variances[:rank], fitted.total_variance)
