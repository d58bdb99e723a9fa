"""A saved diagnosis, which several subcommands read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from builders import a_diagnosis, a_trial

from layoutdoctor.diagnosis.records import Finding
from layoutdoctor.diagnosis.saved import to_json

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Of two configurations, with one finding."""
    found = Finding(
        code="LD205",
        rule="input-format-mismatch",
        severity="warning",
        configuration="inductor",
        message="the input is contiguous",
    )
    path = tmp_path / "saved.json"
    path.write_bytes(to_json(a_diagnosis(a_trial("eager"), a_trial("inductor"), findings=(found,))))
    return path
