"""The version matrix: what was checked is what the code says was checked."""

from __future__ import annotations

import json
from pathlib import Path

from layoutdoctor.capture.compat import NEWEST, OLDEST

REPOSITORY = Path(__file__).parents[2]
CHECKED = ("2.7.1", "2.11.0", "2.13.0", "2.15.0")
RESULTS = json.loads((REPOSITORY / "benchmarks" / "results" / "version_matrix.json").read_text(encoding="utf-8"))


def test_the_versions_that_the_code_calls_checked_are_those_that_were_run() -> None:
    assert set(CHECKED) <= set(RESULTS["versions"])
    assert [tuple(int(part) for part in version.split(".")[:2]) for version in (CHECKED[0], CHECKED[-1])] == [
        OLDEST,
        NEWEST,
    ]
