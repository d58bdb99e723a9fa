"""Which cures are worth a compile."""

from __future__ import annotations

import pytest

from layoutdoctor.examination.cure_gains import COPIES_ONLY, can_pay, most_gain
from layoutdoctor.subjects.cures import ALL_CURES

BANDWIDTH = 10e9


@pytest.mark.parametrize(
    ("cure", "bytes_moved", "bandwidth", "gain", "pays"),
    [
        ("without-contiguous", 2_500_000, BANDWIDTH, 0.2, True),
        ("without-contiguous", 200_000, BANDWIDTH, 0.016, False),
        ("channels-last-cat", 10**9, BANDWIDTH, 1.0, True),
        ("matrix-product", 200_000, BANDWIDTH, None, True),
        ("without-contiguous", 200_000, None, None, True),
        ("without-contiguous", 0, BANDWIDTH, None, True),
    ],
    ids=["much", "little", "all", "other code", "no bandwidth", "no sizes"],
)
def test_a_cure_that_saves_copies_only_is_bounded_by_their_bytes(
    cure: str, bytes_moved: int, bandwidth: float | None, gain: float | None, pays: bool
) -> None:
    assert most_gain(cure, bytes_moved, 10e-3, bandwidth) == (None if gain is None else pytest.approx(gain))
    assert can_pay(cure, bytes_moved, 10e-3, bandwidth) is pays


def test_cures_that_save_copies_only_are_cures_that_there_are() -> None:
    assert {cure.name for cure in ALL_CURES} >= COPIES_ONLY
