"""A model with a telling name, in a folder with a telling name, that fails with a traceback: what is written of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from layoutdoctor.diagnosis.saved import load

ROOT = Path(__file__).parents[2]
MODEL = """
import torch
from torch import nn

class TumorNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.lesion_conv = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, zebrafish_scan):
        if torch.compiler.is_compiling():
            open("/home/wilhelmina/lab/weights.bin")
        return self.lesion_conv(zebrafish_scan).contiguous()
"""
SCRIPT = """
import pathlib, sys, torch, layoutdoctor
from layoutdoctor.privacy import redact
from tumor_net import TumorNet

inputs = (torch.randn(2, 16, 16, 16),)
diagnosis = layoutdoctor.diagnose(TumorNet(), inputs, configurations=("eager", "inductor"), budget_seconds=1)
out = pathlib.Path(sys.argv[1])
diagnosis.save(out / "d.json")
(out / "d.md").write_text(diagnosis.to_markdown())
(out / "d.txt").write_text(str(diagnosis))
redact(diagnosis).save(out / "redacted.json")
(out / "redacted.md").write_text(redact(diagnosis).to_markdown())
"""


def written(folder: Path) -> Path:
    home = folder / "homes" / "quinella"
    project, out = home / "hospital_project", home / "out"
    for folder in (project, out):
        folder.mkdir(parents=True)
    (project / "tumor_net.py").write_text(MODEL, encoding="utf-8")
    (project / "run.py").write_text(SCRIPT, encoding="utf-8")
    who = {"HOME": str(home), "USER": "quinella", "LOGNAME": "quinella", "PYTHONPATH": str(ROOT)}
    environment = os.environ | who | {"KMP_AFFINITY": "orchard-setting", "ORCHARD_TOKEN": "pear-apple-17"}
    subprocess.run([sys.executable, "run.py", str(out)], cwd=project, env=environment, check=True, timeout=600)
    return out


@pytest.mark.smoke
@pytest.mark.compile
def test_what_is_written_names_nobody_and_what_is_redacted_no_model(tmp_path: Path) -> None:
    out = written(tmp_path)
    for path in out.iterdir():
        text = path.read_text(encoding="utf-8")
        for secret in ("quinella", "wilhelmina", "hospital_project", "orchard", "pear-apple", str(ROOT), "/tmp/"):
            assert secret not in text, (path.name, secret)
    assert "tumor_net.py" in (out / "d.md").read_text(encoding="utf-8")
    failure = next(trial.failure for trial in load(out / "d.json").trials if trial.failure is not None)

    assert "No such file or directory: '<path>/weights.bin'" in failure.message
    assert 'File "tumor_net.py", line 12, in forward' in (failure.log or "")
    assert 'File "site-packages/torch/nn/modules/module.py"' in (failure.log or "")
    for name in ("redacted.json", "redacted.md"):
        text = (out / name).read_text(encoding="utf-8").lower()
        for secret in ("tumor", "lesion", "zebrafish", "weights.bin"):
            assert secret not in text, (name, secret)
    plain, redacted = load(out / "d.json"), load(out / "redacted.json")
    assert [finding.code for finding in redacted.findings] == [finding.code for finding in plain.findings]
    assert [trial.status for trial in redacted.trials] == ["ok", "failed"]
