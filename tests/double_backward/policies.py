"""What a forward pass runs in: derivatives of `forde.double_backward`, for a plain step or a compiler; or torch's."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from forde.double_backward import Part, Policy, Whole


def cheap(*, for_compiler: bool = False) -> AbstractContextManager[object]:
    """What a plain step on a CPU has, or what is traced for a compiler."""
    return Policy("cpu", traced=for_compiler, compiler=for_compiler).mode(twice=True)


class TorchsOwn(Policy):
    """Every operation is torch's."""

    def mode(self, *, twice: bool, statistics: Whole | Part | None = None) -> AbstractContextManager[object]:
        assert statistics is None
        return nullcontext()
