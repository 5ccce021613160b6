"""Between the parts of a run things change: each change is refused by name, or provably makes no difference."""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from short_runs import EPOCHS, crash, data, ensemble, metrics, result, train
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, SequentialLR, StepLR
from torch.utils.data import BatchSampler, DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler

import forde
from forde.data import from_arrays
from forde.training import data_prints

STOP = 8
"""Steps before each run is interrupted, in its second epoch."""


def sequential(*, p: float = 0.2, momentum: float | None = 0.1, eps: float = 1e-5, t: float = 1.0) -> nn.Module:
    norm = nn.BatchNorm1d(8, eps=eps, momentum=momentum)
    network = nn.Sequential(nn.Linear(5, 8), norm, nn.ReLU(), nn.Dropout(p), nn.Linear(8, 3))
    return Tempered(network, t)


class Tempered(nn.Module):
    """With a setting that no repr shows."""

    def __init__(self, network: nn.Module, t: float) -> None:
        super().__init__()
        self.network, self.t = network, t

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x) / self.t


def written(body: str, **around: Any) -> Callable[[], nn.Module]:
    """A network whose class is always called `Net` and whose forward pass reads `body`."""
    source = f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
{body}
"""
    space = {"nn": nn, "torch": torch, "__name__": "mine", **around}
    exec(source, space)
    return space["Net"]  # type: ignore[no-any-return]


TANH = "        return self.head(torch.tanh(self.inner(x)))"


def helper(source: str) -> Any:
    space: dict[str, Any] = {"torch": torch, "__name__": "mine"}
    exec(source, space)
    return space["squash"]


def frozen() -> nn.Module:
    network = sequential()
    for parameter in network.network[0].parameters():  # type: ignore[index,union-attr]
        parameter.requires_grad_(False)
    return network


def attention(heads: int) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend, self.head = nn.MultiheadAttention(8, heads, batch_first=True), nn.Linear(8, 3)
            self.lift = nn.Linear(5, 8)

        def forward(self, x: Tensor) -> Tensor:
            lifted = self.lift(x).unsqueeze(1)
            return self.head(self.attend(lifted, lifted, lifted, need_weights=False)[0].squeeze(1))

    return Net()


class Holding(nn.Module):
    def __init__(self, squash: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.squash, self.head = squash, nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.squash(self.head(x))


class Scaled(nn.Module):
    __constants__ = ("factor",)

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def holding(squash: Callable[[Tensor], Tensor]) -> nn.Module:
    return Holding(squash)


def with_network(make: Callable[[], nn.Module]) -> Callable[[], dict[str, Any]]:
    return lambda: {"trained": forde.Ensemble(make, 2), "method": "deep-ensemble", "engine": "eager"}


def with_loader(**options: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"given": loader(**options), "method": "forde-identity"}


def loader(x: Tensor | None = None, **options: Any) -> DataLoader[Any]:
    own_x, y = data()
    return DataLoader(TensorDataset(own_x if x is None else x, y), **{"batch_size": 16, "shuffle": True, **options})


def altered(row: int, n: int = 99) -> Tensor:
    x = data(n)[0].clone()
    x[row, 2] += 1e-3
    return x


class Rows(Dataset[tuple[Tensor, int]]):
    """Read one by one, as from files; its transform may be anything."""

    def __init__(self, x: Tensor | None = None, transform: Any = None) -> None:
        own_x, y = data()
        self.x, self.y, self.transform = own_x if x is None else x, y.tolist(), transform

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        x = self.x[item]
        return x if self.transform is None else self.transform(x), self.y[item]


class OtherRows(Rows):
    """Another class, the same content."""


def groups(lr: float, *, decay: float = 0.0, first: int = 2) -> Callable[[Any], Optimizer]:
    def make(parameters: list[Tensor]) -> Optimizer:
        own = [{"params": parameters[:first], "lr": lr}, {"params": parameters[first:], "weight_decay": decay}]
        return SGD(own, lr=0.1)

    return make


def with_groups(**options: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"optimizer": groups(**options), "method": forde.method("deep-ensemble", prior=())}


def with_scheduler(make: Callable[[Optimizer], LRScheduler]) -> Callable[[], dict[str, Any]]:
    return lambda: {"scheduler": make, "method": "deep-ensemble"}


def in_sequence(gamma: float, start: int = 1) -> Callable[[Optimizer], LRScheduler]:
    return lambda o: SequentialLR(o, [LambdaLR(o, lambda epoch: 1.0), StepLR(o, 1, gamma)], [start])


def with_weight(weight: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"method": forde.method("forde-identity", repulsion_weight=weight)}


def slope(factor: float) -> Callable[[int], float]:
    return lambda epoch: factor * epoch


class Ramp:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, epoch: int) -> float:
        return self.factor * epoch


def with_loss(smoothing: float) -> Callable[[], dict[str, Any]]:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, y, label_smoothing=smoothing)

    return lambda: {"trained": forde.Ensemble(sequential, 2, likelihood=loss), "method": "deep-ensemble"}


def images(pixel: int) -> Callable[[], dict[str, Any]]:
    pixels = np.random.default_rng(0).integers(0, 250, (99, 4, 4, 3), np.uint8)
    pixels[57, 1, 2, 0] += pixel
    given = from_arrays(pixels, np.arange(99) % 3, classes=("a", "b", "c"))
    network = lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 3))  # noqa: E731
    return lambda: {"given": given, "trained": forde.Ensemble(network, 2), "method": "deep-ensemble"}


Options = Callable[[], dict[str, Any]]
REFUSED: dict[str, tuple[Options, Options, str]] = {
    "dropout rate": (with_network(sequential), with_network(partial(sequential, p=0.3)), "network.modules.network.3"),
    "BatchNorm momentum": (
        with_network(sequential), with_network(partial(sequential, momentum=0.2)), "network.modules.network.1",
    ),
    "BatchNorm eps": (
        with_network(sequential), with_network(partial(sequential, eps=1e-3)), "network.modules.network.1",
    ),
    "an attribute of a module": (with_network(sequential), with_network(partial(sequential, t=2.0)), "t=1.0"),
    "heads of attention": (
        with_network(partial(attention, 2)), with_network(partial(attention, 4)), "network.modules.attend",
    ),
    "a layer frozen": (with_network(sequential), with_network(frozen), "ensemble.network.frozen"),
    "forward under the same name": (
        with_network(written(TANH)), with_network(written(TANH.replace("tanh", "sin"))), "ensemble.network.code.Net",
    ),
    "a number in forward": (
        with_network(written(TANH)), with_network(written(TANH + " * 2.0")), "ensemble.network.code.Net",
    ),
    "a helper of forward": (
        with_network(written(TANH.replace("torch.tanh", "squash"), squash=helper("def squash(x): return x.tanh()"))),
        with_network(written(TANH.replace("torch.tanh", "squash"), squash=helper("def squash(x): return x.sin()"))),
        "ensemble.network.code.Net",
    ),
    "a global number of forward": (
        with_network(written(TANH + " * SCALE", SCALE=1.0)), with_network(written(TANH + " * SCALE", SCALE=2.0)),
        "ensemble.network.code.Net",
    ),
    "a function that a module holds": (
        with_network(partial(holding, helper("def squash(x): return x.tanh()"))),
        with_network(partial(holding, helper("def squash(x): return x.sin()"))), "ensemble.network.code..squash",
    ),
    "an activation of torch's": (
        with_network(partial(holding, torch.tanh)), with_network(partial(holding, torch.sin)), "(whole) = ",
    ),
    "a scripted network": (
        with_network(lambda: nn.Sequential(nn.Linear(5, 3), torch.jit.script(Scaled(2.0)))),
        with_network(lambda: nn.Sequential(nn.Linear(5, 3), torch.jit.script(Scaled(3.0)))), "network.modules.1",
    ),
    "likelihood's own function": (with_loss(0.0), with_loss(0.1), "ensemble.likelihood.settings.function.code"),
    "one row of 5,000": (
        lambda: {"given": data(5000), "batch_size": 512}, lambda: {"given": (altered(4322, 5000), data(5000)[1]),
        "batch_size": 512}, "data.content",
    ),
    "one pixel": (images(0), images(1), "data.content"),
    "content of a DataLoader": (with_loader(), with_loader(x=altered(98)), "data.content"),
    "content of a Dataset": (
        lambda: {"given": Rows()}, lambda: {"given": Rows(altered(5))}, "data.content",
    ),
    "content of a Dataset in worker processes": (
        lambda: {"given": DataLoader(Rows(), 16, num_workers=1), "method": "deep-ensemble"},
        lambda: {"given": DataLoader(Rows(altered(5)), 16, num_workers=1), "method": "deep-ensemble"}, "data.content",
    ),
    "a transform": (
        lambda: {"given": Rows(transform=torch.tanh)}, lambda: {"given": Rows(transform=torch.sin)}, "data.content",
    ),
    "type of the Dataset": (lambda: {"given": Rows()}, lambda: {"given": OtherRows()}, "data.loader.dataset"),
    "batch size of a DataLoader": (with_loader(), with_loader(batch_size=8), "data.loader.batch_size = 16"),
    "batch size of a Dataset": (
        lambda: {"given": Rows()}, lambda: {"given": Rows(), "batch_size": 8}, "batch_size = 16",
    ),
    "shuffle": (with_loader(), with_loader(shuffle=False), "data.loader.shuffle = true"),
    "drop_last": (with_loader(), with_loader(drop_last=True), "data.loader.drop_last = false"),
    "weights of a sampler": (
        with_loader(shuffle=None, sampler=WeightedRandomSampler([1.0] * 99, 99)),
        with_loader(shuffle=None, sampler=WeightedRandomSampler([2.0] + [1.0] * 98, 99)), "data.loader.sampler.arg",
    ),
    "a batch sampler": (
        lambda: {"given": DataLoader(Rows(), batch_sampler=BatchSampler(range(99), 16, False))},
        lambda: {"given": DataLoader(Rows(), batch_sampler=BatchSampler(range(99), 8, False))}, "batch_sampler.arg",
    ),
    "part of a Dataset": (
        lambda: {"given": Subset(Rows(), range(96))}, lambda: {"given": Subset(Rows(), range(1, 97))}, "data.content",
    ),
    "gamma of StepLR": (
        with_scheduler(lambda o: StepLR(o, 1, 0.5)), with_scheduler(lambda o: StepLR(o, 1, 0.1)),
        "training.scheduler_settings.gamma = 0.5",
    ),
    "max_lr of OneCycleLR": (
        with_scheduler(lambda o: OneCycleLR(o, 0.2, total_steps=EPOCHS + 1)),
        with_scheduler(lambda o: OneCycleLR(o, 0.3, total_steps=EPOCHS + 1)), "max_lr = 0.2",
    ),
    "gamma within SequentialLR": (
        with_scheduler(in_sequence(0.5)), with_scheduler(in_sequence(0.1)), "scheduler_settings._schedulers.1.gamma",
    ),
    "milestones of SequentialLR": (
        with_scheduler(in_sequence(0.5)), with_scheduler(in_sequence(0.5, 2)), "scheduler_settings._milestones = [1]",
    ),
    "function of LambdaLR": (
        with_scheduler(lambda o: LambdaLR(o, lambda epoch: 0.5**epoch)),
        with_scheduler(lambda o: LambdaLR(o, lambda epoch: 0.1**epoch)),
        "training.scheduler_settings.lr_lambdas.0.code",
    ),
    "another scheduler": (
        with_scheduler(lambda o: StepLR(o, 1, 0.5)), with_scheduler(in_sequence(0.5)), "training.scheduler = ",
    ),
    "lr of a parameter group": (with_groups(lr=0.05), with_groups(lr=0.02), "training.optimizer.groups.0.lr = 0.05"),
    "weight decay of a parameter group": (
        with_groups(lr=0.05), with_groups(lr=0.05, decay=0.1), "training.optimizer.groups.1.weight_decay = 0.0",
    ),
    "parameters of a group": (
        with_groups(lr=0.05), with_groups(lr=0.05, first=1), "training.optimizer.groups.0.of",
    ),
    "repulsion by epoch": (
        with_weight(lambda epoch: 2.0), with_weight(lambda epoch: 3.0), "training.method.repulsion_weight.code",
    ),
    "what a function takes from around it": (
        with_weight(slope(2.0)), with_weight(slope(3.0)), "training.method.repulsion_weight.code",
    ),
    "number of a callable object": (
        with_weight(Ramp(2.0)), with_weight(Ramp(3.0)), "training.method.repulsion_weight.factor = 2.0",
    ),
    "argument of a partial": (
        with_weight(partial(pow, 2.0)), with_weight(partial(pow, 3.0)), "training.method.repulsion_weight.args = [2.0]",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")  # torch 2.6 warns of itself
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("change", REFUSED)
def test_refused_by_name(change: str, tmp_path: Path) -> None:
    before, after, field = REFUSED[change]
    run = tmp_path / "run"
    options = {"epochs": EPOCHS, "checkpoint_minutes": None, "checkpoint_every": 1}
    crash(run, STOP, **{**options, **before()})
    kept = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "log.txt"}
    with pytest.raises(forde.FordeError, match="was started with") as raised:
        train(run, resume=True, **{**options, **after()})
    assert field in str(raised.value) and "\n" not in str(raised.value)
    assert not re.search('"(py.*:)?[0-9a-f]{16}"', str(raised.value)), "a fingerprint tells nobody anything"
    left = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "log.txt"}
    assert left == kept, "a run that was refused is as it was"
    train(run, resume=True, **{**options, **before()})  # and goes on with what it was started with
    assert len(metrics(run)) == EPOCHS


def test_the_page_counts_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert len(REFUSED) >= 15 and f"than the run was started with, {len(REFUSED)} kinds" in page


# Of the same value every time, but random where it is read.
OWN = np.random.default_rng()


def noise(x: Tensor) -> Tensor:
    return x + 0.01 * torch.randn(5) + 0.01 * float(np.random.rand()) + 0.01 * random.random()


def own_noise(x: Tensor) -> Tensor:
    return x + 0.01 * float(OWN.random())


class Unseeded:
    """A transform with a generator of its own that nobody seeded, as each process makes another one."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng()

    def __call__(self, x: Tensor) -> Tensor:
        return x + 0.01 * float(self.generator.random())


def documented(words: str) -> Callable[[], nn.Module]:
    body = (
        f'        """{words}"""\n        # {words}\n\n        hidden = self.inner(x)\n        return self.head(hidden)'
    )
    return written(body)


def renamed() -> Callable[[], nn.Module]:
    return written('        """One."""\n        inside = self.inner(x)\n        return self.head(inside)')


IRRELEVANT: dict[str, tuple[Options, Options, bool]] = {
    "nothing": (dict, dict, True),
    "how it is watched": (dict, lambda: {"keep": 1, "diagnostics_every": 1, "non_finite": "stop"}, True),
    "comments, docstrings and names of variables": (with_network(documented("One.")), with_network(renamed()), True),
    "a class of modules made anew": (with_network(written(TANH)), with_network(written(TANH)), True),
    "globals with the names of attributes": (
        with_network(written(TANH, inner=1.0, head=2.0)), with_network(written(TANH, inner=3.0)), True,
    ),
    "processes that read the data": (
        lambda: {"given": DataLoader(Rows(), 16), "method": "deep-ensemble"},
        lambda: {"given": DataLoader(Rows(), 16, num_workers=1), "method": "deep-ensemble"}, True,
    ),
    "a device by its name around a function": (
        with_network(written(TANH + ".to(DEVICE)", DEVICE="cpu")),
        with_network(written(TANH + ".to(DEVICE)", DEVICE="cpu:0")), True,
    ),
    "random transforms of global sources": (
        lambda: {"given": Rows(transform=noise), "method": "deep-ensemble"},
        lambda: {"given": Rows(transform=noise), "method": "deep-ensemble"}, True,
    ),
    "random transforms with a generator of their own": (
        lambda: {"given": Rows(transform=Unseeded()), "method": "deep-ensemble"},
        lambda: {"given": Rows(transform=Unseeded()), "method": "deep-ensemble"}, False,
    ),
    "random transforms with a module's generator": (
        lambda: {"given": Rows(transform=own_noise), "method": "deep-ensemble"},
        lambda: {"given": Rows(transform=own_noise), "method": "deep-ensemble"}, False,
    ),
    "random transforms in worker processes": (
        lambda: {"given": DataLoader(Rows(transform=Unseeded()), 16, num_workers=1), "method": "deep-ensemble"},
        lambda: {"given": DataLoader(Rows(transform=Unseeded()), 16, num_workers=1), "method": "deep-ensemble"}, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", IRRELEVANT)
def test_makes_no_difference(change: str, tmp_path: Path) -> None:
    """The run goes on, and ends as the one without the change, bit for bit where nothing but the seed is random."""
    before, after, exact = IRRELEVANT[change]
    crash(tmp_path / "run", STOP, **before())
    train(tmp_path / "run", resume=True, **after())
    assert len(metrics(tmp_path / "run")) == EPOCHS
    if exact and "random" not in change:
        train(tmp_path / "whole", **before())
        assert result(tmp_path / "run") == result(tmp_path / "whole")


def test_other_engine_and_precision_of_the_file(tmp_path: Path) -> None:
    """Groups, code and modules are described alike whatever engine stacks or compiles the members."""
    options = {"optimizer": lambda p: SGD([{"params": p, "lr": 0.05}], lr=0.1), "method": "forde-identity"}
    make = lambda: forde.Ensemble(lambda: forde.models.MLP(5, [8], 3), 2)  # noqa: E731
    described = []
    for engine in ("eager", "vectorized", "compiled"):
        train(tmp_path / engine, make(), engine=engine, epochs=1, **options)
        config = json.loads((tmp_path / engine / "config.json").read_text())
        described.append({key: config[key] for key in ("training", "ensemble", "data")})
    assert described[0] == described[1] == described[2]


class TestReading:
    """What the fingerprint of the data reads, and what it leaves alone."""

    def test_sampled_data_is_said_and_recorded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(data_prints, "SECONDS", -1.0)
        monkeypatch.setattr(data_prints, "BLOCK", 640)
        y = data()[1]
        crash(tmp_path / "run", STOP)
        read = json.loads((tmp_path / "run" / "config.json").read_text())["data"]["samples"]
        assert 0 < read < len(y)
        assert f"{read} of {len(y)} samples were read" in (tmp_path / "run" / "log.txt").read_text()
        monkeypatch.setattr(data_prints, "SECONDS", 60.0)  # a faster machine must not read more than was compared
        train(tmp_path / "run", resume=True)

    def test_all_is_read_where_there_is_time(self, tmp_path: Path) -> None:
        train(tmp_path / "run")
        assert json.loads((tmp_path / "run" / "config.json").read_text())["data"]["samples"] == len(data()[1])
        assert "samples were read" not in (tmp_path / "run" / "log.txt").read_text()

    @pytest.mark.parametrize("transform", [noise, own_noise, Unseeded()], ids=["global", "module", "own"])
    def test_training_is_the_same_with_and_without_a_folder(self, transform: Any, tmp_path: Path) -> None:
        """Reading the data before training takes no random number from anybody."""

        def weights(run: Path | None) -> bytes:
            np.random.seed(1)
            random.seed(1)
            torch.manual_seed(1)
            for generator in (OWN, getattr(transform, "generator", OWN)):
                generator.bit_generator.state = np.random.PCG64(1).state
            trained = ensemble()
            train(run, trained, given=Rows(transform=transform), method="deep-ensemble")
            after = torch.rand(1), np.random.rand(), random.random()
            return b"".join(tensor.numpy().tobytes() for tensor in trained.state_dict().values()) + repr(after).encode()

        assert weights(None) == weights(tmp_path / "run")

    def test_a_stream_is_not_read(self, tmp_path: Path) -> None:
        class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
            passes = 0

            def __len__(self) -> int:
                return 99

            def __iter__(self) -> Any:
                Stream.passes += 1
                return iter(zip(*data(), strict=True))

        train(None, given=DataLoader(Stream(), 16), method="deep-ensemble")
        without, Stream.passes = Stream.passes, 0
        train(tmp_path / "run", given=DataLoader(Stream(), 16), method="deep-ensemble")
        assert Stream.passes == without
        assert json.loads((tmp_path / "run" / "config.json").read_text())["data"]["content"] == "stream"

    def test_worker_processes_read_where_the_loader_has_them(self, tmp_path: Path) -> None:
        class Opens(Rows):
            """Opens its file on the first read; a handle that was opened here would be shared by all processes."""

            def __getitem__(self, item: int) -> tuple[Tensor, int]:
                assert torch.utils.data.get_worker_info() is not None, "read in the main process"
                return super().__getitem__(item)

        train(tmp_path / "run", given=DataLoader(Opens(), 16, num_workers=1), method="deep-ensemble")
        assert json.loads((tmp_path / "run" / "config.json").read_text())["data"]["samples"] == 99

    def test_data_that_cannot_be_read_by_number(self, tmp_path: Path) -> None:
        class Named(Rows):
            def __getitem__(self, item: Any) -> tuple[Tensor, int]:
                return super().__getitem__(int(item.removeprefix("row")))

        class Names(torch.utils.data.Sampler):  # type: ignore[type-arg]
            def __init__(self) -> None: ...

            def __iter__(self) -> Any:
                return (f"row{i}" for i in range(99))

        train(tmp_path / "run", given=DataLoader(Named(), 16, sampler=Names()), method="deep-ensemble")
        assert "cannot be read by number (AttributeError)" in (tmp_path / "run" / "log.txt").read_text()


class TestEarlierFormat:
    """A run that the version before began has noted less; it goes on, and a line says what is not compared."""

    @pytest.fixture
    def earlier(self, tmp_path: Path) -> Path:
        run = tmp_path / "run"
        crash(run, STOP, method=forde.method("forde-identity", repulsion_weight=slope(2.0)))
        config = json.loads((run / "config.json").read_text())
        config["format"] = 1
        del config["ensemble"]["network"], config["ensemble"]["likelihood"]["settings"], config["data"]["samples"]
        del config["training"]["scheduler_settings"], config["training"]["optimizer"]["groups"]
        weight = config["training"]["method"]["repulsion_weight"]
        config["training"]["method"]["repulsion_weight"] = weight["function"]
        config["data"]["content"] = "of 1,024 samples"
        (run / "config.json").write_text(json.dumps(config))
        return run

    def test_goes_on(self, earlier: Path, caplog: pytest.LogCaptureFixture) -> None:
        for path in (earlier / "checkpoints").iterdir():
            path.unlink()
        with caplog.at_level(logging.WARNING):
            train(earlier, resume=True, method=forde.method("forde-identity", repulsion_weight=slope(2.0)))
        assert len(metrics(earlier)) == EPOCHS
        assert "written by an earlier version" in caplog.text

    def test_what_it_noted_is_compared(self, earlier: Path) -> None:
        with pytest.raises(forde.FordeError, match=r"training.optimizer.lr = 0.1"):
            train(earlier, resume=True, lr=0.2, method=forde.method("forde-identity", repulsion_weight=slope(2.0)))


def test_another_python_goes_on_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Bytecode of another version of Python cannot be compared."""
    options = with_network(written(TANH))
    crash(tmp_path / "run", STOP, **options())
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    config["ensemble"]["network"]["code"]["Net"] = "py2.7:0123456789abcdef"
    path.write_text(json.dumps(config))
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        checkpoint.unlink()
    train(tmp_path / "run", resume=True, **options())
    assert "another version of Python" in caplog.text and len(metrics(tmp_path / "run")) == EPOCHS
