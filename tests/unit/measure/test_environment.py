from __future__ import annotations

import os
import platform
import subprocess
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.measure.environment import describe_environment

if TYPE_CHECKING:
    import pytest

    from layoutdoctor.records import Environment


def described(**changes: Any) -> Environment:
    fields: dict[str, Any] = {"triton": "3.7.1", "onednn": ("3.12.0", "AVX-512"), "command": None}
    return describe_environment("cpu", **{**fields, **changes})


def test_versions_and_the_machine_are_recorded() -> None:
    found = described(command="layoutdoctor model.py")

    assert found.torch == torch.__version__
    assert found.python == platform.python_version()
    assert (found.triton, found.onednn, found.onednn_isa) == ("3.7.1", "3.12.0", "AVX-512")
    assert (found.thread_count, found.cpu_count) == (torch.get_num_threads(), os.cpu_count())
    assert found.command == "layoutdoctor model.py"
    assert platform.node() not in str(found.platform).split()


def test_settings_that_bear_on_layouts_are_recorded_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    monkeypatch.setenv("MY_SECRET", "x")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with torch.backends.mkldnn.flags(enabled=False):
        settings = described().settings

    assert settings["TORCHINDUCTOR_FREEZING"] == "1"
    assert settings["torch.backends.mkldnn.enabled"] == "False"
    assert "MY_SECRET" not in settings
    assert "OMP_NUM_THREADS" not in settings


def test_the_compiler_is_the_one_inductor_is_told_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    monkeypatch.setenv("PATH", "")

    assert described().compiler is None


def test_a_compiler_that_does_not_answer_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def hanging(*args: Any, **keywords: Any) -> None:
        raise subprocess.TimeoutExpired("g++", 10)

    monkeypatch.setattr(subprocess, "run", hanging)

    assert described().compiler is None
