"""A talkative model through ``python -m layoutdoctor``, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema

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


def test_what_the_model_and_its_children_print_stays_off_standard_output(tmp_path: Path) -> None:
    talkative = "print('PRINTED'); os.write(1, b'WRITTEN\\n'); return self.conv(x)"

    path = tmp_path / "model.py"
    path.write_text(HEAD + "os.system('echo SHOUTED')\n" + MODEL.format(forward=talkative))
    command = [sys.executable, "-m", "layoutdoctor", str(path), *EAGER, "--format", "json", "-q"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    jsonschema.validate(json.loads(result.stdout), SCHEMA)
    assert result.returncode == 0
    assert {"PRINTED", "WRITTEN", "SHOUTED"} <= set(result.stderr.split())
