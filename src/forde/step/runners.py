"""How a unit's forward pass is run, and where its gradients are: members in a loop, or all members stacked.

Everything that a method's author or a user writes (likelihood, space, prior, own loss) is for one member. Runners map
it over members: `MemberLoop` has one unit for each member, `MemberStack` one unit with all of them, `[M, ...]`, for
small networks whose time goes into launching operations.
"""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from forde import stacked_layers
from forde.double_backward import Part, Policy, Processes, Whole
from forde.ensemble import Ensemble
from forde.errors import FordeError, first_line
from forde.forward import explaining_forward, tensor_output
from forde.methods.base import Method
from forde.models import MLP
from forde.priors import Prior
from forde.spaces import FeatureLayer, View
from forde.step.checks import changed_in_place, not_differentiable
from forde.step.layers import found_layer, kept_activation, share_heads, still_statistics
from forde.step.python_state import Watch, has_tensor_hooks, unstackable
from forde.step.records import Batch, Precision
from forde.torch_private import batch_norms, counts_writes, version_of

log = logging.getLogger(__name__)

Tensors = dict[str, Tensor]

KNOWN_STACKED = (
    nn.Sequential, nn.ModuleList, nn.Flatten, nn.Identity, nn.Linear, nn.BatchNorm1d, nn.LayerNorm, nn.ReLU, nn.Tanh,
    nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Softplus, MLP,
)  # fmt: skip
"""Modules that do the same under `torch.vmap`; others are compared with a loop in the first step."""


class Runner(ABC):
    """What both ways have in common: whose parameters are trained, and where their gradients are."""

    sample_axis: int
    """Axis of the samples in a unit's tensors: 0, or 1 behind the members'."""
    leaves: list[Tensors]
    """For each unit its parameters by name, `[...]` or `[M, ...]`, trained or frozen: what the optimizer is given."""
    groups: list[Tensors]
    """Those of `leaves` that are trained now, and so collect gradients."""
    rows: list[slice]
    """For each unit its members' rows of `[M, ...]`."""

    def __init__(
        self, ensemble: Ensemble, method: Method, precision: Precision, policy: Policy, whole: Ensemble | None
    ) -> None:
        self.ensemble, self.method, self.precision = ensemble, method, precision
        self._run_by(policy)
        self.whole = whole or ensemble
        """All members, where other processes run the rest of them."""
        self.head: tuple[str, ...] = ()
        """Names of the parameters that all members share, once the first batch has told which layer is the last."""
        self._met = self._said_dense = False
        self._trained: list[bool] | None = None
        self._writes_to_inputs: dict[int, bool] = {}
        """By unit; found out in its first forward pass."""
        self._worked: set[tuple[int, torch.Size]] = set()
        """Units, and shapes of inputs that their network took; later errors are not about the inputs."""

    def like(self, *, policy: Policy | None = None, precision: Precision | None = None) -> Runner:
        """The same members, run under another policy or in another precision."""
        other = copy.copy(self)
        other.precision = precision or self.precision
        other._run_by(policy or self.policy)
        return other

    def _run_by(self, policy: Policy) -> None:
        self.policy = policy
        self.modes = {twice: policy.mode(twice=twice) for twice in (False, True)}
        """What passes run in, by whether they are differentiated twice; they have no state, so one serves them all."""

    @abstractmethod
    def run(
        self, unit: int, x: Tensor, y: Tensor, *, share: float, twice: bool, tensors: Tensors | None = None
    ) -> tuple[View, Tensor]:
        """One forward pass of a unit on `[B, ...]`: what came of it, and the inputs that it can be differentiated by.

        Args:
            share: of the whole batch, see `Batch`.
            twice: whether the outputs will be differentiated twice.
            tensors: parameters and buffers to run with, instead of the unit's own.
        """

    @abstractmethod
    def run_apart(
        self, unit: int, batch: Batch, *, twice: bool, tensors: Tensors | None = None, links: bool = False
    ) -> tuple[View, View, Tensor, Part | None]:
        """The whole batch for the loss, and a pass of its own over the samples that repel, normalised as the whole."""

    @abstractmethod
    def each(self, function: Callable[[View], Tensor], view: View, *, at_once: bool) -> Tensor:
        """A function of one member's view for every member of the unit: `[m, ...]`.

        Args:
            at_once: whether the function also takes the view of stacked members; what it sums over is then theirs too.
        """

    @abstractmethod
    def of_members(self, name: str) -> Tensor:
        """A tensor like all members' values of a parameter, `[M, ...]`."""

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

    @abstractmethod
    def network(self, unit: int) -> nn.Module:
        """The network that runs a unit's forward pass."""

    @abstractmethod
    def laid_out(self, x: Tensor) -> Tensor:
        """The batch `[B, ...]` in the one memory layout that traced units take."""

    @abstractmethod
    def find_layers(self, x: Tensor) -> None:
        """Find the layers whose activations the method reads."""

    @abstractmethod
    def in_words(self) -> str:
        """What this runner is called in the log."""

    def before_step(self, x: Tensor | None) -> None:
        """Clear old gradients and set `groups`, which may change between steps.

        The first batch tells which layers the method means.
        """
        if not self._met and x is not None:
            self._met = True
            self.find_layers(x)
            if self.method.shared_head:
                self.head = share_heads(self.whole, x)
        trained = []
        for unit in self.leaves:
            for parameter in unit.values():
                parameter.grad = None
                trained.append(parameter.requires_grad)
        if trained != self._trained:
            self._trained = trained
            self.groups = [{n: p for n, p in unit.items() if p.requires_grad} for unit in self.leaves]

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

    @property
    def at_once(self) -> Callable[[Tensor], Tensor] | None:
        """All members' forward pass in one, `[M, B, ...]` → `[M, B, C]`; None where it needs more than layers."""
        return None

    def close(self) -> None:
        """Give the members back as plain networks."""

    def _surroundings(self, unit: int, x: Tensor, *, twice: bool) -> ExitStack:
        """What a forward pass runs in, besides the policy's mode."""
        stack = ExitStack()
        if self.precision == "bf16":
            stack.enter_context(torch.autocast(x.device.type, torch.bfloat16))
        if twice:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # fused attention has no second derivative
        if (unit, x.shape) not in self._worked:
            stack.enter_context(explaining_forward(x))
        return stack

    def _note_writes(self, unit: int, given: Tensor, *, copies: bool, written: bool) -> None:
        """Whether a network works in place, its first pass tells, on a copy; it is given copies ever after then."""
        if written and not copies and counts_writes(given):
            raise changed_in_place()
        self._writes_to_inputs[unit] = written

    def _tensors_for_part(self, unit: int, tensors: Tensors | None) -> Tensors | None:
        """What the pass over the part runs with: buffers as the whole batch found them, and which stay where they are.

        BatchNorm's need no copies: `still_statistics` keeps them.
        """
        norms = [name for name, module in self.network(unit).named_modules() if isinstance(module, batch_norms())]
        buffers = self.buffers(unit) if tensors is None else {n: tensors[n] for n in self.buffers(unit)}
        others = {n: b.clone() for n, b in buffers.items() if n.rpartition(".")[0] not in norms}
        if not others:
            return tensors
        return {**({**self.all_parameters(unit), **buffers} if tensors is None else tensors), **others}


class MemberLoop(Runner):
    """A unit for each member. Works for any network, also for members that differ.

    >>> from forde import method
    >>> runner = MemberLoop(Ensemble(lambda: nn.Linear(4, 3), n_members=2), method("deep-ensemble"))
    >>> view, _ = runner.run(0, torch.zeros(8, 4), torch.zeros(8).long(), share=1.0, twice=False)
    >>> len(runner.groups), view.output.shape
    (2, torch.Size([8, 3]))
    """

    sample_axis = 0

    def __init__(
        self,
        ensemble: Ensemble,
        method: Method,
        precision: Precision = "float32",
        policy: Policy | None = None,
        whole: Ensemble | None = None,
    ) -> None:
        super().__init__(ensemble, method, precision, policy or Policy(ensemble.device.type), whole)
        self.layers = [method.feature_layer(member) for member in ensemble.members]
        """By unit; named once the first batch was met."""
        self.leaves = [
            {n: p for n, p in member.named_parameters() if p.is_floating_point() or p.is_complex()}
            for member in ensemble.members
        ]
        self.rows = [slice(unit, unit + 1) for unit in range(ensemble.n_members)]
        self.before_step(None)

    def run(
        self,
        unit: int,
        x: Tensor,
        y: Tensor,
        *,
        share: float,
        twice: bool,
        tensors: Tensors | None = None,
        statistics: Whole | Part | None = None,
    ) -> tuple[View, Tensor]:
        member, layer = self.ensemble.members[unit], self.layers[unit]
        if twice and not x.is_floating_point():
            raise not_differentiable(x)
        inputs = x.detach().requires_grad_() if twice else x
        copies = self._writes_to_inputs.get(unit, tensors is None)
        given = inputs.clone() if copies else inputs
        version = version_of(given)
        with self._surroundings(unit, x, twice=twice) as stack:
            kept = None if layer is None else stack.enter_context(kept_activation(member, layer))
            plain = statistics is None
            stack.enter_context(self.modes[twice] if plain else self.policy.mode(twice=twice, statistics=statistics))
            output = member(given) if tensors is None else functional_call(member, tensors, (given,))
        output = output if isinstance(output, Tensor) else tensor_output(output)
        self._worked.add((unit, x.shape))
        written = version_of(given) != version
        if (written and not copies) or (tensors is None and unit not in self._writes_to_inputs):
            self._note_writes(unit, given, copies=copies, written=written)
        output = output.float() if output.itemsize < 4 else output
        parameters = [p if tensors is None else tensors[n] for n, p in self.groups[unit].items()]
        features = None if kept is None else kept[-1]
        return View(y, output, features, parameters, self.ensemble.likelihood, share), inputs

    def run_apart(
        self, unit: int, batch: Batch, *, twice: bool, tensors: Tensors | None = None, links: bool = False
    ) -> tuple[View, View, Tensor, Part | None]:
        own = self._tensors_for_part(unit, tensors)
        whole = Whole(links=links and isinstance(batch.part, int))
        view, _ = self.run(unit, batch.x, batch.y, share=batch.share, twice=False, tensors=tensors, statistics=whole)
        x, y = batch.compared
        part = Part(whole, (len(batch.y), len(y)))
        with still_statistics(self.ensemble.members[unit]):
            compared, inputs = self.run(unit, x, y, share=batch.share, twice=twice, tensors=own, statistics=part)
        part.refuse_left_over()
        return view, compared, inputs, part

    def each(self, function: Callable[[View], Tensor], view: View, *, at_once: bool) -> Tensor:
        return function(view).unsqueeze(0)

    def buffers(self, unit: int) -> Tensors:
        return dict(self.ensemble.members[unit].named_buffers())

    def all_parameters(self, unit: int) -> Tensors:
        return dict(self.ensemble.members[unit].named_parameters())

    def network(self, unit: int) -> nn.Module:
        return self.ensemble.members[unit]

    def laid_out(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.contiguous_format)

    def find_layers(self, x: Tensor) -> None:
        pairs = zip(self.layers, self.ensemble.members, strict=True)
        self.layers = [found_layer(layer, member, x) for layer, member in pairs]

    def in_words(self) -> str:
        return "eager"

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


class MemberStack(Runner):
    """One unit: all members. While the runner is open, the members' tensors are views into the stacked ones.

    >>> from forde import method
    >>> runner = MemberStack(Ensemble(lambda: nn.Linear(4, 3), n_members=2), method("deep-ensemble"))
    >>> view, _ = runner.run(0, torch.zeros(8, 4), torch.zeros(8).long(), share=1.0, twice=False)
    >>> [p.shape for p in runner.parameters()], view.output.shape
    ([torch.Size([2, 3, 4]), torch.Size([2, 3])], torch.Size([2, 8, 3]))
    """

    sample_axis = 1

    def __init__(
        self,
        ensemble: Ensemble,
        method: Method,
        precision: Precision = "float32",
        whole: Ensemble | None = None,
        processes: Processes | None = None,
    ) -> None:
        policy = Policy(ensemble.device.type, stacked=True, processes=processes)
        super().__init__(ensemble, method, precision, policy, whole)
        members = list(ensemble.members)
        reason = unstackable(members)
        if reason is not None:
            raise FordeError(
                f"engine='vectorized' runs the first member's code for all, but {reason}; use engine='eager' or 'auto'."
            )
        self.first = members[0]
        self.layer: FeatureLayer | None = method.feature_layer(self.first)
        tensors = [*self.first.named_parameters(), *self.first.named_buffers()]  # tied ones once
        self.stacks = {name: _stack(ensemble, name) for name, _ in tensors}
        own = [dict(member.named_parameters()) for member in members]
        self.own = {name: [each[name] for each in own] for name in own[0]}
        self.leaves = [{n: self.stacks[n] for n, p in own[0].items() if p.is_floating_point() or p.is_complex()}]
        self.one_by_one = False
        """Whether the members' code differs by now, so that each has to run its own."""
        self.watch = Watch(members)
        self._at_once = self._without_vmap()
        self.known = all(type(module) in KNOWN_STACKED for module in self.first.modules())
        """Whether the network is made of modules that do the same under `torch.vmap`."""
        self._frozen_known = False
        self.rows = [slice(None)]
        self.before_step(None)

    def _freeze_stacks(self) -> None:
        """Stacks are trained where the members' parameters are."""
        self._frozen_known = True
        for name, stack in self.leaves[0].items():
            trained = {parameter.requires_grad for parameter in self.own[name]}
            if len(trained) > 1:
                raise FordeError(
                    f"some members train '{name}' and others have it frozen, which stacked members cannot; "
                    "freeze it in all members, or use engine='eager'."
                )
            stack.requires_grad_(trained.pop())

    def before_step(self, x: Tensor | None) -> None:
        """Members stop sharing the first one's code when that of another has changed in another way."""
        if self.watch.change() is not None:
            members = list(self.ensemble.members)
            self.watch, self._frozen_known = Watch(members), False
            reason = None if self.one_by_one else unstackable(members)
            if any(has_tensor_hooks(parameter) for member in members for parameter in member.parameters()):
                raise FordeError(
                    "a gradient hook was added to a parameter of stacked members, where it would not be called; "
                    "add it before training, or use engine='eager'."
                )
            if reason is not None:
                self.one_by_one = True
                log.info("engine: members run one by one from here on, because %s", reason)
            self._at_once = self._without_vmap()
        if not self._frozen_known:
            self._freeze_stacks()
        super().before_step(x)

    @property
    def at_once(self) -> Callable[[Tensor], Tensor] | None:
        return partial(stacked_layers.run, self.first, self.stacks) if self._at_once else None

    def _without_vmap(self) -> bool:
        """Whether the layers run on whole stacks; with `torch.vmap` around them they come to the same, more slowly."""
        plain = self.ensemble.device.type == "cpu" and self.precision == "float32" and not self.one_by_one
        return plain and stacked_layers.can_run([self.first])

    def run(
        self, unit: int, x: Tensor, y: Tensor, *, share: float, twice: bool, tensors: Tensors | None = None
    ) -> tuple[View, Tensor]:
        inputs = self._inputs(x, twice=twice)
        copies = self._writes_to_inputs.get(unit, tensors is None)
        given = inputs.clone() if copies else inputs
        version = version_of(given)

        def one(network: nn.Module, tensors: Tensors, x: Tensor) -> list[Tensor]:
            with self.modes[twice]:
                return self._outputs(network, tensors, x)

        with self._surroundings(unit, x, twice=twice):
            if self._at_once and self.layer is None:
                output, features = stacked_layers.run(self.first, tensors or self.stacks, given), []
            else:
                output, *features = self._mapped(one, tensors or self.stacks, given)
        self._worked.add((unit, x.shape))
        written = version_of(given) != version
        if (written and not copies) or (tensors is None and unit not in self._writes_to_inputs):
            self._note_writes(unit, given, copies=copies, written=written)
        return self._view(y, output, features, tensors, share), inputs

    def run_apart(
        self, unit: int, batch: Batch, *, twice: bool, tensors: Tensors | None = None, links: bool = False
    ) -> tuple[View, View, Tensor, Part | None]:
        x, y = batch.compared
        sizes = len(batch.y), len(y)
        own = self._tensors_for_part(unit, tensors) or tensors or self.stacks
        inputs = self._inputs(x, twice=twice)

        def one(
            network: nn.Module, tensors: Tensors, own: Tensors, x: Tensor, part_x: Tensor
        ) -> tuple[list[Tensor], list[Tensor]]:
            whole = Whole()
            with self.policy.mode(twice=False, statistics=whole):
                outputs = self._outputs(network, tensors, x)
            part = Part(whole, sizes)
            with still_statistics(network), self.policy.mode(twice=twice, statistics=part):
                part_outputs = self._outputs(network, own, part_x)
            part.refuse_left_over()
            return outputs, part_outputs

        with self._surroundings(unit, batch.x, twice=twice):
            # Both passes may write to what they are given.
            given = self._inputs(batch.x, twice=False).clone(), inputs.clone()
            (output, *features), (part_output, *part_features) = self._mapped(one, tensors or self.stacks, own, *given)
        self._worked.add((unit, batch.x.shape))
        view = self._view(batch.y, output, features, tensors, batch.share)
        compared = self._view(y, part_output, part_features, tensors, batch.share)
        return view, compared, inputs, None

    def _inputs(self, x: Tensor, *, twice: bool) -> Tensor:
        """The batch `[B, ...]` for every member, `[M, B, ...]`."""
        stacked = x.unsqueeze(0).expand(self.ensemble.n_members, *x.shape)
        if twice and not x.is_floating_point():
            raise not_differentiable(x)
        return stacked.detach().requires_grad_() if twice else stacked

    def _outputs(self, network: nn.Module, tensors: Tensors, x: Tensor) -> list[Tensor]:
        """One member's output and, where the method asked for one, its inner activation."""
        if self.layer is None:
            return [tensor_output(functional_call(network, tensors, (x,)))]
        with kept_activation(network, self.layer) as kept:
            output = tensor_output(functional_call(network, tensors, (x,)))
        return [output, kept[-1]]

    def _mapped(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A function of a network and its tensors for all members, results `[M, ...]`."""
        if self.one_by_one:
            each = [
                function(network, *(_row(argument, i) for argument in arguments))
                for i, network in enumerate(self.ensemble.members)
            ]
            return _stacked(each)
        try:
            return torch.vmap(lambda *given: function(self.first, *given), randomness="different")(*arguments)
        except Exception as error:
            self._refuse_stacking(error, arguments[-1])
            raise

    def _view(self, y: Tensor, output: Tensor, features: list[Tensor], tensors: Tensors | None, share: float) -> View:
        parameters = [(tensors or self.stacks)[name] for name in self.groups[0]]
        likelihood = self.ensemble.likelihood
        output = output.float() if output.itemsize < 4 else output
        return View(y, output, features[0] if features else None, parameters, likelihood, share)

    def each(self, function: Callable[[View], Tensor], view: View, *, at_once: bool) -> Tensor:
        return function(view) if at_once else torch.stack([function(one) for one in self._views(view)])

    def _views(self, view: View) -> Iterable[View]:
        """One for each member."""
        members = self.ensemble.n_members

        def rows(tensor: Tensor | None) -> Iterable[Tensor | None]:
            return [None] * members if tensor is None else tensor.unbind()

        columns = zip(*(parameter.unbind() for parameter in view.parameters), strict=True)
        parameters = columns if view.parameters else [()] * members
        each = zip(rows(view.output), rows(view.features), parameters, rows(view.input_gradient), strict=True)
        for output, features, own, gradient in each:
            assert output is not None
            yield View(view.y, output, features, list(own), view.likelihood, view.share, gradient)

    def _refuse_stacking(self, error: Exception, x: Tensor) -> None:
        """Stop where a network fails stacked, but not alone."""
        try:
            with torch.no_grad(), still_statistics(self.first):
                self.first(x[0].detach().clone())
        except Exception:
            return
        raise FordeError(
            f"engine='vectorized' cannot stack this network ({first_line(error)}); use engine='eager' or 'auto'."
        ) from error

    def buffers(self, unit: int) -> Tensors:
        return {name: self.stacks[name] for name, _ in self.first.named_buffers()}

    def all_parameters(self, unit: int) -> Tensors:
        return {name: self.stacks[name] for name in self.own}

    def network(self, unit: int) -> nn.Module:
        return self.first

    def laid_out(self, x: Tensor) -> Tensor:
        return x.contiguous()

    def find_layers(self, x: Tensor) -> None:
        self.layer = found_layer(self.layer, self.first, x)

    def in_words(self) -> str:
        return "vectorized"

    def of_members(self, name: str) -> Tensor:
        return self.groups[0][name]

    def member_gradients(self) -> Tensors:
        return {name: stack.grad for name, stack in self.groups[0].items() if stack.grad is not None}

    def assign_gradients(self, gradients: Tensors) -> None:
        for name, gradient in gradients.items():
            self.groups[0][name].grad = gradient.clone()

    def add_prior(self, prior: Prior) -> None:
        if prior.takes_stacks:
            prior.add_gradients(self.groups[0])
            return
        for i in range(self.ensemble.n_members):
            member = {name: stack.detach()[i] for name, stack in self.groups[0].items()}
            for name, parameter in member.items():
                gradient = self.groups[0][name].grad
                parameter.grad = None if gradient is None else gradient[i].clone()
            prior.add_gradients(member)
            for name, parameter in member.items():
                gradient = self.groups[0][name].grad
                if parameter.grad is not None and gradient is not None:
                    gradient[i] = parameter.grad

    def close(self) -> None:
        """Cut the members loose from the stacks, so that each owns its memory again."""
        for member in self.ensemble.members:
            for tensor in [*member.parameters(), *member.buffers()]:
                tensor.data = tensor.data.clone()


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


def _row(argument: Any, index: int) -> Any:
    return {n: t[index] for n, t in argument.items()} if isinstance(argument, dict) else argument[index]


def _stacked(each: list[Any]) -> Any:
    """Results of the members, tensors in lists and tuples, as stacks `[M, ...]` in the same lists and tuples."""
    first = each[0]
    if isinstance(first, Tensor):
        return torch.stack(each)
    return type(first)(_stacked(list(column)) for column in zip(*each, strict=True))


def _stack(ensemble: Ensemble, name: str) -> Tensor:
    """`[M, ...]`; each member's tensor becomes a view of its row, so that both see every update."""
    tensors = [_lookup(member, name) for member in ensemble.members]
    stack = torch.stack([tensor.detach() for tensor in tensors])
    for tensor, row in zip(tensors, stack, strict=True):
        tensor.data = row
    return stack


def _lookup(network: nn.Module, name: str) -> Tensor:
    path, _, leaf = name.rpartition(".")
    tensor: Tensor = getattr(network.get_submodule(path), leaf)
    return tensor
