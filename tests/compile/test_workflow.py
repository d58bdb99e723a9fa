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

import pytest
import yaml

from layoutdoctor.diagnosis.accepted import load_accepted

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "docs" / "github-actions.yml"
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
GUIDE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")


def the_block(language: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    return str(block)


def steps() -> list[dict[str, Any]]:
    (job,) = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"].values()
    return list(job["steps"])


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("workflows", WORKFLOW),
        ("workflows", ROOT / ".github" / "workflows" / "release.yml"),
        ("actions", ROOT / "action.yml"),
    ],
    ids=["workflow", "release", "action"],
)
def test_it_is_one_that_github_takes(kind: str, path: Path) -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.github-{kind}"]

    ended = subprocess.run([*checker, str(path)], capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_findings_are_uploaded_with_the_rights_for_it() -> None:
    (job,) = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"].values()

    assert job["permissions"]["security-events"] == "write"
    (upload,) = [step for step in steps() if "upload-sarif" in step.get("uses", "")]
    assert upload["if"].startswith("always()")
    assert upload["with"]["sarif_file"] == f"{ACTION['inputs']['directory']['default']}/report.sarif"


def test_the_accepted_file_of_the_guide_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "accepted.json").write_text(the_block("json"), encoding="utf-8")

    accepted = load_accepted(tmp_path / "accepted.json")

    assert [entry.code for entry in accepted.accepted] == ["LD103"]
    assert accepted.accepted[0].until is not None


def run_action(folder: Path, **inputs: str) -> dict[str, int]:
    """The exit status of each step, run as GitHub runs it, save for the installation."""
    values = {name: one.get("default", "") for name, one in ACTION["inputs"].items()} | inputs
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    outside = {**os.environ, "PATH": path, "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    statuses: dict[str, int] = {}
    for step in ACTION["runs"]["steps"][1:]:
        given = {name: values[value.split("inputs.")[1].split()[0]] for name, value in step["env"].items()}
        if (any(statuses.values()) and not step.get("if", "").startswith("always()")) or (
            "compare-with" in step.get("if", "") and not values["compare-with"]
        ):
            continue
        ended = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder,
            env={**outside, **given},
            capture_output=True,
            text=True,
            check=False,
        )
        statuses[step["name"]] = ended.returncode
    return statuses


@pytest.mark.compile
def test_the_steps_of_the_action_run(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")

    statuses = run_action(tmp_path, target="examples/conv_bn_relu.py")
    report = tmp_path / "layouts" / "report.json"
    shutil.copy(report, tmp_path / "old.json")
    again = run_action(tmp_path, target="layouts/none.py", **{"compare-with": "old.json"})

    assert statuses == {"Diagnose": 0, "Check": 0, "Summary": 0}
    results = json.loads((tmp_path / "layouts" / "report.sarif").read_text())["runs"][0]["results"]
    uris = {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results}
    assert uris == {"examples/conv_bn_relu.py"}
    assert again == {"Diagnose": 2, "Compare": 0, "Summary": 0}
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("## conv_bn_relu.py")
    assert "compared" in summary.lower()


def test_the_arguments_of_the_action_are_words_as_a_shell_splits_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then exec {sys.executable} "$@"; fi\nprintf "%s\\n" "$@" > words\n'
    )
    program.chmod(0o755)
    (step,) = [one for one in ACTION["runs"]["steps"] if one["name"] == "Diagnose"]
    given = {"TARGET": "m.py", "CONFIGURATIONS": "inductor", "DIRECTORY": "out"}

    def words(arguments: str) -> list[str]:
        environment = {**given, "ARGUMENTS": arguments, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
        return (tmp_path / "words").read_text().splitlines()[5:-3]

    assert words("--input 'f32[1, 3, 8, 8]' --budget 2 *.txt $(touch b.txt)") == [
        *("--input", "f32[1, 3, 8, 8]", "--budget", "2", "*.txt", "$(touch", "b.txt)"),
    ]
    assert words("") == []
    assert not (tmp_path / "b.txt").exists()
