"""A run that was interrupted and resumed is the run that was not, whatever it is made of."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from short_runs import EPOCHS, STEPS, crash, data, ensemble, metrics, network, result, train
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

import forde
from forde.data import Images, from_arrays
from forde.models import MLP

MID_EPOCH, EPOCH_END = STEPS + 2, 2 * STEPS


def compare(options: Any, folder: Path, interruptions: tuple[int, ...] = (MID_EPOCH,)) -> None:
    """`options()` makes fresh arguments, as a new process would."""
    whole, broken = folder / "whole", folder / "broken"
    train(whole, **options())
    for steps in interruptions:
        crash(broken, steps, resume=True, **options())
    train(broken, resume=True, **options())
    assert result(broken) == result(whole)
    assert metrics(broken) == metrics(whole)
    described = [json.loads((run / "ensemble" / "config.json").read_text()) for run in (whole, broken)]
    assert described[0] == described[1]
    assert ("input_scale" in described[0]) == (not isinstance(options().get("given"), Images))


class Drawing(Dataset[Tensor]):
    """Inputs that draw random numbers when they are read."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Tensor:
        return self.x[index] + 0.1 * torch.randn(5) + float(np.random.rand()) + random.random()


class TestExact:
    @pytest.mark.parametrize("steps", [0, 1, STEPS - 1, STEPS, MID_EPOCH, EPOCHS * STEPS - 1])
    def test_wherever_it_stopped(self, steps: int, tmp_path: Path) -> None:
        compare(dict, tmp_path, (steps,))

    def test_several_times(self, tmp_path: Path) -> None:
        compare(dict, tmp_path, (3, 0, 4, 4))

    @pytest.mark.parametrize("engine", ["eager", "vectorized"])
    @pytest.mark.parametrize("checkpoints", [{"checkpoint_every": 1}, {"checkpoint_every": 2}, {}])
    def test_rare_checkpoints_repeat_some_steps(self, engine: str, checkpoints: dict[str, int], tmp_path: Path) -> None:
        compare(lambda: {"engine": engine, "checkpoint_minutes": None, **checkpoints}, tmp_path, (EPOCH_END + 1,))

    @pytest.mark.parametrize("kind", ["tensor", "data set", "loader"])
    def test_other_data_to_repel_on(self, kind: str, tmp_path: Path) -> None:
        """Within passes over it and between them; items draw random numbers of all kinds."""
        x = torch.randn(40, 5, generator=torch.Generator().manual_seed(1))
        given = {"tensor": x, "data set": Drawing(x), "loader": DataLoader(Drawing(x), batch_size=9, shuffle=True)}
        compare(lambda: {"repel_on": given[kind], "method": "forde-identity"}, tmp_path, (2, 4, 3))

    @pytest.mark.parametrize("method", ["deep-ensemble", "weight-rde", "feature-rde", "function-rde", "lit"])
    def test_methods(self, method: str, tmp_path: Path) -> None:
        compare(lambda: {"method": forde.method(method, prior="empcov", repulsion_every=2)}, tmp_path)

    @pytest.mark.parametrize(
        "optimizer",
        [
            lambda p: torch.optim.SGD(p, lr=0.1),
            lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
            lambda p: torch.optim.NAdam(p, lr=1e-2),
            lambda p: torch.optim.ASGD(p, lr=1e-2),
            lambda p: torch.optim.Rprop(p, lr=1e-2),
            lambda p: torch.optim.Adagrad(p, lr=1e-2),
        ],
        ids=["SGD", "Adam", "NAdam", "ASGD", "Rprop", "Adagrad"],
    )
    def test_optimizers(self, optimizer: Any, tmp_path: Path) -> None:
        compare(lambda: {"optimizer": optimizer, "method": "forde-identity"}, tmp_path)

    @pytest.mark.parametrize(
        "scheduler",
        [
            lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 2]),
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, EPOCHS),
            lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=EPOCHS + 1),
            lambda o: torch.optim.lr_scheduler.SequentialLR(
                o,
                [torch.optim.lr_scheduler.ConstantLR(o, 0.1, 1), torch.optim.lr_scheduler.ExponentialLR(o, 0.5)],
                [1],
            ),
        ],
        ids=["MultiStep", "Cosine", "OneCycle", "Sequential"],
    )
    @pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")  # torch 2.6 warns of itself
    def test_schedulers(self, scheduler: Any, tmp_path: Path) -> None:
        compare(lambda: {"scheduler": scheduler}, tmp_path, (MID_EPOCH, 1))

    def test_an_order_for_each_member(self, tmp_path: Path) -> None:
        compare(lambda: {"method": "deep-ensemble", "independent_data": True}, tmp_path)

    def test_augmented_images(self, tmp_path: Path) -> None:
        generator = np.random.default_rng(0)
        images = generator.integers(0, 256, (100, 6, 6, 3), np.uint8)
        given = from_arrays(images, np.arange(100) % 3, classes=("a", "b", "c"))

        def options() -> dict[str, Any]:
            trained = forde.Ensemble(lambda: MLP(108, [8], 3), 2)
            return {"trained": trained, "given": given, "augmentation": forde.Augmentation(pad=1)}

        compare(options, tmp_path)

    def test_members_that_differ(self, tmp_path: Path) -> None:
        compare(lambda: {"trained": forde.Ensemble([network, lambda: nn.Linear(5, 3)])}, tmp_path)

    def test_low_memory(self, tmp_path: Path) -> None:
        compare(lambda: {"memory": "low"}, tmp_path)


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Draws from every global source of random numbers when an item is read."""

    def __init__(self) -> None:
        self.x, self.y = data()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        noise = 0.1 * torch.rand(5) + 0.1 * float(np.random.rand()) + 0.1 * random.random()
        return self.x[item] + noise, self.y[item]


class TestLoaders:
    """A DataLoader's position is found by drawing again what was used."""

    @pytest.mark.parametrize("kind", ["dataset", "shuffled", "own generator", "sampler", "workers"])
    def test_order(self, kind: str, tmp_path: Path) -> None:
        def options() -> dict[str, Any]:
            own = TensorDataset(*data())
            generator = torch.Generator().manual_seed(7)
            loaders: dict[str, Any] = {
                "dataset": own,
                "shuffled": DataLoader(own, 16, shuffle=True),
                "own generator": DataLoader(own, 16, shuffle=True, generator=generator),
                "sampler": DataLoader(own, 16, sampler=RandomSampler(own, generator=generator)),
                "workers": DataLoader(own, 16, shuffle=True, num_workers=1),
            }
            return {"given": loaders[kind], "method": "forde-identity"}

        compare(options, tmp_path)

    def test_random_numbers_of_torch_numpy_and_python_in_the_data(self, tmp_path: Path) -> None:
        def options() -> dict[str, Any]:
            np.random.seed(3)
            random.seed(3)
            return {"given": DataLoader(Noisy(), 16, shuffle=True), "method": "forde-identity"}

        compare(options, tmp_path)


class TestOtherEngine:
    @pytest.mark.parametrize("engines", [("eager", "vectorized"), ("vectorized", "eager")])
    @pytest.mark.parametrize("optimizer", ["SGD", "Adam", "NAdam"])
    def test_agrees(self, engines: tuple[str, str], optimizer: str, tmp_path: Path) -> None:
        """Dropout draws differently when members are stacked, so this network has none."""

        class Scaled(MLP):
            def __init__(self) -> None:
                super().__init__(5, [8], 3, batch_norm=True)
                self.scale = nn.Parameter(torch.ones(()))  # no axis but the members' when stacked

            def forward(self, x: Tensor) -> Tensor:
                return self.scale * super().forward(x)

        options: dict[str, Any] = {} if optimizer == "SGD" else {
            "optimizer": lambda p: getattr(torch.optim, optimizer)(p, lr=1e-3)
        }  # fmt: skip
        whole, broken = forde.Ensemble(Scaled, 3), forde.Ensemble(Scaled, 3)
        train(None, whole, engine=engines[1], **options)
        crash(tmp_path / "run", MID_EPOCH, trained=forde.Ensemble(Scaled, 3), engine=engines[0], **options)
        train(tmp_path / "run", broken, engine=engines[1], resume=True, **options)
        for (name, expected), found in zip(whole.state_dict().items(), broken.state_dict().values(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


class TestFolder:
    def test_what_is_in_it(self, tmp_path: Path) -> None:
        run = tmp_path / "runs" / "a"
        history = train(run, diagnostics_every=0)
        names = {path.name for path in run.iterdir()}
        assert names == {"config.json", "sessions.jsonl", "metrics.jsonl", "log.txt", "outcome.json", "ensemble"}
        config = json.loads((run / "config.json").read_text())
        assert config["training"]["method"]["name"] == "forde-pca" and config["training"]["optimizer"]["lr"] == 0.1
        assert config["ensemble"]["n_members"] == 2 and config["data"]["size"] == len(data()[1])
        session = json.loads((run / "sessions.jsonl").read_text())
        assert session["torch"] == torch.__version__ and session["git"] is None
        assert session["command"].startswith(Path(sys.argv[0]).name)
        assert [record["epoch"] for record in metrics(run)] == [0.0, 1.0, 2.0]
        assert "finished" in (run / "log.txt").read_text()
        loaded = forde.Ensemble.load(run / "ensemble", network)
        assert loaded.predict(data()[0]).probs.shape == (len(data()[1]), 3)
        assert len(history) == EPOCHS

    def test_git_state(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "bin").mkdir()
        fake = tmp_path / "bin" / "git"
        fake.write_text(
            '#!/bin/sh\ncase "$*" in *rev-parse*) echo abc123;; *config*) exit 1;; *) echo " M file";; esac\n'
        )
        fake.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        train(tmp_path / "run")
        session = json.loads((tmp_path / "run" / "sessions.jsonl").read_text())
        assert session["git"] == {"commit": "abc123", "dirty": True}

    def test_finished_run_is_loaded_and_not_trained_again(self, tmp_path: Path) -> None:
        first = train(tmp_path / "run")
        before = result(tmp_path / "run")
        again = ensemble()
        seen: list[Any] = []
        history = train(tmp_path / "run", again, resume=True, callback=seen.append)
        assert history.records == first.records and not seen
        assert result(tmp_path / "run") == before
        loaded = forde.Ensemble.load(tmp_path / "run" / "ensemble", network)
        assert torch.equal(again.predict(data()[0]).probs, loaded.predict(data()[0]).probs)

    def test_not_empty_without_resume(self, tmp_path: Path) -> None:
        train(tmp_path / "run")
        with pytest.raises(forde.FordeError, match="resume=True"):
            train(tmp_path / "run")

    def test_a_run_that_was_refused_before_it_began_leaves_the_folder_free(self, tmp_path: Path) -> None:
        with pytest.raises(forde.FordeError, match="unknown monitor"):
            train(tmp_path / "run", validation=0.2, monitor="loss")
        train(tmp_path / "run", validation=0.2, monitor="nll")
        assert "unknown monitor" in (tmp_path / "run" / "log.txt").read_text()
        assert (tmp_path / "run" / "ensemble").is_dir()

    def test_folder_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "thesis.tex").write_text("precious")
        with pytest.raises(forde.FordeError, match=r"no config\.json"):
            train(tmp_path / "run", resume=True)
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"epochs": 4}, "training.epochs = 3"),
            ({"lr": 0.2}, "training.optimizer.lr = 0.1"),
            ({"seed": 1}, "training.seed = 0"),
            ({"batch_size": 8}, "training.batch_size"),
            ({"method": "forde-identity"}, "training.method.kernel.metric.type"),
            ({"trained": forde.Ensemble(network, 3)}, "ensemble.n_members = 2"),
            ({"trained": forde.Ensemble(lambda: nn.Linear(5, 3), 2)}, "ensemble.architecture"),
            ({"given": data(50)}, "data.size"),
            ({"given": (data()[0] + 1, data()[1])}, "data.content"),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_another_setting_is_named(self, change: dict[str, Any], field: str, tmp_path: Path) -> None:
        crash(tmp_path / "run", 3)
        with pytest.raises(forde.FordeError, match=field):
            train(tmp_path / "run", resume=True, **change)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"given": (data()[0] + 1, data()[1])}, "other data: it has changed since .*; restore the data"),
            (
                {"trained": forde.Ensemble(lambda: nn.Sequential(nn.Linear(5, 3)), 2)},
                r"other layers .*: '0' was \"Linear\(.*=8, bias=True\)\", now it is \"Linear\(.*=3, bias=True\)\"\)",
            ),
            ({"trained": forde.Ensemble(lambda: nn.Linear(5, 3), 2)}, "a network of other layers"),
            ({"method": "forde-identity"}, 'the method "forde-pca", but "forde-identity" was given'),
            ({"method": "deep-ensemble"}, 'the method "forde-pca", but "deep-ensemble" was given'),
            ({"method": forde.method("forde-pca", repulsion_every=2)}, "method.repulsion_every = 1, but 2 was given"),
        ],
        ids=["data", "layers", "one layer", "method", "no repulsion", "option of the method"],
    )
    def test_what_changed_is_said_in_words(self, change: dict[str, Any], words: str, tmp_path: Path) -> None:
        crash(tmp_path / "run", 3)
        with pytest.raises(forde.FordeError, match=f"was started with .*{words}") as raised:
            train(tmp_path / "run", resume=True, **change)
        assert not re.search("[0-9a-f]{16}", str(raised.value).replace(str(tmp_path), "")), "no fingerprints"

    def test_settings_that_do_not_matter_may_change(self, tmp_path: Path) -> None:
        crash(tmp_path / "run", 3)
        train(tmp_path / "run", resume=True, keep=1, diagnostics_every=2, non_finite="skip", memory="low")

    def test_only_the_last_ones_are_kept(self, tmp_path: Path) -> None:
        crash(tmp_path / "run", MID_EPOCH, keep=3)
        names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
        assert len(names) == 6 and names[-1] == "000009.safetensors"

    def test_no_file_holds_code(self, tmp_path: Path) -> None:
        crash(tmp_path / "run", 3)
        suffixes = {path.suffix for path in (tmp_path / "run").rglob("*") if path.is_file()}
        assert suffixes == {".json", ".jsonl", ".txt", ".safetensors"}

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"resume": True}, "run="),
            ({"non_finite": "roll_back"}, "run="),
            ({"non_finite": "ignore"}, "skip"),
            ({"run": "run", "keep": 0}, "keep is 0"),
            ({"run": "run", "checkpoint_every": 0}, "checkpoint_every is 0"),
            ({"run": "run", "checkpoint_minutes": -1.0}, "checkpoint_minutes is -1"),
        ],
    )
    def test_options_are_checked(self, options: dict[str, Any], message: str, tmp_path: Path) -> None:
        with pytest.raises(forde.FordeError, match=message):
            train(options.pop("run", None), **options)
        assert not list(tmp_path.iterdir())

    def test_others_see_no_more_of_the_log_than_before(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        train(tmp_path / "run")
        assert not caplog.records
