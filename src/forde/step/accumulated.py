"""A step over a batch that does not fit into memory at once: in parts, with the gradient of the whole batch.

Phase 1 goes over the parts and keeps of each its loss and representation only. The exchange sees the representations of
the whole batch, so that kernels, bandwidths and projections are what they are without parts. Phase 3 then makes each
part's forward pass again, from where it began (buffers and random numbers), and pulls its share of the cotangents back.
The last part's graph is still there; where members do not interact no pass is made twice.

    loss_i = Σ_p (B_p / B) loss_ip,   z_i = (z_i1, …, z_iP),   g_i = Σ_p ((B_p / B) ∇_θ loss_ip + (∂z_ip/∂θ_i)ᵀ V_ip)

B_p / B is for losses that are means over the samples; of others the part that a part's labels have in the batch's loss.
That is the gradient of the whole batch for losses and priors that are means over the samples, and representations that
are sample after sample, in networks that treat each sample by itself. BatchNorm does not: it normalises each part by
the part's own statistics, and its running statistics move once for each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from forde.errors import FordeError
from forde.rules import Forces
from forde.spaces import View
from forde.step.agreement import Position
from forde.step.checks import refuse_unrepeatable
from forde.step.core import Repulsion, Step
from forde.step.records import Batch, Batches, Forward
from forde.step.runners import part_of
from forde.torch_private import batch_norms_in

log = logging.getLogger(__name__)

SAME_LOSS = 1e-3
"""Relative difference that rounding may make between a mean and the mean of means."""


def part_sizes(n: int, parts: int) -> list[int]:
    """Sizes of so many parts of n samples, as even as can be; fewer parts where there are fewer samples.

    >>> part_sizes(10, 4), part_sizes(3, 4)
    ([3, 3, 2, 2], [1, 1, 1])
    """
    parts = min(n, parts)
    return [n // parts + (part < n % parts) for part in range(parts)]


@dataclass(frozen=True)
class _Waiting:
    """A part whose representation is in the exchange."""

    batch: Batches
    start: Position | None
    """None for the last part, whose graph is kept."""
    size: int
    """Of its representation along the samples' axis."""
    losses: Tensor
    """`[M]`, compared with those of the second pass, which must be the same."""


class AccumulatedStep(Step):
    """Makes another step's phases part by part.

    Args:
        inner: the step of a part.
        parts: of each batch; a batch of fewer samples has as many parts as samples.

    >>> from torch import nn
    >>> from forde import Ensemble, method
    >>> from forde.step import MemberLoop, PlainStep
    >>> forde_identity = method("forde-identity")
    >>> ensemble = Ensemble(lambda: nn.Linear(4, 3), n_members=2)
    >>> step = AccumulatedStep(PlainStep(MemberLoop(ensemble, forde_identity), forde_identity), 4)
    >>> report = step.update(torch.randn(8, 4), torch.randint(3, (8,)))
    >>> report.losses.shape, report.z.shape
    (torch.Size([2]), torch.Size([2, 8, 4]))
    """

    def __init__(self, inner: Step, parts: int) -> None:
        super().__init__(inner.runner, inner.method, inner.whole)
        self.inner, self.parts = inner, parts
        self._waiting: list[_Waiting] = []
        self._end: Position | None = None
        self._sums: list[Tensor | None] = []
        """By parameter, the sum of the gradients of those parts that are done."""
        self._seen_loss = self._seen_again = False
        norms = batch_norms_in(self.whole.members[0])
        if norms:
            log.warning(
                "accumulate=%d: BatchNorm ('%s') normalises each part of a batch by itself, so this is not the "
                "gradient that the whole batch would have", parts, norms[0],
            )  # fmt: skip

    @property
    def plain(self) -> Step:
        return self.inner.plain

    def forward(self, batch: Batches, *, repel: bool) -> Forward:
        self._waiting, self._end, self._sums = [], None, []
        pieces = self._pieces(batch, repel=repel)
        if not self._seen_loss:
            self._refuse_coupled(pieces)
        found: list[Forward] = []
        for number, (piece, repels) in enumerate(pieces):
            last = number == len(pieces) - 1
            start = self._position() if repels and not last else None
            told = self.inner.forward(piece, repel=repels)
            told = Forward(told.losses.clone(), _copy(told.z), _copy(told.loss_gradients))
            found.append(told)
            if repels:
                assert told.z is not None
                self._waiting.append(_Waiting(piece, start, self._samples_of(told.z, piece), told.losses))
            else:
                self._add_gradients()
        if len(self._waiting) > 1:
            self._end = self._position()
        if not repel:
            self._put_gradients()
        return Forward(
            torch.stack([each.losses for each in found]).sum(0),
            self._joined([each.z for each in found]),
            self._joined([each.loss_gradients for each in found]),
        )

    def exchange(self, found: Forward, factor: float | Tensor) -> Forces:
        return self.inner.exchange(found, factor)

    def pull_back(self, forces: Forces | None, *, apart: bool = False) -> Repulsion:
        if forces is None:
            return []
        sizes = [waiting.size for waiting in self._waiting]
        cotangents = forces.cotangent.split(sizes, self._axis)
        total: Repulsion = []
        for waiting, cotangent in reversed(list(zip(self._waiting, cotangents, strict=True))):
            if waiting.start is not None:
                waiting.start.restore()
                again = self.inner.forward(waiting.batch, repel=True)
                if not self._seen_again:
                    self._seen_again = True
                    refuse_unrepeatable(waiting.losses, again.losses, "leave accumulate out")
            own = self.inner.pull_back(replace(forces, cotangent=cotangent), apart=apart)
            total = _added(total, own) if apart else ()
            self._add_gradients()
        if self._end is not None:
            self._end.restore()
        self._waiting = []
        self._put_gradients()
        return total

    def finish(self, forces: Forces | None, repulsion: Repulsion) -> None:
        self.inner.finish(forces, repulsion)

    def settle(self) -> None:
        self.inner.settle()

    def close(self) -> None:
        self.inner.close()

    # Parts

    def _position(self) -> Position:
        """Where the next forward pass begins, in all units."""
        return Position(self.runner, self.runner.ensemble.device, weights=False)

    @property
    def _axis(self) -> int:
        assert self.method.space is not None
        return self.method.space.sample_axis

    def _pieces(self, batch: Batches, *, repel: bool) -> list[tuple[Batches, bool]]:
        """The parts, and which of them repel: all, or only the last one where the data has no say in it."""
        if not isinstance(batch, Batch):
            columns = zip(*(self._parts_of(each) for each in batch), strict=True)
            return [(list(column), False) for column in columns]
        found = self._parts_of(batch)
        if not repel:
            return [(piece, False) for piece in found]
        assert self.method.space is not None
        if not self.method.space.uses_batch:
            return [(piece, number == len(found) - 1) for number, piece in enumerate(found)]
        if batch.part is None:
            return [(piece, True) for piece in found]
        some = part_of(batch)
        places = _places(part_sizes(len(some.y), self.parts))
        quiet = len(found) - len(places)  # parts without samples that repel come first: the last one's graph is kept
        compared = [
            replace(piece, part=(some.x[own], some.y[own])) for piece, own in zip(found[quiet:], places, strict=True)
        ]
        return [*((piece, False) for piece in found[:quiet]), *((piece, True) for piece in compared)]

    def _parts_of(self, batch: Batch) -> list[Batch]:
        n = len(batch.y)
        places = _places(part_sizes(n, self.parts))
        shares = [(own.stop - own.start) / n for own in places]
        of_loss = self._shares_of_loss([batch.y[own] for own in places]) or shares
        return [
            Batch(batch.x[own], batch.y[own], share=batch.share * share, counts=part / share)
            for own, share, part in zip(places, shares, of_loss, strict=True)
        ]

    def _shares_of_loss(self, targets: Sequence[Tensor]) -> list[float] | None:
        """Which part of a batch's loss each part's is; None where that is its part of the samples."""
        likelihood = self.runner.ensemble.likelihood
        if likelihood.adds_up:
            return None
        like = self.runner.parameters()[0]
        sizes = torch.stack([likelihood.size(y, like) for y in targets])
        return (sizes / sizes.sum()).tolist() if bool(sizes.any()) else None

    def _samples_of(self, z: Tensor, piece: Batches) -> int:
        """Size of a part's representation along the samples' axis; refused where that is not sample after sample."""
        assert isinstance(piece, Batch) and self.method.space is not None
        space, size = self.method.space, z.shape[self._axis]
        n = len(piece.y) if piece.part is None else len(piece.part[1])  # type: ignore[index]
        if space.uses_batch and size % n:
            raise FordeError(
                f"{type(space).__name__} has sample_axis = {space.sample_axis}, but its z {list(z.shape)} does not "
                f"hold {n} samples there, so accumulate cannot split it; set sample_axis to the axis along which the "
                "batch lies, or leave accumulate out."
            )
        return size

    def _joined(self, parts: Sequence[Tensor | None]) -> Tensor | None:
        there = [part for part in parts if part is not None]
        return torch.cat(there, self._axis) if there else None

    # Gradients

    def _add_gradients(self) -> None:
        """Add the gradients that a part has left in `.grad`, where the next part's will replace them."""
        own = [parameter.grad for parameter in self.runner.parameters()]
        self._sums = _sum(self._sums or [None] * len(own), own)

    def _put_gradients(self) -> None:
        for parameter, gradient in zip(self.runner.parameters(), self._sums, strict=True):
            parameter.grad = gradient
        self._sums = []

    @torch.no_grad()
    def _refuse_coupled(self, pieces: Sequence[tuple[Batches, bool]]) -> None:
        """Stop where the loss of two parts together is not the mean of both losses, as with a sum, or Dice.

        Looked at in the first step only.
        """
        self._seen_loss = True
        pair = [piece if isinstance(piece, Batch) else piece[0] for piece, _ in pieces[:2]]
        if len(pair) < 2:
            return
        runner, start = self.runner, self._position()
        runner.before_step(pair[0].x)
        one, two = (runner.run(0, replace(each, share=1.0, counts=1.0), twice=False)[0] for each in pair)
        start.restore()
        axis, likelihood = runner.sample_axis, runner.ensemble.likelihood
        both = replace(
            one, y=torch.cat([one.y, two.y]), output=torch.cat([one.output, two.output], axis),
            features=_both(one.features, two.features, axis), weights=_both(one.weights, two.weights, -1),
        )  # fmt: skip
        share = len(pair[0].y) / len(both.y)
        of_loss = self._shares_of_loss([each.y for each in pair])
        terms: list[tuple[Callable[[View], Tensor], bool, str, float]] = [
            (View.loss, likelihood.takes_stacks, f"the loss of {type(likelihood).__name__}", (of_loss or [share])[0]),
            *(
                (prior.energy, prior.takes_stacks, f"the prior {type(prior).__name__}", share)
                for prior in self.method.priors
                if prior.has_energy
            ),
        ]
        for function, at_once, what, share in terms:
            whole, first, second = (runner.each(function, view, at_once=at_once) for view in (both, one, two))
            mean = share * first + (1 - share) * second
            rounding = SAME_LOSS * float(mean.abs().max())
            if not torch.allclose(whole, mean, rtol=SAME_LOSS, atol=rounding, equal_nan=True):
                raise FordeError(
                    f"{what} is not a mean over the samples: of two parts together it is {float(whole[0]):.4g}, but "
                    f"the mean of theirs {float(mean[0]):.4g}, so accumulate would train something else; write it as "
                    "a mean over the batch, or leave accumulate out."
                )


def _places(sizes: Sequence[int]) -> list[slice]:
    return [slice(*ends) for ends in pairwise([0, *accumulate(sizes)])]


def _copy(tensor: Tensor | None) -> Tensor | None:
    """A copy, because a CUDA graph overwrites its results when it runs for the next part."""
    return None if tensor is None else tensor.clone()


def _both(one: Tensor | None, two: Tensor | None, axis: int) -> Tensor | None:
    return None if one is None or two is None else torch.cat([one, two], axis)


def _sum(sums: Sequence[Tensor | None], own: Sequence[Tensor | None]) -> list[Tensor | None]:
    """`sums` plus `own`, in place. A sum begins as a copy, so that nobody else's tensor is written to."""
    found: list[Tensor | None] = []
    for total, gradient in zip(sums, own, strict=True):
        if total is None or gradient is None:
            found.append(gradient.detach().clone() if total is None and gradient is not None else total)
        else:
            found.append(total + gradient if total.is_sparse or gradient.is_sparse else total.add_(gradient))
    return found


def _added(total: Repulsion, own: Repulsion) -> Repulsion:
    """Gradients of the repulsion, by unit and parameter."""
    if not total:
        return [_sum([None] * len(unit), unit) for unit in own]
    return [_sum(sums, unit) for sums, unit in zip(total, own, strict=True)]
