"""Where torch is not installed, what needs it says so and the rest works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TRACE = str(Path(__file__).parent / "traces" / "h100_vit_patch_embed.json.gz")
NO_TORCH = "import sys; sys.modules['torch'] = None; "


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", NO_TORCH + code], capture_output=True, text=True, check=False, timeout=60
    )


def test_diagnose_says_that_torch_is_missing() -> None:
    result = run("import layoutdoctor; layoutdoctor.diagnose")

    assert result.stderr.strip().splitlines()[-1] == (
        "layoutdoctor.errors.UnsupportedTorchError: cannot diagnose: torch is not installed; install it "
        "(https://pytorch.org) to diagnose models, saved diagnoses can be read without it "
        "(layoutdoctor render SAVED.json)"
    )


def test_the_command_says_so_in_one_line() -> None:
    result = run(f"from layoutdoctor.__main__ import main; sys.exit(main([{__file__!r}]))")

    assert result.returncode == 3
    assert result.stderr.startswith("layoutdoctor: error: cannot diagnose: torch is not installed; ")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_rules_are_explained_all_the_same() -> None:
    result = run("from layoutdoctor.__main__ import main; sys.exit(main(['explain', 'LD101']))")

    assert (result.returncode, result.stderr) == (0, "")
    assert "round-trip-conversion" in result.stdout


def test_a_recorded_trace_is_examined_all_the_same() -> None:
    result = run(f"from layoutdoctor.__main__ import main; sys.exit(main(['trace', {TRACE!r}]))")

    assert (result.returncode, result.stderr) == (0, "")
    assert "Layout conversions take 23.1 us of 1.22 ms" in result.stdout


def test_two_recorded_traces_are_compared_all_the_same() -> None:
    result = run(f"from layoutdoctor.__main__ import main; sys.exit(main(['compare', {TRACE!r}, {TRACE!r}]))")

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout != ""
