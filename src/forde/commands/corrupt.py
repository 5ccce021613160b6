"""`forde corrupt`: write corrupted copies of a data set, in the layout of CIFAR-10-C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forde.commands.options import DataDir, Seed
from forde.durable import make_folder, whole_file
from forde.errors import FordeError

if TYPE_CHECKING:
    import numpy as np

LABELS = "labels.npy"


def corrupt(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A data set by name, or a folder or file of images.")],
    folder: Annotated[Path | None, typer.Argument(metavar="FOLDER", hidden=True, help="As --out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write <corruption>.npy and labels.npy into.")] = None,
    split: Annotated[str, typer.Option(help="Which split of the data set.")] = "test",
    kind: Annotated[
        list[str] | None,
        typer.Option("--corruptions", "--type", help="With commas, or given several times; all 19 if left out."),
    ] = None,
    seed: Seed = 0,
    preset: Annotated[str | None, typer.Option(help="cifar, tiny or imagenet constants; by size if left out.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace files that are there.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Corrupt every image of a data set at severities 1 to 5.

    Each file is uint8 [5·N, H, W, C], severity after severity; labels.npy holds the labels five times. A file that is
    there is not replaced, unless --replace says so; other corruptions of the same images may be added to a folder.

    Example: forde corrupt digits --out digits-c --corruptions fog,snow
    """
    import numpy as np

    from forde.corruptions import NAMES, SEVERITIES, corrupt, frost_name
    from forde.corruptions.checks import checked_name
    from forde.data import load_images

    where = _one_folder(out, folder)
    asked = [name for given in kind or () for name in given.split(",") if name]
    names = list(dict.fromkeys(checked_name(name) for name in (NAMES if asked in ([], ["all"]) else asked)))
    data = load_images(source, split, data_dir=data_dir)
    labels = np.tile(data.labels, len(SEVERITIES))
    if not replace:
        _refuse_what_is_there(where, names, labels)
    make_folder(where)
    for name in _followed(names):
        copies = [corrupt(np.asarray(data.images), name, s, seed=seed, preset=preset) for s in SEVERITIES]
        with whole_file(where / f"{name}.npy") as file:
            np.save(file, np.concatenate(copies))
    with whole_file(where / LABELS) as file:
        np.save(file, labels)
    textures = f" ({frost_name()})" if "frost" in names else ""
    typer.echo(f"wrote {len(names)} corruptions × 5 severities of {len(data)} images to {where}{textures}")


def _one_folder(out: Path | None, folder: Path | None) -> Path:
    where = out or folder
    if where is None or (out is not None and folder is not None):
        said = "no folder was named" if where is None else f"two folders were named, {out} and {folder}"
        raise FordeError(f"{said}, but one was expected; give it as --out FOLDER.")
    return where


def _refuse_what_is_there(folder: Path, names: Sequence[str], labels: np.ndarray) -> None:
    """A corruption that was written before, or labels of other images."""
    import numpy as np

    advice = "another folder as --out, or add --replace."
    for name in names:
        if (folder / f"{name}.npy").exists():
            raise FordeError(f"'{folder / name}.npy' is there already; name others as --corruptions, {advice}")
    if (folder / LABELS).exists():
        try:
            same = np.array_equal(np.load(folder / LABELS, mmap_mode="r"), labels)
        except (OSError, ValueError, EOFError):
            same = False
        if not same:
            raise FordeError(f"'{folder / LABELS}' holds the labels of other images; name {advice}")


def _followed(names: Sequence[str]) -> Iterator[str]:
    """Each in its turn, with a bar on a terminal, else a line on stderr for each, with the time left."""
    from forde.progress import Pace, drawn_bar, duration

    pace = Pace(len(names))
    with drawn_bar(len(names), "corrupting", show=True) as bar:
        for done, name in enumerate(names, start=1):
            yield name
            left = pace.left(done)
            if bar is not None:
                bar.update(done, name, left)
            else:
                more = f", {duration(left)} left" if left else ""
                typer.echo(f"{done}/{len(names)} {name}{more}", err=True)
