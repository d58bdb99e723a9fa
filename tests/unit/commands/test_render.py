"""``render`` on saved diagnoses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from layoutdoctor.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_saved_diagnosis_is_printed_in_another_format_and_with_the_rules_of_today(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render", str(saved), "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("## model.py")

    assert main(["render", str(saved), "--format", "json"]) == 0
    assert [finding["code"] for finding in json.loads(capsys.readouterr().out)["findings"]] == ["LD205"]

    assert main(["render", str(saved), "--format", "json", "--recheck"]) == 0
    assert "LD205" not in [finding["code"] for finding in json.loads(capsys.readouterr().out)["findings"]]
