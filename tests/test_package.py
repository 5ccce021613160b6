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
from module_imports import forbidden_imports, import_cycle, top_level_names

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


# Data flows one way: a folder imports those of earlier lines, neither later ones nor its neighbours on the line.
LAYERS = [
    {"_version", "errors", "hashing", "random_state", "torch_private", "cuda_graph"},
    {"arguments", "distributed"},
    {
        "durable",
        "folder_lock",
        "turns",
        "forward",
        "vectors",
        "prediction",
        "models",
        "progress",
        "double_backward",
        "reading",
    },
    {"stacked_layers", "metrics"},
    {"adapters", "backbone", "likelihoods", "saving", "inference", "corruptions"},
    {"data", "building"},
    {"ensemble"},
    {"spaces"},
    {"kernels"},
    {"rules"},
    {"priors"},
    {"methods"},
    {"step"},
    {"compile"},
    {"engine"},
    {"training"},
    {"evaluation"},
    {"estimators"},
    {"benchmarks"},
    {"tuning"},
    {"experiments"},
    {"report"},
    {"__init__"},
    {"commands"},
    {"demo"},
    {"cli"},
    {"__main__"},
]


def test_every_folder_and_module_has_one_layer() -> None:
    assert sorted(name for layer in LAYERS for name in layer) == sorted(top_level_names(SOURCE))


def test_lower_layers_never_import_higher_ones() -> None:
    assert [str(found) for found in forbidden_imports(SOURCE, LAYERS)] == []


def test_the_architecture_page_has_the_same_list() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.partition("\n## Layers\n")[2].partition("\n## ")[0]
    lines = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    assert [set(line.split(", ")) for line in lines] == LAYERS


def test_every_method_has_one_line() -> None:
    for name, line in forde.methods().items():
        assert line.endswith(".") and len(line) < 120, name
    named = "deep-ensemble forde-identity forde-pca forde-tuned weight-rde function-rde feature-rde lit"
    assert set(named.split()) <= set(forde.methods())
