"""`forde corrupt`: write corrupted copies of a data set, in the layout of CIFAR-10-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from forde.commands.console import plain_console
from forde.durable import whole_file


def corrupt(
    source: Annotated[str, typer.Argument(help="A data set by name, or a folder or file of images.")],
    out: Annotated[Path, typer.Argument(help="Folder to write <corruption>.npy and labels.npy into.")],
    split: Annotated[str, typer.Option(help="Which split of the data set.")] = "test",
    kind: Annotated[
        list[str] | None, typer.Option("--type", help="A corruption; repeat for several, all 19 if left out.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random corruptions.")] = 0,
    preset: Annotated[str | None, typer.Option(help="cifar, tiny or imagenet constants; by size if left out.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where data sets are; FORDE_DATA if left out.")] = None,
) -> None:
    """Corrupt every image of a data set at severities 1 to 5.

    Each file is uint8 [5·N, H, W, C], severity after severity; labels.npy holds the labels five times.

    Example: forde corrupt cifar10 cifar10-c --type fog --type snow
    """
    import numpy as np

    from forde.corruptions import NAMES, SEVERITIES, corrupt, frost_name
    from forde.corruptions.checks import checked_name
    from forde.data import load_images

    names = [checked_name(name) for name in kind or NAMES]
    data = load_images(source, split, data_dir=data_dir)
    out.mkdir(parents=True, exist_ok=True)
    console = plain_console(stderr=True)
    for name in track(names, "corrupting", console=console, disable=not console.is_terminal):
        copies = [corrupt(np.asarray(data.images), name, s, seed=seed, preset=preset) for s in SEVERITIES]
        with whole_file(out / f"{name}.npy") as file:
            np.save(file, np.concatenate(copies))
    np.save(out / "labels.npy", np.tile(data.labels, len(SEVERITIES)))
    textures = f" ({frost_name()})" if "frost" in names else ""
    typer.echo(f"wrote {len(names)} corruptions × 5 severities of {len(data)} images to {out}{textures}")
