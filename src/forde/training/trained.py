"""`load_run`: a finished run or a saved ensemble, ready to predict in the units of its data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from forde import saving
from forde.building import refuse_other_sizes
from forde.data.description import Images, Table
from forde.data.known_inputs import Inputs
from forde.data.loading import load
from forde.data.locating import Folder
from forde.data.matching import matching
from forde.ensemble import Ensemble
from forde.errors import FordeError, whole_number
from forde.hashing import array_name
from forde.models.building import MODELS
from forde.prediction import Prediction
from forde.training.history import Record
from forde.training.recipe import Recipe
from forde.training.run_folder import CONFIG, ENSEMBLE, METRICS, read_settings
from forde.training.splitting import without_test
from forde.training.writers import read_records

log = logging.getLogger(__name__)

RECIPE = "recipe"
"""Under which `forde train` keeps it in the run's settings."""
SETTINGS = "settings"
"""Under which it notes what it was called with."""
HELD_OUT = "held_out"
"""Under which it notes the name of what is held out to test on."""


@dataclass(frozen=True)
class TrainedRun:
    """An ensemble with what its data went through.

    Its `ensemble` works in standard units; `predict` takes rows and gives quantities as they are in the file.
    """

    ensemble: Ensemble
    recipe: Recipe | None
    """Of a run of `forde train`."""
    folder: Path = Path()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What `forde train` was called with, by group: `settings["training"]["epochs"]`; empty for other folders."""
    held_out: str = ""
    """A short name for the content of what was held out to test on; empty where nothing was."""

    @property
    def _known(self) -> Inputs | None:
        return self.ensemble.inputs or (None if self.recipe is None else self.recipe.inputs)

    @property
    def inputs(self) -> Inputs:
        """What the networks take."""
        known = self._known
        if known is None:
            raise FordeError(
                f"'{self.folder}' does not say what its inputs are, so data cannot be matched with them; train on what "
                "forde.data.load returns, or say it in Ensemble(..., inputs=forde.data.Inputs(...))."
            )
        return known

    @property
    def records(self) -> list[Record]:
        """One for each epoch; none for an ensemble that was saved by itself."""
        return read_records(self.folder / METRICS)

    def predict(self, x: Any, *, batch_size: int = 512) -> Prediction:
        """Predict for new data in its own units.

        Args:
            x: `forde.data.Images` or whatever `Ensemble.predict` takes for a run on images; for a run on a table a
                `forde.data.Table` or a data frame, whose columns are found by name, or rows `[N, D]` in the order of
                `inputs.features`.

        Returns:
            As `Ensemble.predict`: probabilities in the order of `inputs.classes`, or mean and variances in units of
            the target.
        """
        known = self._known
        units = None if known is None else known.standardisation
        if known is None or units is None:
            return self.ensemble.predict(x, batch_size=batch_size)
        standard = torch.from_numpy(known.rows(x))
        size = whole_number("batch_size", batch_size, at_least=1)
        return units.undo(self.ensemble.predict(iter(standard.split(size) if len(standard) else ())))

    def test_data(
        self, data: Folder | None = None, split: str | None = None, *, data_dir: Folder | None = None
    ) -> Images | Table:
        """Data to test on: classes numbered and columns ordered as in training, in their own units.

        Args:
            data: a name or a path, as for `forde.data.load`; what the run was trained on if left out.
            split: `"test"` if left out; other data that has no such split is used whole, and the log says so. Of data
                that was parted by `forde train --test`, "train" and "test" are these parts.
        """
        own = self.settings.get("data") or {}
        if data is None and not own.get("name"):
            raise FordeError(
                f"'{self.folder}' does not say what it was trained on, as runs of forde train do; name data to test "
                "on (--data)."
            )
        where = data_dir or (own.get("dir") if data is None else None)
        if data is None and self.held_out and split in (None, "train", "test"):
            return self._part(split or "test", where)
        return matching(self.inputs, data or own["name"], split, where, own=data is None)

    def _part(self, split: str, data_dir: Folder | None) -> Images | Table:
        """What was trained on, or what was held out of the same data by the same seed."""
        own, seed = self.settings["data"], (self.settings.get("training") or {}).get("seed")
        share = own.get("test")
        if type(share) is not float or type(seed) is not int:
            raise FordeError(f"'{self.folder / CONFIG}' does not say what was held out; name data to test on (--data).")
        columns = {"target": own.get("target"), "task": own.get("task"), "drop": names_of(own.get("drop"))}
        data = load(own["name"], "train", data_dir, encode=True, **columns)
        rest, held = without_test(data, share, seed=seed)
        if content_name(held) != self.held_out:
            raise FordeError(
                f"'{own['name']}' has changed since '{self.folder}' was trained on it, so what was held out cannot be "
                "found again; bring the data back, or name other data to test on (--data)."
            )
        return rest if split == "train" else held


def names_of(text: str | None) -> list[str]:
    """Names of columns as `forde train --drop` takes them.

    >>> names_of("id, name")
    ['id', 'name']
    """
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def content_name(data: Images | Table) -> str:
    """A short name for the content of samples, by which they are known again.

    >>> content_name(load("digits")) == content_name(load("digits", "test"))
    False
    """
    return array_name(data.images, data.labels) if isinstance(data, Images) else array_name(data.x, data.y)


def load_run(
    folder: str | Path,
    make_network: Callable[[], nn.Module] | Sequence[Callable[[], nn.Module]] | None = None,
    *,
    device: str | torch.device = "cpu",
    backbone: nn.Module | None = None,
) -> TrainedRun:
    """What `forde train --out FOLDER`, `fit(run=FOLDER)` or `Ensemble.save(FOLDER)` has written, from its files alone.

    Args:
        make_network: as for `Ensemble.load`: needed for networks that are not of `forde.models`.
        backbone: as for `Ensemble.load`.

    >>> import tempfile
    >>> import forde
    >>> digits, folder = forde.data.load("digits"), tempfile.mkdtemp()
    >>> ensemble = Ensemble(lambda: forde.models.MLP(64, [8], 10), 2)
    >>> history = forde.fit(ensemble, "deep-ensemble", digits, epochs=1, run=folder)
    >>> trained = load_run(folder)
    >>> trained.predict(forde.data.load("digits", "test")).probs.shape
    torch.Size([899, 10])
    """
    path = Path(folder)
    if (path / saving.WEIGHTS).exists():
        return TrainedRun(Ensemble.load(path, make_network, device=device, backbone=backbone), None, path)
    if not (path / CONFIG).is_file():
        there = "there is nothing" if not path.exists() else f"it has no {CONFIG}"
        raise FordeError(
            f"'{path / CONFIG}' cannot be read ({there}); expected the folder of a run of forde train, or of a saved "
            "ensemble."
        )
    settings = read_settings(path / CONFIG)
    recipe = _recipe(settings, path / CONFIG)
    if not (path / ENSEMBLE / saving.CONFIG).exists():
        raise FordeError(f"'{path}' has not finished; go on with forde train ... --out {path} --resume.")
    if recipe is not None and recipe.model not in MODELS and make_network is None:
        raise FordeError(
            f"the networks of '{path}' were built by '{recipe.model}', which is code and not imported because a file "
            "names it; pass the function as make_network (on the command line --model MODULE:FUNCTION)."
        )
    if recipe is not None and recipe.model in MODELS and make_network is None:
        refuse_other_sizes(recipe.words, path / ENSEMBLE)
        make_network = recipe.make_network
    ensemble = Ensemble.load(path / ENSEMBLE, make_network, device=device, backbone=backbone)
    if recipe is not None:
        _take_inputs(ensemble, recipe, path)
    note = (settings.get("how") or {}).get("note")
    noted = note.get(SETTINGS) if isinstance(note, dict) else None
    noted = noted if isinstance(noted, dict) else {}
    held = note.get(HELD_OUT) if isinstance(note, dict) and isinstance(noted.get("data"), dict) else None
    return TrainedRun(ensemble, recipe, path, noted, held if isinstance(held, str) else "")


def _recipe(settings: Mapping[str, Any], path: Path) -> Recipe | None:
    about = settings.get("about")
    if not isinstance(about, dict) or RECIPE not in about:
        return None
    try:
        return Recipe.from_json(about[RECIPE])
    except FordeError as error:
        raise FordeError(f"'{path}': {error}") from None


def _take_inputs(ensemble: Ensemble, recipe: Recipe, path: Path) -> None:
    """Those of the recipe where the ensemble is of an earlier version and has none of its own."""
    if ensemble.inputs is None:
        ensemble.inputs = recipe.inputs
    elif ensemble.inputs.without_normalisation() != recipe.inputs:
        raise FordeError(
            f"'{path / CONFIG}' and the ensemble beside it describe different inputs; one of them was altered, so "
            "train again."
        )
