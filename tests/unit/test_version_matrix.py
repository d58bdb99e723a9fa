"""The version matrix: its table, what it installs, and that what was checked is what the code says was checked."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from layoutdoctor.capture.compat import NEWEST, OLDEST

if TYPE_CHECKING:
    from types import ModuleType

REPOSITORY = Path(__file__).parents[2]
CHECKED = ("2.7.1", "2.11.0", "2.13.0", "2.15.0")
RESULTS = json.loads((REPOSITORY / "benchmarks" / "results" / "version_matrix.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    specification = importlib.util.spec_from_file_location("version_matrix", REPOSITORY / ".ci" / "version_matrix.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_versions_that_the_code_calls_checked_are_those_that_were_run() -> None:
    assert set(CHECKED) <= set(RESULTS["versions"])
    assert [tuple(int(part) for part in version.split(".")[:2]) for version in (CHECKED[0], CHECKED[-1])] == [
        OLDEST,
        NEWEST,
    ]


@pytest.mark.parametrize("version", CHECKED)
def test_a_version_that_was_run_says_of_every_capability_what_was_seen(version: str) -> None:
    result = RESULTS["versions"][version]

    assert result["torch"].split("+")[0] == version
    assert len(result["capabilities"]) > 10
    assert all(found["works"] in ("yes", "no") and found["why"] for found in result["capabilities"].values())


def test_the_table_has_a_column_for_each_version_in_order_and_says_why_not(matrix: Any) -> None:
    capability = {"works": "yes", "why": "seen"}
    lacking = {"works": "no", "why": "KeyError: 'gone'"}
    results = {
        "2.13.0": {"build": "CPU", "triton": "3.7.1", "capabilities": {"decision card": capability}},
        "2.7.1": {
            "build": "CUDA 12.6",
            "triton": None,
            "capabilities": {"decision card": lacking},
            "facts": {"nested_compile_region": "no"},
            "tests": {"summary": "2 failed, 7 passed in 1.2s"},
        },
        "2.16.0": {"error": "pip could not install torch 2.16.0"},
    }

    assert matrix.markdown_table(results).splitlines() == [
        "|  | 2.7.1 | 2.13.0 | 2.16.0 |",
        "| --- | --- | --- | --- |",
        "| build | CUDA 12.6 | CPU | pip could not install torch 2.16.0 |",
        "| triton | none | 3.7.1 | pip could not install torch 2.16.0 |",
        "| decision card | no [1] | yes | not run |",
        "| nested_compile_region | no | not run | not run |",
        "| capture tests | 2 failed, 7 passed | not run | not run |",
        "",
        "[1] decision card, 2.7.1: KeyError: 'gone'",
    ]
