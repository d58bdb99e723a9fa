"""What only a GPU shows: real diagnoses, a lost device, a lack of memory, and a lowering beside the real compile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import layoutdoctor
from layoutdoctor.__main__ import main
from layoutdoctor.diagnosis.saved import load
from layoutdoctor.measure.environment import card_state, processes_that_fit
from layoutdoctor.measure.timing import choose_timer

if TYPE_CHECKING:
    from pathlib import Path

    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.trial import Trial

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

DEVICE = "cuda"
CONFIGURATIONS = "eager,eager-channels-last,inductor,inductor-channels-last"
MODEL = """\
import torch
from torch import nn

@torch.compiler.disable
def use_up(x):
    return x + torch.empty(1 << 46, dtype=torch.int8, device=x.device)[:1]

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x):
        if x.is_contiguous(memory_format=torch.channels_last):
            if torch.compiler.is_compiling():
                x = use_up(x)
            else:
                x = x[torch.full((1,), 1 << 40, device=x.device)]  # which ends the use of the device
        return self.second(torch.relu(self.first(x)))

def get_inputs():
    return [torch.randn(4, 16, 64, 64)]

def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpu") / "model.py"
    path.write_text(MODEL, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def diagnosis(model: Path) -> Diagnosis:
    saved = model.with_suffix(".json")
    words = [str(model), "--device", DEVICE, "--configurations", CONFIGURATIONS, "--budget", "3"]
    assert main([*words, "--output", str(saved)]) == 0
    return load(saved)


def test_a_model_is_compiled_checked_timed_and_profiled(diagnosis: Diagnosis) -> None:
    assert (diagnosis.subject.device or "").startswith(DEVICE)
    for name in ("eager", "inductor"):
        trial = diagnosis.trial(name)
        assert (trial.status, trial.failure) == ("ok", None)
        assert trial.equivalence is not None
        assert trial.equivalence.status == "equal"
        assert trial.kernels is not None
        assert trial.kernels.count > 0
        assert trial.measurement is not None
        assert len(trial.measurement.round_seconds) >= 3
    assert diagnosis.comparison is not None
    assert [ratio.name for ratio in diagnosis.comparison.ratios] == ["eager"]


def test_a_lost_device_and_a_lack_of_memory_cost_one_configuration_each(diagnosis: Diagnosis) -> None:
    lost, short = diagnosis.trial("eager-channels-last"), diagnosis.trial("inductor-channels-last")

    assert lost.status in ("failed", "crashed")
    assert (short.status, short.failure is not None and short.failure.cause == "out_of_memory") == ("failed", True)


def test_a_lowering_for_this_gpu_decides_and_converts_as_the_real_compile(model: Path, diagnosis: Diagnosis) -> None:
    saved = model.with_name("static.json")
    target = "cuda:{}{}".format(*torch.cuda.get_device_capability())
    assert main([str(model), "--lower-for", target, "--configurations", "inductor", "--output", str(saved)]) == 0

    assert facts_of(load(saved).trial("inductor")) == facts_of(diagnosis.trial("inductor"))


def facts_of(trial: Trial) -> list[tuple[object, ...]]:
    """Of each graph: its direction, the decision, and the conversions in it."""
    return [
        (
            graph.direction,
            graph.decision and (graph.decision.applied, graph.decision.rule),
            [(one.tensor, one.direction, one.fused) for one in graph.conversions],
        )
        for graph in trial.graphs
    ]


def test_the_timer_agrees_with_the_clock_of_the_machine() -> None:
    matrix = torch.randn(4096, 4096, device=DEVICE)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    measured = min(choose_timer(DEVICE)(lambda: torch.mm(matrix, matrix), 5))
    start.record()
    for _ in range(20):
        torch.mm(matrix, matrix)
    end.record()
    torch.cuda.synchronize()

    assert 0.5 < measured / (start.elapsed_time(end) * 1e-3 / 20) < 2.0


def test_the_card_says_its_driver_and_how_many_processes_fit() -> None:
    torch.zeros(1, device=DEVICE)

    assert card_state(DEVICE).driver
    assert processes_that_fit(DEVICE) >= 2


def test_a_gpu_that_is_not_there_is_refused_in_a_sentence(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(model), "--device", "cuda:99"]) in (2, 3)
    assert "cuda:99" in capsys.readouterr().err


def test_a_program_that_runs_shows_what_a_diagnosis_shows(model: Path, diagnosis: Diagnosis) -> None:
    names: dict[str, Any] = {}
    exec(compile(model.read_text(encoding="utf-8"), "model.py", "exec"), names)
    torch.manual_seed(0)
    net = names["Model"]().to(DEVICE).eval()
    images = torch.randn(4, 16, 64, 64, device=DEVICE)
    torch._dynamo.reset()
    compiled = torch.compile(net)
    with layoutdoctor.profile(steps=3) as seen, torch.no_grad():
        for _ in range(8):
            compiled(images)
            seen.step()
    own, other = seen.diagnosis.trials[0], diagnosis.trial("inductor")
    assert seen.summary["recorded_step_count"] == 3
    assert own.kernels is not None
    assert other.kernels is not None
    # Kernels of one step, launched in it, though they may end after it.
    assert own.kernels.count == other.kernels.count
    assert own.kernels.conversion_count == other.kernels.conversion_count
    for mine, theirs in zip(own.graphs, other.graphs, strict=True):
        assert [(c.direction, c.tensor, c.bytes_moved) for c in mine.conversions] == [
            (c.direction, c.tensor, c.bytes_moved) for c in theirs.conversions
        ]
