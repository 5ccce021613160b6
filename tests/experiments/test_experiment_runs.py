"""Running cells: once, to whole files, in a time limit, one failing without the others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_cells import here, small_cell

from forde.corruptions import corrupt
from forde.data.inputs import normalise
from forde.ensemble import Ensemble
from forde.errors import FordeError
from forde.evaluation import accuracy, ece, mixture, nll
from forde.experiments import experiments, feature_data, running, sweeps
from forde.experiments.budgets import adjusted, budget
from forde.experiments.cells import Cell, options_of
from forde.experiments.estimates import COMPILING, program_of, seconds_of
from forde.experiments.image_cells import gradient_distances
from forde.experiments.image_data import test_sets as sets_of
from forde.experiments.image_data import training_images
from forde.experiments.paper import image_cell
from forde.experiments.places import Place
from forde.experiments.results import path_of, read_result
from forde.experiments.running import Outcome, is_done, run_cell
from forde.experiments.slurm import parse, run_on_cluster
from forde.experiments.sweeps import run_in_order, run_in_processes, runnable
from forde.experiments.training_cells import keeps_run
from forde.folder_lock import locked
from forde.methods import method
from forde.training import fit

NUMBERS = ("clean", "pooled", "cell_average", "severities", "corruptions", "gradient_distance", "errors")


def silent(outcome: Outcome) -> None:
    """Nobody listens."""


def numbers_of(path: Path) -> dict[str, Any]:
    """What a result file says apart from times."""
    content = json.loads(path.read_text())
    history = [{key: value for key, value in one.items() if key != "seconds"} for one in content["history"]]
    return {**{name: content[name] for name in NUMBERS}, "history": history}


def test_a_cell_is_what_fit_and_the_metrics_give(tmp_path: Path) -> None:
    cell, place = small_cell("forde-pca", epochs=3), here(tmp_path)
    assert run_cell(cell, place).status == "done"
    content = read_result(path_of(cell, place.cells)).content
    # The same by hand.
    data, sets = training_images(cell, place), sets_of(cell, place)
    from forde.experiments.networks import network

    ensemble = Ensemble(network("mlp-16", (8, 8, 1), 10), 3, seed=0)
    history = fit(ensemble, method("forde-pca"), data, epochs=3, batch_size=64, lr=0.1, seed=0, verbose=False)
    transform = normalise(data.description.mean, data.description.std)
    labels = torch.as_tensor(sets.labels)
    logits = ensemble.predict(transform(sets.images)).member_logits
    assert content["clean"]["nll"] == pytest.approx(nll(logits, labels), rel=1e-4)
    noisy = corrupt(sets.images, "gaussian_noise", 5, seed=0)
    probs = mixture(ensemble.predict(transform(noisy)).member_logits.softmax(-1))
    own = content["corruptions"]["gaussian_noise"]["5"]
    assert own["accuracy"] == pytest.approx(accuracy(probs, labels)) and own["ece"] == pytest.approx(
        ece(probs, labels), rel=1e-4
    )
    assert [one["loss"] for one in content["history"]] == pytest.approx(history["loss"], rel=1e-4)
    assert content["pooled"]["accuracy"] == pytest.approx(
        sum(levels[level]["accuracy"] for levels in content["corruptions"].values() for level in ("1", "5")) / 4,
        rel=1e-4,
    )
    assert content["run"]["seed"] == 0 and content["run"]["machine"]["torch"] == torch.__version__
    assert content["data"]["corrupted"] == "generated (seed 0)" and content["notes"][0].startswith("engine:")


def test_gradient_distances_by_hand(tmp_path: Path) -> None:
    """Linear members f(x) = W x: the gradient of a class's logit is its row of W, whatever x is."""
    cell = small_cell()
    sets = sets_of(cell, here(tmp_path))
    ensemble = Ensemble(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), 3, seed=0)
    found, remark = gradient_distances(ensemble, sets, normalise(), compared=8)
    rows = torch.nn.functional.normalize(
        torch.stack([member[1].weight.detach() for member in ensemble.members]), dim=-1
    )

    def expected(labels: Any) -> float:
        at = rows[:, torch.as_tensor(labels)]
        pairs = [(at[i] * at[j]).sum(-1) for i in range(3) for j in range(i)]
        return float(1 - torch.stack(pairs).mean())

    assert remark is None and found is not None and sorted(found) == ["0", "1", "5"]
    assert found["0"] == pytest.approx(expected(sets.labels[:128]), rel=1e-4)
    assert found["5"] == pytest.approx(expected(sets.labels[:16]), rel=1e-4)  # 8 images for each of 2 corruptions


def test_test_sets_are_made_once(tmp_path: Path) -> None:
    first, again = (sets_of(small_cell(name), here(tmp_path)) for name in ("lit", "forde-pca"))
    assert first is again
    images, labels = first.corrupted[1].load()
    assert images is first.corrupted[1].load()[0] and len(images) == len(labels) == 128
    assert (first.corrupted[1].corruption, first.corrupted[1].severity) == ("gaussian_noise", 5)
    assert torch.equal(torch.as_tensor(images), corrupt(first.images, "gaussian_noise", 5, seed=0))


def test_nothing_is_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, place = small_cell(), here(tmp_path)
    assert [one.status for one in run_in_order([cell], place, silent)] == ["done"]
    before = path_of(cell, place.cells).read_bytes()
    monkeypatch.setitem(running.RUNNERS, "images", lambda cell, place: pytest.fail("run again"))
    assert [one.status for one in run_in_order([cell], place, silent)] == ["there"]
    assert path_of(cell, place.cells).read_bytes() == before and not list(place.runs.iterdir())


def test_a_damaged_file_is_put_aside_and_its_cell_run_again(tmp_path: Path) -> None:
    cell, place = small_cell(), here(tmp_path)
    run_cell(cell, place)
    path = path_of(cell, place.cells)
    whole = numbers_of(path)
    path.write_text(path.read_text()[:100])
    assert not is_done(cell, place)
    assert run_cell(cell, place).status == "done" and numbers_of(path) == whole
    assert len(path.with_suffix(".damaged").read_text()) == 100


def test_the_options_of_a_cell_reach_its_training(tmp_path: Path) -> None:
    """Without repulsion FoRDE is the deep ensemble; with a strong one it is not."""
    place = here(tmp_path)
    cells = [
        small_cell("deep-ensemble"),
        small_cell("forde", options=(("strength", 0),)),
        small_cell("forde", options=(("strength", 1000),)),
        small_cell("deep-ensemble", prior="empcov"),
    ]
    assert {one.status for one in run_in_order(cells, place, silent)} == {"done"}
    plain, without, strong, empcov = (numbers_of(path_of(cell, place.cells))["clean"] for cell in cells)
    assert plain == without and plain not in (strong, empcov)


def broken(error: Exception) -> Callable[..., Any]:
    def run(cell: Any, place: Any) -> Any:
        raise error

    return run


def test_one_failing_cell_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells, place = [small_cell(model="vgg"), small_cell("lit")], here(tmp_path)
    first, second = run_in_order(cells, place, silent)
    assert (first.status, second.status) == ("failed", "done") and "unknown network 'vgg'" in first.line
    monkeypatch.setitem(running.RUNNERS, "images", broken(ZeroDivisionError("a slip")))
    outcome = run_cell(small_cell("weight-rde"), place)
    assert outcome.status == "failed" and "ZeroDivisionError: a slip" in outcome.line
    (file,) = place.runs.glob("*/error.txt")
    assert "a slip" in file.read_text() and str(file) in outcome.line
    monkeypatch.undo()
    assert run_cell(small_cell("weight-rde"), place).status == "done" and not file.exists()


def test_a_cell_that_another_process_runs_is_left_to_it(tmp_path: Path) -> None:
    cell, place = small_cell(), here(tmp_path)
    (place.runs / cell.name).mkdir(parents=True)
    with locked(place.runs / cell.name):
        outcome = run_cell(cell, place)
    assert outcome.status == "busy" and "in use" in outcome.line
    assert run_cell(cell, place).status == "done"


def test_a_training_goes_on_after_the_time_limit_as_if_nothing_had_happened(tmp_path: Path) -> None:
    cell = small_cell("forde-pca", epochs=4)
    whole, parts = here(tmp_path / "whole"), tmp_path / "parts"
    assert run_cell(cell, whole).status == "done"
    over = here(parts, deadline=time.time() - 1)
    # Each session ends an epoch, sees that there is no time for another, and stops one step later.
    statuses = []
    for _ in range(3):
        statuses.append(run_cell(cell, over).status)
        assert (parts / "runs" / cell.name / "training" / "checkpoints").is_dir()
    assert [*statuses, run_cell(cell, over).status] == ["interrupted"] * 3 + ["done"]
    assert numbers_of(path_of(cell, parts / "cells")) == numbers_of(path_of(cell, whole.cells))
    content = read_result(path_of(cell, parts / "cells")).content
    assert len(content["history"]) == 4
    assert content["seconds"]["training"] >= 0.99 * sum(one["seconds"] for one in content["history"])
    assert not list((parts / "runs").iterdir())


def test_a_falling_strength_goes_on_where_it_was(tmp_path: Path) -> None:
    """Stopped after each epoch, and against `fit` with the same weights written out."""
    cell = small_cell("forde", epochs=3, options=options_of(strength=30, last_strength=0, repulsion_fraction=0.25))
    parts, over = tmp_path / "parts", here(tmp_path / "parts", deadline=time.time() - 1)
    assert [run_cell(cell, over).status for _ in range(3)] == ["interrupted", "interrupted", "done"]
    content = read_result(path_of(cell, parts / "cells")).content
    from forde.experiments.networks import network

    ensemble = Ensemble(network("mlp-16", (8, 8, 1), 10), 3, seed=0)
    chosen = method("forde", repulsion_fraction=0.25, repulsion_weight=lambda epoch: (30.0, 20.0, 10.0)[epoch])
    history = fit(ensemble, chosen, training_images(cell, over), epochs=3, batch_size=64, lr=0.1, seed=0, verbose=False)
    for name in ("loss", "repulsion"):
        assert [one[name] for one in content["history"]] == pytest.approx(history[name], rel=1e-4)
    assert history["repulsion"][0] > 1.5 * history["repulsion"][2] > 0


def test_without_time_nothing_is_begun(tmp_path: Path) -> None:
    outcomes = run_in_order([small_cell(), small_cell("lit")], here(tmp_path, deadline=time.time() - 1), silent)
    assert [one.status for one in outcomes] == ["left", "left"] and not (tmp_path / "runs").exists()


def minutes_on_a_gpu(
    cells: list[Cell], minutes: float, monkeypatch: pytest.MonkeyPatch, folder: Path, slower: float = 1.0
) -> tuple[list[Outcome], float]:
    """Outcomes, and seconds that are left, where each cell takes what is expected of it, or `slower` times that."""
    clock, seen = [0.0], set[object]()

    def run(cell: Cell, place: Place) -> Outcome:
        took = slower * seconds_of(cell) + (COMPILING if program_of(cell) not in seen else 0.0)
        seen.add(program_of(cell))
        clock[0] += took
        return Outcome(cell, "done", "", took)

    monkeypatch.setattr("forde.experiments.places.time.time", lambda: clock[0])
    monkeypatch.setattr("forde.experiments.sweeps.run_cell", run)
    outcomes = run_in_order(cells, Place(folder, "cuda", deadline=60 * minutes), silent)
    return outcomes, 60 * minutes - clock[0]


def test_minutes_on_a_gpu_are_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would end too late is left, and a shorter cell from further down is taken."""
    plan = list(experiments()["plan"].cells(budget("short")))[7:]
    outcomes, left = minutes_on_a_gpu(plan, 9.0, monkeypatch, tmp_path)
    done = [outcome.cell for outcome in outcomes if outcome.status == "done"]
    assert [outcome.cell for outcome in outcomes] == plan
    assert done[:6] == plan[:6] and 0 <= left < min(seconds_of(cell) for cell in plan)
    pca, forde, swag = (image_cell(budget("short"), "cifar10", name, 0) for name in ("forde-pca", "forde", "swag"))
    seconds = seconds_of(forde) + COMPILING + 1
    outcomes, left = minutes_on_a_gpu([pca, forde, swag], seconds / 60, monkeypatch, tmp_path)
    assert [outcome.status for outcome in outcomes] == ["left", "done", "left"] and left == pytest.approx(1)


def test_a_slow_gpu_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is begun that would not end, once a cell has shown how long they take here."""
    cells = [image_cell(budget("short"), "cifar10", "forde", seed) for seed in range(9)]
    outcomes, left = minutes_on_a_gpu(cells, 9.0, monkeypatch, tmp_path, slower=1.5)
    assert [outcome.status for outcome in outcomes] == ["done"] * 4 + ["left"] * 5 and left >= 0


def test_processes_on_a_gpu_begin_no_cell_that_would_end_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = experiments()["fig-transfer"].cells(adjusted(budget("short"), backbone="lite0"))[0]
    monkeypatch.setattr(sweeps, "run_cell", lambda cell, place: Outcome(cell, "done", ""))
    for more, status in ((-1.0, "left"), (5.0, "done")):
        place = Place(tmp_path, "cuda", deadline=time.time() + seconds_of(cell) + more)
        assert sweeps._run_alone(cell, place, torch.get_num_threads()).status == status


def test_short_cells_on_a_gpu_keep_no_checkpoints(tmp_path: Path) -> None:
    gpu = Place(tmp_path, "cuda")
    short, full = (image_cell(budget(name), "cifar10", "forde-pca", 0) for name in ("short", "long"))
    assert not keeps_run(short, gpu) and keeps_run(full, gpu) and keeps_run(short, here(tmp_path))
    assert gpu.engine_for("images") == "compiled" and here(tmp_path).engine_for("images") == "auto"


def test_what_cannot_be_run_is_said_in_a_line(tmp_path: Path) -> None:
    cells = [
        small_cell(),
        small_cell("no-such-method"),
        small_cell(data="cifar100"),
        small_cell("lit", data="cifar100"),
    ]
    chosen, reasons = runnable(cells, here(tmp_path, data=tmp_path))
    assert chosen == [small_cell()]
    assert reasons[0] == "no such method is registered: no-such-method"
    assert len(reasons) == 2 and "'cifar100' is not in" in reasons[1] and "forde data download cifar100" in reasons[1]
    missing = small_cell(kind="features", data="cifar10@lite0", model="mlp-bn-8")
    assert runnable([missing], here(tmp_path))[1] == [
        "features of cifar10 from lite0 were expected in a folder given as --features; make them first."
    ]


def test_features_of_a_folder(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    folder = tmp_path / "lite0" / "centres"
    centres = 2 * torch.randn(4, 6, generator=generator)
    noises = {"train": 0.5, "test": 0.5, "corrupted/fog-2": 1.5, "shifted/cinic10": 1.0, "foreign/noise": 5.0}
    for name, noise in noises.items():
        labels = torch.arange(200) % 4
        features = centres[labels] + noise * torch.randn(200, 6, generator=generator)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        save_file({"features": features, "labels": labels}, folder / f"{name}.safetensors")
    cell = small_cell("forde-pca", kind="features", data="centres@lite0", model="mlp-bn-16", epochs=4)
    place = here(tmp_path, features=tmp_path / "lite0")
    outcome = run_cell(cell, place)
    assert outcome.status == "done", outcome.line
    content = read_result(path_of(cell, place.cells)).content
    assert content["clean"]["accuracy"] > 0.9 > content["corruptions"]["fog"]["2"]["accuracy"] > 0.3
    assert set(content["shifted"]) == {"cinic10"} and 0 <= content["foreign"]["noise"]["epistemic"] < 1.4
    folder.rename(folder.with_name("cifar10"))
    with pytest.raises(FordeError, match=r"train.safetensors' holds features of 200 images, but cifar10 has 50,000"):
        feature_data.feature_sets(replace(cell, data="cifar10@lite0"), place)
    folder.with_name("cifar10").rename(folder)
    (folder / "corrupted" / "fog-2.safetensors").write_bytes(b"nonsense")
    feature_data._sets.cache_clear()
    with pytest.raises(FordeError, match=r"fog-2.safetensors' holds no features"):
        feature_data.feature_sets(cell, place)
    (folder / "corrupted" / "fog-2.safetensors").rename(folder / "corrupted" / "fig-2.safetensors")
    with pytest.raises(FordeError, match=r"fig-2.safetensors' is named after no corruption and severity"):
        feature_data.feature_sets(cell, place)


def test_features_that_forde_features_made(tmp_path: Path) -> None:
    from torch import nn

    from forde.data.features import Backbone, Preprocessing, feature_sets, fill

    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    backbone = Backbone("own", network, Preprocessing((8, 8), (0.5,), (0.5,)))
    sets = feature_sets("digits", corruptions=["fog"], severities=[1, 3], foreign=["noise"], limit=20)
    made = {step.set.part for step in fill(tmp_path / "own" / "digits-images", backbone, sets)}
    cell = small_cell(kind="features", data="digits-images@own", model="mlp-bn-8")
    read = feature_data.feature_sets(cell, here(tmp_path, features=tmp_path / "own"))
    assert read.train[0].shape == read.test[0].shape == (20, 5)
    corrupted = {f"corrupted/{name}-{level}" for name, level in read.corrupted}
    assert made == {"train", "test"} | corrupted | {f"foreign/{name}" for name in read.foreign}
    assert len(corrupted) == 2 and set(read.foreign) == {"noise"}


@pytest.mark.slow
def test_several_processes_give_the_same(tmp_path: Path) -> None:
    cells = [small_cell("forde-pca"), small_cell(model="vgg"), small_cell("lit")]
    alone, together = here(tmp_path / "1"), here(tmp_path / "2")
    run_in_order(cells, alone, silent)
    outcomes = {one.cell.name: one for one in run_in_processes(cells, together, 2, silent)}
    assert [outcomes[cell.name].status for cell in cells] == ["done", "failed", "done"]
    for cell in (cells[0], cells[2]):
        one, other = path_of(cell, alone.cells), path_of(cell, together.cells)
        assert numbers_of(one) == numbers_of(other)
        # Beside each other on one machine, cells say nothing of what a step costs.
        steps = [read_result(path).content["seconds"]["step"] for path in (one, other)]
        assert steps[0] > 0 and steps[1] is None


@pytest.mark.slow
def test_jobs_of_submitit(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    cells, place = [small_cell("forde-pca"), small_cell(model="vgg")], here(tmp_path)
    told: list[Outcome] = []
    outcomes = run_on_cluster(cells, place, parse("cluster=local,cpus=1,minutes=5"), None, told.append)
    assert {one.cell.model: one.status for one in outcomes} == {"mlp-16": "done", "vgg": "failed"}
    assert len(told) == 2 and is_done(cells[0], place)
    again = run_on_cluster(cells[:1], place, parse("cluster=local"), None, silent)
    assert [one.status for one in again] == ["there"]


def test_a_job_begins_its_minutes_when_it_begins(tmp_path: Path) -> None:
    from forde.experiments.slurm import CellJob

    cell, old = small_cell(), here(tmp_path, deadline=1.0)
    assert CellJob()(cell, old, None).status == "done"
    submitit = pytest.importorskip("submitit")
    again = CellJob().checkpoint(cell, old, 9.0)
    assert isinstance(again, submitit.helpers.DelayedSubmission) and again.args == (cell, old, 9.0)


def test_settings_of_slurm() -> None:
    assert parse("partition=gpu,gpus=1,minutes=60") == {"partition": "gpu", "gpus": "1", "minutes": "60"}
    for text, said in (
        ("partition", "settings as in"), ("gpus=", "settings as in"), ("gpu=1", "did you mean 'gpus'"),
        ("gpus=one", "whole number"),
    ):  # fmt: skip
        with pytest.raises(FordeError, match=said):
            parse(text)


def test_the_recipe_is_forde_pca_with_three_changes() -> None:
    recipe, plain = method("forde", strength=7), method("forde-pca", output="auto")
    assert (recipe.space, recipe.kernel, recipe.rule, recipe.prior) == (
        plain.space,
        plain.kernel,
        plain.rule,
        plain.prior,
    )
    assert (recipe.repulsion_weight, recipe.repulsion_fraction, recipe.compared(128)) == (7, 0.25, 32)
    assert method("forde", strength=0).factor(step=0, epoch=0, batch_size=4) is None
