"""docs/ci.md and the workflow beside it: the workflow is a workflow, and its steps run on the example and the test."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from layoutdoctor.diagnosis.accepted import load_accepted

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "docs" / "github-actions.yml"
GUIDE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")


def the_block(language: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    return str(block)


def steps() -> list[dict[str, Any]]:
    (job,) = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"].values()
    return list(job["steps"])


def test_the_workflow_is_one_that_github_takes() -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]

    ended = subprocess.run([*checker, str(WORKFLOW)], capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_findings_are_uploaded_with_the_rights_for_it() -> None:
    (job,) = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"].values()

    assert job["permissions"]["security-events"] == "write"
    (upload,) = [step for step in steps() if "upload-sarif" in step.get("uses", "")]
    assert upload["if"].startswith("always()")
    assert all(f"--output {upload['with']['sarif_file']}" not in step.get("run", "") for step in steps()[:4])


def test_the_accepted_file_of_the_guide_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "accepted.json").write_text(the_block("json"), encoding="utf-8")

    accepted = load_accepted(tmp_path / "accepted.json")

    assert [entry.code for entry in accepted.accepted] == ["LD103"]
    assert accepted.accepted[0].until is not None


@pytest.mark.compile
def test_the_steps_of_the_workflow_run(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "tests" / "layouts").mkdir(parents=True)
    (tmp_path / "tests" / "layouts" / "test_layouts.py").write_text(the_block("python"), encoding="utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    ran = []
    for step in steps():
        if "run" not in step or "pip install" in step["run"]:
            continue  # the present environment stands for checkout, setup and installation
        ended = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"{step['name']}: {ended.stdout}\n{ended.stderr}"
        ran.append(step["name"])

    assert ran == ["Diagnose", "Check", "Test", "Summary"]
    results = json.loads((tmp_path / "layouts" / "report.sarif").read_text())["runs"][0]["results"]
    uris = {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results}
    assert uris == {"examples/conv_bn_relu.py"}
    assert ET.parse(tmp_path / "layouts" / "report.xml").getroot().tag == "testsuites"
    assert (tmp_path / "summary.md").read_text().startswith("## layoutdoctor")
