"""A trace knows whether messages to other processes are in it: such parts are never captured in a CUDA graph."""

from __future__ import annotations

import pytest
import torch
from sharded_cases import METHODS, data, ensemble

from forde.compile.tracing import trace
from forde.distributed.mesh import Axis
from forde.double_backward import Policy
from forde.step import MemberLoop
from forde.step.records import Batch


@pytest.mark.parametrize("network", ["convolution", "perceptron"])
@pytest.mark.parametrize("shared", [True, False])
def test_only_batch_norm_over_processes_sends_messages_within_a_phase(network: str, *, shared: bool) -> None:
    policy = Policy("cpu", traced=True, processes=Axis() if shared else None)
    method = METHODS["deep-ensemble"]()
    runner = MemberLoop(ensemble(network=network).train(), method, policy=policy)
    x, y = data()
    found = trace(runner, method, 0, Batch(x[:8], y[:8]), None, metric=None, fused=False, recompute=False)
    assert found.talks is (shared and network == "convolution")


def test_the_sum_is_a_new_tensor() -> None:
    x = torch.ones(2, 3).T
    total = Axis().sum(x)
    assert torch.equal(total, x) and total.data_ptr() != x.data_ptr()
    torch.library.opcheck(torch.ops.forde.sum_over_processes.default, (x, 0), test_utils="test_faketensor")
