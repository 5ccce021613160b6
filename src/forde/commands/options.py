"""Options that several commands have, so that each has one name, one meaning and one sentence of help.

A command takes them as types: `def evaluate(..., device: Device = None, json_file: JsonFile = None)`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forde.commands import completion
from forde.errors import FordeError

if TYPE_CHECKING:
    import torch

FAILED, WRONG_USE, LATER = 1, 2, 75
"""Exit codes beside 0: what was asked for was not done, and a sentence on stderr says why; options that the command
does not have; the time is over or a part is left, and the same command goes on (EX_TEMPFAIL of sysexits.h). A signal
gives 128 and its number, as shells expect: 130 for Ctrl-C."""
MOST_SEED = 2**63 - 1
"""Generators take up to 2^64 − 1, and members count on from the seed."""
STDOUT = Path("-")


def _checked_seed(seed: int) -> int:
    if not 0 <= seed <= MOST_SEED:
        raise FordeError(f"--seed is {seed}, but a whole number from 0 to {MOST_SEED} was expected; give another one.")
    return seed


def _writable(file: Path | None) -> Path | None:
    """Refuse a report that could not be written, before the time is spent; nothing is made yet."""
    if file is None or file == STDOUT:
        return file
    there = next(folder for folder in (file.parent, *file.absolute().parents) if folder.exists())
    if file.is_dir() or not there.is_dir() or not os.access(there, os.W_OK):
        raise FordeError(f"--json {file} cannot be written; name a file in a folder that can be, or - for stdout.")
    return file


Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Folder of a run (forde train --out RUN), or of a saved ensemble.",
        autocompletion=completion.runs,
    ),
]
Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Folders of runs (forde train --out RUN).", autocompletion=completion.runs),
]
Data = Annotated[
    str,
    typer.Option(
        help="A data set by name (`forde data list`), or a file or folder.", autocompletion=completion.data_sets
    ),
]
OtherData = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="A data set by name, or a file or folder, in the place of the run's own.",
        autocompletion=completion.data_sets,
    ),
]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder with data sets; else FORDE_DATA, else a cache folder.")
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODULE:FUNCTION",
        help="The function that builds a network of your own, as it was given to forde train; never read from a file.",
        autocompletion=completion.models,
    ),
]
Method = Annotated[str, typer.Option(help="A method that `forde methods` shows.", autocompletion=completion.methods)]
JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE|-",
        callback=_writable,
        help="Also write all numbers here; - for stdout, where nothing else is printed then.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", callback=_checked_seed, help="Of all that is random.")]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda or mps; a GPU where there is one if left out.")]
Precision = Annotated[str, typer.Option("--precision", help="float32 or bf16.")]
Engine = Annotated[str, typer.Option("--engine", help="How steps are run: eager, vectorized, compiled or auto.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in the folder, if anything.")]


def chosen_device(name: str | None) -> torch.device:
    """The device asked for, if this machine has it; without one, a GPU where there is one.

    >>> chosen_device("cpu")
    device(type='cpu')
    """
    import torch

    from forde.training.preparing import available_device

    return available_device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
