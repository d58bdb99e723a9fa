from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import torch
from builders import a_location, blocked, channels_last, contiguous

from layoutdoctor import words
from layoutdoctor.diagnosis import records
from layoutdoctor.diagnosis.layout import Layout, strided_layout
from layoutdoctor.reports.sections.wording import place_of

if TYPE_CHECKING:
    from collections.abc import Mapping


def test_a_list_names_the_first_parts_and_counts_the_rest() -> None:
    assert words.listing(["a"]) == "a"
    assert words.listing(["a", "b"]) == "a and b"
    assert words.listing(["a", "b", "c", "d"]) == "a, b, c and d"
    assert words.listing(["a", "b", "c", "d", "e"]) == "a, b, c, d and 1 more"

    assert words.listing([]) == ""
    assert words.listing("abcdef", None) == "a, b, c, d, e and f"
    assert words.listing("abcd", 3) == "a, b, c and 1 more"


def test_a_count_has_its_noun_in_the_right_number() -> None:
    assert [words.count_of(n, "round trip") for n in (0, 1, 2)] == ["0 round trips", "1 round trip", "2 round trips"]

    assert words.plural("conversion") == "conversions"
    assert words.count_of(2, words.TENSOR_WORDS["unknown"]) == "2 tensors of unknown kind"
    assert words.count_of(2, "is", "are") == "2 are"


def test_a_layout_is_called_by_every_format_it_satisfies_else_by_its_strides() -> None:
    assert words.layout_words(contiguous()) == "contiguous"
    assert words.layout_words(channels_last()) == "channels_last"
    assert words.layout_words(contiguous((4, 1, 56, 56))) == "contiguous and channels_last"
    assert words.layout_words(blocked()) == "blocked aBcd16b"
    assert words.layout_words(strided_layout((4, 8, 6, 6), (288, 6, 48, 1))) == "strides (288, 6, 48, 1)"
    assert words.layout_words(None) == "a layout not recorded"
    assert words.layout_words(Layout((4, 8), None, ())) == "a layout not recorded"


def test_an_operator_and_a_line_are_named_without_what_stands_around_them() -> None:
    assert [words.op_words(op) for op in ("aten.relu.default", "aten::relu", "aten.add.Tensor", "mine.op")] == [
        "relu",
        "relu",
        "add.Tensor",
        "mine.op",
    ]

    assert words.line_words(a_location(15, "/home/me/model.py")) == "model.py:15"
    assert words.line_words(a_location(15, "C:\\me\\model.py")) == "model.py:15"


def test_what_is_said_twice_or_not_at_all_is_left_out() -> None:
    assert words.distinct(["b", None, "a", "b"]) == ["b", "a"]
    assert words.joined(["b", None, "", "a"]) == "b; a"


def test_every_term_of_a_record_has_a_word() -> None:
    tables: tuple[tuple[Mapping[str | None, str], object], ...] = (
        (words.OWNER_WORDS, records.Owner),
        (words.DIRECTION_WORDS, records.ConversionDirection),
        (words.TENSOR_WORDS, records.TensorKind),
        (words.PROOF_WORDS, records.Confidence),
    )
    for table, terms in tables:
        assert set(table) == set(get_args(terms))
    assert set(words.CONFIDENCE_WORDS) == {*get_args(records.Confidence), None}


def test_an_element_type_has_its_bytes_under_every_spelling() -> None:
    for name, size in words.ITEM_BYTES.items():
        assert size == torch.empty(0, dtype=getattr(torch, name)).element_size()
        assert words.item_bytes(name) == size
    spelled = {"bf16": 2, "c10::Half": 2, "double": 8, "signed char": 1, "13__nv_bfloat16": 2, "s32": 4, "f8_e4m3": 1}
    assert {spelling: words.item_bytes(spelling) for spelling in spelled} == spelled
    assert words.DTYPES["__nv_bfloat16"] == "bfloat16"
    assert words.item_bytes("quint4x2") is words.item_bytes(None) is None


def test_a_line_of_a_notebook_is_one_of_a_cell() -> None:
    cell, file = a_location(15, "/tmp/ipykernel_12/2743171112.py"), a_location(15, "net/model.py")

    assert words.line_words(cell) == words.line_words(cell, with_folders=True) == "notebook cell, line 15"
    assert words.line_words(file, with_folders=True) == "net/model.py:15"
    assert place_of(cell, "2") == "notebook cell, line 15  2"
    assert (place_of(None, "2"), place_of(None, "features.2"), place_of(None, None)) == ("module 2", "features.2", None)
