"""
Reproducers of real diagnoses, run in fresh processes with torch alone, held to what the diagnosis recorded.

Counts of conversions are exact. Times are another thing on every run, so that they are only looked at in one whole run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest
from github_markdown import check_form, code_blocks
from live_trials import requested_of_target

from layoutdoctor.commands.output import OutputFile
from layoutdoctor.commands.reproducing import with_reproduction
from layoutdoctor.diagnosis.answer import Recommendation
from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.diagnosis.saved import from_json, to_json
from layoutdoctor.reports.markdown import markdown_parts
from layoutdoctor.reports.reproducer import build_reproducer
from layoutdoctor.workers.messages import Request

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.subject import Mode

pytestmark = pytest.mark.compile

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 600


class Case(NamedTuple):
    """A diagnosis whose reproducer is run: what is diagnosed, and a finding in it; the cases show different ones."""

    target: str
    finding: str
    mode: Mode = "inference"
    configurations: str = "eager,eager-channels-last,inductor,inductor-channels-last"
    chosen: str | None = None
    """What is taken for the recommendation."""


CASES = (
    Case("examples/conv_bn_relu.py", "LD101"),
    Case("examples/conv2d_vs_conv3d.py:conv3d", "LD503", "training"),
    Case("tests/casebook/29_layernorm2d_flips_network.py", "LD502"),
    Case(
        "tests/casebook/36_depthwise_mobile.py",
        "LD101",
        "inference",
        "eager,inductor,inductor-freezing",
        "inductor-freezing",
    ),
)


def diagnosed(case: Case) -> Diagnosis:
    diagnosis = requested_of_target(
        str(ROOT / case.target),
        Request(mode=case.mode, configurations=choose_configurations(case.configurations), budget_seconds=2),
    )
    diagnosis = from_json(to_json(diagnosis))  # what a saved diagnosis holds is all a reproducer has
    if case.chosen is None:
        return diagnosis
    chosen = Recommendation(configuration=case.chosen, speedup=None, how=None, verified=True)
    return msgspec.structs.replace(diagnosis, recommendation=chosen)


def counts_of(script: Path, name: str) -> list[int]:
    """What one process of a script counts; it runs where there is no layoutdoctor."""
    command = [sys.executable, "-I", str(script), name]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return list(json.loads(done.stdout.splitlines()[0])["said"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{Path(case.target).stem}-{case.mode}")
def test_the_reproducer_counts_what_was_recorded(case: Case, tmp_path: Path) -> None:
    diagnosis = diagnosed(case)
    reproducer = build_reproducer(diagnosis)

    assert reproducer.is_runnable
    assert case.finding in {finding.code for finding in diagnosis.findings}
    script = tmp_path / "reproducer.py"
    script.write_text(reproducer.script, encoding="utf-8")
    names = re.findall(r"^    '(\S+)': \('", reproducer.script, re.MULTILINE)

    assert len(set(names)) == 2
    assert {name: counts_of(script, name) for name in names} == {
        name: list(recorded_counts(diagnosis, name)) for name in names
    }


def test_what_was_run_stands_in_the_report(tmp_path: Path) -> None:
    case = CASES[0]
    outputs = [OutputFile(tmp_path / "r.md", "markdown")]
    diagnosis = with_reproduction(diagnosed(case), outputs, case.target, quiet=True)

    assert diagnosis.reproduction is not None
    assert diagnosis.reproduction.reproduced is not None
    assert re.search(r"\nverdict: .*reproduced: conversions .*, recorded ", diagnosis.reproduction.printed)
    assert diagnosis.reproduction.given_back is not None
    median, low, high = diagnosis.reproduction.given_back
    assert 0 < low <= median <= high
    _, details = markdown_parts(diagnosis, "r.details.md")  # the report itself may have no room for a script
    assert details is not None
    printed = [text for language, text in code_blocks(check_form(details)) if language == "text"]
    assert any(diagnosis.reproduction.printed.splitlines()[-1] in text for text in printed)


def recorded_counts(diagnosis: Diagnosis, name: str) -> tuple[int, int]:
    """oneDNN's reorders and ATen's copies in the kernel list of a trial."""
    trial = diagnosis.trial(name)
    assert trial is not None
    assert trial.kernels is not None
    reorders = [
        conversion for conversion in trial.kernels.conversions if (conversion.kernel or "").startswith("reorder")
    ]
    return len(reorders), sum(kernel.name == "aten::copy_" for kernel in trial.kernels.kernels)
