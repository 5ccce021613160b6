"""Kills, damage, errors and other data on the way: what was computed stays, and the result is the same to the bit."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import killed_features
import pytest
import torch
from killed_features import BATCH
from killed_features import N as MANY
from small_backbones import N, images, small

from forde.data.features import Backbone, Settings, Watcher, feature_sets, features, fill
from forde.data.features.shards import alone_in, shards_of
from forde.errors import FordeError

HERE = Path(__file__).parent


@pytest.fixture
def reference(tmp_path: Path) -> bytes:
    """The file of a run that nothing interrupts."""
    path = tmp_path / "reference.safetensors"
    features(small(), images(MANY), path, batch_size=BATCH, device="cpu")
    return path.read_bytes()


def shards(path: Path) -> list[Path]:
    return sorted(path.with_name(f"{path.stem}.parts").glob("*.safetensors"))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_process_loses_one_shard_at_most(tmp_path: Path, reference: bytes) -> None:
    path = tmp_path / "killed.safetensors"
    command = [sys.executable, killed_features.__file__, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    for wanted in (2, 5):
        with subprocess.Popen([*command, "0.2"], env=environment) as process:
            while len(shards(path)) < wanted:
                assert process.poll() is None
                time.sleep(0.01)
            process.kill()
        assert process.returncode == -signal.SIGKILL
    assert not path.exists()
    there = {each: each.stat().st_mtime_ns for each in shards(path)}
    assert 5 <= len(there) < MANY // BATCH
    backbone = small()
    features(backbone, images(MANY), path, batch_size=BATCH, device="cpu")
    assert backbone.network.seen == MANY - BATCH * len(there)
    assert path.read_bytes() == reference
    assert not path.with_name("killed.parts").exists()


def interrupted(path: Path, batches: int, *, batch_size: int = BATCH, save_seconds: float = 0) -> Backbone:
    """A run whose network fails after so many batches; what it computed before is in shards."""
    backbone = small()

    def fail(*_: Any) -> None:
        if len(backbone.network.sizes) == batches:  # type: ignore[arg-type]
            raise OSError("the power is gone")

    handle = backbone.network.register_forward_pre_hook(fail)
    with pytest.raises(OSError, match="the power is gone"):
        features(backbone, images(MANY), path, batch_size=batch_size, save_seconds=save_seconds, device="cpu")
    handle.remove()
    return backbone


@pytest.mark.parametrize("save_seconds", [0, 1e6])
def test_an_error_loses_nothing(tmp_path: Path, reference: bytes, save_seconds: float) -> None:
    path = tmp_path / "error.safetensors"
    interrupted(path, 5, save_seconds=save_seconds)
    assert len(shards(path)) == (5 if save_seconds == 0 else 1)
    backbone = small()
    features(backbone, images(MANY), path, batch_size=BATCH, device="cpu")
    assert backbone.network.seen == MANY - 5 * BATCH
    assert path.read_bytes() == reference


def test_damaged_and_missing_shards_are_computed_again(
    tmp_path: Path, reference: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "damaged.safetensors"
    interrupted(path, 7)
    there = shards(path)
    there[1].write_bytes(there[1].read_bytes()[:-9])
    there[3].unlink()
    there[0].with_name(f"{0:010d}.safetensors.tmp").write_bytes(b"half of it")
    backbone = small()
    with caplog.at_level(logging.WARNING):
        features(backbone, images(MANY), path, batch_size=BATCH, device="cpu")
    assert backbone.network.seen == MANY - 5 * BATCH
    assert path.read_bytes() == reference
    assert [record.message for record in caplog.records] == [
        f"'{there[1]}' is damaged; its samples are computed again."
    ]


def test_two_processes_do_not_write_the_same_file(tmp_path: Path, reference: bytes) -> None:
    path = tmp_path / "held.safetensors"
    interrupted(path, 3)
    with alone_in(shards_of(path)):
        for _ in range(2):  # the one that is refused leaves the lock and the shards as they are
            with pytest.raises(FordeError, match=r"held\.parts' is in use by another thread .*; wait for"):
                features(small(), images(MANY), path, batch_size=BATCH, device="cpu")
        assert len(shards(path)) == 3
    features(small(), images(MANY), path, batch_size=BATCH, device="cpu")
    assert path.read_bytes() == reference


def test_a_run_that_computes_nothing_leaves_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "nothing.safetensors"
    interrupted(path, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_finished_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "features.safetensors"
    first = features(small(), images(), path)
    backbone = small()
    again = features(backbone, images(), path, batch_size=3)
    assert backbone.network.seen == 0
    assert torch.equal(first.x, again.x) and first.about == again.about


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"backbone": small(1)}, "backbone.weights"),
        ({"backbone": small(layer="hidden", at="output")}, "backbone.layer 'classifier', but 'hidden' is given"),
        ({"data": images(N, seed=1)}, "data.fingerprint"),
        ({"data": images(N - 1)}, "data.rows 23, but 22 is given"),
        ({"precision": "bf16"}, "precision 'float32', but 'bf16' is given"),
        ({"dtype": "float16"}, "dtype 'float32', but 'float16' is given"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "features.safetensors"
    features(small(), images(), path)
    given: dict[str, Any] = {"backbone": small(), "data": images(), **change}
    with pytest.raises(FordeError, match=f"was made with {said}"):
        features(given.pop("backbone"), given.pop("data"), path, **given)


def test_what_was_begun_is_gone_on_with_in_the_same_way(tmp_path: Path) -> None:
    path = tmp_path / "begun.safetensors"
    interrupted(path, 2)
    with pytest.raises(FordeError, match=r"was begun with made.batch_size 8, but 4 is given"):
        features(small(), images(MANY), path, batch_size=4, device="cpu")
    with pytest.raises(FordeError, match=r"was begun with backbone.weights .* or delete the folder '.*begun.parts'"):
        features(small(1), images(MANY), path, batch_size=BATCH, device="cpu")
    (tmp_path / "begun.parts" / "plan.json").write_text("{")
    with pytest.raises(FordeError, match=r"plan.json' is damaged; delete the folder"):
        features(small(), images(MANY), path, batch_size=BATCH, device="cpu")


class Loader:
    """Batches of images, and an error after some of them."""

    def __init__(self, n: int = MANY, *, sizes: int = BATCH, fail_after: int = -1, seed: int = 0) -> None:
        self.data, self.sizes, self.fail_after = images(n, seed=seed), sizes, fail_after

    def __iter__(self) -> Iterator[Any]:
        for number, start in enumerate(range(0, len(self.data), self.sizes)):
            if number == self.fail_after:
                raise OSError("the network drive is gone")
            rows = slice(start, start + self.sizes)
            yield torch.from_numpy(self.data.images[rows]), torch.from_numpy(self.data.labels[rows])


def test_a_loader_goes_on_and_must_give_the_same(tmp_path: Path, reference: bytes) -> None:
    path = tmp_path / "loader.safetensors"
    with pytest.raises(OSError, match="drive is gone"):
        features(small(), Loader(fail_after=6), path, save_seconds=0, device="cpu", name="pixels")
    assert len(shards(path)) == 6
    for other, said in (
        (Loader(seed=1), "gives other samples"),
        (Loader(sizes=6), "batches of other sizes"),
        (Loader(n=3 * BATCH + 2), "batches of other sizes|ended after|gives other samples"),
    ):
        with pytest.raises(FordeError, match=said):
            features(small(), other, path, save_seconds=1e6, device="cpu", name="pixels")
    backbone = small()
    found = features(backbone, Loader(), path, device="cpu", name="pixels")
    assert backbone.network.seen == MANY - 6 * BATCH
    assert found.about["data"]["rows"] == MANY
    whole = features(small(), images(MANY), batch_size=BATCH, device="cpu")
    assert torch.equal(found.x, whole.x)
    assert found.about["data"]["fingerprint"] == whole.about["data"]["fingerprint"]
    backbone = small()
    features(backbone, Loader(), path, device="cpu", name="pixels")
    assert backbone.network.seen == 0
    with pytest.raises(FordeError, match="of other samples than the loader gives"):
        features(small(), Loader(seed=1), path, device="cpu", name="pixels")


def test_a_loader_that_has_become_shorter_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shorter.safetensors"
    with pytest.raises(OSError, match="drive is gone"):
        features(small(), Loader(fail_after=6), path, save_seconds=1e6, device="cpu")
    with pytest.raises(FordeError, match="the loader ended after 24 samples"):
        features(small(), Loader(n=3 * BATCH), path, device="cpu")


def test_a_stop_is_gone_on_from_set_by_set(tmp_path: Path) -> None:
    sets, settings = feature_sets("digits", limit=50), Settings(batch_size=10)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    list(fill(whole, small(), sets, settings))
    runs, seen = 0, 0
    while not (parts / "test.safetensors").exists():
        runs += 1
        backbone = small()
        watch = Watcher(stop=lambda network=backbone.network: network.seen >= 30)
        steps = list(fill(parts, backbone, sets, settings, watch=lambda _, watch=watch: watch))
        assert backbone.network.seen <= 30
        seen += backbone.network.seen
        assert steps[-1].done == (parts / "test.safetensors").exists()
    assert runs == 4 and seen == 100
    for name in ("train.safetensors", "test.safetensors"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()
    assert not list(parts.glob("*.parts"))


def stopping_after(batches: int) -> Watcher:
    passed: list[int] = []
    return Watcher(lambda: len(passed) >= batches, lambda n, new: passed.append(n))


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_stop_on_a_gpu_changes_no_bit(tmp_path: Path, precision: str) -> None:
    """Also where the first batches run as they are, and later ones from a CUDA graph."""
    sets = feature_sets("digits", splits=["test"], corruptions=["fog"], severities=[3], limit=600, device="cuda")
    settings, whole = Settings(64, "cuda", precision), small(layer="", at="output")
    assert all(step.done for step in fill(tmp_path / "whole", whole, sets, settings))
    for stop_after in (1, 4, 12):
        watch, folder = stopping_after(stop_after), tmp_path / f"stopped-{stop_after}"
        steps = list(fill(folder, small(layer="", at="output"), sets, settings, watch=lambda _, watch=watch: watch))
        assert not steps[-1].done
        assert all(step.done for step in fill(folder, small(layer="", at="output"), sets, settings))
        for name in ("test.safetensors", "corrupted/fog-3.safetensors"):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
