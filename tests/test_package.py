"""The package as a whole: a light import, names that exist, examples that run, layers that do not look up."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import forde
from module_imports import import_cycle

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "forde"
HEAVY = {
    "sklearn",
    "matplotlib",
    "pandas",
    "pyarrow",
    "typer",
    "rich",
    "scipy",
    "PIL",
    "cv2",
    "skimage",
    "torchmetrics",
    "transformers",
}


def test_import_needs_torch_numpy_and_safetensors_only() -> None:
    code = f"import forde, sys; print(sorted({HEAVY!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_public_names_exist() -> None:
    for name in forde.__all__:
        assert getattr(forde, name) is not None
    with pytest.raises(AttributeError):
        _ = forde.nonsense


def test_estimators_say_what_they_need(tmp_path: Path) -> None:
    (tmp_path / "sklearn.py").write_text("raise ModuleNotFoundError(\"No module named 'sklearn'\", name='sklearn')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import forde; forde.FordeClassifier"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: forde.FordeClassifier needs scikit-learn; run: pip install 'forde[sklearn]'" in result.stderr


def modules() -> list[str]:
    return [name for _, name, _ in pkgutil.walk_packages([str(SOURCE)], "forde.") if not name.endswith("__main__")]


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    results = doctest.testmod(module, optionflags=flags)
    assert results.failed == 0


def test_modules_never_import_each_other_in_a_circle() -> None:
    assert import_cycle(SOURCE) == []


def test_the_version_is_one_line_that_needs_no_import() -> None:
    _, assignment = ast.parse((SOURCE / "_version.py").read_text()).body
    assert ast.literal_eval(assignment.value) == forde.__version__
    assert 'version = { attr = "forde._version.__version__" }' in (ROOT / "pyproject.toml").read_text()
    assert f"version: {forde.__version__}\n" in (ROOT / "CITATION.cff").read_text()


# Data flows one way; a folder may import those before it.
LAYERS = [
    {"errors", "turns", "durable"},
    {"forward", "vectors", "prediction", "likelihoods", "saving", "models", "progress", "inference", "derivatives"},
    {"ensemble", "data", "corruptions"},
    {"spaces"},
    {"kernels"},
    {"rules"},
    {"priors"},
    {"methods"},
    {"engine"},
    {"training", "evaluation"},
    {"estimators", "experiments", "benchmarks"},
    {"report"},
    {"commands", "cli", "demo"},
]


def layer_of(module: str) -> int | None:
    for index, layer in enumerate(LAYERS):
        if module in layer:
            return index
    return None


def test_lower_layers_never_import_higher_ones() -> None:
    for path in SOURCE.rglob("*.py"):
        own = layer_of(path.relative_to(SOURCE).parts[0].removesuffix(".py"))
        if own is None:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("forde."):
                other = layer_of(node.module.split(".")[1])
                assert other is None or other <= own, f"{path.name} imports {node.module}"


def test_every_method_has_one_line() -> None:
    for name, line in forde.methods().items():
        assert line.endswith(".") and len(line) < 120, name
    named = "deep-ensemble forde-identity forde-pca forde-tuned weight-rde function-rde feature-rde lit"
    assert set(named.split()) <= set(forde.methods())
