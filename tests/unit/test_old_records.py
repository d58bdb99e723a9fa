"""Diagnoses that earlier versions saved: each is still read, whole, and every report can be made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loops import for_each

from layoutdoctor import compare
from layoutdoctor.__main__ import main
from layoutdoctor.diagnosis.saved import load, to_json
from layoutdoctor.reports import RENDERERS, render

if TYPE_CHECKING:
    import pytest

RECORDS = Path(__file__).parents[1] / "records"
SAVED = sorted(RECORDS.glob("*.json"))
GONE = {"arguments"}
"""Fields that went before the first release: those of an FX node, since torch writes the model's text itself."""


@for_each("path", SAVED)
def test_it_is_in_the_table_loses_no_value_and_is_rendered_and_compared(path: Path) -> None:
    """A field that went would be ignored in silence."""
    diagnosis = load(path)
    saved = with_kernel_lists(json.loads(to_json(diagnosis)))
    lost = list(differences(json.loads(path.read_text(encoding="utf-8")), saved, "$"))

    assert lost == []
    assert f"| `{path.name}` |" in (RECORDS / "README.md").read_text(encoding="utf-8")
    assert compare(diagnosis, diagnosis).is_same
    for report_format in RENDERERS:
        assert render(diagnosis, report_format).strip(), report_format


def with_kernel_lists(diagnosis: dict[str, Any]) -> dict[str, Any]:
    """With the list of another trial of the same code in each that leaves it there."""
    trials = {trial["configuration"]["name"]: trial for trial in diagnosis["trials"]}
    for trial in trials.values():
        if trial.get("same_as") and trial.get("kernels") and not trial["kernels"].get("kernels"):
            trial["kernels"]["kernels"] = trials[trial["same_as"]]["kernels"]["kernels"]
    return diagnosis


def differences(old: object, new: object, place: str) -> list[str]:
    """
    The places of values that are not in ``new`` as they are in ``old``.

    Further fields of ``new`` do not count, nor do empty ones and a conversion's count of one, which it leaves out.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        said = [key for key in old.keys() - GONE if key in new or (old[key] and (key, old[key]) != ("count", 1))]
        return [found for key in said for found in differences(old[key], new.get(key), f"{place}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            found
            for number, (one, other) in enumerate(zip(old, new, strict=True))
            for found in differences(one, other, f"{place}[{number}]")
        ]
    return [] if old == new else [place]


@for_each("path", SAVED)
def test_the_command_renders_it_with_todays_rules(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", str(path), "--recheck"]) == 0
    assert capsys.readouterr().out.startswith(f"{load(path).subject.name} · ")
