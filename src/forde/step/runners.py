"""How a unit's forward pass is run, and where its gradients are: members in a loop, or all members stacked.

Everything that a method's author or a user writes (likelihood, space, prior, own loss) is for one member. Runners map
it over members: `MemberLoop` has one unit for each member, `MemberStack` (`stack.py`) one unit with all of them,
`[M, ...]`, for small networks whose time goes into launching operations.
"""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from forde.arguments import Input, each_tensor
from forde.double_backward import Part, Policy, Whole, still_statistics
from forde.ensemble import Ensemble, refuse_shared_parameters
from forde.errors import FordeError
from forde.forward import explaining_forward, tensor_output
from forde.methods.base import Method
from forde.priors import Prior
from forde.spaces import FeatureLayer, View
from forde.step.checks import changed_in_place, not_differentiable
from forde.step.layers import found_layer, kept_activation, share_heads
from forde.step.records import Batch, Precision
from forde.step.sources import Sources, sources_of
from forde.torch_private import batch_norms, counts_writes, version_of

log = logging.getLogger(__name__)

Tensors = dict[str, Tensor]


class Runner(ABC):
    """Runs units' forward passes, and knows which parameters are trained and where their gradients are."""

    name: str
    """What it is called in the log."""
    sample_axis: int
    """Axis of the samples in a unit's tensors: 0, or 1 behind the members'."""
    image_layout: torch.memory_format
    """How traced units hold images and convolutions' weights in memory."""
    known = True
    """Whether it is certain that units do as each member by itself; otherwise the first step compares."""
    leaves: list[Tensors]
    """For each unit its parameters by name, `[...]` or `[M, ...]`, trained or frozen: what the optimizer is given."""
    groups: list[Tensors]
    """Those of `leaves` that are trained now, and so collect gradients."""
    networks: list[nn.Module]
    """For each unit the network that runs its forward pass."""
    layers: list[FeatureLayer | None]
    """For each unit the layer whose activation the method reads; the first batch tells which one is the last."""
    rows: list[slice]
    """For each unit its members' rows of `[M, ...]`."""

    def __init__(
        self, ensemble: Ensemble, method: Method, precision: Precision, policy: Policy, whole: Ensemble | None
    ) -> None:
        self.ensemble, self.method, self.precision = ensemble, method, precision
        self._run_by(policy)
        self.whole = whole or ensemble
        """All members, where other processes run the rest of them."""
        self.of = None if method.space is None else method.space.gradients_of
        """What input gradients are taken of, see `InputGradients`."""
        self.head: tuple[str, ...] = ()
        """Names of the parameters that all members share, once the first batch has told which layer is the last."""
        self._met = self._said_dense = False
        self._trained: list[bool] | None = None
        self._writes_to_inputs: dict[int, bool] = {}
        """By unit, what its first forward pass has shown."""
        self._worked: set[tuple[int, torch.Size | tuple[torch.Size, ...]]] = set()
        """Units with shapes of inputs that their network has run on, so that an error is not about such inputs."""

    def like(self, *, policy: Policy | None = None, precision: Precision | None = None) -> Runner:
        """The same members, run under another policy or in another precision."""
        other = copy.copy(self)
        other.precision = precision or self.precision
        other._run_by(policy or self.policy)
        return other

    def _run_by(self, policy: Policy) -> None:
        self.policy = policy
        self.modes = {twice: policy.mode(twice=twice) for twice in (False, True)}
        """The modes that forward passes run in, by whether the pass is differentiated twice. They have no state."""

    @abstractmethod
    def run(
        self, unit: int, batch: Batch, *, twice: bool, tensors: Tensors | None = None
    ) -> tuple[View, Input | Sources]:
        """One forward pass of a unit: what came of it, and the inputs that it can be differentiated by.

        Args:
            twice: whether the outputs will be differentiated twice.
            tensors: parameters and buffers to run with, instead of the unit's own.
        """

    @abstractmethod
    def run_apart(
        self, unit: int, batch: Batch, *, twice: bool, tensors: Tensors | None = None
    ) -> tuple[View, View, Input | Sources, Part | None]:
        """The whole batch for the loss, and a pass of its own over the part that repels, normalised as the whole."""

    def run_elsewhere(
        self, unit: int, batch: Batch, *, twice: bool, tensors: Tensors | None = None
    ) -> tuple[View, Input | Sources]:
        """A pass over data whose loss is not taken: BatchNorm normalises it by its own statistics, and buffers stay."""
        own = self._tensors_for_part(unit, tensors)
        with still_statistics(self.ensemble.members[self.rows[unit]]):
            return self.run(unit, batch, twice=twice, tensors=own)

    @abstractmethod
    def each(self, function: Callable[[View], Tensor], view: View, *, at_once: bool) -> Tensor:
        """A function of one member's view for every member of the unit: `[m, ...]`.

        Args:
            at_once: whether the function may be called once with the view of all stacked members. A function that sums
                over samples, such as `Space.scalar`, then sums over members too.
        """

    @abstractmethod
    def of_members(self, name: str) -> Tensor:
        """A tensor of the shape and type that all members' values of a parameter have together, `[M, ...]`."""

    @abstractmethod
    def member_gradients(self) -> Tensors:
        """Gradients of parameters that all members have, `[M, ...]` each."""

    @abstractmethod
    def assign_gradients(self, gradients: Tensors) -> None:
        """Inverse of `member_gradients`."""

    @abstractmethod
    def add_prior(self, prior: Prior) -> None:
        """Add the gradient of a prior on weights."""

    @abstractmethod
    def buffers(self, unit: int) -> Tensors:
        """What a unit's forward pass may change beside parameters (running statistics), `[...]` or `[M, ...]`."""

    def before_step(self, x: Input | None) -> None:
        """Clear old gradients and set `groups`, which may change between steps.

        The first batch tells which layers the method means.
        """
        if not self._met and x is not None:
            self._met = True
            self.layers = [found_layer(*pair, x) for pair in zip(self.layers, self.networks, strict=True)]
            if self.method.shared_head:
                self.head = share_heads(self.whole, x)
        trained = []
        for unit in self.leaves:
            for parameter in unit.values():
                parameter.grad = None
                trained.append(parameter.requires_grad)
        if trained != self._trained:
            self._trained = trained
            refuse_shared_parameters(self.ensemble.members)
            self.groups = [{n: p for n, p in unit.items() if p.requires_grad} for unit in self.leaves]

    @cached_property
    def places(self) -> list[slice]:
        """By unit, which of all members it runs."""
        first = next(i for i, member in enumerate(self.whole.members) if member is self.ensemble.members[0])
        ranges = [range(first, first + self.ensemble.n_members)[rows] for rows in self.rows]
        return [slice(found.start, found.stop) for found in ranges]

    def frozen(self, unit: int) -> Tensors:
        """A unit's parameters that are not trained, `[...]` or `[M, ...]`."""
        return {name: leaf for name, leaf in self.all_parameters(unit).items() if name not in self.groups[unit]}

    @abstractmethod
    def all_parameters(self, unit: int) -> Tensors:
        """A unit's parameters of every type, `[...]` or `[M, ...]`."""

    def parameters(self) -> list[Tensor]:
        """Leaf tensors for the optimizer; those that are frozen get no gradient, and so it leaves them alone."""
        return [parameter for unit in self.leaves for parameter in unit.values()]

    def trained(self) -> list[Tensor]:
        """Those of `parameters` that are not frozen now."""
        return [parameter for group in self.groups for parameter in group.values()]

    def laid_out(self, x: Tensor) -> Tensor:
        """The batch `[B, ...]` in the one memory layout that traced units take."""
        return x.contiguous(memory_format=self.image_layout if x.dim() == 4 else torch.contiguous_format)

    def make_dense(self) -> None:
        """A prior on weights moves every row of an embedding, so its gradient cannot stay sparse."""
        sparse = [p for group in self.groups for p in group.values() if p.grad is not None and p.grad.is_sparse]
        if not sparse:
            return
        method = self.method
        decays = any(p.on_weights and getattr(p, "weight_decay", None) != 0 for p in method.priors)
        if not (self.head or method.mixes_weights or decays):
            return
        for parameter in sparse:
            assert parameter.grad is not None
            parameter.grad = parameter.grad.to_dense()
        if not self._said_dense:
            self._said_dense = True
            log.info("sparse gradients are made dense, because the prior (weight decay) has one for every row")

    def match_layouts(self) -> None:
        """Put gradients into their parameters' memory layout, which fused optimizers take for granted."""
        for parameter in self.parameters():
            gradient = parameter.grad
            if gradient is not None and gradient.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(gradient)

    @property
    def at_once(self) -> Callable[[Tensor], Tensor] | None:
        """All members' forward pass in one, `[M, B, ...]` → `[M, B, C]`; None where it needs more than layers."""
        return None

    def close(self) -> None:
        """Give the members back as plain networks."""

    def _surroundings(self, unit: int, x: Input, *, twice: bool) -> ExitStack:
        """What a forward pass runs in, besides the policy's mode."""
        stack = ExitStack()
        if self.precision == "bf16":
            stack.enter_context(torch.autocast(x.device.type, torch.bfloat16))
        if twice:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # fused attention has no second derivative
        if (unit, x.shape) not in self._worked:
            stack.enter_context(explaining_forward(x))
        return stack

    def _note_writes(self, unit: int, given: Input, *, copies: bool, written: bool) -> None:
        """Remember whether a network writes to its inputs, as its first pass, on a copy, has shown.

        One that does is given copies from then on.
        """
        if written and not copies and all(map(counts_writes, each_tensor(given))):
            raise changed_in_place()
        self._writes_to_inputs[unit] = written

    def _tensors_for_part(self, unit: int, tensors: Tensors | None) -> Tensors | None:
        """What a second pass runs with, so that buffers are as the first one found them, and end as it left them.

        BatchNorm's need no copies: `still_statistics` keeps them.
        """
        network = self.networks[unit]
        norms = [name for name, module in network.named_modules() if isinstance(module, batch_norms())]
        others = [name for name, _ in network.named_buffers() if name.rpartition(".")[0] not in norms]
        if not others:
            return tensors
        given = tensors or {**self.all_parameters(unit), **self.buffers(unit)}
        return {**given, **{name: given[name].clone() for name in others}}


class MemberLoop(Runner):
    """A unit for each member. Works for any network, also for members that differ.

    >>> from forde import method
    >>> runner = MemberLoop(Ensemble(lambda: nn.Linear(4, 3), n_members=2), method("deep-ensemble"))
    >>> view, _ = runner.run(0, Batch(torch.zeros(8, 4), torch.zeros(8).long()), twice=False)
    >>> len(runner.groups), view.output.shape
    (2, torch.Size([8, 3]))
    """

    name, sample_axis, image_layout = "eager", 0, torch.channels_last

    def __init__(
        self,
        ensemble: Ensemble,
        method: Method,
        precision: Precision = "float32",
        policy: Policy | None = None,
        whole: Ensemble | None = None,
    ) -> None:
        super().__init__(ensemble, method, precision, policy or Policy(ensemble.device.type), whole)
        self.networks = list(ensemble.members)
        self.layers = [method.feature_layer(member) for member in ensemble.members]
        self.leaves = [
            {n: p for n, p in member.named_parameters() if p.is_floating_point() or p.is_complex()}
            for member in ensemble.members
        ]
        held: set[int] = set()
        for leaves in self.leaves:  # what members share is frozen, and is given to the optimizer once
            for name in [name for name, leaf in leaves.items() if id(leaf) in held]:
                del leaves[name]
            held.update(map(id, leaves.values()))
        self.rows = [slice(unit, unit + 1) for unit in range(ensemble.n_members)]
        self.before_step(None)

    def run(
        self,
        unit: int,
        batch: Batch,
        *,
        twice: bool,
        tensors: Tensors | None = None,
        statistics: Whole | Part | None = None,
    ) -> tuple[View, Input | Sources]:
        member, layer = self.ensemble.members[unit], self.layers[unit]
        x, y = batch.x, batch.y
        inputs: Input = x
        sources: Sources | None = None
        copies = self._writes_to_inputs.get(unit, tensors is None)
        with self._surroundings(unit, x, twice=twice) as stack:
            if twice and self.of is None and isinstance(x, Tensor):
                if not x.is_floating_point():
                    raise not_differentiable(x)
                inputs = x.detach().requires_grad_()
            elif twice:
                inputs, sources = stack.enter_context(sources_of(member, x, self.of))
            given = inputs.clone() if copies else inputs
            version: object = version_of(given) if isinstance(given, Tensor) else given.version
            kept = None if layer is None else stack.enter_context(kept_activation(member, layer))
            plain = statistics is None
            stack.enter_context(self.modes[twice] if plain else self.policy.mode(twice=twice, statistics=statistics))
            own, named = ((given,), {}) if isinstance(given, Tensor) else given.positional_and_named
            output = member(*own, **named) if tensors is None else functional_call(member, tensors, own, named)
        output = output if isinstance(output, Tensor) else tensor_output(output)
        self._worked.add((unit, x.shape))
        written = (version_of(given) if isinstance(given, Tensor) else given.version) != version
        if (written and not copies) or (tensors is None and unit not in self._writes_to_inputs):
            self._note_writes(unit, given, copies=copies, written=written)
        output = output.float() if output.itemsize < 4 else output
        parameters = [p if tensors is None else tensors[n] for n, p in self.groups[unit].items()]
        features = None if kept is None else kept[-1]
        likelihood, weights = self.ensemble.likelihood, None
        if likelihood.carries_weights:
            likelihood, y, everyones = likelihood.unpack(y, self.places[unit])
            weights = everyones[0]  # of this member alone
        view = View(y, output, features, parameters, likelihood, batch.share * batch.counts, weights=weights)
        return view, inputs if sources is None else sources

    def run_apart(
        self, unit: int, batch: Batch, *, twice: bool, tensors: Tensors | None = None
    ) -> tuple[View, View, Input | Sources, Part | None]:
        some, own = part_of(batch), self._tensors_for_part(unit, tensors)
        whole = Whole(links=self.policy.traced and self.policy.links and isinstance(batch.part, int))
        view, _ = self.run(unit, batch, twice=False, tensors=tensors, statistics=whole)
        part = Part(whole, (len(batch.y), len(some.y)))
        with still_statistics(self.ensemble.members[unit]):
            compared, inputs = self.run(unit, some, twice=twice, tensors=own, statistics=part)
        part.refuse_left_over()
        return view, compared, inputs, part

    def each(self, function: Callable[[View], Tensor], view: View, *, at_once: bool) -> Tensor:
        return function(view).unsqueeze(0)

    def buffers(self, unit: int) -> Tensors:
        return dict(self.ensemble.members[unit].named_buffers())

    def all_parameters(self, unit: int) -> Tensors:
        return dict(self.ensemble.members[unit].named_parameters())

    def of_members(self, name: str) -> Tensor:
        parameter = self.groups[0][name]
        return parameter.expand(len(self.groups), *parameter.shape)

    def member_gradients(self) -> Tensors:
        refuse_different_parameters(self.ensemble)
        return {
            name: torch.stack(gradients)
            for name in self.groups[0]
            if len(gradients := [g.grad for group in self.groups if (g := group[name]).grad is not None])
            == len(self.groups)
        }

    def assign_gradients(self, gradients: Tensors) -> None:
        for name, gradient in gradients.items():
            for i, group in enumerate(self.groups):
                group[name].grad = gradient[i].clone()

    def add_prior(self, prior: Prior) -> None:
        for group in self.groups:
            prior.add_gradients(group)


def part_of(batch: Batch) -> Batch:
    """The part that members are compared at, as a batch of its own.

    >>> part_of(Batch(torch.zeros(8, 4), torch.zeros(8), part=2)).x.shape
    torch.Size([2, 4])
    """
    x, y = batch.part if isinstance(batch.part, tuple) else (batch.x[: batch.part], batch.y[: batch.part])
    return Batch(x, y, share=batch.share)


def refuse_different_parameters(ensemble: Ensemble) -> None:
    """Stop where members' gradients would be mixed, but one has other parameters than the first."""

    def shapes(member: nn.Module) -> dict[str, torch.Size]:
        return {name: parameter.shape for name, parameter in member.named_parameters() if parameter.requires_grad}

    for i, member in enumerate(ensemble.members):
        if shapes(member) != shapes(ensemble.members[0]):
            raise FordeError(
                f"members 0 and {i} have different parameters, so their gradients cannot be mixed; "
                "use rule=WGD() without a shared head, or members of one architecture."
            )
