"""Trains and predicts with one private name of torch after another taken away; run by `test_torch_private.py`.

Given names as arguments, it prints as JSON what came out without each: numbers, and lines of the log. `all` takes away
all of them, `nothing` takes away none. Each runs in a process of its own, made by a fork after torch was imported and
before the library is, so that the library never saw the name. Parts of torch that use the names themselves are imported
before, as they would be of one piece with a torch that has others.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from typing import Any, NoReturn

import torch
from torch import nn

USERS = ("torch._dynamo", "torch._inductor.compile_fx", "torch.fx.experimental.proxy_tensor", "torch.distributed.fsdp")
"""Parts of torch that use private names themselves; training imports some of them."""
TRACED = ("torch.fx", "torch.ops.aten._native", "nothing")
"""Without these a step is traced too."""


def gone(owner: str, name: str) -> NoReturn:
    raise AttributeError(f"{owner} has no attribute '{name}'")


def remove(path: str) -> None:
    owner_path, _, name = path.rpartition(".")
    if owner_path == "torch.ops.aten":  # looked up anew whenever it is missing
        look_up = type(torch.ops.aten).__getattr__
        torch.ops.aten.__dict__.pop(name, None)
        type(torch.ops.aten).__getattr__ = lambda self, asked: (
            gone(owner_path, asked) if asked == name else look_up(self, asked)
        )
        return
    owner: Any = torch
    parts = owner_path.split(".")
    for end, part in enumerate(parts[1:], start=2):
        owner = getattr(owner, part) if hasattr(owner, part) else importlib.import_module(".".join(parts[:end]))
    if isinstance(owner, type):  # what a class inherits from C cannot be deleted, but hidden
        setattr(owner, name, property(lambda self: gone(owner_path, name)))
    else:
        delattr(owner, name)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 3)).double()


def normalised() -> nn.Module:
    """Stacked under `torch.vmap`, which a perceptron alone does without."""
    return nn.Sequential(nn.Linear(144, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)).double()


def convolutions() -> nn.Module:
    layers = nn.Conv2d(1, 4, 3, stride=3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    return nn.Sequential(nn.Unflatten(1, (1, 12, 12)), *layers).double()


def results(*, traced: bool) -> dict[str, Any]:
    """What a network of each kind learns in three steps and predicts then, engine by engine."""
    import forde
    from forde.engine import make_engine

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("forde").addHandler(handler)
    logging.getLogger("forde").setLevel(logging.INFO)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 144, dtype=torch.float64, generator=generator)
    y = torch.randint(3, (12,), generator=generator)
    numbers: dict[str, list[float]] = {}
    runs = [("perceptron", perceptron, "eager"), ("convolutions", convolutions, "eager")]
    stacked = [("perceptron", perceptron, "vectorized"), ("normalised", normalised, "vectorized")]
    for name, build, engine in [*runs, *stacked]:
        torch.manual_seed(0)
        ensemble = forde.Ensemble(build, n_members=3)
        forde.fit(
            ensemble,
            "forde-identity",
            (x, y),
            epochs=3,
            batch_size=12,
            engine=engine,
            non_finite="skip",
            verbose=False,
        )
        values = [*(tensor.flatten() for member in ensemble.members for tensor in member.state_dict().values())]
        numbers[f"{name}, {engine}"] = [*torch.cat(values).tolist(), *ensemble.predict(x).probs.flatten().tolist()]
    for name, build, _ in runs if traced else []:
        torch.manual_seed(0)
        members = forde.Ensemble(build, n_members=3).train()
        engine = make_engine("compiled", members, forde.method("forde-identity"), fuse=False)
        for _ in range(2):
            engine.update(x, y)
        gradients = [parameter.grad.flatten() for parameter in engine.runner.parameters()]
        numbers[f"{name}, compiled"] = torch.cat(gradients).tolist()
    return {"numbers": numbers, "said": said}


def without(paths: list[str], *, traced: bool) -> dict[str, Any]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for path in paths:
                remove(path)
            answer = results(traced=traced)
        except BaseException as error:  # also what torch raises without the name
            import traceback

            answer = {"error": "".join(traceback.format_exception(error))}
        with os.fdopen(write, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = json.load(pipe)
    os.waitpid(child, 0)
    return answer


if __name__ == "__main__":
    torch.set_num_threads(1)
    for user in USERS:
        importlib.import_module(user)
    names = sys.argv[1:]
    found = {}
    for name in ("nothing", "all", *names):
        paths = {"nothing": [], "all": names}.get(name, [name])
        found[name] = without(paths, traced=name.startswith(TRACED))
    json.dump(found, sys.stdout)
