"""
Reproducers of real diagnoses, each run in a fresh process with torch alone, held to what the diagnosis recorded.

Counts of conversions are exact: in a script of the whole model they must be the recorded ones. Times are another thing
on every run, so a script may only not contradict a record whose interval is clearly away from 1. The Markdown report
that holds the script is read by GitHub's own parser.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from github_markdown import check_form, code_blocks

from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.diagnosis.records import Recommendation
from layoutdoctor.diagnosis.saved import from_json, to_json
from layoutdoctor.isolation.messages import Request
from layoutdoctor.reports.markdown import MOST_CHARACTERS, render_markdown
from layoutdoctor.reports.reproducer.report import build_reproducer
from layoutdoctor.run.diagnose import diagnose_subject
from layoutdoctor.subjects.load import load_target

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Diagnosis, Mode
    from layoutdoctor.reports.reproducer.report import Reproducer

pytestmark = pytest.mark.compile

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = "eager,eager-channels-last,inductor,inductor-channels-last"
TIMEOUT_SECONDS = 600
MOST_RUNS = 3
CLEARLY = 1.05
_LINE = re.compile(
    r"^(?P<name>\S+) +[\d.]+ ms \(reorders, copies\) (?P<found>\(.*?\)), (?P<what>[a-z ]+) (?P<told>.*)$"
)
_RATIO = re.compile(r"^\S+: (?P<verdict>[a-z ]+), [\d.]+x \([\d.]+ to [\d.]+\)$", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """
    One diagnosis whose reproducer is run.

    Attributes:
        target: What to diagnose.
        finding: Code of a finding that the diagnosis holds, so that the cases show different ones.
        mode: ``inference`` or ``training``.
        is_cut: Whether the script holds a part of the model only.
        configurations: Names, separated by commas.
    """

    target: str
    finding: str
    mode: Mode = "inference"
    is_cut: bool = False
    configurations: str = CONFIGURATIONS


CASES = (
    Case("examples/conv_bn_relu.py", "LD101"),
    Case("examples/conv3d_stack.py", "LD101"),
    Case("examples/unfold_conv_batch_norm.py", "LD302"),
    Case("examples/conv2d_vs_conv3d.py:conv3d", "LD503", "training"),
    Case("tests/casebook/04_mps_training_convnet.py", "LD101", "training"),
    Case("tests/casebook/06_backward_without_conv_nodes.py", "LD206", "training"),
    Case("tests/casebook/07_conv3d_chain.py", "LD201"),
    Case("tests/casebook/13_channel_shuffle.py", "LD209"),
    Case("tests/casebook/15_instance_norm.py", "LD104"),
    Case("tests/casebook/19_reflect_pad.py", "LD101"),
    Case("tests/casebook/24_transpose_grouped_conv1d.py", "LD210"),
    Case("tests/casebook/25_conv1d_stack.py", "LD210"),
    Case("tests/casebook/29_layernorm2d_flips_network.py", "LD502"),
    Case("tests/casebook/30_unet_in_out_channels.py", "LD101", is_cut=True),
    Case("tests/casebook/32_user_contiguous_calls.py", "LD501"),
    Case(
        "tests/casebook/36_depthwise_mobile.py",
        "LD101",
        configurations="eager,inductor,inductor-layout-opt-off,inductor-freezing",
    ),
)


def diagnosed(case: Case) -> Diagnosis:
    diagnosis = diagnose_subject(
        load_target(str(ROOT / case.target)),
        Request(mode=case.mode, configurations=choose_configurations(case.configurations), budget_seconds=2),
    )
    return from_json(to_json(diagnosis))  # what a saved diagnosis holds is all a reproducer has


def output_of(reproducer: Reproducer, folder: Path) -> str:
    """What a fresh process prints that runs the script from a folder of its own, where there is no layoutdoctor."""
    script = folder / "reproducer.py"
    script.write_text(reproducer.script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{Path(case.target).stem}-{case.mode}")
def test_the_reproducer_shows_what_was_recorded(case: Case, tmp_path: Path) -> None:
    diagnosis = diagnosed(case)
    reproducer = build_reproducer(diagnosis)

    assert reproducer.reason is None
    assert case.finding in {finding.code for finding in diagnosis.findings}
    assert "layoutdoctor" not in reproducer.script.split('"""', 2)[2]

    report = render_markdown(diagnosis)
    assert len(report) < MOST_CHARACTERS
    assert ("python", reproducer.script) in code_blocks(check_form(report))

    # Which of two configurations is faster can change while other programs run: one run of three has to agree.
    for _ in range(MOST_RUNS):
        names, verdict = checked(output_of(reproducer, tmp_path), diagnosis, case)
        if verdict != contradiction(diagnosis, names):
            return
    pytest.fail(f"{MOST_RUNS} runs say {verdict!r} of {names[1]}, against the record")


@pytest.mark.slow
def test_a_frozen_model_is_not_run_by_the_code_of_the_other_configuration(tmp_path: Path) -> None:
    case = Case("tests/casebook/36_depthwise_mobile.py", "LD101", configurations="eager,inductor,inductor-freezing")
    chosen = Recommendation(configuration="inductor-freezing", speedup=None, how=None, verified=True)
    diagnosis = msgspec.structs.replace(diagnosed(case), recommendation=chosen)

    names, _ = checked(output_of(build_reproducer(diagnosis), tmp_path), diagnosis, case)

    assert names == ["inductor", "inductor-freezing"]
    assert recorded_counts(diagnosis, "inductor") != recorded_counts(diagnosis, "inductor-freezing")


def checked(printed: str, diagnosis: Diagnosis, case: Case) -> tuple[list[str], str]:
    """The two configurations and the verdict on their times, with the counts held to the record."""
    lines = [match for match in map(_LINE.match, printed.splitlines()) if match is not None]
    names = [match["name"] for match in lines]
    assert len(set(names)) == 2
    assert all(match["what"] == ("whole model" if case.is_cut else "recorded") for match in lines)
    for match in lines:
        assert match["told"] == str(recorded_counts(diagnosis, match["name"]))
        assert case.is_cut or match["found"] == match["told"]
    verdict = _RATIO.search(printed)
    assert verdict is not None
    assert re.search(r"^verdict: (NOT )?reproduced$", printed, re.MULTILINE)
    return names, verdict["verdict"]


def recorded_counts(diagnosis: Diagnosis, name: str) -> tuple[int, int]:
    """oneDNN's reorders and ATen's copies in the kernel list of a trial."""
    trial = diagnosis.trial(name)
    assert trial is not None
    assert trial.kernels is not None
    reorders = [
        conversion for conversion in trial.kernels.conversions if (conversion.kernel or "").startswith("reorder")
    ]
    return len(reorders), sum(kernel.name == "aten::copy_" for kernel in trial.kernels.kernels)


def contradiction(diagnosis: Diagnosis, names: list[str]) -> str | None:
    """The verdict that no run may give, where the record is clear; None where it is not."""
    assert diagnosis.comparison is not None
    assert names[0] == diagnosis.comparison.baseline
    ratio = next(ratio for ratio in diagnosis.comparison.ratios if ratio.name == names[1])
    if ratio.coverage is None:
        return None
    if ratio.low > CLEARLY:
        return "slower"
    return "faster" if ratio.high < 1 / CLEARLY else None
