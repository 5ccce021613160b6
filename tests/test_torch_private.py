"""Private names of torch: one file knows them, and everything plain works when they are gone."""

from __future__ import annotations

import ast
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forde import torch_private
from forde.compile.tracing import can_fuse
from forde.engine import make_engine
from forde.ensemble import Ensemble
from forde.inference.folding import folded
from forde.inference.repeatable import watched
from forde.methods import method
from forde.step.python_state import Watch, hooks_of, unstackable

SOURCE = Path(torch_private.__file__).parent
SCRIPT = Path(__file__).parent / "without_private_names.py"
ATTRIBUTES = ["torch.Tensor._version", "torch.UntypedStorage._cdata"]
NAMES = [*torch_private.WITHOUT, *ATTRIBUTES]
NEEDED_BY_PLAIN_RUNS = {
    "torch._C._will_engine_execute_node",
    "torch._foreach_copy_",
    "torch._foreach_add_",
    "torch.nn.modules.batchnorm._BatchNorm",
    "torch.ops.aten._native_batch_norm_legit",
    "torch.ops.aten._cdist_backward",
    "torch.Tensor._version",
    *(name for name in NAMES if "functorch" in name),
}


def private_names(tree: ast.AST) -> Iterator[str]:
    """Names of torch that begin with an underscore, or that torch keeps in unstable modules, wherever they stand."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    unstable = re.compile(r"torch(\.\w+)*\.(_[a-zA-Z]\w*|experimental)\b")
    attributes = {
        *torch_private.LAYER_HOOKS, *torch_private.TENSOR_HOOKS, *torch_private.LAYER_PARTS, *torch_private.RECURRENT,
        *torch_private.SCHEDULER_POSITION, "_version", "_cdata", "_buffers", "_opt_called", "_schedulers", "_schema",
        "_conv_forward", "_BatchNorm", "_C",
    }  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "torch":
            yield from (n for a in node.names if unstable.match(n := f"{node.module}.{a.name}"))
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if unstable.match(a.name))
        elif isinstance(node, ast.Attribute):
            of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            of_super = isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()"
            if unstable.match(text := ast.unparse(node)) or (
                node.attr in attributes - own and not (of_self or of_super)
            ):
                yield text
        elif isinstance(value := getattr(node, "value", None), str) and (
            value in attributes or unstable.fullmatch(value)
        ):
            yield value


@pytest.mark.parametrize(
    "line",
    [
        "torch._foreach_add_(a, b)",
        "from torch._C import _functorch",
        "from torch.nn.modules.batchnorm import _BatchNorm",
        "import torch._inductor",
        "from torch.fx.experimental.proxy_tensor import make_fx",
        "x._version",
        "getattr(layer, '_forward_hooks')",
        "torch.ops.aten._cdist_backward(a)",
    ],
)
def test_the_search_finds_private_names(line: str) -> None:
    assert list(private_names(ast.parse(line)))


def test_no_other_file_names_private_parts_of_torch() -> None:
    found = {
        f"{path.relative_to(SOURCE)}: {name}"
        for path in SOURCE.rglob("*.py")
        if path.name != "torch_private.py"
        for name in private_names(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert not found


def test_import_looks_up_none_of_them() -> None:
    code = "import forde; from forde import torch_private as p; print(p._find.cache_info().currsize)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0\n"


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    run = subprocess.run([sys.executable, SCRIPT, *NAMES], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.skipif(sys.platform == "win32", reason="processes are made by a fork")
class TestWithoutOne:
    @pytest.mark.parametrize("name", ["all", *NAMES])
    def test_training_and_prediction_give_the_same_numbers(self, name: str, outcomes: dict[str, Any]) -> None:
        outcome, whole = outcomes[name], outcomes["nothing"]
        assert "error" not in outcome, outcome["error"]
        for run, numbers in outcome["numbers"].items():
            assert len(numbers) > 50
            torch.testing.assert_close(numbers, whole["numbers"][run], rtol=1e-10, atol=1e-12, msg=f"{run} differs")

    @pytest.mark.parametrize("name", sorted(NEEDED_BY_PLAIN_RUNS))
    def test_the_log_says_once_what_is_missing(self, name: str, outcomes: dict[str, Any]) -> None:
        short = name if name in torch_private.WITHOUT else "Tensor._version"
        lines = [line for line in outcomes[name]["said"] if f"has no {short}, so " in line]
        assert len(lines) == 1
        assert not [line for line in outcomes["nothing"]["said"] if " has no " in line]

    def test_steps_that_cannot_be_traced_are_plain_ones(self, outcomes: dict[str, Any]) -> None:
        said = outcomes["torch.fx.experimental.proxy_tensor.make_fx"]["said"]
        assert any("has no make_fx" in line and "cannot be traced" in line for line in said)
        assert any("compiled in" in line for line in outcomes["nothing"]["said"])


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Takes names away from the library alone."""
    find = torch_private._find

    def take_away(*paths: str) -> None:
        monkeypatch.setattr(torch_private, "_find", lambda path: None if path in paths else find(path))

    return take_away


@pytest.mark.parametrize("path", torch_private.COMPILER)
def test_without_a_compiler_nothing_is_merged(path: str, missing: Any) -> None:
    missing(path)
    assert not can_fuse(torch.device("cpu"))
    ensemble = Ensemble(lambda: nn.Linear(4, 3), 2)
    assert not make_engine("compiled", ensemble, method("forde-identity")).fuse  # type: ignore[attr-defined]


def test_without_triton_nothing_is_merged_on_a_gpu(missing: Any) -> None:
    missing("torch.utils._triton.has_triton")
    assert not can_fuse(torch.device("cuda"))


@pytest.mark.skipif(not can_fuse(torch.device("cpu")), reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_compiler_works_without_its_cache(missing: Any) -> None:
    missing("torch._guards.TracingContext", "torch._guards.tracing")
    x = torch.randn(3)
    graph = torch_private.traced(lambda x: [x.sin() + 1], (x,))
    torch.testing.assert_close(torch_private.compile_graph(graph, (x,), None)(x)[0], x.sin() + 1)


@pytest.mark.skipif(not can_fuse(torch.device("cpu")), reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_in_the_compilers_cache_can_be_compiled_again() -> None:
    x = torch.randn(3)
    for _ in range(2):
        graph = torch_private.traced(lambda x: [x.cos() - 3], (x,))
        torch.testing.assert_close(torch_private.compile_graph(graph, (x,), None)(x)[0], x.cos() - 3)


def test_without_a_dispatch_mode_there_is_no_cuda_graph(missing: Any) -> None:
    from forde.inference import repeatable

    missing("torch.utils._python_dispatch.TorchDispatchMode")
    repeatable._watching.cache_clear()
    try:
        result, reason = watched(lambda: torch.ones(2) * 2)
        assert result.tolist() == [2, 2]
        assert reason == "this torch does not tell which operations run"
    finally:
        repeatable._watching.cache_clear()


class TestHooksThatTorchDoesNotTell:
    """torch itself needs these attributes, so the library is told other names, which no layer has."""

    @pytest.fixture(autouse=True, params=["LAYER_HOOKS", "TENSOR_HOOKS", "LAYER_PARTS"])
    def other_names(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        names = tuple(f"{name}_of_another_torch" for name in getattr(torch_private, request.param))
        monkeypatch.setattr(torch_private, request.param, names)
        caches = (torch_private.untold, torch_private.hooks_of_tensors)
        for each in caches:
            each.cache_clear()
        yield
        for each in caches:
            each.cache_clear()

    def test_members_are_neither_stacked_nor_folded(self) -> None:
        networks = [nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval() for _ in range(2)]
        reason = unstackable(networks)
        assert reason is not None and "does not tell which hooks there are" in reason
        assert folded(networks[0]) is networks[0]

    def test_a_watch_cannot_rule_out_a_change(self) -> None:
        change = Watch([nn.Linear(2, 2)]).change()
        assert change is not None and "does not tell which hooks there are" in change

    @pytest.mark.parametrize("memory", ["speed", "low"])
    def test_plain_steps_and_those_asked_to_be_compiled_go_on(
        self, memory: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "forde")
        x, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])
        torch.manual_seed(0)
        ensemble = Ensemble(lambda: nn.Linear(4, 3), 2)
        engine = make_engine("compiled", ensemble, method("forde-identity"), memory=memory, fuse=False)
        report = engine.update(x, y)
        assert torch.isfinite(report.losses).all()
        assert "does not tell which hooks there are" in caplog.text


def test_tensors_made_for_inference_always_count_as_written() -> None:
    with torch.inference_mode():
        x = torch.zeros(2)
    assert not torch_private.counts_writes(x)
    assert torch_private.version_of(x) != torch_private.version_of(x)


def test_prediction_in_inference_mode_is_the_same() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.mul_(2))

    ensemble, x = Ensemble(Writing, 3), torch.randn(5, 4)
    with torch.inference_mode():
        inside = ensemble.predict(x).probs
    torch.testing.assert_close(inside.clone(), ensemble.predict(x).probs)


def test_hooks_are_found() -> None:
    layer = nn.Linear(2, 2)
    assert hooks_of(layer) is None
    layer.weight.register_post_accumulate_grad_hook(print)
    assert hooks_of(layer) == "parameter 'weight' has gradient hooks"
