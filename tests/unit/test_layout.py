"""Layouts that torch cannot make, or that matter by name; the rest is checked against torch in tests/property."""

from __future__ import annotations

from layoutdoctor.diagnosis.layout import blocked_layout, dense_stride, memory_formats_of, stride_order, strided_layout


def test_a_symbolic_size_claims_only_what_is_certain() -> None:
    assert memory_formats_of(("s0", 3, 4, 4), (48, 16, 4, 1)) == ("contiguous_format",)
    assert memory_formats_of((2, "s0", 4, 4), ("16*s0", 16, 4, 1)) == ()
    assert memory_formats_of(("s0", 3, 4, 4), ("s1", 16, 4, 1)) == ()


def test_a_blocked_layout_has_a_name_instead_of_strides() -> None:
    layout = blocked_layout((4, 64, 56, 56), "aBcd16b")

    assert layout.is_blocked
    assert (layout.stride, layout.memory_formats, layout.format) == (None, (), "aBcd16b")
    assert not strided_layout((2, 3), (3, 1)).is_blocked


def test_elements_and_strides_are_known_unless_a_size_is_symbolic() -> None:
    for shape, count in (((2, 3), 6), ((), 1), ((0, 5), 0), (("s0", 5), None)):
        assert strided_layout(shape, (1,) * len(shape)).element_count == count
    assert stride_order((2, 3, 4), ("s0", 4, 1)) is None
    assert stride_order((1, 3, 4), ("s0", 4, 1)) == (1, 2)
    assert dense_stride((2, 0, 3), range(3)) == (3, 3, 1)  # a dimension without elements counts as one
