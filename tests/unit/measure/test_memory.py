from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from hypothesis import given
from hypothesis import strategies as st

from layoutdoctor.measure.memory import highest_sum, peak_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

MEGABYTE = 1_000_000


def test_the_highest_sum_is_reached_on_the_way() -> None:
    assert highest_sum([4, 8, -4, 2, -10]) == 12
    assert highest_sum([-3, 2]) == 0
    assert highest_sum([]) == 0


@given(st.lists(st.integers(min_value=-1000, max_value=1000)))
def test_the_highest_sum_is_that_of_some_beginning(changes: Sequence[int]) -> None:
    assert highest_sum(changes) == max(sum(changes[:end]) for end in range(len(changes) + 1))


def test_what_an_iteration_holds_at_once_is_its_peak() -> None:
    def step() -> None:
        first = torch.empty(MEGABYTE, dtype=torch.uint8)
        second = torch.empty(2 * MEGABYTE, dtype=torch.uint8)
        del first, second
        third = torch.empty(MEGABYTE, dtype=torch.uint8)
        del third

    assert peak_memory(step, "cpu") == 3 * MEGABYTE


def test_what_was_there_before_does_not_count() -> None:
    kept = torch.ones(MEGABYTE)

    def step() -> None:
        torch.neg(kept)

    assert peak_memory(step, "cpu") == 4 * MEGABYTE


def test_a_profile_without_any_memory_event_says_nothing() -> None:
    assert peak_memory(lambda: None, "cpu") is None


def test_an_unknown_device_says_nothing() -> None:
    assert peak_memory(lambda: None, "mps") is None


def test_on_a_gpu_the_start_is_taken_off_the_peak_and_both_ends_are_synchronised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    def logged(name: str, value: int | None = None) -> None:
        def call(device: str) -> int | None:
            log.append(f"{name} {device}")
            return value

        monkeypatch.setattr(torch.cuda, name, call)

    logged("synchronize")
    logged("memory_allocated", 100)
    logged("reset_peak_memory_stats")
    logged("max_memory_allocated", 164)

    assert peak_memory(lambda: log.append("step"), "cuda:1") == 64
    assert log == [
        "synchronize cuda:1",
        "memory_allocated cuda:1",
        "reset_peak_memory_stats cuda:1",
        "step",
        "synchronize cuda:1",
        "max_memory_allocated cuda:1",
    ]


def test_a_profile_leaves_standard_error_clean(capfd: pytest.CaptureFixture[str]) -> None:
    kept = [torch.empty(1000)]

    def step() -> None:
        os.write(2, b"a line of the model's own\n")
        kept[0] = torch.empty(1000)  # frees what was allocated before the profile, of which torch warns

    peak_memory(step, "cpu")

    assert capfd.readouterr().err == "a line of the model's own\n"
