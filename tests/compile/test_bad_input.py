"""Bad input and odd models through ``python -m layoutdoctor``, in a process of its own, as a new user meets them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = json.loads((Path(__file__).parents[1] / "diagnosis.schema.json").read_text())
EAGER = ("--configurations", "eager,eager-channels-last", "--budget", "0.1")
HEAD = "import os, sys\nimport torch\nfrom torch import nn\n"
MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3)
    def forward(self, x):
        {forward}
def get_inputs():
    return [torch.randn(2, 4, 8, 8)]
"""


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., str]:
    def write(forward: str = "return self.conv(x)", before: str = "") -> str:
        path = tmp_path / "model.py"
        path.write_text(HEAD + before + MODEL.format(forward=forward))
        return str(path)

    return write


def layoutdoctor(*words: str, shell_tail: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "layoutdoctor", *words]
    if shell_tail:
        command = ["sh", "-c", f'exec "$@" {shell_tail}', "sh", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=cwd)


def only_line(result: subprocess.CompletedProcess[str]) -> str:
    """What is said on standard error, progress left out: one line, and nothing on standard output."""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("layoutdoctor: [")]
    assert result.stdout == ""
    assert len(lines) == 1, result.stderr
    return lines[0].removeprefix("layoutdoctor: error: ")


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        ("sys.exit(5)", "it called sys.exit(5) (model.py:11); take it out of the model's forward"),
        ("raise GeneratorLike('no')", "GeneratorLike: no (model.py:11); give inputs that the model accepts"),
    ],
    ids=["sys.exit", "BaseException"],
)
def test_whatever_a_forward_raises_is_one_line_and_status_3(model: Callable[..., str], forward: str, said: str) -> None:
    before = "class GeneratorLike(BaseException): pass\n" if "GeneratorLike" in forward else "\n"

    result = layoutdoctor(model(forward, before), *EAGER)

    assert result.returncode == 3
    assert only_line(result).startswith(f"cannot run model.py on float32[2, 4, 8, 8]: {said}")


def test_what_the_model_and_its_children_print_stays_off_standard_output(model: Callable[..., str]) -> None:
    talkative = "print('PRINTED'); os.write(1, b'WRITTEN\\n'); return self.conv(x)"

    result = layoutdoctor(model(talkative, "os.system('echo SHOUTED')\n"), *EAGER, "--format", "json", "-q")

    jsonschema.validate(json.loads(result.stdout), SCHEMA)
    assert result.returncode == 0
    assert {"PRINTED", "WRITTEN", "SHOUTED"} <= set(result.stderr.split())


def test_a_closed_standard_output_costs_nothing_but_the_printed_report(
    model: Callable[..., str], tmp_path: Path
) -> None:
    saved = tmp_path / "saved.json"

    result = layoutdoctor(model(), *EAGER, "-q", "--output", str(saved), shell_tail=">&-")

    assert (result.returncode, result.stderr) == (0, "")
    jsonschema.validate(json.loads(saved.read_text()), SCHEMA)


def test_a_closed_standard_error_puts_nothing_else_into_the_report(model: Callable[..., str]) -> None:
    result = layoutdoctor(model(), *EAGER, "--format", "json", shell_tail="2>&-")

    assert result.returncode == 0
    jsonschema.validate(json.loads(result.stdout), SCHEMA)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_standard_output_is_said_in_one_line(model: Callable[..., str]) -> None:
    result = layoutdoctor(model(), *EAGER, "-q", shell_tail=">/dev/full")

    assert result.returncode == 3
    assert only_line(result) == (
        "cannot write the report to standard output: No space left on device; name a file with --output"
    )


def test_a_configuration_that_fails_alone_keeps_what_the_others_gave(model: Callable[..., str], tmp_path: Path) -> None:
    picky = "return self.conv(x).view(2, -1) if x.is_contiguous() else x.view(2, -1)"
    saved = tmp_path / "saved.json"

    result = layoutdoctor(model(picky), *EAGER, "--output", str(saved))

    record = json.loads(saved.read_text())
    assert result.returncode == 4  # one configuration alone compares with nothing
    assert [trial["status"] for trial in record["trials"]] == ["ok", "failed"]
    assert result.stdout.count("nothing to compare it with") == 1
    assert "eager-channels-last failed (run): RuntimeError: view size is not compatible" in result.stdout


def test_configurations_that_are_all_the_same_are_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(HEAD + "model = nn.Linear(4, 4)\ndef get_inputs(): return [torch.randn(2, 4)]\n")

    result = layoutdoctor(str(path), *EAGER)

    assert result.returncode == 0
    assert "Nothing to choose: every configuration is the same as eager (" in result.stdout


def take_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupt_while_timing_leaves_a_valid_record(model: Callable[..., str], tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    words = [sys.executable, "-m", "layoutdoctor", model(), *EAGER[:2], "--budget", "60", "--output", str(saved)]
    pipe = subprocess.PIPE
    # Tests that run in the background of a shell ignore the signal, and a child would inherit that.
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, preexec_fn=take_interrupts) as process:
        assert process.stderr is not None
        assert any("timing all" in line for line in iter(process.stderr.readline, ""))
        os.kill(process.pid, signal.SIGINT)
        report, said = process.communicate(timeout=60)

    record = json.loads(saved.read_text())
    jsonschema.validate(record, SCHEMA)
    assert process.returncode == 130
    assert record["interrupted"] == "interrupted from the keyboard"
    assert [trial["status"] for trial in record["trials"]] == ["ok", "ok"]
    assert "Not finished: interrupted from the keyboard" in report
    assert "Traceback" not in said


@pytest.mark.smoke
@pytest.mark.compile
def test_an_operator_the_compiler_cannot_trace_says_why(model: Callable[..., str], tmp_path: Path) -> None:
    define = (
        "@torch.library.custom_op('hostile::op', mutates_args=())\n"
        "def op(x: torch.Tensor) -> torch.Tensor: return x.clone()\n"
    )
    path = model("return torch.ops.hostile.op(self.conv(x))", define)
    saved = tmp_path / "saved.json"

    result = layoutdoctor(path, "--configurations", "eager,inductor", "--budget", "0.1", "-q", "--output", str(saved))

    failure = json.loads(saved.read_text())["trials"][1]["failure"]
    assert result.returncode == 4
    assert failure["kind"] == "compile"
    assert "There was no fake impl registered" in failure["message"]
