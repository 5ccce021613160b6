"""M networks as one object: `logits [M, B, C]`, predictions with uncertainty, saving and loading."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Dataset, IterableDataset

from forde import building, saving
from forde.arguments import Arguments, Input, SameInput, as_inputs, called, inputs_in, without_labels
from forde.backbone import features_of, frozen_backbone, refuse_other_backbone
from forde.data.description import Images, Table
from forde.data.inputs import normalise
from forde.data.known_inputs import Inputs
from forde.data.scale import Scale
from forde.errors import FordeError, whole_number
from forde.forward import stacked, tensor_output
from forde.inference import SMALL_BATCH, Untouched, running
from forde.likelihoods import Likelihood, as_likelihood, likelihood_from_config
from forde.likelihoods.custom import NOT_STORED
from forde.prediction import Prediction
from forde.random_state import seeded
from forde.turns import turn

log = logging.getLogger(__name__)

Factory = Callable[[], nn.Module]

KEPT_ON_DEVICE = 2**28
"""Bytes of predictions up to which they stay on the device before they are copied."""


class Ensemble(nn.Module):
    """M members, each built by calling the factory under a seed of its own.

    Args:
        make_network: called once per member; returns a network that maps a batch to logits `[B, C]`.
            A sequence of factories gives members of different architectures.
        n_members: M. May be left out where a sequence of factories is given.
        seed: member i is initialised from `(seed, i)`, whatever M is.
        likelihood: what the output means: `"classification"`, `"binary"` (a single logit), `"multi-label"`,
            `"segmentation"` (a class for each pixel or token), `"regression"` (known noise),
            `"learned-noise-regression"` (mean and variance head), a `Likelihood`, or a loss function.
        backbone: a pretrained network that all members share: it is frozen, stays in evaluation mode and runs once per
            batch, and `make_network` builds heads, which get what it returns. Input gradients are taken there.
        inputs: what the networks are trained on, where you prepare it yourself: with
            `forde.data.Inputs(mean=..., std=...)` bytes are normalised by these, in training and afterwards. `fit`
            finds out by itself for what `forde.data.load` returns.

    >>> ensemble = Ensemble(lambda: nn.Linear(4, 3), n_members=5, seed=0)
    >>> ensemble(torch.zeros(2, 4)).shape
    torch.Size([5, 2, 3])
    """

    inputs: Inputs | None = None
    """What the networks take, as far as it is known: kept by `save`, used by `predict` and `evaluate_robustness`."""
    input_scale: Scale | None = None
    """Mean and deviation of the floating-point tensors that `fit` was given: kept by `save`, compared by `predict`."""
    built_by: str | None = None
    """`module:function` of `make_network`, where it has such a name."""

    _remarked = False

    def __init__(
        self,
        make_network: Factory | Sequence[Factory],
        n_members: int | None = None,
        *,
        seed: int = 0,
        likelihood: str | Likelihood | Callable[[Tensor, Tensor], Tensor] = "classification",
        backbone: nn.Module | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        super().__init__()
        factories = _factories(make_network, n_members)
        self.seed = whole_number("seed", seed, at_least=0)
        self.likelihood = as_likelihood(likelihood)
        self.inputs = inputs
        self.built_by = building.name_of(factories)
        with turn("ensemble"):  # factories draw from the process's one generator
            members = [_build(factory, seed, i) for i, factory in enumerate(factories)]
        refuse_shared_parameters(members)
        if len(members) > 1 and _all_alike(members):
            log.warning("All members start from the same weights; remove fixed seeds from make_network().")
        self.members = nn.ModuleList(members)
        self.left_in_evaluation = frozenset(n for n, m in self.members.named_modules() if n and not m.training)
        """Names (`0.norm` of member 0) of layers that `make_network` put into evaluation mode, where they stay."""
        self.backbone = None if backbone is None else frozen_backbone(backbone, self.members)

    def train(self, mode: bool = True) -> Ensemble:
        """Training or evaluation mode for all layers, but those that `make_network` left in evaluation mode stay in it.

        >>> def make_network() -> nn.Module:
        ...     return nn.Sequential(nn.BatchNorm1d(4).eval(), nn.Linear(4, 3))
        >>> [layer.training for layer in Ensemble(make_network, 2).train().members[0]]
        [False, True]
        """
        super().train(mode)
        if mode and self.left_in_evaluation:
            for name, layer in self.members.named_modules():
                if name in self.left_in_evaluation:
                    layer.training = False
        if self.backbone is not None:
            self.backbone.eval()
        return self

    @property
    def n_members(self) -> int:
        """M."""
        return len(self.members)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        tensor = next(self.parameters(), None)
        return torch.device("cpu") if tensor is None else tensor.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of real inputs: that of the first floating parameter, else the real part's of a complex one."""
        for parameter in self.parameters():
            if parameter.is_floating_point():
                return parameter.dtype
        return next((p.dtype.to_real() for p in self.parameters() if p.is_complex()), torch.get_default_dtype())

    def forward(self, x: Any) -> Tensor:
        """Outputs of all members on one batch: `[B, ...]` → `[M, B, C]`.

        A dict of tensors is given to networks by name, `network(**x)`, without `"labels"` or `"label"`, and a tuple by
        position, `network(*x)`.
        """
        x = without_labels(x) if isinstance(x, Mapping) else x
        untouched = Untouched(self.to_members(x if isinstance(x, Tensor) else as_inputs(x)))
        return stacked([tensor_output(called(member, untouched.copy())) for member in self.members])

    @torch.no_grad()
    def predict(
        self, x: Any, *, batch_size: int = 512, precision: Literal["float32", "bf16"] = "float32"
    ) -> Prediction:
        """Predict in evaluation mode, batch by batch.

        Args:
            x: tensor, array, data frame or nested list `[N, ...]`, a dict or a tuple of such for networks of several
                inputs, what `forde.data.load` returns, a Dataset, or an iterable of batches (a DataLoader); of
                `(x, y)` pairs the x is used, and of dicts all but `"labels"` or `"label"`. Where `inputs` are known,
                bytes are normalised as those of training were, and columns of a table or data frame are found by name
                and brought into the networks' units; floating-point numbers without names pass as they are. If their
                first batch is on another scale than the tensors that `fit` was given, the log says so, once. An
                iterator is taken to know what it yields.
            precision: `"float32"` (whatever the members' dtype is), or `"bf16"`: copies of the members under autocast,
                with BatchNorm folded into convolutions. Outputs are in float32.

        Returns:
            For classification `probs [N, C]`, `member_probs [M, N, C]`, and `total`, `aleatoric`, `epistemic [N]`;
            for regression `mean`, `std` and the same split as variances, in units of the target where these are known;
            for pixels, tokens and several labels the same for each of them. On the CPU, whatever the device.
        """
        if precision not in ("float32", "bf16"):
            raise FordeError(f"precision is {precision!r}, but 'float32' or 'bf16' was expected.")
        batch_size = whole_number("batch_size", batch_size, at_least=1)
        x, units = (x, None) if self.inputs is None else self.inputs.prepared(x)
        many_small = batch_size <= SMALL_BATCH and _more_than(x, batch_size)
        dtype = torch.bfloat16 if precision == "bf16" else None
        batches = self._batches(x, batch_size)
        if not isinstance(x, Iterator):  # as evaluations give, of data that is meant to be unlike that of training
            batches = self._compared(batches)
        with running(list(self.members), dtype, many_small=many_small) as outputs_of:
            outputs = _on_cpu(outputs_of(self.to_members(batch)) for batch in batches)
        if not outputs:
            raise FordeError("there is nothing to predict: the input is empty; pass at least one sample.")
        everything = torch.cat(outputs, dim=1)
        _say_what_is_not_finite(everything)
        prediction = self.likelihood.prediction(everything)
        return prediction if units is None else units.undo(prediction)

    def _batches(self, x: Any, batch_size: int) -> Iterable[Input]:
        if isinstance(x, Images):
            to_inputs = normalise(x.description.mean, x.description.std, self.dtype)
            for start in range(0, len(x), batch_size):
                part = torch.from_numpy(np.ascontiguousarray(x.images[start : start + batch_size]))
                yield to_inputs(part.to(self.device, non_blocking=True))
            return
        x = x.x if isinstance(x, Table) else x
        if not isinstance(x, Tensor) and (hasattr(x, "__array__") or _is_nested_numbers(x)):
            x = torch.from_numpy(np.require(x, requirements="W"))  # torch warns of arrays that it may not write to
        elif isinstance(x, Mapping):
            x = as_inputs(without_labels(x))
        elif isinstance(x, tuple):
            x = as_inputs(x)
        if isinstance(x, (Tensor, Arguments)):
            x = x.split(batch_size) if len(x) else ()
        elif isinstance(x, Dataset) and not isinstance(x, IterableDataset):
            x = DataLoader(x, batch_size=batch_size)
        for batch in x:
            yield self.as_input(inputs_in(batch))

    def _compared(self, batches: Iterable[Input]) -> Iterator[Input]:
        """The batches, the first of them compared with the inputs of training."""
        for number, batch in enumerate(batches):
            if number == 0 and self.input_scale is not None and not self._remarked:
                remark = self.input_scale.remark(batch)
                if remark is not None:
                    log.warning("%s", remark)
                    self._remarked = True
            yield batch

    def as_input(self, x: SameInput) -> SameInput:
        """The batch on the members' device, floating-point numbers in their precision; everything else as it is.

        Bytes are normalised where `inputs` say how.

        >>> ensemble = Ensemble(lambda: nn.Linear(4, 3).double(), n_members=2)
        >>> [ensemble.as_input(torch.zeros(1, dtype=kind)).dtype for kind in (torch.half, torch.cfloat, torch.int16)]
        [torch.float64, torch.complex128, torch.int16]
        """
        if isinstance(x, Arguments):
            return x.map(self._as_tensor)
        return self._as_tensor(x)

    def _as_tensor(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            return x.to(self.device, self.dtype, non_blocking=True)
        if x.dtype == torch.uint8 and self.inputs is not None and self.inputs.are_images:
            return self.inputs.normalised(x.to(self.device, non_blocking=True), self.dtype)
        return x.to(self.device, self.dtype.to_complex() if x.is_complex() else x.dtype, non_blocking=True)

    def to_members(self, x: Input) -> Input:
        """What members are given of a batch on their device: the backbone's features `[B, ...]`, or the batch itself.

        >>> ensemble = Ensemble(lambda: nn.Linear(8, 3), n_members=2, backbone=nn.Linear(4, 8))
        >>> ensemble.to_members(torch.zeros(5, 4)).shape, ensemble(torch.zeros(5, 4)).shape
        (torch.Size([5, 8]), torch.Size([2, 5, 3]))
        """
        return x if self.backbone is None else features_of(self.backbone, x).to(self.dtype)

    def member_tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers of the members by name, also those that networks do not save; tied ones once."""
        return {name: tensor for name, tensor in named_tensors(self).items() if name.startswith("members.")}

    def save(self, folder: str | Path) -> Path:
        """Write `config.json` and `model.safetensors` into `folder`; neither can hold code.

        With them go the inputs, as far as they are known, and how the networks are built: the library's by name and
        sizes; of others no more than the name of `make_network`.
        """
        config: dict[str, Any] = {
            "n_members": self.n_members,
            "seed": self.seed,
            "likelihood": self.likelihood.config(),
        }
        if (networks := building.words_for(list(self.members), self.built_by)) is not None:
            config["networks"] = networks
        if self.inputs is not None:
            config["inputs"] = self.inputs.to_json()
        if self.input_scale is not None:
            config["input_scale"] = self.input_scale.to_json()
        if self.backbone is not None:
            config["backbone"] = type(self.backbone).__name__
        shared = self._shared()
        return saving.save(folder, config, {n: t for n, t in self.state_dict().items() if n not in shared})

    def _shared(self) -> dict[str, str]:
        """Frozen parameters that several members hold: by each later member's name for it the first one's."""
        first: dict[int, str] = {}
        names = [(n, first.setdefault(id(p), n)) for n, p in self.named_parameters(remove_duplicate=False)]
        return {name: owner for name, owner in names if name.split(".")[1] != owner.split(".")[1]}

    @classmethod
    def load(
        cls,
        folder: str | Path,
        make_network: Factory | Sequence[Factory] | None = None,
        *,
        device: str | torch.device = "cpu",
        likelihood: str | Likelihood | Callable[[Tensor, Tensor], Tensor] | None = None,
        backbone: nn.Module | None = None,
    ) -> Ensemble:
        """Read what `save` wrote.

        Args:
            make_network: must build the architecture that was saved; may be left out where this is one of
                `forde.models`. A function that the folder names is never imported.
            backbone: for members that share one: a network of its architecture, which gets the saved weights.

        >>> import tempfile
        >>> from forde.models import MLP
        >>> folder = Ensemble(lambda: MLP(4, [8], 3), n_members=2).save(tempfile.mkdtemp())
        >>> Ensemble.load(folder).predict(torch.zeros(5, 4)).probs.shape
        torch.Size([5, 3])
        """
        config = saving.read_config(folder)
        stored = likelihood_from_config(config["likelihood"])
        inputs = None if config.get("inputs") is None else Inputs.from_json(config["inputs"])
        scale = None if config.get("input_scale") is None else Scale.from_json(config["input_scale"])
        refuse_other_backbone(folder, config.get("backbone"), backbone)
        if make_network is None:
            make_network = building.factories_of(config.get("networks"), config["n_members"], folder)
        ensemble = cls(
            make_network,
            config["n_members"],
            seed=config["seed"],
            likelihood=stored if likelihood is None else likelihood,
            backbone=backbone,
            inputs=inputs,
        )
        if likelihood is None and config["likelihood"].get("prediction") == NOT_STORED:
            log.warning(
                "what the outputs in '%s' mean was said by a function, which files do not hold, so predictions are raw "
                "outputs; pass the likelihood that it was trained with as likelihood=.", folder,
            )  # fmt: skip
        ensemble.input_scale = scale
        ensemble.likelihood = ensemble.likelihood.restored(config["likelihood"])
        ensemble.load_weights(folder)
        return ensemble.to(device).eval()

    def load_weights(self, folder: str | Path) -> None:
        """Take the weights that `save` wrote into `folder`, of the same architecture; what members share stays shared.

        >>> import tempfile
        >>> one, other = (Ensemble(lambda: nn.Linear(4, 3), 2, seed=seed) for seed in (0, 1))
        >>> other.load_weights(one.save(tempfile.mkdtemp()))
        >>> torch.equal(one(torch.ones(1, 4)), other(torch.ones(1, 4)))
        True
        """
        saving.load_weights(folder, self, self._shared())


def of_networks(ensemble: Ensemble, networks: Sequence[nn.Module]) -> Ensemble:
    """An ensemble of these networks, which stay the same objects, with another one's seed and likelihood.

    They get what `to_members` makes of a batch.

    >>> whole = Ensemble(lambda: nn.Linear(2, 2), 4)
    >>> of_networks(whole, whole.members[2:]).members[0] is whole.members[2]
    True
    """
    found = Ensemble.__new__(Ensemble)
    nn.Module.__init__(found)
    found.seed, found.likelihood = ensemble.seed, ensemble.likelihood
    found.inputs, found.built_by = ensemble.inputs, ensemble.built_by
    found.members = nn.ModuleList(networks)
    found.left_in_evaluation = frozenset(n for n, m in found.members.named_modules() if n and not m.training)
    found.backbone = None
    return found


def named_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, also those that a network does not save; tied ones once.

    >>> list(named_tensors(nn.BatchNorm1d(2)))
    ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
    """
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _say_what_is_not_finite(outputs: Tensor) -> None:
    """One line where outputs `[M, N, ...]` hold NaN: a label or a mean made of it says nothing."""
    finite = outputs.isfinite()
    if not bool(finite.all()):
        samples = int((~finite).flatten(2).any(-1).any(0).sum()) if outputs.dim() > 2 else int((~finite).any(0).sum())
        log.warning(
            "The outputs for %d of %d inputs are NaN or infinite, so their predictions mean nothing; look for NaN in "
            "the inputs, or in the weights of a training that failed.", samples, outputs.shape[1],
        )  # fmt: skip


def _on_cpu(outputs: Iterable[Tensor]) -> list[Tensor]:
    """Outputs `[M, B, ...]` of all batches; copied many at a time, because the device must finish for each copy."""
    done: list[Tensor] = []
    waiting: list[Tensor] = []
    for batch in outputs:
        waiting.append(batch)
        if batch.device.type == "cpu" or sum(tensor.nbytes for tensor in waiting) > KEPT_ON_DEVICE:
            done.append(torch.cat(waiting, dim=1).cpu())
            waiting.clear()
    return [*done, torch.cat(waiting, dim=1).cpu()] if waiting else done


def _more_than(x: Any, batch_size: int) -> bool:
    """Whether there is certainly more than one batch of such a size; of loaders one does not know."""
    return (isinstance(x, Tensor) or hasattr(x, "__array__")) and len(x) > batch_size


def _is_nested_numbers(x: Any) -> bool:
    """Whether a list holds rows of numbers, and not batches."""
    return isinstance(x, list) and bool(x) and isinstance(x[0], (list, int, float))


def _factories(make_network: Factory | Sequence[Factory], n_members: int | None) -> list[Factory]:
    if isinstance(make_network, nn.Module):
        raise FordeError(
            "a network was given where a function that builds one was expected: members copied from one network "
            "would all start alike; pass lambda: MyNetwork(...)."
        )
    if isinstance(make_network, str) or not (callable(make_network) or isinstance(make_network, Sequence)):
        raise FordeError(
            f"make_network is {make_network!r}, but a function that builds a network, or a list of such, was expected; "
            "pass lambda: MyNetwork(...)."
        )
    if isinstance(make_network, Sequence):
        if n_members is not None and n_members != len(make_network):
            raise FordeError(
                f"{len(make_network)} factories were given for n_members={n_members}; leave n_members out."
            )
        factories = list(make_network)
    else:
        if not isinstance(n_members, (int, np.integer)) or isinstance(n_members, bool):
            raise FordeError(f"n_members is {n_members!r}, but a whole number of at least 1 was expected.")
        factories = [make_network] * int(n_members)
    if not factories:
        raise FordeError(f"n_members is {n_members}, but an ensemble needs at least 1 member.")
    return factories


def member_seed(seed: int, index: int) -> int:
    """A seed for member `index` that no other member or neighbouring seed shares."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _build(factory: Factory, seed: int, index: int) -> nn.Module:
    with seeded(member_seed(seed, index)):
        network = factory()
    if not isinstance(network, nn.Module):
        raise FordeError(
            f"make_network() returned a {type(network).__name__}, but a torch.nn.Module was expected; "
            "return the network itself."
        )
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if is_lazy(tensor):
            raise FordeError(
                f"'{name}' of the network has no size before the first batch (a lazy layer), but members are built "
                "complete; run one batch through the network inside make_network(), or use a layer of given size such "
                "as nn.Linear."
            )
    return network


def refuse_shared_parameters(members: Iterable[nn.Module]) -> None:
    """Stop where two members would train one parameter; one that is frozen they may share."""
    owner: dict[int, int] = {}
    for index, member in enumerate(members):
        for name, parameter in member.named_parameters():
            first = owner.setdefault(id(parameter), index)
            if first != index and parameter.requires_grad:
                raise FordeError(
                    f"members {first} and {index} share the parameter '{name}', but each member needs its own; "
                    "build a new network inside make_network(), or freeze what they share."
                )


def _all_alike(members: Sequence[nn.Module]) -> bool:
    first = list(members[0].parameters())
    return bool(first) and all(
        len(first) == len(others := list(member.parameters()))
        and all(a.shape == b.shape and bool(torch.equal(a, b)) for a, b in zip(first, others, strict=True))
        for member in members[1:]
    )
