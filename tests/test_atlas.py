"""The atlas: the page says what the committed rows say, a row says what a diagnosis says, and the script starts."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import layoutdoctor

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a file of benchmarks/ by its name."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def committed() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((DOCS / "atlas.json").read_text(encoding="utf-8"))
    return rows


def test_the_page_and_its_picture_are_made_from_the_committed_rows(module: Any) -> None:
    """If this fails, run ``python benchmarks/atlas.py --page``."""
    made, rows = module("atlas_page"), committed()
    text = (DOCS / "atlas.md").read_text(encoding="utf-8")

    assert made.page(text, rows) == text
    assert made.picture(rows) == (DOCS / "images" / "atlas.svg").read_text(encoding="utf-8")


def test_another_torch_is_compared_row_by_row(module: Any) -> None:
    made, rows = module("atlas_page"), committed()
    old = next(row for row in rows if row["network"] == "resnet18" and row["mode"] == "inference")
    off = [{**one, "applied": False, "rule": "grouped-convolution", "channels_last": 0} for one in old["decisions"]]
    new = {**old, "torch": "9.0", "decisions": off}

    (line,) = made.changes([old, {**old, "network": "only the old one"}], [new])

    old_words = f"{old['convolutions']} of {old['convolutions']}"
    where = f"{old['network']} inference, torch {old['torch']} to 9.0"
    assert line == f"{where}: layout optimization: {old_words} -> off: grouped-convolution"
    assert made.changes([old], [{**old, "torch": "9.0"}]) == []
    failed = {**new, "failure": "ValueError: no"}
    assert made.changes([old], [failed]) == [f"{where}: lowered -> ValueError: no"]


@pytest.mark.compile
@pytest.mark.slow
def test_a_row_is_what_a_diagnosis_says(module: Any) -> None:
    """Counted by hand: the default converts the image and both weights; channels_last converts nothing."""
    import torch

    atlas = module("atlas")
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3))
    image, nothing = 2 * 2 * 8 * 20 * 20 * 4, [0, 0]
    weights = 2 * 4 * 9 * (16 * 8 + 16 * 16)

    diagnosis = layoutdoctor.diagnose(
        model, torch.rand(2, 8, 20, 20), lower_for=atlas.GPU, configurations=atlas.CONFIGURATIONS
    )
    row = atlas.row_of(diagnosis)

    assert row["convolutions"] == 2
    (decision,) = row["decisions"]
    assert (decision["applied"], decision["rule"], decision["channels_last"]) == (True, "weighted-flops", 2)
    kinds = {"activation": nothing, "weight": nothing, "gradient": nothing}
    default = row["conversions"]["inductor"]
    assert default["weight"] == [2, weights]
    assert default["activation"][0] >= 1
    assert default["activation"][1] >= image
    assert row["conversions"]["inductor-channels-last"] == kinds
    assert row["conversions"]["inductor-layout-opt-off"] == kinds
    assert row["findings"] == sorted({finding.code for finding in diagnosis.findings})


@pytest.mark.slow
def test_the_script_starts() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "atlas.py"), "--help"]

    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
