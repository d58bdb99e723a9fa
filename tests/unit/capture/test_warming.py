"""The preparation of the process that compiling ones are forked from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from layoutdoctor.capture.warming import tune_one_at_a_time

if TYPE_CHECKING:
    from pathlib import Path


def test_one_process_at_a_time_times_the_variants_of_a_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On one GPU, the kernels of another process would decide which variant looks fastest."""
    heuristics = pytest.importorskip("torch._inductor.runtime.triton_heuristics")
    filelock = pytest.importorskip("filelock")

    def is_locked() -> bool:
        try:
            with filelock.FileLock(tmp_path / "tuning.lock", timeout=0):  # as another process would ask for it
                return False
        except filelock.Timeout:
            return True

    def times_of(tuner: object, launcher: str) -> tuple[object, str, bool]:
        return tuner, launcher, is_locked()

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(heuristics.CachingAutotuner, "benchmark_all_configs", times_of)
    tune_one_at_a_time()
    tuner = object.__new__(heuristics.CachingAutotuner)
    assert tuner.benchmark_all_configs("xblock=64") == (tuner, "xblock=64", True)
    assert not is_locked()
