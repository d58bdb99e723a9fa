"""The long sweep: every casebook model and example, through the command, to a report and a valid JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

pytestmark = [pytest.mark.compile, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent
SCHEMA = json.loads((ROOT / "tests" / "diagnosis.schema.json").read_text(encoding="utf-8"))
TARGETS = sorted([*(ROOT / "tests" / "casebook").glob("[0-9]*.py"), *(ROOT / "examples").glob("*.py")])


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("target", TARGETS, ids=lambda path: path.stem)
def test_every_model_runs_to_a_report(target: Path, mode: str, tmp_path: Path) -> None:
    saved = tmp_path / "d.json"
    command = [sys.executable, "-m", "layoutdoctor", str(target), "--mode", mode, "--budget", "1", "-q"]

    result = subprocess.run(
        [*command, "--output", str(saved)],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("layoutdoctor ")
    assert "Traceback" not in result.stdout + result.stderr
    diagnosis = json.loads(saved.read_text(encoding="utf-8"))
    jsonschema.validate(diagnosis, SCHEMA)
    for trial in diagnosis["trials"]:
        assert trial["status"] in ("ok", "same_as"), trial["failure"]
        assert all(graph["hook_failure"] is None for graph in trial["graphs"])
        if trial["kernels"] is not None:
            assert trial["kernels"]["count"] > 0
