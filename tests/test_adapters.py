"""Members as LoRA adapters of one frozen network: shared in memory and in files, trained and resumed like any other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forde
from forde.engine import inspect_step

pytest.importorskip("peft")


def pretrained(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))


def ensemble(base: nn.Module | None = None, n_members: int = 3) -> forde.Ensemble:
    make = forde.adapters.lora(base or pretrained(), r=2, target_modules=["0", "2"], fresh=["4"])
    return forde.Ensemble(make, n_members, seed=0)


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] > 0).long()


def trained(members: forde.Ensemble, **options: Any) -> forde.Ensemble:
    options = {"epochs": 3, "batch_size": 32, "verbose": False, "lr": 0.1, **options}
    forde.fit(members, options.pop("method", "forde"), data(), **options)
    return members


def test_the_network_is_shared_and_never_moves() -> None:
    base = pretrained()
    before = [parameter.clone() for parameter in base.parameters()]
    members = trained(ensemble(base))
    own = {id(parameter) for parameter in base.parameters()}
    held = [{id(parameter) for parameter in member.parameters()} & own for member in members.members]
    assert held[0] == held[1] == held[2] and len(held[0]) >= 4
    assert all(torch.equal(a, b) for a, b in zip(before, base.parameters(), strict=True))
    outputs = members(data()[0])
    assert not torch.allclose(outputs[0], outputs[1])
    heads = [member.base_model.model[4].modules_to_save["default"].weight for member in ensemble().members]
    assert not torch.equal(heads[0], heads[1]), "heads are fresh for each member"


def test_repulsion_is_that_of_networks_of_their_own() -> None:
    """With every member's frozen part copied, which is slower, the same forces come out."""
    shared, apart = ensemble().double().train(), ensemble().double().train()
    for member in apart.members:
        for name, parameter in list(member.named_parameters()):
            place, _, leaf = name.rpartition(".")
            copied = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
            setattr(member.get_submodule(place), leaf, copied)
    x, y = data()[0].double(), data()[1]
    method = forde.method("forde-identity")
    one, other = (inspect_step(each, method, x, y) for each in (shared, apart))
    for a, b in zip(one.total, other.total, strict=True):
        assert set(a) == {name for name in b if name in a} and any("lora_A" in name for name in a)
        for name, gradient in a.items():
            torch.testing.assert_close(gradient, b[name])


def test_files_hold_the_network_once(tmp_path: Path) -> None:
    members = trained(ensemble())
    members.save(tmp_path)
    base = sum(parameter.nbytes for parameter in pretrained().parameters())
    added = sum(p.nbytes for member in members.members for p in member.parameters() if p.requires_grad)
    size = (tmp_path / "model.safetensors").stat().st_size
    assert size < 1.1 * (base + added) + 16384 < 3 * base + added + 16384
    loaded = forde.Ensemble.load(
        tmp_path, forde.adapters.lora(pretrained(7), r=2, target_modules=["0", "2"], fresh=["4"])
    )
    assert torch.equal(loaded.predict(data()[0]).probs, members.predict(data()[0]).probs)
    first, second = ({id(p) for p in loaded.members[i].parameters() if not p.requires_grad} for i in (0, 1))
    assert first & second
    trained(loaded, epochs=1)  # and is trained on


class StopError(Exception):
    pass


def test_a_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    def stop(record: dict[str, float]) -> None:
        if record["epoch"] == 1:
            raise StopError

    adam = {"optimizer": lambda p: torch.optim.Adam(p, lr=0.01), "lr": None}
    whole = trained(ensemble(), epochs=4, **adam)
    with pytest.raises(StopError):
        trained(ensemble(), epochs=4, run=tmp_path, callback=stop, **adam)
    resumed = trained(ensemble(), epochs=4, run=tmp_path, resume=True, **adam)
    pairs = zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_finished_run_is_loaded_again(tmp_path: Path) -> None:
    """By the same call, as the page of tasks says: though the files hold the network once."""
    options = {"run": tmp_path, "validation": 0.25, "resume": True, "diagnostics_every": 0}
    first, again = trained(ensemble(), **options), ensemble()
    trained(again, **options)
    assert torch.equal(first.predict(data()[0]).probs, again.predict(data()[0]).probs)
    one, two = ({id(p) for p in again.members[i].parameters() if not p.requires_grad} for i in (0, 1))
    assert one & two, "what members share stays shared"


def test_what_is_shared_cannot_be_trained() -> None:
    members = ensemble()

    def thaw(record: dict[str, float]) -> None:
        members.members[1].requires_grad_(True)

    with pytest.raises(forde.FordeError, match=r"share the parameter .* or freeze what they share"):
        trained(members, callback=thaw)


def test_engines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="forde"):
        trained(ensemble(), engine="auto", epochs=1)
    assert any(message.startswith("engine: eager") for message in caplog.messages)
    with pytest.raises(forde.FordeError, match="members share parameters; use engine='eager'"):
        trained(ensemble(), engine="vectorized")


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no network": (lambda: nn.Linear(4, 2), {}, "a function was given; pass the pretrained network"),
    "no such layer": (pretrained(), {"fresh": ["head"]}, "unknown layer 'head'"),
    "no parameters": (pretrained(), {"fresh": ["1"]}, r"'1' has no reset_parameters\(\)"),
    "unknown option": (pretrained(), {"rank": 2}, "LoraConfig does not take these options .*'rank'"),
    "no such target": (pretrained(), {"target_modules": ["query"]}, "peft cannot adapt this network"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_adapted(case: str) -> None:
    network, options, message = WRONG[case]
    with pytest.raises(forde.FordeError, match=message):
        forde.Ensemble(forde.adapters.lora(network, **options), 2)


def test_without_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ModuleNotFoundError("No module named 'peft'", name="peft")

    class Missing:
        def __getattr__(self, name: str) -> Any:
            raise missing

    monkeypatch.setitem(sys.modules, "peft", Missing())  # type: ignore[arg-type]
    with pytest.raises(forde.FordeError, match=r"pip install 'forde\[finetune\]'"):
        forde.adapters.lora(pretrained(), r=2)
