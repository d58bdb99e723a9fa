"""Which cures are worth a compile."""

from __future__ import annotations

import pytest

from layoutdoctor.examination.cure_gains import COPIES_ONLY, can_pay
from layoutdoctor.subjects.cures import ALL_CURES

BANDWIDTH = 10e9


@pytest.mark.parametrize(
    ("cure", "bytes_moved", "bandwidth", "pays"),
    [
        ("without-contiguous", 250_001, BANDWIDTH, True),  # 2 % of the call
        ("without-contiguous", 249_999, BANDWIDTH, False),
        ("channels-last-cat", 10**9, BANDWIDTH, True),
        ("matrix-product", 200_000, BANDWIDTH, True),
        ("without-contiguous", 200_000, None, True),
        ("without-contiguous", 0, BANDWIDTH, True),
    ],
    ids=["just enough", "just too little", "all", "other code", "no bandwidth", "no sizes"],
)
def test_a_cure_that_saves_copies_only_is_bounded_by_their_bytes(
    cure: str, bytes_moved: int, bandwidth: float | None, pays: bool
) -> None:
    assert can_pay(cure, bytes_moved, 10e-3, bandwidth) is pays


def test_cures_that_save_copies_only_are_cures_that_there_are() -> None:
    assert {cure.name for cure in ALL_CURES} >= COPIES_ONLY
