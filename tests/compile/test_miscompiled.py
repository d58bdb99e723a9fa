"""Gradients that torch.compile's default makes zero: seen, answered, and shown by a script with torch alone."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from packaging.version import Version
from torch import nn

import layoutdoctor
from layoutdoctor.reports import render
from layoutdoctor.reports.reproducer import build_reproducer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.compile,
    pytest.mark.slow,
    pytest.mark.skipif(Version(torch.__version__) >= Version("2.14.0.dev0"), reason="PR #185873 has mended it"),
]


class Upsampled(nn.Module):
    """What stands between two resolutions of a diffusion U-Net."""

    def __init__(self, c: int = 64) -> None:
        super().__init__()
        self.a, self.embed = nn.Conv2d(2 * c, c, 3, padding=1), nn.Linear(c, c)
        self.b, self.skip, self.up = (
            nn.Conv2d(c, c, 3, padding=1),
            nn.Conv2d(2 * c, c, 1),
            nn.Conv2d(c, c, 3, padding=1),
        )

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = self.a(nn.functional.silu(x)) + self.embed(nn.functional.silu(t))[:, :, None, None]
        h = (self.skip(x) + self.b(nn.functional.silu(h))) / 1.0
        up: torch.Tensor = self.up(nn.functional.interpolate(h, scale_factor=2.0, mode="nearest"))
        return up


def test_a_default_whose_gradients_are_zero_is_told_first_and_shown(tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(1, 128, 4, 4), torch.randn(1, 64))

    diagnosis = layoutdoctor.diagnose(
        Upsampled(), inputs, mode="training", configurations="eager,inductor,inductor-layout-opt-off"
    )

    first, *others = diagnosis.findings
    assert (first.code, first.severity, first.configuration) == ("LD402", "error", "inductor")
    assert any("#185509" in source for finding in others for source in finding.evidence)
    assert diagnosis.recommendation is not None
    assert diagnosis.recommendation.configuration in ("eager", "inductor-layout-opt-off")
    assert "torch.compile's default gives wrong outputs" in render(diagnosis, "text")

    script = tmp_path / "wrong.py"
    script.write_text(build_reproducer(diagnosis).script, encoding="utf-8")
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "verdict: reproduced" in ran.stdout
