from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch

from layoutdoctor.measure import environment
from layoutdoctor.measure.environment import CardState, describe_environment, measure_copy_bandwidth
from layoutdoctor.privacy.scrubbing import scrub

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.subject import Environment


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


def test_of_a_gpu_its_own_name_driver_and_clock_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    state = CardState("580.95.05", 1980e6, ("the power cap",))
    monkeypatch.setattr(environment, "card_state", lambda device: state if device == "cuda:1" else CardState())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"the card of {device}")
    found = scrub(describe_environment("cuda:1", triton=None, onednn=(None, None), command=None))

    assert (found.device_name, found.driver, found.clock_hertz) == ("the card of cuda:1", "580.95.05", 1980e6)
    assert found.clock_limits == ("the power cap",)


def test_the_fastest_of_the_copies_counts_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environment.COPY_BYTES, "cpu", 4096)
    monkeypatch.setattr(environment, "choose_timer", lambda device: lambda copy, calls: [3e-6, 2e-6, 5e-6])

    assert measure_copy_bandwidth("cpu") == pytest.approx(2 * 4096 / 2e-6)
    assert measure_copy_bandwidth("xla") is None
    monkeypatch.setattr(torch, "ones", mock.Mock(side_effect=RuntimeError("out of memory")))
    assert measure_copy_bandwidth("cpu") is None
