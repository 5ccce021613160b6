"""`forde features`: the last hidden layer of a pretrained network over a data set, its corruptions and other sets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from forde.benchmarks.machine import machine
from forde.commands.bench.options import names, whole_numbers
from forde.commands.features_progress import Teller, summary
from forde.commands.options import LATER, Device, JsonFile, Precision, Seed, chosen_device
from forde.commands.reporting import sayer, write_report
from forde.corruptions import NAMES
from forde.errors import FordeError, RunInterruptedError


def features(
    backbone: Annotated[
        str,
        typer.Option(
            help="efficientnet-lite0, a model of the Hugging Face hub (google/vit-base-patch16-224-in21k) or a folder "
            "with its files, or timm:MODEL."
        ),
    ],
    data: Annotated[str, typer.Option(help="A data set of images by name (`forde data list`), or a file or folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the features; what is in it already is kept.")],
    splits: Annotated[str, typer.Option(help="Splits of the data set, commas between.")] = "train,test",
    corruptions: Annotated[
        str, typer.Option(help="Of the test images: all, none, or names with commas between.")
    ] = "none",
    severities: Annotated[str, typer.Option(help="Of the corruptions, commas between.")] = "1,2,3,4,5",
    foreign: Annotated[
        str, typer.Option(help="Other data sets whose test images to add, commas between; `noise` is made.")
    ] = "",
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", "--root", help="Where data sets are; FORDE_DATA if left out.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="A file with the weights of the backbone.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a model of the hub.")] = None,
    device: Device = None,
    precision: Precision = "float32",
    store: Annotated[
        str | None,
        typer.Option(help="float32, bfloat16 or float16 in the files; by default bfloat16 for bf16, else float32."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Images per batch; 256 on a GPU and 16 on a CPU if left out.")
    ] = None,
    seed: Seed = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many images of each set.")] = None,
    save_seconds: Annotated[float, typer.Option(min=0, help="Write a shard after so many seconds.")] = 30.0,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes", "--limit-minutes", min=0, help="Stop after so many minutes; the same command goes on."
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Compute features of images, for `forde.data.load_features`; the same command goes on wherever it was stopped.

    Example: forde features --backbone efficientnet-lite0 --data cifar10 --corruptions all --foreign digits,noise
    --out features

    Exit code 75: --minutes ended before the work did.
    """
    from forde.data import features as pretrained
    from forde.training.signals import stop_requests

    began, say = time.monotonic(), sayer(json_file)
    target = str(chosen_device(device))
    settings = pretrained.Settings(batch_size, target, precision, store or "", save_seconds)
    network = pretrained.backbone(backbone, weights=weights, revision=revision)
    sets = pretrained.feature_sets(
        data,
        splits=names(splits),
        corruptions=NAMES if corruptions == "all" else [] if corruptions == "none" else names(corruptions),
        severities=whole_numbers("--severities", severities),
        foreign=names(foreign),
        data_dir=data_dir,
        seed=seed,
        limit=limit,
        device=target,
    )
    if not sets:
        raise FordeError("there is nothing to compute; name a split, a corruption or a foreign set.")
    images = sum(one.n for one in sets)
    say(f"{network.name} over {data}: {len(sets)} sets, {images:,} images, on {target} in {precision}")
    with stop_requests() as request:
        deadline = began + 60 * minutes if minutes is not None else float("inf")
        teller = Teller(sets, lambda: request.signal is not None or time.monotonic() > deadline)
        with teller.shown():
            for step in pretrained.fill(out, network, sets, settings, watch=teller.watch):
                teller.step(step)
    write_report(
        "features",
        {"machine": machine(), "backbone": network.about, "finished": len(teller.rows) == len(sets),
         "seconds": round(time.monotonic() - began, 3), "sets": teller.rows},
        json_file,
    )  # fmt: skip
    if len(teller.rows) == len(sets):
        say(summary(out, teller.rows))
        return
    missing = f"{len(sets) - len(teller.rows)} of {len(sets)} sets are missing in '{out}'"
    advice = "what was computed is saved; the same command goes on."
    if request.signal is not None:
        raise RunInterruptedError(f"Interrupted: {missing}; {advice}", request.signal)
    typer.echo(f"Stopped after {minutes:g} minutes: {missing}; {advice}", err=True)
    raise typer.Exit(LATER)
