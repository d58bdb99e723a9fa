from __future__ import annotations

import random
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

from layoutdoctor.state.randomness import keep_random_state, seeded


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
    waiting = list(device._lazy_seed_tracker.get_calls())
    with seeded(3):
        assert device._lazy_seed_tracker.get_calls() != waiting

    assert device._lazy_seed_tracker.get_calls() == waiting


def test_no_seed_waits_where_none_did() -> None:
    before = [list(getattr(torch, name)._lazy_seed_tracker.get_calls()) for name in ("cuda", "xpu", "mtia")]
    with seeded(3):
        pass

    assert [list(getattr(torch, name)._lazy_seed_tracker.get_calls()) for name in ("cuda", "xpu", "mtia")] == before


def test_a_device_first_used_meanwhile_gets_the_callers_seed(device: Device) -> None:
    device.manual_seed_all(7)
    with seeded(3):
        device.is_used = True

    assert device.seeds == [7]


def test_a_device_first_used_meanwhile_that_nobody_seeded_gets_a_seed_that_nobody_can_foresee(device: Device) -> None:
    with seeded(3):
        device.is_used = True

    assert device.seeds == ["unforeseen"]


def test_a_device_in_use_gets_its_states_back(device: Device) -> None:
    device.is_used = True
    device.seeds = ["a state"]
    with seeded(3):
        assert device.seeds == ["a state", 3]

    assert device.seeds[-1] == ("put back", ["a state"])


def test_numpy_imported_meanwhile_is_not_left_with_our_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[object] = []
    numpy: Any = types.ModuleType("numpy")
    numpy.random = types.SimpleNamespace(seed=lambda *seed: seeds.append(seed))
    monkeypatch.delitem(sys.modules, "numpy")
    with seeded(3):
        sys.modules["numpy"] = numpy
    del sys.modules["numpy"]

    assert seeds == [()]


def test_numpy_that_is_just_being_imported_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", types.ModuleType("numpy"))
    keep_random_state()()


def test_a_default_device_does_not_get_in_the_way() -> None:
    before = torch.default_generator.get_state()
    with torch.device("meta"), seeded(3):
        pass

    assert torch.equal(torch.default_generator.get_state(), before)


def test_one_generator_that_cannot_be_put_back_does_not_keep_the_others_from_it(device: Device) -> None:
    device.is_used = True
    device.set_rng_state_all = lambda states: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.default_generator.get_state().tolist()
    with pytest.raises(ZeroDivisionError), seeded(3):
        pass

    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[:2]
    assert torch.default_generator.get_state().tolist() == before[2]


def test_draws_are_the_same_under_one_seed() -> None:
    def draw() -> tuple[float, float, float]:
        with seeded(5):
            return float(torch.rand(1)), random.random(), float(np.random.rand())

    assert draw() == draw()
