"""Numbers in the cells of tables."""

from __future__ import annotations

import pytest

from layoutdoctor.recording.recording import NONE
from layoutdoctor.recording.table_numbers import PLAIN


@pytest.mark.parametrize(
    ("cell", "number"), [("12", 12), ("0", 0), ("-5", NONE), ("-1", NONE), ("1.5", NONE), ("3us", NONE), ("", NONE)]
)
def test_a_count_is_a_whole_number_from_0_on(cell: str, number: int) -> None:
    assert PLAIN.whole(cell) == number
