from __future__ import annotations

import itertools
import os
import platform
from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from layoutdoctor.measure import environment
from layoutdoctor.measure.environment import REPETITIONS, describe_environment, measure_copy_bandwidth
from layoutdoctor.measure.gpu import CardState
from layoutdoctor.privacy.scrubbing import scrub

if TYPE_CHECKING:
    from collections.abc import Callable

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


SMALL = 4096


class Counting(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environment.COPY_BYTES, "cpu", SMALL)


@pytest.mark.usefixtures("_small")
def test_the_fastest_of_the_copies_counts_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    took = [3e-6, 2e-6, 5e-6, 4e-6, 6e-6]

    def timed(copy: Callable[[], object], calls: int) -> list[float]:
        copied = copy()
        assert isinstance(copied, torch.Tensor)
        assert (copied.numel() * copied.element_size(), bool((copied == 1).all())) == (SMALL, True)
        assert calls == REPETITIONS
        return took

    monkeypatch.setattr(environment, "choose_timer", lambda device: timed)
    assert measure_copy_bandwidth("cpu") == pytest.approx(2 * SMALL / 2e-6, rel=1e-3)

    monkeypatch.undo()
    with Counting() as counting:  # one copy more than is timed warms the memory
        measure_copy_bandwidth("cpu")
    assert counting.counts["aten.copy_.default"] == REPETITIONS + 1


@pytest.mark.usefixtures("_small")
def test_where_there_is_no_room_or_no_known_device_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "ones", mock.Mock(side_effect=RuntimeError("out of memory")))

    assert measure_copy_bandwidth("cpu") is None
    assert measure_copy_bandwidth("xla") is None


def test_a_gpu_has_raised_its_clock_before_copies_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    ones, now, waited = torch.ones, itertools.count(step=0.1), []
    monkeypatch.setitem(environment.COPY_BYTES, "cuda", SMALL)
    monkeypatch.setattr(torch, "ones", lambda *sizes, device, **options: ones(*sizes, **options))
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(environment.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(environment, "choose_timer", lambda device: lambda copy, calls: [1e-6])

    with Counting() as counting:
        assert measure_copy_bandwidth("cuda:1") == pytest.approx(2 * SMALL / 1e-6)

    assert waited == ["cuda:1"] * 4
    assert counting.counts["aten.copy_.default"] == 1 + len(waited)


def test_of_a_gpu_its_own_name_driver_and_clock_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    state = CardState("580.95.05", 1980e6, ("the power cap",))
    monkeypatch.setattr(environment, "card_state", lambda device: state if device == "cuda:1" else CardState())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"the card of {device}")
    found = scrub(describe_environment("cuda:1", triton=None, onednn=(None, None), command=None))

    assert (found.device_name, found.driver, found.clock_hertz) == ("the card of cuda:1", "580.95.05", 1980e6)
    assert found.clock_limits == ("the power cap",)
