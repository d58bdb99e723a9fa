"""``assert_no_redundant_conversions`` on models that run: what it finds, and that no lack of evidence lets it pass."""

from __future__ import annotations

import pytest
import torch
from planted import Planted
from torch import nn

import layoutdoctor
from layoutdoctor.errors import InconclusiveError

pytestmark = pytest.mark.compile

IMAGE = torch.randn(1, 3, 32, 32)


class RoundTrips(nn.Module):
    """A contiguous network in which each convolution of oneDNN converts its input and its output in eager mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 32, 3, padding=1)
        self.third = nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x))
        return torch.relu(self.third(x))


class Planting(RoundTrips):
    """In the processes that work on it, a function of ours raises."""

    def __init__(self, module: str, name: str) -> None:
        super().__init__()
        self.planted = Planted(
            f"import functools, importlib\ndef refuse(*arguments, **options): raise RuntimeError('planted')\n"
            f"*outer, name = {name!r}.split('.')\n"
            f"setattr(functools.reduce(getattr, outer, importlib.import_module({module!r})), name, refuse)"
        )


@pytest.mark.parametrize(
    ("module", "name", "reason"),
    [
        ("run.trial", "Recorder.record", "the kernel list was not recorded: RuntimeError: planted"),
        ("capture.session", "fx_nodes", "graph 0 was not recorded: FX nodes: RuntimeError: planted"),
        ("capture.session", "_graph_record", "RuntimeError: planted"),
    ],
)
def test_it_never_passes_for_want_of_a_record(module: str, name: str, reason: str) -> None:
    model = Planting(f"layoutdoctor.{module}", name).eval()

    with pytest.raises(InconclusiveError, match=r"^cannot say that Planting has no redundant conversions") as caught:
        layoutdoctor.assert_no_redundant_conversions(model, IMAGE, allow_gaps=True)

    assert reason in str(caught.value)


def test_a_model_that_is_not_compiled_at_all_is_not_passed() -> None:
    class Disabled(RoundTrips):
        forward = torch.compiler.disable(RoundTrips.forward)

    with pytest.raises(AssertionError, match=r"1 redundant conversion pair in Disabled \(inference, cpu, eager\)"):
        layoutdoctor.assert_no_redundant_conversions(Disabled().eval(), IMAGE, allow_gaps=True)
