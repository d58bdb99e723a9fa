"""Bad input and odd models through ``python -m layoutdoctor``, in a process of its own, as a new user meets them."""

from __future__ import annotations

import json
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


def test_what_the_model_and_its_children_print_stays_off_standard_output(model: Callable[..., str]) -> None:
    talkative = "print('PRINTED'); os.write(1, b'WRITTEN\\n'); return self.conv(x)"

    result = layoutdoctor(model(talkative, "os.system('echo SHOUTED')\n"), *EAGER, "--format", "json", "-q")

    jsonschema.validate(json.loads(result.stdout), SCHEMA)
    assert result.returncode == 0
    assert {"PRINTED", "WRITTEN", "SHOUTED"} <= set(result.stderr.split())


@pytest.mark.slow
def test_a_closed_standard_error_puts_nothing_else_into_the_report(model: Callable[..., str]) -> None:
    result = layoutdoctor(model(), *EAGER, "--format", "json", shell_tail="2>&-")

    assert result.returncode == 0
    jsonschema.validate(json.loads(result.stdout), SCHEMA)
