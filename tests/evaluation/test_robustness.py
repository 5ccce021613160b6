"""Robustness evaluation: the numbers, the files, interruption, other models than an Ensemble."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import forde
from forde.benchmarks.evaluation import benchmark_evaluation
from forde.corruptions import frost_name
from forde.evaluation import (
    Cell,
    CellDone,
    RobustnessResult,
    accuracy,
    brier,
    cells_from,
    classwise_ece,
    disagreement,
    ece,
    evaluate_robustness,
    generated_cells,
    mixture,
    nll,
    normalise,
    rescore,
    saved_evaluation,
    uncertainty,
)

N, C, M = 120, 3, 4
NAMES, LEVELS = ["contrast", "gaussian_noise", "brightness"], [1, 3, 5]
QUICK: dict[str, Any] = {"n_bootstrap": 20, "verbose": False}


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    colour = rng.integers(C, size=N)
    images = rng.integers(0, 200, (N, 8, 8, 3)) + 30 * (np.arange(3) == colour[:, None])[:, None, None]
    return images.astype(np.uint8), np.where(rng.random(N) < 0.2, rng.integers(C, size=N), colour)


@pytest.fixture(scope="module")
def ensemble(data: tuple[np.ndarray, np.ndarray]) -> forde.Ensemble:
    images, labels = data
    x, y = normalise()(torch.from_numpy(images[: N // 2])), torch.from_numpy(labels[: N // 2])
    members = forde.Ensemble(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, C)), M
    )
    forde.fit(members, "deep-ensemble", (x, y), epochs=10, verbose=False)
    return members


@pytest.fixture(scope="module")
def cells(data: tuple[np.ndarray, np.ndarray]) -> list[Cell]:
    return generated_cells(*data, NAMES, LEVELS)


def exact(ensemble: forde.Ensemble, images: np.ndarray) -> Tensor:
    """Member logits `[M, N, C]` without the evaluation's code."""
    prediction = ensemble.predict(normalise()(torch.from_numpy(images)))
    assert isinstance(prediction, forde.ClassificationPrediction)
    return prediction.member_logits


def test_numbers_are_those_of_the_functions(ensemble: forde.Ensemble, data: Any, cells: list[Cell]) -> None:
    result = evaluate_robustness(ensemble, data, cells, **QUICK)
    for cell in cells:
        images, labels = cell.load()
        assert isinstance(images, np.ndarray)
        logits, y = exact(ensemble, images), torch.as_tensor(labels)
        probs = mixture(logits.softmax(-1))
        found = {name: estimate.value for name, estimate in result.cells[cell.corruption][cell.severity].items()}
        parts = uncertainty(logits.softmax(-1))
        expected = {
            "accuracy": accuracy(probs, y), "nll": nll(logits, y), "brier": brier(probs, y), "ece": ece(probs, y),
            "disagreement": disagreement(logits), "confidence": float(probs.amax(-1).mean()),
            **{name: parts[name] for name in ("total", "aleatoric", "epistemic")},
        }  # fmt: skip
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_pooled_and_cell_averages(ensemble: forde.Ensemble, data: Any, cells: list[Cell], tmp_path: Path) -> None:
    """Recomputed from the saved probabilities: pooled within a severity, then the mean; and the mean over cells."""
    result = evaluate_robustness(ensemble, data, cells, folder=tmp_path, **QUICK)
    _, saved = saved_evaluation(tmp_path)
    pooled = {}
    for level in LEVELS:
        parts = [saved[name, level]() for name in NAMES]
        log_probs, y = torch.cat([p.member_log_probs for p in parts], 1), torch.cat([p.labels for p in parts])
        probs = mixture(log_probs.exp())
        pooled[level] = {"accuracy": accuracy(probs, y), "nll": nll(log_probs, y), "ece": ece(probs, y)}
        for metric, value in pooled[level].items():
            assert result.severities[level][metric].value == pytest.approx(value, abs=1e-5)
    for metric in ("accuracy", "nll", "ece"):
        mean = sum(scores[metric] for scores in pooled.values()) / len(pooled)
        assert result.pooled[metric].value == pytest.approx(mean, abs=1e-5)
    each = {key: ece(mixture(cell.member_probs), cell.labels) for key, read in saved.items() for cell in [read()]}
    clean = each.pop(("clean", 0))
    assert result.clean["ece"].value == pytest.approx(clean, abs=1e-5)
    assert result.cell_average["ece"].value == pytest.approx(sum(each.values()) / len(each), abs=1e-5)
    for name in NAMES:
        mean = sum(each[name, level] for level in LEVELS) / len(LEVELS)
        assert result.types[name]["ece"].value == pytest.approx(mean, abs=1e-5)
    for level in LEVELS:
        mean = sum(each[name, level] for name in NAMES) / len(NAMES)
        assert result.severities_cell_average[level]["ece"].value == pytest.approx(mean, abs=1e-5)
    assert result.pooled["ece"].value < result.cell_average["ece"].value - 1e-3
    for metric in ("accuracy", "nll", "epistemic"):
        assert result.pooled[metric].value == pytest.approx(result.cell_average[metric].value, rel=1e-12)


def test_new_metrics_need_no_forward_pass(
    ensemble: forde.Ensemble, data: Any, cells: list[Cell], tmp_path: Path
) -> None:
    result = evaluate_robustness(ensemble, data, cells, folder=tmp_path, **QUICK)
    assert rescore(tmp_path, n_bootstrap=20).to_dict() == result.to_dict()
    other = rescore(tmp_path, n_bins=5, n_bootstrap=20)
    assert other.pooled["ece"].value < result.pooled["ece"].value - 1e-3
    assert other.pooled["nll"] == pytest.approx(result.pooled["nll"], rel=1e-12)
    cell = saved_evaluation(tmp_path)[1]["contrast", 3]()
    logits = exact(ensemble, np.asarray(cells[1].load()[0]))
    y = torch.from_numpy(data[1])
    expected = classwise_ece(mixture(logits.softmax(-1)), y)
    assert classwise_ece(mixture(cell.member_probs), cell.labels) == pytest.approx(expected, abs=1e-5)


def test_an_interrupted_evaluation_continues(
    ensemble: forde.Ensemble, data: Any, cells: list[Cell], tmp_path: Path
) -> None:
    def stop(done: CellDone) -> None:
        if done.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_robustness(ensemble, data, cells, folder=tmp_path, on_cell=stop, **QUICK)
    assert len(list(tmp_path.glob("*.safetensors"))) == 4 and not list(tmp_path.glob("*.tmp"))
    with pytest.raises(forde.FordeError, match="no finished evaluation"):
        saved_evaluation(tmp_path)

    loaded: list[str] = []

    def counted(cell: Cell) -> Cell:
        def load() -> Any:
            loaded.append(cell.name)
            return cell.load()

        return Cell(cell.corruption, cell.severity, load, cell.fingerprint)

    seen: list[CellDone] = []
    watched = [counted(cell) for cell in cells]
    continued = evaluate_robustness(ensemble, data, watched, folder=tmp_path, on_cell=seen.append, **QUICK)
    assert [done.reused for done in seen] == [True] * 4 + [False] * 6
    assert loaded == [cell.name for cell in cells[3:]]  # clean and three cells were there
    assert [done.done for done in seen] == list(range(1, 11)) and seen[0].total == 10
    whole = evaluate_robustness(ensemble, data, cells, **QUICK)
    assert continued.clean == whole.clean and continued.cells == whole.cells and continued.pooled == whole.pooled


def test_stale_cells_are_not_reused(ensemble: forde.Ensemble, data: Any, cells: list[Cell], tmp_path: Path) -> None:
    images, labels = data

    def reused(model: Any, given: Any = data, corrupted: Any = cells[:2], **options: Any) -> list[bool]:
        seen: list[CellDone] = []
        evaluate_robustness(model, given, corrupted, folder=tmp_path, on_cell=seen.append, **QUICK | options)
        return [done.reused for done in seen]

    assert reused(ensemble) == [False] * 3
    assert reused(ensemble) == [True] * 3
    assert reused(ensemble, batch_size=7, n_bins=4, seed=3) == [True] * 3  # predictions do not depend on these
    assert reused(ensemble, transform=normalise(0.5)) == [False] * 3
    assert reused(ensemble, precision="bf16") == [False] * 3
    other = forde.Ensemble(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, C)), 2, seed=1)
    assert reused(other) == [False] * 3
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1e-3
    assert reused(other) == [False] * 3
    # Data without a fingerprint are fingerprinted themselves, the clean ones always.
    nameless = cells_from(lambda name, severity: (images + np.uint8(severity), labels), ["shift"], [1])
    assert reused(other, corrupted=nameless) == [True, False]
    assert reused(other, corrupted=nameless) == [True, True]
    changed = cells_from(lambda name, severity: (images + np.uint8(2), labels), ["shift"], [1])
    assert reused(other, corrupted=changed) == [True, False]
    assert reused(other, (images, np.roll(labels, 1)), changed) == [False, True]
    reseeded = generated_cells(images, labels, NAMES, LEVELS, seed=1)
    assert reused(other, (images, labels), reseeded[:1]) == [False, False]
    assert reused(other, (images, labels), reseeded[:1]) == [True, True]
    (tmp_path / "contrast-1.safetensors").write_bytes(b"torn")
    assert reused(other, (images, labels), reseeded[:1]) == [True, False]


def test_any_callable_can_be_measured(ensemble: forde.Ensemble, data: Any, cells: list[Cell], tmp_path: Path) -> None:
    expected = evaluate_robustness(ensemble, data, cells[:2], **QUICK)

    def probabilities(x: Tensor) -> np.ndarray:
        assert not torch.is_grad_enabled() and x.dtype == torch.float32
        return ensemble.predict(x).probs.numpy()  # type: ignore[union-attr]

    def member_probabilities(x: Tensor) -> Tensor:
        return ensemble(x).softmax(-1)

    was = [module.training for module in ensemble.modules()]
    ensemble.eval()
    members = evaluate_robustness(member_probabilities, data, cells[:2], outputs="probs", **QUICK)
    single = evaluate_robustness(
        probabilities, data, cells[:2], outputs="probs", folder=tmp_path, model_id="mean", **QUICK
    )
    network = evaluate_robustness(ensemble.members[0], data, cells[:2], **QUICK)
    for module, training in zip(ensemble.modules(), was, strict=True):
        module.training = training
    for metric in ("accuracy", "nll", "ece", "brier", "total"):
        assert members.pooled[metric].value == pytest.approx(expected.pooled[metric].value, abs=1e-5)
        assert single.pooled[metric].value == pytest.approx(expected.pooled[metric].value, abs=1e-5)
    assert members.pooled["epistemic"].value == pytest.approx(expected.pooled["epistemic"].value, abs=1e-5)
    assert single.pooled["epistemic"].value == 0 == network.pooled["disagreement"].value
    assert single.settings["n_members"] == 1 and members.settings["n_members"] == M


def test_frost_without_photographs_is_called_so(ensemble: forde.Ensemble, data: Any, tmp_path: Path) -> None:
    result = evaluate_robustness(ensemble, data, generated_cells(*data, ["frost"], [2]), folder=tmp_path, **QUICK)
    assert list(result.types) == [frost_name()]
    assert len(saved_evaluation(tmp_path)[1][frost_name(), 2]().labels) == N


def test_modes_are_restored_and_dropout_is_off(data: Any) -> None:
    ensemble = forde.Ensemble(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(192, C)), 2).train()
    ensemble.members[1].eval()
    results = [evaluate_robustness(ensemble, data, **QUICK) for _ in range(2)]
    assert results[0] == results[1]
    assert ensemble.members[0][1].training and not ensemble.members[1][1].training  # type: ignore[index]


def test_batches_and_loaders_do_not_matter(ensemble: forde.Ensemble, data: Any, cells: list[Cell]) -> None:
    a = evaluate_robustness(ensemble, data, cells, **QUICK)
    b = evaluate_robustness(ensemble, data, cells, batch_size=17, loaders=3, **QUICK)
    for metric, estimate in a.pooled.items():
        assert b.pooled[metric].value == pytest.approx(estimate.value, abs=1e-5)


def test_sixteen_bits_change_little(ensemble: forde.Ensemble, data: Any, cells: list[Cell]) -> None:
    """bfloat16 keeps 8 bits, so probabilities move by about 1 %; running statistics and BatchNorm stay."""
    a = evaluate_robustness(ensemble, data, cells[:3], **QUICK)
    b = evaluate_robustness(ensemble, data, cells[:3], precision="bf16", **QUICK)
    assert b.pooled["nll"].value == pytest.approx(a.pooled["nll"].value, abs=0.02)
    assert b.pooled["accuracy"].value == pytest.approx(a.pooled["accuracy"].value, abs=0.03)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("float16", torch.float16)])
def test_the_old_word_for_precision_works_and_warns(
    ensemble: forde.Ensemble, data: Any, tmp_path: Path, precision: Any, dtype: torch.dtype
) -> None:
    seen: list[CellDone] = []
    options: dict[str, Any] = {"folder": tmp_path, "on_cell": seen.append, **QUICK}
    with pytest.warns(FutureWarning, match=f"precision='{precision}'") as warned:
        old = evaluate_robustness(ensemble, data, dtype=dtype, **options)
    assert warned[0].filename == __file__  # points at the line to change
    new = evaluate_robustness(ensemble, data, precision=precision, **options)
    assert [done.reused for done in seen] == [False, True]
    assert new == old and new.settings["precision"] == precision


@pytest.mark.parametrize(
    ("precision", "dtype", "content"),
    [
        ("float32", "None", "a488df6210d6ec3f3fe4598a7d9e410a"),
        ("bf16", "torch.bfloat16", "30cf6dfbd803afea0e007437e8932c19"),
        ("float16", "torch.float16", "3c8277643541549d5ff8ae7b2c04ede6"),
    ],
)
def test_evaluations_from_before_precision_had_its_name_are_found(
    tmp_path: Path, precision: Any, dtype: str, content: str
) -> None:
    """The fingerprint is what was written when the option was `dtype`; under another one files are made anew."""
    images, labels = np.arange(4 * 2 * 2, dtype=np.uint8).reshape(4, 2, 2), np.array([0, 1, 2, 0])

    def model(x: Tensor) -> Tensor:
        return torch.eye(3)[torch.arange(len(x)) % 3]

    result = evaluate_robustness(
        model, (images, labels), folder=tmp_path, model_id="eye", precision=precision, n_bootstrap=2, verbose=False
    )
    assert result.settings["cells"] == {"clean": content}
    manifest = tmp_path / "evaluation.json"
    written = json.loads(manifest.read_text(encoding="utf-8"))
    del written["settings"]["precision"]
    written["settings"]["dtype"] = dtype
    manifest.write_text(json.dumps(written), encoding="utf-8")
    assert saved_evaluation(tmp_path)[0] == result  # read with today's word
    assert rescore(tmp_path, n_bootstrap=2) == result


def test_images_may_be_tensors_or_read_only_arrays(
    ensemble: forde.Ensemble, data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = data
    expected = evaluate_robustness(ensemble, data, **QUICK)
    frozen = images.copy()
    frozen.flags.writeable = False
    assert evaluate_robustness(ensemble, (frozen, labels), **QUICK) == expected
    assert evaluate_robustness(ensemble, (frozen, labels), folder=tmp_path, **QUICK).clean == expected.clean
    assert evaluate_robustness(ensemble, (torch.from_numpy(images), torch.from_numpy(labels)), **QUICK) == expected
    monkeypatch.setattr("forde.evaluation.robustness.loading.WHOLE_ON_DEVICE", 0)  # batch by batch
    assert evaluate_robustness(ensemble, (frozen, labels), **QUICK) == expected


def test_a_bar_is_drawn_on_a_terminal(
    ensemble: forde.Ensemble, data: Any, cells: list[Cell], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    evaluate_robustness(ensemble, data, cells[:2], n_bootstrap=2)
    assert "evaluating" in capsys.readouterr().err
    evaluate_robustness(ensemble, data, cells[:2], n_bootstrap=2, verbose=False)
    assert capsys.readouterr().err == ""


def test_the_benchmark_counts_every_member_image(tmp_path: Path) -> None:
    found = benchmark_evaluation(
        "cpu", folder=str(tmp_path), n_members=1, n_images=2, severities=(1,), precision="float32", batch_size=2
    )
    assert found["member_images"] == 2 * 20 and found["seconds"] > 0
    assert len(list(tmp_path.glob("*.safetensors"))) == 20


def test_results_save_load_and_print(ensemble: forde.Ensemble, data: Any, cells: list[Cell], tmp_path: Path) -> None:
    result = evaluate_robustness(ensemble, data, cells, folder=tmp_path / "run", **QUICK)
    assert RobustnessResult.load(tmp_path / "run" / "evaluation.json") == result
    assert RobustnessResult.load(result.save(tmp_path / "copy.json")) == result
    text = str(result)
    for word in ("clean", "corrupted, pooled", "corrupted, cells", "contrast", "gaussian_noise", "NLL", "±"):
        assert word in text
    alone = evaluate_robustness(ensemble, data, **QUICK)
    assert "corrupted" not in str(alone) and alone.pooled == {}
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(forde.FordeError, match="not a robustness result"):
        RobustnessResult.load(tmp_path / "bad.json")


def test_bad_input_is_explained(ensemble: forde.Ensemble, data: Any, cells: list[Cell], tmp_path: Path) -> None:
    images, labels = data
    cases: list[tuple[str, Any, Any, Any, dict[str, Any]]] = [
        ("given twice", ensemble, data, [cells[0], cells[0]], {}),
        ("one whole number per image", ensemble, (images, labels[:5]), [], {}),
        ("one whole number per image", ensemble, (images, labels / 2), [], {}),
        ("3 classes, 0 to 2", ensemble, (images, labels + 1), [], {}),
        ("no images", ensemble, (images[:0], labels[:0]), [], {}),
        ("classification ensembles", forde.Ensemble(nn.Identity, 1, likelihood="regression"), data, [], {}),
        ("model_id", lambda x: x, data, [], {"folder": tmp_path}),
        ("\\[members, batch, classes\\]", lambda x: x.mean(), data, [], {}),
        ("NaN or infinite", lambda x: x.flatten(1)[:, :3] / 0, data, [], {}),
        ("not probabilities", lambda x: x.flatten(1)[:, :3], data, [], {"outputs": "probs"}),
        ("'logits' or 'probs'", lambda x: x.flatten(1)[:, :3], data, [], {"outputs": "odds"}),
        ("at least 2", ensemble, data, [], {"n_bootstrap": 1}),
        ("precision is 'fp8', but 'float32', 'bf16' or 'float16'", ensemble, data, [], {"precision": "fp8"}),
        ("precision is torch.bfloat16, but", ensemble, data, [], {"precision": torch.bfloat16}),
        ("'float32', 'bf16' or 'float16' was", ensemble, data, [], {"dtype": torch.int8}),
        ("but precision alone", ensemble, data, [], {"precision": "float16", "dtype": torch.bfloat16}),
    ]
    for message, model, given, corrupted, options in cases:
        with pytest.raises(forde.FordeError, match=message):
            evaluate_robustness(model, given, corrupted, **QUICK | options)
    (tmp_path / "file").write_text("")
    with pytest.raises(forde.FordeError, match="could not write"):
        evaluate_robustness(ensemble, data, folder=tmp_path / "file" / "inside", **QUICK)
