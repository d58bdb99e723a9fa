"""Where torch is not installed, what needs it says so; what does not never asks for it (test_architecture.py)."""

from __future__ import annotations

import subprocess
import sys

NO_TORCH = "import sys; sys.modules['torch'] = None; "


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", NO_TORCH + code], capture_output=True, text=True, check=False, timeout=60
    )


def test_diagnose_says_that_torch_is_missing() -> None:
    result = run("import layoutdoctor; layoutdoctor.diagnose(lambda x: x, 1)")

    assert result.stderr.strip().splitlines()[-1] == (
        "layoutdoctor.errors.UnsupportedTorchError: cannot diagnose: torch is not installed; install it "
        "(https://pytorch.org) to diagnose models; saved diagnoses can be read without torch "
        "(layoutdoctor show SAVED.json)"
    )


def test_the_command_says_so_in_one_line() -> None:
    result = run(f"from layoutdoctor.__main__ import main; sys.exit(main([{__file__!r}]))")

    assert result.returncode == 3
    assert result.stderr.startswith("layoutdoctor: error: cannot diagnose: torch is not installed; ")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
