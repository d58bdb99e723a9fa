"""
In training a worker runs the forward only, and its starts the rest: they compute what a fresh model would.

The graphs of both directions are captured before, once each.
"""

from __future__ import annotations

import pytest
import torch
from live_trials import diagnosed, trial_of
from torch import nn

from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.run.trial import TrialWork
from layoutdoctor.subjects.subject import subject_from_python

pytestmark = pytest.mark.compile


class Stateful(nn.Module):
    """Statistics, random numbers, a buffer that is replaced, and weights that are written."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        with torch.no_grad():
            self.conv.bias.add_(1)
        return self.drop(self.norm(self.conv(x))) * self.count


def work(name: str) -> TrialWork:
    torch.manual_seed(0)
    model, x = Stateful(), torch.randn(2, 3, 12, 12)
    (configuration,) = choose_configurations(name, "training")
    made = TrialWork(subject_from_python(model, x), configuration, "training")
    made.prepare()
    return made


@pytest.fixture(autouse=True)
def _nothing_compiled_is_left() -> object:
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["eager", "inductor"])
def test_the_first_iteration_after_the_workers_forward_is_that_of_a_fresh_model(name: str) -> None:
    after, fresh = work(name), work(name)
    compiled = after.compile()
    if name == "inductor":
        assert [graph.direction for graph in compiled.trial.graphs] == ["forward", "backward"]
        fresh.step.run = torch.compile(fresh.step.run)
    one, other = after.step.results(), fresh.step.results()

    torch.testing.assert_close(one.outputs, other.outputs, rtol=0, atol=0)
    torch.testing.assert_close(one.gradients, other.gradients, rtol=0, atol=0)
    buffers = [dict(made.step.module.named_buffers()) for made in (after, fresh)]
    torch.testing.assert_close(buffers[0], buffers[1], rtol=0, atol=0)
    assert buffers[0]["count"].item() == buffers[0]["norm.num_batches_tracked"].item() == 1


def test_forward_and_backward_are_recorded_once_each_and_compiled_no_second_time() -> None:
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
    trial = trial_of(diagnosed(net, torch.randn(2, 3, 12, 12), "inductor", "training"))

    assert [graph.direction for graph in trial.graphs] == ["forward", "backward"]
    assert (trial.recompile_count, trial.recompile_reasons) == (0, ())
    assert trial.equivalence is not None
    assert (trial.equivalence.status, trial.equivalence.gradients_checked) == ("equal", True)
