"""`forde evaluate`: scores of a run on clean, corrupted and foreign data, kept in its folder."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forde.commands.options import DataDir, Device, JsonFile, Model, OtherData, Precision, Run, Seed
from forde.errors import FordeError

if TYPE_CHECKING:
    from forde.data.description import Images, Table
    from forde.evaluation import CellDone
    from forde.training import TrainedRun


def evaluate(
    ctx: typer.Context,
    run: Run,
    corruptions: Annotated[
        str | None,
        typer.Option(
            help="all, or names with commas between, as in fog,contrast; for tables gaussian_noise and missing_values. "
            "Clean data only if left out."
        ),
    ] = None,
    severities: Annotated[
        str, typer.Option(help="Of the corruptions, from 1 to 5, with commas between.")
    ] = "1,2,3,4,5",
    foreign: Annotated[
        str | None,
        typer.Option(
            help="A data set of another kind, to see whether its inputs look uncertain; labels do not count. For "
            "images also `noise`, which is made."
        ),
    ] = None,
    data: OtherData = None,
    split: Annotated[str | None, typer.Option(help="Split of the data; test if left out.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write `evaluation` into, in the place of the run's own.")
    ] = None,
    model: Model = None,
    data_dir: DataDir = None,
    device: Device = None,
    precision: Precision = "float32",
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Evaluate a run on its test data, clean and corrupted; nothing that forde train was given is needed again.

    Scores are written into RUN/evaluation/scores.json and members' predictions beside it. What is there already, of the
    same members and data, is not computed again, so the same command goes on after an interruption.

    Example: forde evaluate runs/a --corruptions fog,contrast --severities 1,5
    """
    from forde.commands.asked import command_of
    from forde.commands.opening import opened
    from forde.commands.reporting import sayer, write_report
    from forde.evaluation.runs import evaluate_run

    say = sayer(json_file)
    levels = _whole_numbers(severities)
    trained = opened(run, model=model, device=device)
    clean = trained.test_data(data, split, data_dir=data_dir)
    where = run if out is None else out
    scores = evaluate_run(
        trained,
        clean,
        where,
        split=split or ("test" if "test" in clean.description.splits else "all"),
        corruptions=[name.strip() for name in (corruptions or "").split(",") if name.strip()],
        severities=levels,
        foreign=None if foreign is None else _foreign(trained, foreign, clean, data_dir, seed),
        precision=precision,  # type: ignore[arg-type]
        seed=seed,
        data_dir=data_dir,
        command=command_of(ctx),
        on_cell=None if sys.stderr.isatty() else _Lines(),
    )
    say(f"{len(clean):,} samples of {scores.data['name']} ({scores.data['split']}), standard errors by bootstrap\n")
    say(str(scores.result))
    for line in _about_foreign(scores.foreign):
        say(line)
    say(f"\nscores in {where / 'evaluation' / 'scores.json'}; to see them: forde report {where} --out report.html")
    write_report("evaluate", {"run": str(run), **scores.to_dict()}, json_file)


class _Lines:
    """One line for each cell on stderr, with the time left, where no bar can be drawn."""

    def __init__(self) -> None:
        self.begun = time.monotonic()

    def __call__(self, cell: CellDone) -> None:
        left = (time.monotonic() - self.begun) / cell.done * (cell.total - cell.done)
        name, value = next(iter(cell.scores.items()))
        again = ", as before" if cell.reused else ""
        typer.echo(f"{cell.done}/{cell.total} {cell.name}: {name} {value:.4g}{again}, {left:.0f} s left", err=True)


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise FordeError(f"--severities is '{text}', but numbers from 1 to 5 as in 1,3,5 were expected.") from None


def _foreign(trained: TrainedRun, name: str, clean: Images | Table, data_dir: Path | None, seed: int) -> Images | Table:
    """Foreign inputs: a table with the run's columns, or images of any size, of the test split where there is one."""
    from forde.data import Images, load_images
    from forde.data.features.sets import NOISE, noise

    if not trained.inputs.are_images:
        return trained.test_data(name, data_dir=data_dir)
    if name == NOISE and isinstance(clean, Images):
        return noise(clean, seed)
    try:
        return load_images(name, "test", data_dir)
    except FordeError as error:
        if not (error.unknown or "").startswith("split of"):
            raise
        return load_images(name, "train", data_dir)


def _about_foreign(foreign: dict[str, Any] | None) -> list[str]:
    if foreign is None:
        return []
    remark = f" ({foreign['remark']})" if foreign["remark"] else ""
    found = ", ".join(f"{name} {one['value']:.4f} ± {one['error']:.4f}" for name, one in foreign["auroc"].items())
    return [f"\n{foreign['samples']:,} foreign inputs of {foreign['name']}{remark}: AUROC of {found}"]
