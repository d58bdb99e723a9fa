"""``run --profile``: the steps of a script that is not changed."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

import pytest

from layoutdoctor.errors import SubjectError
from layoutdoctor.recording.saved import load_recording
from layoutdoctor.run.recorded import diagnose_recordings
from layoutdoctor.workers.program import Asked, run_script

if TYPE_CHECKING:
    from pathlib import Path

    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.workers.program import Outcome

MODELS = """\
import sys
import torch
from torch import nn

class Back(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(count))
    def forward(self, x):
        for conv in self.convs:
            x = conv(x.contiguous(memory_format=torch.channels_last)).contiguous()
        return x

small, large = Back(1), Back(8)
images = torch.randn(2, 4, 96, 96)  # so large that on a loaded machine the larger model is the busiest, too
"""
TRAIN = """\
optimizer = torch.optim.SGD(large.parameters(), lr=0.1)
other = torch.optim.SGD(small.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    large(images).mean().backward()
    optimizer.step()
    other.step()
print("last step", step)
"""
SERVE = """\
small.eval(), large.eval()
with torch.no_grad():
    for call in range(int(sys.argv[1])):
        small(images)
        large(images)
print("last call", call)
"""


def profiled(tmp_path: Path, text: str, asked: Asked, *arguments: str) -> tuple[Outcome, Diagnosis]:
    script, directory = tmp_path / "script.py", tmp_path / "kept"
    script.write_text(MODELS + textwrap.dedent(text), encoding="utf-8")
    directory.mkdir()
    outcome = run_script(script, asked, arguments, directory)
    return outcome, diagnose_recordings([load_recording(directory / str(outcome.recording))])


def conversions_by_user(diagnosis: Diagnosis) -> int:
    return sum(c.owner == "user" for graph in diagnosis.trials[0].graphs for c in graph.conversions)


@pytest.mark.parametrize(
    ("text", "asked", "conversions"),
    [
        pytest.param(TRAIN, Asked(steps=2), 2 * 16, id="steps of the first optimizer"),
        pytest.param(SERVE, Asked(steps=2), 2 * (16 + 2), id="calls of the busiest module"),
        pytest.param(SERVE, Asked(steps=3, module="small"), 3 * (16 + 2), id="calls of a module that is named"),
        pytest.param(TRAIN, Asked(steps=1, module="large"), 16, id="a module in training", marks=pytest.mark.slow),
    ],
)
def test_a_script_ends_after_its_steps(
    tmp_path: Path, text: str, asked: Asked, conversions: int, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome, diagnosis = profiled(tmp_path, text, asked, "30")
    assert outcome.message is None
    assert diagnosis.subject.name == "script.py"
    found = re.match(r"(\d+) of (\d+) steps were recorded", diagnosis.subject.notes[0])
    assert found is not None
    assert int(found[1]) == asked.steps
    assert int(found[2]) <= asked.steps + 6  # two warm up; a step that began with a call of another module is left out
    # Forward conversions alone are counted: those of the backward are not asked for by a line of the model.
    assert conversions_by_user(diagnosis) == conversions
    assert "last" not in capfd.readouterr().err


@pytest.mark.slow
def test_it_goes_on_if_asked_to(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, diagnosis = profiled(tmp_path, TRAIN, Asked(steps=1, ends=False), "9")
    assert "last step 8" in capfd.readouterr().err
    assert "1 of 9 steps were recorded, and took" in diagnosis.subject.notes[0]


def test_a_script_with_too_few_steps_says_so(tmp_path: Path) -> None:
    outcome, diagnosis = profiled(tmp_path, TRAIN, Asked(steps=5), "2")
    assert outcome.message == "script.py came to its end after 2 steps: too few to record a warm step"
    assert conversions_by_user(diagnosis) == 16


def test_a_script_that_fails_before_any_step_was_recorded_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match="ZeroDivisionError"):
        profiled(tmp_path, "large(images)\n1 / 0\n", Asked(steps=2))


@pytest.mark.slow
def test_a_script_that_fails_later_is_reported_with_what_was_recorded(tmp_path: Path) -> None:
    outcome, diagnosis = profiled(tmp_path, TRAIN.replace("other.step()", "step == 4 and 1 / 0"), Asked(steps=5), "30")
    assert outcome.message is not None
    assert "ZeroDivisionError" in outcome.message
    assert conversions_by_user(diagnosis) == 3 * 16


@pytest.mark.compile
def test_compiled_code_stays_compiled(tmp_path: Path) -> None:
    compiled = SERVE.replace("with torch", "large = torch.compile(large)\nwith torch").replace(
        "        small(images)\n", ""
    )
    _, diagnosis = profiled(tmp_path, compiled, Asked(steps=2), "30")
    trial = diagnosis.trials[0]
    assert len(trial.graphs) == 1
    assert not trial.graph_break_reasons
    assert sum(node.target == "aten.convolution.default" for node in trial.graphs[0].nodes) == 8
    assert trial.kernels is not None
    assert any(kernel.library == "inductor" for kernel in trial.kernels.kernels)
