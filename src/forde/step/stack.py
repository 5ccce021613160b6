"""All members of an ensemble as one unit, `[M, ...]`: for small networks whose time goes into launching operations.

`runners.py` says what a runner is, and has the one that loops over members.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from forde import stacked_layers
from forde.arguments import Input
from forde.distributed.mesh import Axis
from forde.double_backward import Part, Policy, Whole, still_statistics
from forde.ensemble import Ensemble
from forde.errors import FordeError, first_line
from forde.forward import tensor_output
from forde.methods.base import Method
from forde.models import MLP
from forde.priors import Prior
from forde.spaces import View
from forde.step.checks import not_differentiable
from forde.step.layers import kept_activation
from forde.step.python_state import Watch, has_tensor_hooks, unstackable
from forde.step.records import Batch, Precision
from forde.step.runners import Runner, Tensors, part_of
from forde.torch_private import version_of

log = logging.getLogger(__name__)

KNOWN_STACKED = (
    nn.Sequential, nn.ModuleList, nn.Flatten, nn.Identity, nn.Linear, nn.BatchNorm1d, nn.LayerNorm, nn.ReLU, nn.Tanh,
    nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Softplus, MLP,
)  # fmt: skip
"""Modules that do the same under `torch.vmap`; others are compared with a loop in the first step."""


def unknown_layer(network: nn.Module, *, containers: bool = True) -> nn.Module | None:
    """A module of a network that may do something else when stacked; None where all are known.

    Args:
        containers: whether to count those of a user's own class that have others inside.

    >>> unknown_layer(nn.Sequential(nn.Linear(2, 2), nn.PReLU()))
    PReLU(num_parameters=1)
    """

    def is_container(module: nn.Module) -> bool:
        return type(module).__module__.partition(".")[0] != "torch" and next(module.children(), None) is not None

    unknown = (module for module in network.modules() if type(module) not in KNOWN_STACKED)
    return next((module for module in unknown if containers or not is_container(module)), None)


class MemberStack(Runner):
    """One unit: all members. While the runner is open, the members' tensors are views into the stacked ones.

    >>> from forde import method
    >>> runner = MemberStack(Ensemble(lambda: nn.Linear(4, 3), n_members=2), method("deep-ensemble"))
    >>> view, _ = runner.run(0, Batch(torch.zeros(8, 4), torch.zeros(8).long()), twice=False)
    >>> [p.shape for p in runner.parameters()], view.output.shape
    ([torch.Size([2, 3, 4]), torch.Size([2, 3])], torch.Size([2, 8, 3]))
    """

    name, sample_axis, image_layout = "vectorized", 1, torch.contiguous_format

    def __init__(
        self,
        ensemble: Ensemble,
        method: Method,
        precision: Precision = "float32",
        whole: Ensemble | None = None,
        processes: Axis | None = None,
    ) -> None:
        policy = Policy(ensemble.device.type, stacked=True, processes=processes)
        super().__init__(ensemble, method, precision, policy, whole)
        members = list(ensemble.members)
        reason = unstackable(members)
        if reason is not None:
            raise FordeError(
                f"engine='vectorized' runs the first member's code for all, but {reason}; use engine='eager' or 'auto'."
            )
        self.first, self.networks = members[0], members[:1]
        self.layers = [method.feature_layer(self.first)]
        tensors = [*self.first.named_parameters(), *self.first.named_buffers()]  # tied ones once
        self.stacks = {name: _stack(ensemble, name) for name, _ in tensors}
        own = [dict(member.named_parameters()) for member in members]
        self.own = {name: [each[name] for each in own] for name in own[0]}
        self.leaves = [{n: self.stacks[n] for n, p in own[0].items() if p.is_floating_point() or p.is_complex()}]
        self.one_by_one = False
        """Whether the members' code has come to differ during the training, so that each has to run its own."""
        self.watch = Watch(members)
        self._at_once = self._without_vmap()
        self.known = unknown_layer(self.first) is None
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

    def before_step(self, x: Input | None) -> None:
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
        """Whether layers can run on whole stacks, which is faster than under `torch.vmap` and gives the same."""
        plain = self.ensemble.device.type == "cpu" and self.precision == "float32" and not self.one_by_one
        return plain and stacked_layers.can_run([self.first])

    def run(self, unit: int, batch: Batch, *, twice: bool, tensors: Tensors | None = None) -> tuple[View, Tensor]:
        inputs = self._inputs(batch, twice=twice)
        copies = self._writes_to_inputs.get(unit, tensors is None)
        given = inputs.clone() if copies else inputs
        version = version_of(given)

        def one(network: nn.Module, tensors: Tensors, x: Tensor) -> list[Tensor]:
            with self.modes[twice]:
                return self._outputs(network, tensors, x)

        with self._surroundings(unit, batch.x, twice=twice):
            if self._at_once and self.layers[0] is None:
                output, features = stacked_layers.run(self.first, tensors or self.stacks, given), []
            else:
                output, *features = self._mapped(one, tensors or self.stacks, given)
        self._worked.add((unit, batch.x.shape))
        written = version_of(given) != version
        if (written and not copies) or (tensors is None and unit not in self._writes_to_inputs):
            self._note_writes(unit, given, copies=copies, written=written)
        return self._view(batch, output, features, tensors), inputs

    def run_apart(
        self, unit: int, batch: Batch, *, twice: bool, tensors: Tensors | None = None
    ) -> tuple[View, View, Tensor, Part | None]:
        some = part_of(batch)
        sizes = len(batch.y), len(some.y)
        own = self._tensors_for_part(unit, tensors) or tensors or self.stacks
        inputs = self._inputs(some, twice=twice)

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
            given = tensors or self.stacks, own, self._inputs(batch, twice=False).clone(), inputs.clone()
            if self._at_once and self.layers[0] is None:
                output, part_output = map(partial(stacked_layers.run, self.first), given[:2], given[2:])
                features, part_features = [], []
            else:
                (output, *features), (part_output, *part_features) = self._mapped(one, *given)
        self._worked.add((unit, batch.x.shape))
        view = self._view(batch, output, features, tensors)
        compared = self._view(some, part_output, part_features, tensors)
        return view, compared, inputs, None

    def _inputs(self, batch: Batch, *, twice: bool) -> Tensor:
        """The inputs `[B, ...]` for every member, `[M, B, ...]`."""
        x = batch.one
        stacked = x.unsqueeze(0).expand(self.ensemble.n_members, *x.shape)
        if twice and not x.is_floating_point():
            raise not_differentiable(x)
        return stacked.detach().requires_grad_() if twice else stacked

    def _outputs(self, network: nn.Module, tensors: Tensors, x: Tensor) -> list[Tensor]:
        """One member's output and, where the method asked for one, its inner activation."""
        (layer,) = self.layers
        if layer is None:
            return [tensor_output(functional_call(network, tensors, (x,)))]
        with kept_activation(network, layer) as kept:
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

    def _view(self, batch: Batch, output: Tensor, features: list[Tensor], tensors: Tensors | None) -> View:
        parameters = [(tensors or self.stacks)[name] for name in self.groups[0]]
        likelihood, y, weights = self.ensemble.likelihood, batch.y, None
        if likelihood.carries_weights:
            likelihood, y, weights = likelihood.unpack(y, self.places[0])
        output = output.float() if output.itemsize < 4 else output
        kept = features[0] if features else None
        return View(y, output, kept, parameters, likelihood, batch.share * batch.counts, weights=weights)

    def each(self, function: Callable[[View], Tensor], view: View, *, at_once: bool) -> Tensor:
        at_once = at_once and self.ensemble.n_members > 1  # outputs [1, 1] could be of one member or of one sample
        return function(view) if at_once else torch.stack([function(one) for one in self._views(view)])

    def _views(self, view: View) -> Iterable[View]:
        """One for each member."""
        members = self.ensemble.n_members

        def rows(tensor: Tensor | None) -> Iterable[Tensor | None]:
            return [None] * members if tensor is None else tensor.unbind()

        parameters = zip(*(parameter.unbind() for parameter in view.parameters), strict=True)
        columns = parameters if view.parameters else [()] * members
        tensors = (rows(tensor) for tensor in (view.output, view.features, view.input_gradient, view.weights))
        for own, output, features, gradient, weights in zip(columns, *tensors, strict=True):
            assert output is not None
            yield View(view.y, output, features, list(own), view.likelihood, view.share, gradient, weights)

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
