from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from layoutdoctor.state.process import preserved_random_state, preserved_state, seeded


def test_a_seeded_block_is_reproducible_and_leaves_no_trace() -> None:
    def states() -> list[object]:
        return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]

    before = states()

    draws = []
    for _ in range(2):
        with seeded(3):
            draws.append((torch.rand(2).tolist(), random.random(), float(np.random.rand())))

    assert draws[0] == draws[1]
    assert states() == before


STREAMS = """
import os, sys
from layoutdoctor.state.process import preserved_state

print("before", flush=True)
with preserved_state():
    {damage}
print("after")
print("error after", file=sys.stderr)
sys.exit(0 if sys.stdout is sys.__stdout__ else 3)
"""


def test_what_is_printed_afterwards_arrives_and_what_was_closed_stays_closed() -> None:
    damage = "os.close(2); os.dup2(os.open(os.devnull, os.O_WRONLY), 1); sys.stdout = sys.__stdout__ = None"
    closed = STREAMS.replace("import os, sys", "import os, sys; os.close(0); sys.stdin = None")
    for code in (STREAMS.format(damage=damage), closed.format(damage="pass")):
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

        assert (ended.returncode, ended.stdout) == (0, "before\nafter\n"), ended.stderr
        assert "error after" in ended.stderr


def test_a_folder_that_is_gone_is_not_gone_back_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with preserved_state():
        os.chdir(tmp_path)

    assert Path.cwd() == tmp_path


def test_what_cannot_be_kept_or_put_back_is_said_and_the_rest_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = tmp_path / "start"
    start.mkdir()
    monkeypatch.chdir(start)
    monkeypatch.delattr(torch, "is_autocast_cache_enabled")  # as in another torch
    level, before = logging.getLogger("torch._inductor").level, random.getstate()

    def disturb() -> None:
        with preserved_state():
            os.chdir(tmp_path)
            start.rmdir()
            logging.getLogger("torch._inductor").setLevel(logging.CRITICAL)
            torch.set_default_dtype(torch.float64)
            random.seed(1)

    said = r"not put back after the diagnosis: torch's modes \(AttributeError.*; environment or folder \(File"
    with pytest.warns(RuntimeWarning, match=said):
        disturb()

    assert logging.getLogger("torch._inductor").level == level
    assert torch.get_default_dtype() == torch.float32
    assert random.getstate() == before


class Device:
    """A device of a kind that torch knows, used for the first time whenever a test says so."""

    def __init__(self) -> None:
        self.is_used = False
        self.seeds: list[object] = []
        self._lazy_seed_tracker = torch._utils._LazySeedTracker()

    def is_initialized(self) -> bool:
        return self.is_used

    def manual_seed_all(self, seed: int) -> None:
        if self.is_used:
            self.seeds.append(seed)
        else:
            self._lazy_seed_tracker.queue_seed_all(lambda: self.seeds.append(seed), None)

    def seed_all(self) -> None:
        self.seeds.append("unforeseen")

    def get_rng_state_all(self) -> list[object]:
        return list(self.seeds)

    def set_rng_state_all(self, states: list[object]) -> None:
        self.seeds.append(("put back", states))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(torch, "xpu", device)
    device._is_in_bad_fork = lambda: False  # type: ignore[attr-defined]
    return device


def test_a_seed_of_ours_does_not_wait_for_a_device_that_the_caller_uses_later(device: Device) -> None:
    device.manual_seed_all(7)
    trackers = [getattr(torch, name)._lazy_seed_tracker for name in ("cuda", "xpu", "mtia")]
    waiting = [list(tracker.get_calls()) for tracker in trackers]
    with seeded(3):
        assert [list(tracker.get_calls()) for tracker in trackers] != waiting

    assert [list(tracker.get_calls()) for tracker in trackers] == waiting
    with seeded(3):
        device.is_used = True
    assert device.seeds == [7]  # what waited for it, though it was first used meanwhile


def test_a_device_first_used_meanwhile_gets_an_unforeseen_seed_and_one_in_use_its_states_back(device: Device) -> None:
    with seeded(3):
        device.is_used = True
    assert device.seeds == ["unforeseen"]

    with seeded(3):
        assert device.seeds == ["unforeseen", 3]
    assert device.seeds[-1] == ("put back", ["unforeseen"])


def test_numpy_imported_meanwhile_is_not_left_with_our_seed_nor_a_half_of_it_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds: list[object] = []
    numpy: Any = types.ModuleType("numpy")
    monkeypatch.setitem(sys.modules, "numpy", numpy)
    with preserved_random_state():  # it is just being imported
        pass
    numpy.random = types.SimpleNamespace(seed=lambda *seed: seeds.append(seed))
    monkeypatch.delitem(sys.modules, "numpy")
    with seeded(3):
        sys.modules["numpy"] = numpy

    assert seeds == [()]


def test_neither_a_default_device_nor_one_that_fails_keeps_a_generator_from_being_put_back(device: Device) -> None:
    device.is_used = True
    device.set_rng_state_all = lambda states: 1 / 0  # type: ignore[assignment,method-assign,return-value]

    def states() -> list[object]:
        return [random.getstate(), np.random.get_state()[1].tolist(), torch.default_generator.get_state().tolist()]

    before = states()
    with pytest.raises(ZeroDivisionError), torch.device("meta"), seeded(3):
        pass

    assert states() == before
