from __future__ import annotations

from typing import Any

import pytest
from builders import channels_last, contiguous

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.examination.graphs.buffers import (
    densified,
    is_only_channels_last,
    is_only_contiguous,
)

IMAGE = (2, 8, 6, 6)
PLAIN, LAST = contiguous(IMAGE), channels_last(IMAGE)


def test_a_part_of_a_larger_memory_counts_by_its_order() -> None:
    part = strided_layout(IMAGE, (576, 1, 96, 16))

    assert densified(part) == LAST
    assert is_only_channels_last(part)
    assert not is_only_contiguous(part)
    assert is_only_contiguous(strided_layout(IMAGE, (576, 36, 6, 1)))


@pytest.mark.parametrize("layout", [None, contiguous((2, 8, 6)), contiguous((2, 8, 1, 1)), contiguous((2, 1, 6, 6))])
def test_what_has_no_memory_format_or_two_is_neither_only(layout: Any) -> None:
    assert not is_only_channels_last(layout)
    assert not is_only_contiguous(layout)
