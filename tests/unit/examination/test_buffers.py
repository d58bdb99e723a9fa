from __future__ import annotations

from typing import Any

import pytest
from builders import blocked, channels_last, contiguous

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.examination.graphs.buffers import same_format

IMAGE = (2, 8, 6, 6)
PLAIN, LAST = contiguous(IMAGE), channels_last(IMAGE)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (PLAIN, PLAIN, True),
        (PLAIN, LAST, False),
        (LAST, strided_layout(IMAGE, (576, 1, 96, 16)), True),
        (contiguous((2, 8, 1, 1)), channels_last((2, 8, 1, 1)), True),
        (PLAIN, contiguous((4, 16, 3, 3)), True),
        (blocked(IMAGE), blocked((4, 16, 3, 3)), True),
        (blocked(IMAGE), blocked(IMAGE, "aBcd8b"), False),
        (blocked(IMAGE), PLAIN, False),
        (strided_layout(IMAGE, (288, 6, 48, 1)), strided_layout(IMAGE, (288, 6, 48, 1)), True),
        (strided_layout(IMAGE, (288, 6, 48, 1)), PLAIN, False),
    ],
)
def test_layouts_of_one_format_are_the_same_whatever_their_size(one: Any, other: Any, same: bool) -> None:
    assert same_format(one, other) is same
    assert same_format(other, one) is same
