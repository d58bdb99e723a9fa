"""Whole models lowered for a GPU that is not there: what is recorded, what fails alone, and what stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from builders import a_subject
from planted import Planted
from torch import nn
from torch.nn import functional

import layoutdoctor
from layoutdoctor.__main__ import main
from layoutdoctor.capture.retarget import NO_TRITON_NOTE
from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS
from layoutdoctor.diagnosis.gpus import find_gpu
from layoutdoctor.diagnosis.saved import load
from layoutdoctor.errors import UsageError
from layoutdoctor.run.work import described_for
from layoutdoctor.subjects.subject import subject_from_python

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.subject import Mode

pytestmark = pytest.mark.compile

ROOT = Path(__file__).parent.parent.parent


def lower(
    model: nn.Module, *shape: int, mode: Mode = "inference", configurations: str = "inductor", **options: Any
) -> Diagnosis:
    torch.manual_seed(0)
    given = torch.randn(*shape)
    return layoutdoctor.diagnose(
        model, given, mode=mode, configurations=configurations.split(","), lower_for="cuda:90", **options
    )


class Odd(nn.Module):
    """Pads that reflect and replicate, slices, random masks, constants of the graph, a buffer that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 64, 3), nn.Conv2d(32, 64, 3, padding=1)
        self.causal = nn.Conv1d(64, 32, 3, padding=4, dilation=2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        x = self.first(functional.pad(functional.pad(x, (1, 1, 1, 1), mode="reflect"), (1, 2, 1, 1), mode="replicate"))
        gated = functional.dropout2d(self.second(torch.sigmoid(x[:, :32]) * x[:, 32:]), 0.3, training=self.training)
        gated = gated * torch.tensor([1.0, 2.0]).repeat(32).view(1, 64, 1, 1) + torch.tensor(2.0)
        return self.causal(gated.flatten(2))[..., :-4].sum() + gated[:, 0] + gated.select(1, 3) + gated[0, 1]


def test_what_is_rare_in_networks_is_lowered_in_training_too() -> None:
    (trial,) = lower(Odd(), 2, 3, 8, 8, mode="training").trials

    assert (trial.status, trial.failure) == ("ok", None)
    assert all(graph.hook_failure is None for graph in trial.graphs)
    assert [graph.direction for graph in trial.graphs] == ["forward", "backward"]
    assert trial.graphs[0].kernel_names
    assert "aten.sum.dim_IntList" in [node.target for node in trial.graphs[1].nodes]  # a bias's gradient, as on a GPU


class ChecksItsSize(nn.Module):
    """Looks at the sizes of its input with NumPy, whose arithmetic becomes a graph of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rest = np.array(x.shape[2:]) % np.power(2, 3) > 0
        if rest.any():
            raise ValueError(f"sizes {np.where(rest)[0]} cannot be divided by 8")
        return self.conv(x)


def test_what_is_made_of_constants_is_computed_as_the_model_may_go_on_by_it() -> None:
    (trial,) = lower(ChecksItsSize(), 2, 3, 16, 16).trials

    assert (trial.status, trial.failure) == ("ok", None)
    assert sum(graph.decision.convolution_count for graph in trial.graphs if graph.decision is not None) == 1


@pytest.mark.parametrize(
    ("between", "in_forward", "in_backward"),
    [
        (
            [nn.GroupNorm(8, 64), nn.SiLU()],
            {"activation to_contiguous", "activation to_channels_last"},
            {"activation to_contiguous", "gradient to_contiguous"},
        ),
        (
            [nn.Conv2d(64, 8, 1), nn.Upsample(scale_factor=2.0, mode="bilinear"), nn.Conv2d(8, 64, 3)],
            {"activation to_channels_last"},
            set(),
        ),
    ],
    ids=["a group norm makes its input contiguous", "few channels are upsampled contiguous"],
)
def test_what_depends_on_the_device_is_as_on_a_gpu(between: Any, in_forward: set[str], in_backward: set[str]) -> None:
    """
    The conversions are those that torch 2.11 compiles for a GPU.

    In the backward, torch 2.13 converts the tensors of a first convolution to channels_last as well.
    """
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *between, nn.Conv2d(64, 64, 3, padding=1))

    (trial,) = lower(model, 2, 3, 16, 16, mode="training", configurations="inductor-channels-last").trials

    found = {
        graph.direction: {f"{one.tensor} {one.direction}" for one in graph.conversions if one.owner == "compiler"}
        for graph in trial.graphs
    }
    assert found["forward"] == in_forward
    assert {one for one in found["backward"] if one.endswith("to_contiguous")} == in_backward


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 72, 3), nn.ReLU(), nn.Conv2d(72, 72, 3))


@pytest.mark.smoke
def test_a_static_diagnosis_has_no_times_and_says_why_eager_and_freezing_are_left_out() -> None:
    diagnosis = lower(small_net(), 1, 3, 12, 12, configurations="all")

    assert (diagnosis.subject.target, diagnosis.subject.device) == ("cuda:90", "cuda")
    assert diagnosis.comparison is None
    assert diagnosis.recommendation is None
    assert {trial.name: trial.status for trial in diagnosis.trials} == {
        "eager": "skipped",
        "eager-channels-last": "skipped",
        "inductor": "ok",
        "inductor-layout-opt-off": "ok",
        "inductor-layout-opt-on": "same_as",
        "inductor-channels-last": "ok",
        "inductor-channels-last-opt-off": "ok",
        "inductor-layout-opt-forced": "same_as",
        **dict.fromkeys([c.name for c in BUILTIN_CONFIGURATIONS if c.freezes], "skipped"),
    }
    for trial in diagnosis.trials:
        assert trial.is_static
        assert (trial.measurement, trial.kernels, trial.equivalence) == (None, None, None)
        assert all(c.seconds is None for graph in trial.graphs for c in graph.conversions)
    messages = {trial.failure.message for trial in diagnosis.trials if trial.failure is not None}
    assert messages == {
        "eager runs no compiler: nothing to lower for a GPU that is not there",
        "freezing folds the weights into the CPU's own convolutions before a graph is lowered; "
        "diagnose it on a machine with the GPU",
    }


ONLY_ON_A_GPU = """
import torch
from torch import nn

@torch.library.custom_op("layouts::only_on_a_gpu", mutates_args=())
def only_on_a_gpu(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("not written for a CPU")

@only_on_a_gpu.register_fake
def _(x):
    return torch.empty_like(x)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 72, 3), nn.Conv2d(72, 72, 3)

    def forward(self, x):
        x = only_on_a_gpu(self.first(x))
        if {asks} and x.sum() > 0:
            torch._dynamo.graph_break()
        return self.second(x)

def get_inputs():
    return [torch.randn(1, 3, 12, 12)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("asks", "status"), [(False, 0), (True, 3)], ids=["no value decides", "a value decides"])
def test_nothing_is_computed_if_no_value_decides_what_a_model_does(
    asks: bool, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, saved = tmp_path / "model.py", tmp_path / "d.json"
    path.write_text(ONLY_ON_A_GPU.format(asks=asks))

    ended = main([str(path), "--lower-for", "cuda:90", "--configurations", "inductor", "--output", str(saved)])

    assert ended == status
    if asks:
        assert "RuntimeError: not written for a CPU (model.py:7)" in capsys.readouterr().err
    else:
        (graph,) = load(saved).trial("inductor").graphs
        assert "layouts.only_on_a_gpu.default" in [node.target for node in graph.nodes]


REFUSES = """
import torch
from torch._inductor import lowering
def refuse(*arguments, **keywords):
    raise NotImplementedError("no lowering today")
lowering.lowerings[torch.ops.aten.convolution_backward.default] = refuse
"""


def test_a_graph_that_cannot_be_lowered_costs_its_trial_only() -> None:
    model = small_net()
    model.planted = Planted(REFUSES)  # type: ignore[assignment]

    diagnosis = lower(model, 1, 3, 12, 12, mode="training", configurations="eager,inductor")

    trial = diagnosis.trials[1]
    assert trial.status == "failed"
    assert trial.failure is not None
    assert trial.failure.kind == "target"
    assert trial.failure.message == (
        "cannot lower the backward graph for cuda:90 at aten.convolution_backward.default: InductorError: "
        "LoweringException: NotImplementedError: no lowering today; diagnose this configuration where the GPU is "
        "(without a target)"
    )
    assert [graph.direction for graph in trial.graphs] == ["forward"]


def test_a_model_that_dynamo_does_not_trace_is_said_to_have_no_graph() -> None:
    diagnosis = lower(nn.LSTM(4, 4), 2, 3, 4)

    assert diagnosis.trials[0].status == "failed"
    assert diagnosis.trials[0].failure is not None
    assert diagnosis.trials[0].failure.message.startswith(
        "cannot lower anything for cuda:90: torch.compile traced no graph of this model"
    )


def test_a_model_elsewhere_is_refused() -> None:
    class Elsewhere(torch.Tensor):
        @property
        def device(self) -> Any:  # type: ignore[override]
            return type("Device", (), {"type": "fake"})()

    subject = subject_from_python(nn.Linear(2, 2), torch.empty(1, 2).as_subclass(Elsewhere))
    with pytest.raises(UsageError, match="it has tensors on fake, expected model and inputs on cpu"):
        described_for(find_gpu("cuda:90"), subject, a_subject())


def test_without_triton_there_are_decisions_buffers_and_conversions() -> None:
    model = small_net()
    model.planted = Planted("import sys; sys.modules['triton'] = None")  # type: ignore[assignment]
    names = "inductor,inductor-layout-opt-on,inductor-layout-opt-off"

    first, on, off = lower(model, 1, 3, 9, 9, configurations=names).trials

    assert [(trial.status, trial.failure) for trial in (first, on, off)] == [
        ("ok", None),
        ("same_as", None),
        ("ok", None),
    ]
    assert first.notes == (NO_TRITON_NOTE,)
    for trial, applied in ((first, True), (off, False)):
        (graph,) = trial.graphs
        assert graph.hook_failure is None
        assert graph.buffers
        assert graph.kernel_names == ()
        assert graph.decision is not None
        assert graph.decision.applied == applied
        assert bool(graph.conversions) == applied


class Scaled(nn.Module):
    """Numbers of its own code become a constant on the device, as grid sizes do in a vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = torch.tensor([[1, 4, 4]])
        return self.conv(x) * (sizes[:, 1] * sizes[:, 2])


def test_a_constant_that_is_computed_with_is_not_copied_to_a_device_that_is_not_there() -> None:
    (trial,) = lower(Scaled(), 1, 4, 8, 8).trials

    assert (trial.failure, len(trial.graphs)) == (None, 1)


# ------------------------------------------------------------------------------------ Triton kernels of the model's own
OWN_KERNEL = """\
import torch
import triton
import triton.language as tl
from torch import nn
from torch.library import triton_op, wrap_triton

@triton.jit
def doubled_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)

@triton_op("own_kernel::doubled", mutates_args={})
def doubled(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    wrap_triton(doubled_kernel)[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), 1024)
    return y

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x):
        return self.second(doubled(self.first(x)))

def get_inputs():
    return [torch.randn(2, 32, 56, 56)]

def get_init_inputs():
    return []
"""


THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
"""With it, each worker loads the model for itself."""


@pytest.mark.parametrize("before", ["", THREAD])
def test_a_model_with_a_triton_kernel_of_its_own_is_lowered_and_the_kernel_is_not_launched(
    before: str, tmp_path: Path
) -> None:
    path, saved = tmp_path / "model.py", tmp_path / "d.json"
    path.write_text(before + OWN_KERNEL, encoding="utf-8")
    words = [str(path), "--lower-for", "cuda:90", "--configurations", "inductor,inductor-layout-opt-off"]

    assert main([*words, "--output", str(saved)]) == 0

    on, off = load(saved).trials
    assert (on.status, off.status) == ("ok", "ok"), (on.failure, off.failure)
    assert [(c.tensor, c.owner, c.fused) for graph in on.graphs for c in graph.conversions if c.tensor == "activation"]
    assert [c for graph in off.graphs for c in graph.conversions] == []
    assert any("custom kernel" in line for graph in on.graphs for line in graph.not_understood)


@torch.library.custom_op("layoutdoctor_tests::halve_", mutates_args=("x",))
def halve_(x: torch.Tensor) -> None:
    x.mul_(0.5)


class Halving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 32, 3), nn.Conv2d(32, 16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        halve_(x)
        return self.second(x)


def test_an_operator_that_changes_its_argument_ends_channels_last_like_one_that_returns() -> None:
    (trial,) = lower(Halving(), 2, 16, 16, 16).trials

    (breaker,) = (breaker for graph in trial.graphs for breaker in graph.breakers)
    assert (breaker.op, len(breaker.conversions)) == ("layoutdoctor_tests::halve_", 2)
    assert breaker.reason == "it needs contiguous_format (as traced), gets channels_last and returns contiguous_format"
