"""The folder of a run: what it was started with, how it went, where to go on, and what came out.

config.json        settings that decide the result, which a resumed run must share, and how it is carried out; of a
                   run that was made longer also `first_epochs`, the length that it was started with
sessions.jsonl     one line for each start: time, command, versions, device, state of the git repository
metrics.jsonl      one line per epoch
log.txt            what forde had to say, with a line for each epoch
lock.json          while a process trains in it: which one
checkpoints/       while it is running; of one that can be made longer the last one stays
ensemble/          when it has finished, as `Ensemble.save` writes it
last/ or best/     with validation data: `ensemble/` is what `fit` left, the best epoch's or the last one's; the other
outcome.json       how many epochs it took, why it ended early, and which epoch was the best
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import Signals
from typing import Any

from forde import saving
from forde.distributed.mesh import ALONE, Mesh
from forde.durable import TEMPORARY, append_line, explaining_writes, make_folder, write_whole
from forde.ensemble import Ensemble
from forde.errors import FordeError, NonFiniteError, RunInterruptedError
from forde.folder_lock import NAME as LOCK
from forde.folder_lock import locked
from forde.hashing import json_name
from forde.step.sharded import share_members
from forde.training.changes import first_change
from forde.training.checkpoints import Checkpoint, Checkpoints
from forde.training.configuration import as_format_1, incomparable
from forde.training.history import Record
from forde.training.longer import FIRST, Fixed, epochs_of, made_longer, with_epochs
from forde.training.loop import Loop
from forde.training.optimizer_state import scale_learning_rate
from forde.training.options import Checkpointing
from forde.training.outcome import Outcome
from forde.training.plain import described
from forde.training.run_log import logged_to
from forde.training.signals import StopRequest
from forde.training.snapshots import restore, snapshot
from forde.training.writers import JsonLines, read_records

log = logging.getLogger(__name__)

FORMAT = 2
"""Runs of format 1 noted less: neither code and settings of modules nor arguments of schedulers and loaders."""
CONFIG, SESSIONS, METRICS, LOG, CHECKPOINTS, ENSEMBLE, LAST, BEST = (
    "config.json", "sessions.jsonl", "metrics.jsonl", "log.txt", "checkpoints", "ensemble", "last", "best",
)  # fmt: skip
MAX_CONFIG_BYTES = 1 << 26
"""Enough for the statistics of hundreds of thousands of columns."""
MOST_ROLL_BACKS = 10
SMALLER = 0.5
"""Factor of the learning rate after going back to a checkpoint."""


def read_settings(path: Path) -> dict[str, Any]:
    """What the `config.json` of a run says, checked for what every version has in it."""
    try:
        if not path.is_file():  # reading a pipe or a device would not end
            raise OSError
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
        stored = json.loads(content) if len(content) <= MAX_CONFIG_BYTES else None
    except (OSError, ValueError, RecursionError):
        stored = None
    if not isinstance(stored, dict):
        raise FordeError(f"'{path}' is damaged; restore it, or train in another folder.")
    if stored.get("format") not in (1, FORMAT):
        raise FordeError(
            f"'{path}' has format {stored.get('format')!r}, but {FORMAT} was expected; use the version that wrote it."
        )
    return stored


class RunFolder:
    """Keeps a loop's state safe, and finds it again."""

    def __init__(
        self, folder: str | Path, checkpoint: Checkpointing, *, epochs: int, resume: bool, mesh: Mesh = ALONE
    ) -> None:
        self.mesh, self.resume, self.epochs = mesh, resume, epochs
        self.folder, self.when = Path(folder), checkpoint
        self.checkpoints = Checkpoints(self.folder / CHECKPOINTS, keep=checkpoint.keep, run="")
        self.metrics: JsonLines | None = None
        self._fixed: Fixed = lambda epochs: None
        self._written = time.monotonic()
        mesh.first(lambda: self._check(resume))

    def _check(self, resume: bool) -> None:
        try:
            found = {path.name for path in self.folder.iterdir()} - {LOCK} if self.folder.exists() else set()
        except OSError as error:
            raise FordeError(f"'{self.folder}' cannot be used: {error.strerror}; choose another folder.") from None
        # A run that was refused or killed before it began may have left these; nothing is lost with them.
        begun = found - {LOG, CONFIG + TEMPORARY}
        if begun and not resume:
            raise FordeError(
                f"'{self.folder}' is not empty; give resume=True (--resume) to go on with it, or another folder."
            )
        if begun and CONFIG not in found:
            raise FordeError(f"'{self.folder}' holds files but no {CONFIG}, so it is not a run; choose another folder.")

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Make the folder, and write what forde logs meanwhile into it."""
        with ExitStack() as stack:
            self.mesh.first(lambda: self._open_log(stack))
            try:
                yield
            except FordeError as error:
                log.info("stopped: %s", error)
                raise

    def _open_log(self, stack: ExitStack) -> None:
        with explaining_writes(self.folder, "choose a writable folder"):
            make_folder(self.folder)
            if not self._has_finished():  # which any number of processes may load
                stack.enter_context(locked(self.folder))
                self._check(self.resume)  # again: another process may have been here meanwhile
            stack.enter_context(logged_to(self.folder / LOG))

    def begin(
        self, decisive: dict[str, Any], how: dict[str, Any], environment: dict[str, Any], *, fixed: Fixed
    ) -> None:
        """Write the settings, or compare them with those that the run was started with.

        Args:
            fixed: why a run of so many epochs cannot be made longer.
        """
        self._fixed = fixed
        decisive = json.loads(json.dumps(decisive))
        self.checkpoints.run = self.mesh.first(lambda: self._begin(decisive, how, environment))

    def _begin(self, decisive: dict[str, Any], how: dict[str, Any], environment: dict[str, Any]) -> str:
        path = self.folder / CONFIG
        with explaining_writes(self.folder, "choose a writable folder"):
            if path.exists():
                started_with = self._compare(path, decisive)
            else:
                started_with = decisive
                self._write(path, {"format": FORMAT, **decisive, "how": described(how)})
            append_line(self.folder / SESSIONS, json.dumps(environment))
        return json_name(started_with)

    def _write(self, path: Path, settings: dict[str, Any]) -> None:
        write_whole(path, (json.dumps(settings, indent=2) + "\n").encode())

    def samples_read(self, of: str) -> int | None:
        """How many samples the fingerprint of the data was made of; None where there is none."""
        path = self.folder / CONFIG
        data = self.mesh.first(lambda: read_settings(path).get(of) if path.exists() else None)
        samples = data.get("samples") if isinstance(data, dict) else None
        return samples if isinstance(samples, int) and samples >= 0 else None

    def _compare(self, path: Path, decisive: dict[str, Any]) -> dict[str, Any]:
        """Refuse other settings than the stored ones, which are returned."""
        stored = read_settings(path)
        started_with = {key: stored.get(key) for key in decisive}
        if stored["format"] == 1:
            log.warning(
                "'%s' was written by an earlier version, which noted less: changes in code, settings of modules and "
                "arguments of schedulers and loaders are not noticed", path,
            )  # fmt: skip
            decisive = as_format_1(decisive, started_with)
        elif incomparable(started_with, decisive):
            log.warning("the run was started under another version of Python, so changes in code are not noticed")
        before = epochs_of(started_with)
        if before is not None and before < self.epochs:
            ended = self._has_finished()  # of its own accord
            lost = self._has_result() and not ended and not len(self.checkpoints)
            longer = made_longer(self.folder, stored, decisive, epochs=self.epochs, fixed=self._fixed, lost=lost)
            if not ended:
                log.info("the run goes on to %d epochs, where it was started with %d", self.epochs, before)
                self._write(path, longer)
        elif (change := first_change(started_with, decisive)) is not None:
            raise FordeError(f"'{self.folder}' was started with {change}.")
        # Checkpoints are known by the settings that the run was started with.
        return with_epochs(started_with, stored[FIRST]) if FIRST in stored else started_with

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.mesh.first(self._has_finished)

    def _has_finished(self) -> bool:
        outcome = Outcome.read(self.folder)
        shorter = outcome is not None and outcome.stopped is None and outcome.epochs < self.epochs
        return self._has_result() and not shorter

    def _has_result(self) -> bool:
        return (self.folder / ENSEMBLE / saving.CONFIG).exists()

    def keeps_last(self, loop: Loop) -> bool:
        """Whether the checkpoint at the end is of use: for members to be made of it, or for more epochs."""
        return loop.plan.makes_members or self._may_go_on(loop.stopped)

    def _may_go_on(self, stopped: str | None) -> bool:
        return self._fixed(self.epochs) is None and stopped is None

    def take_up(self, loop: Loop) -> None:
        """Bring the loop to where the run stands: at the newest checkpoint that is whole, or at its beginning."""
        self._restore(loop)
        if not self.mesh.first(
            lambda: len(self.checkpoints)
        ):  # so that an unwritable folder is found at once, and a way back is there
            self.save(loop)
        self._write_metrics(loop)

    def _restore(self, loop: Loop) -> None:
        found = ((name, each.tensors, each.state) for name, each in self.checkpoints.newest_first())
        # One process reads: then the others need not see its disk, and all take the same checkpoint.
        while (candidate := self.mesh.first(lambda: next(found, None))) is not None:
            name, tensors, state = candidate
            reason = None
            try:
                restore(loop, Checkpoint(tensors, state))
            except FordeError as error:
                reason = str(error)
            if not self.mesh.anywhere(reason is not None):
                log.info("going on from checkpoint '%s': epoch %d, step %d", name, loop.epoch, loop.step)
                return
            self.checkpoints.refuse(name, reason or "another process cannot use it.")
        if self.mesh.first(lambda: len(self.checkpoints)):
            raise FordeError(
                f"none of the checkpoints in '{self.checkpoints.folder}' can be used, for reasons that the log gives; "
                "restore one, or start again in another folder."
            )

    def _write_metrics(self, loop: Loop) -> None:
        def write() -> None:
            with explaining_writes(self.folder, "free some space and go on with resume=True"):
                self.metrics = JsonLines(self.folder / METRICS, loop.records)

        self.mesh.first(write)

    def save(self, loop: Loop) -> None:
        """Write a checkpoint now."""
        taken = snapshot(loop)

        def write() -> None:
            advice = (
                "go on with resume=True from the checkpoint before, which is whole"
                if len(self.checkpoints)
                else "start again with resume=True; this was the first checkpoint, so nothing was trained yet"
            )
            with explaining_writes(self.checkpoints.folder, f"free some space or make it writable and {advice}"):
                self.checkpoints.write(taken)

        self.mesh.first(write)
        self._written = time.monotonic()
        log.info("checkpoint: epoch %d, step %d", loop.epoch, loop.step)

    def after_step(self, loop: Loop, request: StopRequest) -> None:
        """Write a checkpoint if it is time, or if somebody wants the process to end, which it then does."""
        minutes = self.when.minutes
        due = minutes is not None and time.monotonic() - self._written >= 60 * minutes
        self._save_if(due, loop, request)

    def note(self, record: Record) -> None:
        """Add an epoch to the metrics."""

        def write() -> None:
            assert self.metrics is not None
            with explaining_writes(self.folder, "free some space and go on with resume=True"):
                self.metrics.record(record)

        self.mesh.first(write)

    def after_epoch(self, loop: Loop, request: StopRequest) -> None:
        """As after a step."""
        due = self.when.every is not None and loop.epoch % self.when.every == 0
        self._save_if(due, loop, request)

    def _save_if(self, due: bool, loop: Loop, request: StopRequest) -> None:
        # The first process's clock counts, and a signal to any of them; all must do the same.
        due_now, number = self.mesh.all_reduce_max([int(due and self.mesh.is_main_process), int(request.signal or 0)])
        if number:
            request.signal = Signals(number)
        if due_now or number:
            self.save(loop)
        if request.signal is not None:
            raise RunInterruptedError(
                f"training stopped by {request.signal.name} at epoch {loop.epoch}, step {loop.step}; everything is "
                f"saved in '{self.folder}', go on with resume=True (--resume).",
                request.signal,
            )

    def roll_back(self, loop: Loop, error: NonFiniteError) -> None:
        """Go back to the last checkpoint and on with a smaller learning rate."""
        count = loop.roll_backs + 1
        if count > MOST_ROLL_BACKS:
            raise NonFiniteError(
                f"after {MOST_ROLL_BACKS} returns to a checkpoint with ever smaller steps, still {error}"
            ) from None
        self._restore(loop)
        scheduler = None if loop.schedule is None else loop.schedule.scheduler
        scale_learning_rate(loop.optimizer, scheduler, SMALLER ** (count - loop.roll_backs))
        loop.roll_backs = count
        loop.lr = float(loop.optimizer.param_groups[0]["lr"])  # that of the epoch's record
        log.warning("back to epoch %d, step %d with lr %.3g: %s", loop.epoch, loop.step, loop.lr, error)
        self._write_metrics(loop)

    def keep(self, ensemble: Ensemble, name: str) -> None:
        """Save an ensemble that is not the result, beside it."""
        self.mesh.first(lambda: ensemble.save(self.folder / name))

    def finish(self, ensemble: Ensemble, outcome: Outcome) -> None:
        """Save the trained ensemble; its checkpoints are then of no more use."""
        self.mesh.first(lambda: self._finish(ensemble, outcome))
        log.info("finished; the ensemble is in '%s'", self.folder / ENSEMBLE)

    def _finish(self, ensemble: Ensemble, outcome: Outcome) -> None:
        if self._has_result():  # of a shorter run, which the outcome is of until the ensemble is there
            ensemble.save(self.folder / ENSEMBLE)
            outcome.write(self.folder)
        else:
            outcome.write(self.folder)
            ensemble.save(self.folder / ENSEMBLE)
        self.checkpoints.clear(but_newest=self._may_go_on(outcome.stopped))

    def load_finished(self, ensemble: Ensemble) -> tuple[list[Record], Outcome]:
        """Load the trained ensemble, and return the records and how the run ended."""
        log.info("'%s' has finished already, so nothing is trained", self.folder)
        found = self.mesh.first(lambda: self._load_finished(ensemble))
        share_members(ensemble, self.mesh)
        return found

    def _load_finished(self, ensemble: Ensemble) -> tuple[list[Record], Outcome]:
        path = self.folder / METRICS
        records, outcome = read_records(path), Outcome.read(self.folder) or Outcome(self.epochs)
        if len(records) < outcome.epochs:
            log.warning(
                "'%s' is missing or damaged: %d of %d epochs could be read; the ensemble itself is whole",
                path, len(records), outcome.epochs,
            )  # fmt: skip
        device = ensemble.device
        ensemble.load_weights(self.folder / ENSEMBLE)
        ensemble.to(device)
        return records, outcome
