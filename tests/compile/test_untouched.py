"""What belongs to the caller is as it was when ``diagnose()`` returns, also where a configuration raises."""

from __future__ import annotations

import random
import sys
import warnings
from typing import Any

import pytest
import torch
import torch._dynamo.config
import torch._inductor.config
from torch import nn

import layoutdoctor


class Net(nn.Module):
    """Convolutions in both formats, a batch norm with running statistics, and a refusal of channels-last inputs."""

    def __init__(self, *, picky: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 4, 3).to(memory_format=torch.channels_last)
        self.picky = picky

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.picky and not x.is_contiguous():
            raise RuntimeError("no channels-last input, please")
        return self.second(torch.relu(self.norm(self.first(x))))


def snapshot(model: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers()), "the input": x}
    return {
        "values": {name: tensor.detach().clone() for name, tensor in tensors.items()},
        "identities": {name: (id(tensor), tensor.data_ptr(), tensor.stride()) for name, tensor in tensors.items()},
        "versions": {name: tensor._version for name, tensor in tensors.items()},
        "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "modes": [module.training for module in model.modules()],
        "hooks": [len(module._forward_hooks) for module in model.modules()],
        "generators": (torch.get_rng_state(), random.getstate()),
        "switches": (
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.backends.mkldnn.enabled,
            list(warnings.filters),
            list(sys.path),
            sys.stdout,
            torch._inductor.config.get_config_copy(),
            torch._dynamo.config.get_config_copy(),
        ),
    }


def same(before: Any, after: Any) -> bool:
    if isinstance(before, torch.Tensor):
        return torch.equal(before, after)
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(same(value, after[key]) for key, value in before.items())
    if isinstance(before, (tuple, list)):
        return len(before) == len(after) and all(map(same, before, after))
    return bool(before == after)


def check_untouched(
    mode: Any, configurations: str, *, picky: bool, target: str | None = None
) -> layoutdoctor.Diagnosis:
    model, x = Net(picky=picky), torch.randn(2, 4, 8, 8)
    model(x).sum().backward()
    model.norm.eval()
    model.first.register_forward_hook(lambda *_: None)
    before = snapshot(model, x)

    diagnosis = layoutdoctor.diagnose(
        model, x, mode=mode, configurations=configurations.split(","), target=target, budget_seconds=0.05
    )

    after = snapshot(model, x)
    assert [part for part, value in before.items() if not same(value, after[part])] == []
    return diagnosis


@pytest.mark.parametrize("picky", [False, True], ids=["all run", "one raises"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_eager_configurations_leave_everything_as_it_was(mode: str, picky: bool) -> None:
    diagnosis = check_untouched(mode, "eager,eager-channels-last", picky=picky)

    assert [trial.status for trial in diagnosis.trials] == ["ok", "failed" if picky else "ok"]


@pytest.mark.compile
def test_compiled_configurations_leave_everything_as_it_was() -> None:
    diagnosis = check_untouched("training", "inductor-layout-opt-off,inductor-channels-last", picky=True)

    assert [trial.status for trial in diagnosis.trials] == ["ok", "failed"]


@pytest.mark.compile
def test_lowering_for_a_gpu_that_is_not_there_leaves_everything_as_it_was() -> None:
    diagnosis = check_untouched("training", "inductor,inductor-channels-last", picky=True, target="cuda:90")

    assert [trial.status for trial in diagnosis.trials] == ["ok", "failed"]
