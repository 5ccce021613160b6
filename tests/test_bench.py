"""`forde bench`: rows have what they promise, ratios are right, and a failure loses nothing that was measured."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import forde
from forde.__main__ import main
from forde.benchmarks import communication, frozen_backbone, input_pipeline, page_faults
from forde.benchmarks.machine import machine
from forde.benchmarks.models import problem
from forde.benchmarks.scale import measure as measure_scale
from forde.benchmarks.step import Step, Timing, rows_of, steps, training
from forde.benchmarks.timing import arithmetic, time_jobs
from forde.commands.bench.output import report
from forde.experiments import curves
from forde.step import PlainStep, StepReport

ROOT, SOURCE = Path(__file__).parents[1], Path(forde.__file__).parent
CPU = torch.device("cpu")
STEP_KEYS = {
    "method", "engine", "model", "members", "batch", "precision", "device", "ms", "ratio_to_deep_ensemble",
    "speedup_over_naive", "peak_memory_gib", "memory", "first_step_s", "reserved_gib",
}  # fmt: skip

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs `forde bench …` in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["forde", "bench", *arguments])
        try:
            code = main()
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run


def rows_in(file: str) -> list[dict]:
    content = json.loads(Path(file).read_text())
    assert content["machine"] == machine()
    return content["rows"]


def test_all_that_is_measured_is_in_one_package() -> None:
    """Beside it are the results that the documentation cites, and the commands, which measure nothing themselves."""
    assert [path.name for path in (ROOT / "benchmarks").iterdir() if path.name != "__pycache__"] == ["results"]
    elsewhere = [path.relative_to(SOURCE) for path in SOURCE.rglob("*bench*") if "__pycache__" not in path.parts]
    assert sorted(map(str, elsewhere)) == ["benchmarks", str(Path("commands") / "bench")]


PROGRAMS = sorted(
    {
        name
        for page in [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), *SOURCE.rglob("*.py")]
        for name in re.findall(r"python -m (forde\.\w+\.\w+)", page.read_text(encoding="utf-8"))
    }
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_the_documentation_names_can_be_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        importlib.import_module(name).main(["--help"])
    assert end.value.code == 0 and f"python -m {name}" in capsys.readouterr().out


def test_the_input_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    input_pipeline.main(["--images", "96", "--batch", "32", "--device", "cpu"])
    assert "96 images of 32×32 on cpu, batch 32" in (out := capsys.readouterr().out) and ", 3 batches, " in out


def test_heads_on_one_backbone(capsys: pytest.CaptureFixture[str]) -> None:
    """Networks with a head by that name and without; the ratio with features, and without them."""
    arguments = "--samples 64 --members 3 --batch 32 --epochs 1 --repeats 1 --methods deep-ensemble"
    for model in ("small-conv", "mlp"):
        frozen_backbone.main([*arguments.split(), "--model", model])
        _, line = capsys.readouterr().out.splitlines()
        assert line.split()[0] == "deep-ensemble" and all(float(number) >= 0 for number in line.split()[1:5])
    found = frozen_backbone.Fastest(features=3.0, one_head=1.0, heads=5.0)
    assert (found.ratio, found.ratio_of_heads) == (1.25, 2.0)


@pytest.mark.skipif(sys.platform == "win32", reason="page faults are counted on Unix only")
def test_page_faults() -> None:
    before = page_faults.faults()
    found = page_faults.measure("forde-identity", members=2, batch=4, steps=2)
    assert 0 <= found <= (page_faults.faults() - before) / 2


def test_messages_are_counted_and_fitted() -> None:
    """Over two processes each number passes once when gathered, and once there and back, by half, when added up."""
    assert communication.ring_bytes("gather", 10, 2) == 40 == communication.ring_bytes("reduce", 10, 2)
    assert communication.ring_bytes("gather", 10, 4) == 120 and communication.ring_bytes("reduce", 10, 4) == 60
    latency, bandwidth = 2e-4, 1e9
    long = {n: 4 * n if n > communication.SHORT else 0 for n in communication.NUMBERS}
    rows = {n: (4.0 * n, latency + length / bandwidth) for n, length in long.items()}
    assert communication.fitted(rows) == pytest.approx((latency, bandwidth))


def test_loss_curves_of_engines_are_compared_by_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for engine, shift in (("eager", 0.0), ("compiled", 0.25)):
        for seed in (0, 1):
            run = {"engine": engine, "seed": seed, "losses": [seed + shift] * 20, "test_accuracy": 0.5}
            (tmp_path / f"{engine}-{seed}.json").write_text(json.dumps(run))
    curves.main(["compare", *map(str, sorted(tmp_path.iterdir()))])
    *_, last = capsys.readouterr().out.splitlines()
    assert last.split()[0] == "10" and last.endswith(" 0.2500") and "0.7500" in last and "0.5000" in last


def test_step(bench: Command) -> None:
    code, out, err = bench(
        "step", "--methods", "forde-pca", "--engines", "vectorized", "--members", "2", "--batch", "4,8",
        "--precision", "float32,bf16", "--every", "2", "--fraction", "0.5", "--rank", "3", "--repeats", "2",
        "--json", "out.json",
    )  # fmt: skip
    assert code == 0, err
    rows = rows_in("out.json")
    assert all(set(row) >= STEP_KEYS for row in rows)
    assert {(row["batch"], row["precision"]) for row in rows} == {
        (batch, precision) for batch in (4, 8) for precision in ("float32", "bf16")
    }
    # Deep ensembles and naive loops were not asked for, but are what rows are compared with.
    names = ["deep-ensemble", "forde-pca", "forde-pca every=2", "forde-pca fraction=0.5", "forde-pca rank=3"]
    wanted = [(name, engine) for name in names for engine in ("eager", "vectorized")]
    assert [(row["method"], row["engine"]) for row in rows[:10]] == wanted and len(rows) == 40
    for row in rows:
        same = [r for r in rows if (r["batch"], r["precision"]) == (row["batch"], row["precision"])]
        (base,) = (r for r in same if r["method"] == "deep-ensemble" and r["engine"] == row["engine"])
        (naive,) = (r for r in same if r["method"] == row["method"] and r["engine"] == "eager")
        assert row["ms"] > 0 and row["first_step_s"] > 0 and row["peak_memory_gib"] is None
        assert row["ratio_to_deep_ensemble"] == pytest.approx(row["ms"] / base["ms"])
        assert row["speedup_over_naive"] == pytest.approx(naive["ms"] / row["ms"])
    assert "× deep ensemble" in out and "forde-pca fraction=0.5" in out


def test_with_repulsion_in_every_kth_step_whole_cycles_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    update = PlainStep.update

    def counting(*arguments: Any, step: int, **options: Any) -> StepReport:
        made.append(step)
        return update(*arguments, step=step, **options)

    monkeypatch.setattr(PlainStep, "update", counting)
    with training(Step("forde-identity", members=2, batch=4, every=3)) as run:
        run()
        assert made == [0, 1, 2]
        run()
    assert made == [0, 1, 2, 3, 4, 5]


def test_methods_without_repulsion_are_timed_once_whatever_the_memory() -> None:
    wanted = steps(["deep-ensemble", "forde-pca"], ["eager"], memories=["speed", "low"], every=[4])
    assert [(step.label, step.memory) for step in wanted] == [
        ("deep-ensemble", "speed"), ("forde-pca", "speed"), ("forde-pca every=4", "speed"), ("forde-pca", "low"),
        ("forde-pca every=4", "low"),
    ]  # fmt: skip


def test_memory_is_compared_with_the_fast_deep_ensemble_and_the_fast_loop() -> None:
    times = {Step("deep-ensemble"): 2.0, Step("forde-pca"): 6.0, Step("forde-pca", memory="low"): 8.0}
    *_, low = rows_of({step: Timing(ms=ms) for step, ms in times.items()})
    assert low["ratio_to_deep_ensemble"] == 4 and low["speedup_over_naive"] == 0.75


def test_a_failed_row_loses_no_other(bench: Command) -> None:
    code, out, _ = bench(
        "step", "--methods", "forde-identity", "--engines", "vectorized", "--memory", "low", "--members", "2",
        "--batch", "4", "--repeats", "2", "--json", "out.json",
    )  # fmt: skip
    assert code == 0
    *measured, failed = rows_in("out.json")
    assert failed["memory"] == "low" and failed["ms"] is failed["ratio_to_deep_ensemble"] is None
    assert len(measured) == 3 and all(row["ms"] > 0 and row["error"] is None for row in measured)
    _, _, below = out.rpartition("┘")
    assert f"forde-identity, vectorized, low: {failed['error']}" in below and "saves nothing" in below


def test_predict(bench: Command) -> None:
    code, out, err = bench(
        "predict", "--members", "2,3", "--images", "20", "--batch", "8", "--repeats", "2", "--json", "out.json"
    )
    assert code == 0, err
    for members, row in zip((2, 3), rows_in("out.json"), strict=True):
        assert {"model", "members", "batch", "precision", "device", "ms", "member_images_per_second"} <= set(row)
        assert row["member_images_per_second"] == pytest.approx(members * 20 / (row["ms"] / 1e3))
    assert "member images/s" in out


def test_predict_in_bf16(bench: Command) -> None:
    code, out, err = bench(
        "predict",
        "--precision",
        "float32,bf16",
        "--images",
        "20",
        "--members",
        "2",
        "--repeats",
        "1",
        "--json",
        "out.json",
    )
    assert code == 0, err
    assert [(row["precision"], row["error"]) for row in rows_in("out.json")] == [("float32", None), ("bf16", None)], out


def test_scale(bench: Command) -> None:
    code, out, err = bench(
        "scale", "--model", "small-conv", "--members", "2", "--batch", "4", "--size", "8", "--over-members", "1,3",
        "--over-batch", "4,8", "--over-size", "16", "--repeats", "2", "--json", "out.json",
    )  # fmt: skip
    assert code == 0, err
    rows = rows_in("out.json")
    assert [(row["axis"], row[row["axis"]]) for row in rows] == [
        ("members", 1), ("members", 2), ("members", 3), ("batch", 4), ("batch", 8), ("size", 8), ("size", 16),
    ]  # fmt: skip
    factors = [0.5, 1, 1.5, 1, 2, 1, 4]  # of an image, the number of pixels
    centres = [rows[1]["ms"]] * 3 + [rows[3]["ms"]] * 2 + [rows[5]["ms"]] * 2
    for row, factor, centre in zip(rows, factors, centres, strict=True):
        assert row["ratio_to_linear"] == pytest.approx(row["ms"] / (centre * factor))
        assert row["ms_per_member"] == pytest.approx(row["ms"] / row["members"])
        assert row["ms_per_sample"] == pytest.approx(row["ms"] / row["batch"])
    assert "× linear" in out


TINY = (
    "--model",
    "small-conv",
    "--members",
    "2",
    "--batch",
    "4",
    "--size",
    "8",
    "--repeats",
    "2",
    "--json",
    "out.json",
)


@pytest.mark.skipif(os.name != "posix", reason="needs gloo")
def test_scale_over_processes(tmp_path: Path) -> None:
    """As users start it: 2 members that share 4 samples of 3·8·8 values with another process."""
    done = subprocess.run(
        [sys.executable, "-m", "forde", "bench", "scale", "--over-processes", "1,2", "--mesh", "1x2", *TINY],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, two = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert (one["processes"], one["mesh"], one["messages"], one["movement_error"]) == (1, "1x1", None, None)
    assert (two["processes"], two["mesh"], two["messages by"], two["error"]) == (2, "1x2", "gloo", None)
    assert two["ratio_to_one_process"] == pytest.approx(two["ms"] / one["ms"])
    assert two["waited_ms"] > 0 and two["movement_error"] < 1e-4
    tensors = [p.numel() for p in problem("small-conv", 8).make().parameters()]
    losses, representations = 2 + 3, 2 * 2 * 192  # 3 marks beside the losses; both of its own 2 samples
    gradients = 2 * (
        sum(tensors) + len(tensors)
    )  # all-reduce of 2 processes: each number once, and whether it is there
    batch_norms = 2 * 4 * sum(2 * 2 * channels for channels in (16, 32))  # 4 messages for each member and layer
    assert two["messages"] == 1 + 1 + 1 + 2 * 4 * 2
    assert two["sent_kb"] == pytest.approx(4 * (losses + representations + gradients + batch_norms) / 1e3)
    assert "ms waited" in done.stdout and "movement differs" in done.stdout


def test_processes_that_fail_say_why_in_their_row(bench: Command) -> None:
    code, out, _ = bench("scale", "--over-processes", "1", "--engine", "vectorized", "--memory", "low", *TINY)
    assert code == 1
    assert "memory='low' saves nothing" in " ".join(out.split())


def test_kernel(bench: Command) -> None:
    code, out, err = bench(
        "kernel", "--dimensions", "12,20", "--members", "3", "--batch", "4", "--rank", "5", "--repeats", "2",
        "--json", "out.json",
    )  # fmt: skip
    assert code == 0, err
    rows = rows_in("out.json")
    metrics = ["identity", "PCA", "tuned", "PCA of rank 5"]
    assert [(row["dimension"], row["metric"]) for row in rows] == [(d, name) for d in (12, 20) for name in metrics]
    for row, identity in zip(rows, [rows[0]] * 4 + [rows[4]] * 4, strict=True):
        assert row["ratio_to_identity"] == pytest.approx(row["ms"] / identity["ms"])
    assert "× identity" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("step", "--model", "resnet19"), "did you mean 'resnet18'"),
        (("step", "--engines", "eagre"), "did you mean 'eager'"),
        (("step", "--methods", "forde-pcs"), "did you mean 'forde-pca'"),
        (("step", "--precision", "tf32"), "needs an NVIDIA GPU"),
        (("step", "--precision", "fp16"), "Known: bf16, float32, tf32"),
        (("step", "--memory", "lo"), "did you mean 'low'"),
        (("step", "--members", "0"), "--members is '0'"),
        (("step", "--batch", "many"), "--batch is 'many'"),
        (("step", "--fraction", "1.5"), "repulsion_fraction is 1.5"),
        (("step", "--methods", ","), "nothing to measure"),
        (("step", "--json", "."), "cannot be written; name a file"),
        (("predict", "--model", "mpl"), "did you mean 'mlp'"),
        (("predict", "--precision", "tf32"), "needs an NVIDIA GPU"),
        (("scale", "--engine", "eagre"), "did you mean 'eager'"),
        (("scale", "--over-batch", "0"), "--over-batch is '0'"),
        (("scale", "--over-processes", "2", "--mesh", "2x2"), "mesh 2x2 needs 4 processes"),
        (("scale", "--over-processes", "2", "--mesh", "1x2", "--batch", "3"), "a batch of 3 samples cannot be split"),
        (("scale", "--mesh", "2x1"), "--mesh is for --over-processes"),
        (("kernel", "--dimensions", "x"), "--dimensions is 'x'"),
        (("kernel", "--device", "gpu"), "unknown device 'gpu'"),
    ],
)
def test_mistakes_are_one_sentence(bench: Command, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = bench(*arguments)
    assert code == 1
    assert err.startswith("Error: ") and err.count("\n") == 1 and message in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["step", "predict", "scale", "kernel"])
def test_a_missing_gpu_is_one_sentence(bench: Command, command: str) -> None:
    code, _, err = bench(command, "--device", "cuda")
    assert code == 1 and err.count("\n") == 1 and "torch sees no NVIDIA GPU" in err


def job(*, fails_at: int | None = None, error: type[BaseException] = RuntimeError):
    """A job whose n-th call raises."""

    @contextmanager
    def build() -> Iterator[Callable[[], None]]:
        calls = iter(range(1, 1000))

        def run() -> None:
            if next(calls) == fails_at:
                raise error("it broke\nin many lines")

        yield run

    return build


def test_jobs_that_fail_do_not_stop_the_others() -> None:
    @contextmanager
    def cannot_be_built() -> Iterator[Callable[[], None]]:
        raise forde.FordeError("not possible; do something else.")
        yield

    timings = list(time_jobs([job(), cannot_be_built, job(fails_at=4), job()], CPU, repeats=3))
    assert [timing.ms is None for timing in timings] == [False, True, True, False]
    assert [timing.error for timing in timings[1:3]] == ["not possible; do something else.", "RuntimeError: it broke"]


def test_calls_on_a_gpu_are_queued_between_two_synchronisations(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append("|"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: events.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 2**30)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 2**31)

    @contextmanager
    def build() -> Iterator[Callable[[], None]]:
        events.append("build")
        yield lambda: events.append(".")
        events.append("close")

    timing, failed = time_jobs([build, job(fails_at=2)], torch.device("cuda"), repeats=10)
    untimed = ["reset", "build", "|", ".", "|", "|", *".....", "|"]
    assert events[: len(untimed) + 21] == [*untimed, *("|..|" * 5), "close"]
    assert (timing.peak_gib, timing.reserved_gib, failed.error) == (1, 2, "RuntimeError: it broke")


def test_an_interrupted_measurement_keeps_what_it_has() -> None:
    timings, found = time_jobs([job(), job(fails_at=6, error=KeyboardInterrupt)], CPU, repeats=100), []
    with pytest.raises(KeyboardInterrupt):
        for timing in timings:
            found.append(timing)
    assert len(found) == 2 and all(timing.ms is not None for timing in found)


def test_the_file_is_written_and_the_table_shown_when_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def snapshots() -> Iterator[list[dict[str, object]]]:
        yield rows_of({Step("deep-ensemble"): Timing(ms=1.5)})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        report("step", snapshots(), 2, tmp_path / "new" / "out.json")
    (row,) = rows_in(str(tmp_path / "new" / "out.json"))
    assert row["ms"] == 1.5 and "1.50" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out.json"]


def test_an_older_file_survives_a_run_that_measures_nothing(tmp_path: Path) -> None:
    def snapshots() -> Iterator[list[dict[str, object]]]:
        raise KeyboardInterrupt
        yield

    (tmp_path / "old.json").write_text("{}")
    for name in ("old.json", "new.json"):
        with pytest.raises(KeyboardInterrupt):
            report("step", snapshots(), 1, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]


def test_engines_that_run_as_another_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    fallen = Step("forde-pca", engine="compiled"), Timing(ms=2.0, note="engine: eager after all, for a reason")
    plain = Step("forde-pca"), Timing(ms=2.0, note="engine: eager (a loop over 10 members)")
    report("step", iter([rows_of(dict([fallen, plain]))]), 2, None)
    out = capsys.readouterr().out
    assert "forde-pca, compiled: engine: eager after all" in out and "a loop over" not in out


def test_tf32_is_switched_back() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    for precision, expected in (("float32", False), ("tf32", True)):
        with arithmetic(precision) as asked:
            assert asked == "float32"
            assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == expected
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_the_centre_of_a_scale_is_added_to_each_axis() -> None:
    centre = Step("deep-ensemble", members=2, batch=4)
    *_, rows = measure_scale(centre, {"members": [1], "batch": [8]}, repeats=1)
    assert [row["ratio_to_linear"] for row in rows if (row["members"], row["batch"]) == (2, 4)] == [1, 1]


@pytest.mark.cuda
def test_memory_is_reported_on_a_gpu(bench: Command) -> None:
    code, _, err = bench(
        "step", "--device", "cuda", "--model", "small-conv", "--members", "2", "--batch", "8", "--engines", "eager",
        "--precision", "float32,tf32,bf16", "--repeats", "6", "--json", "out.json",
    )  # fmt: skip
    assert code == 0, err
    for row in rows_in("out.json"):
        assert 0 < row["peak_memory_gib"] <= row["reserved_gib"] and row["ms"] > 0
