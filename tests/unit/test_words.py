"""The words that every report and rule shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import torch
from builders import a_location, blocked, channels_last, contiguous

from layoutdoctor import words
from layoutdoctor.diagnosis import answer, conversion
from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS
from layoutdoctor.diagnosis.layout import Layout, strided_layout
from layoutdoctor.examination.advice.choice import judge
from layoutdoctor.reports.sections.wording import place_of

if TYPE_CHECKING:
    from collections.abc import Mapping


def test_a_layout_is_named_by_every_format_it_satisfies_else_by_its_strides() -> None:
    assert words.layout_words(contiguous()) == "contiguous"
    assert words.layout_words(channels_last()) == "channels_last"
    assert words.layout_words(contiguous((4, 1, 56, 56))) == "contiguous and channels_last"
    assert words.layout_words(blocked()) == "blocked aBcd16b"
    assert words.layout_words(strided_layout((4, 8, 6, 6), (288, 6, 48, 1))) == "strides (288, 6, 48, 1)"
    assert words.layout_words(None) == "a layout not recorded"
    assert words.layout_words(Layout((4, 8), None, ())) == "a layout not recorded"


def test_an_operator_and_a_line_have_short_names() -> None:
    operators = ("aten.relu.default", "aten::relu", "aten.add.Tensor", "mine.op")
    cell, file = a_location(15, "/tmp/ipykernel_12/2743171112.py"), a_location(15, "net/model.py")

    assert [words.op_words(op) for op in operators] == ["relu", "relu", "add.Tensor", "mine.op"]
    assert words.line_words(a_location(15, "C:\\me\\model.py")) == words.line_words(file) == "model.py:15"
    assert words.line_words(cell) == words.line_words(cell, with_folders=True) == "notebook cell, line 15"
    assert words.line_words(file, with_folders=True) == "net/model.py:15"
    assert place_of(cell, "2") == "notebook cell, line 15  2"
    assert (place_of(None, "2"), place_of(None, "features.2"), place_of(None, None)) == ("module 2", "features.2", "")


def test_every_term_of_a_record_has_a_word() -> None:
    tables: tuple[tuple[Mapping[str | None, str], object], ...] = (
        (words.OWNER_WORDS, conversion.Owner),
        (words.DIRECTION_WORDS, conversion.ConversionDirection),
        (words.TENSOR_WORDS, conversion.TensorKind),
    )
    for table, terms in tables:
        assert set(table) == set(get_args(terms))
    assert set(words.PROOF_WORDS) == {*get_args(conversion.Confidence), "graph"}
    assert set(words.CONFIDENCE_WORDS) == {*get_args(conversion.Confidence), None}


def test_an_element_type_has_its_bytes_under_every_spelling() -> None:
    for name, size in words.ITEM_BYTES.items():
        assert size == torch.empty(0, dtype=getattr(torch, name)).element_size()
        assert words.item_bytes(name) == size
    spelled = {"bf16": 2, "c10::Half": 2, "double": 8, "signed char": 1, "std::bfloat16_t": 2, "s32": 4, "f8_e4m3": 1}
    assert {spelling: words.item_bytes(spelling) for spelling in spelled} == spelled
    assert words.DTYPES["__nv_bfloat16"] == "bfloat16"
    assert words.item_bytes("quint4x2") is words.item_bytes(None) is None


def test_every_configuration_has_a_name_in_words() -> None:
    names = [words.name_in_words(configuration.name) for configuration in BUILTIN_CONFIGURATIONS]

    assert len(set(names)) == len(names)
    assert not [name for name in names if "inductor" in name or "-" in name]
    assert words.name_in_words("inductor+cudnn-benchmark") == "compiled + cudnn-benchmark"
    assert words.name_in_words("mine+and-yours") == "mine+and-yours"


def test_a_ratio_has_its_interval_and_its_certainty() -> None:
    cases = {
        (1.15, 1.19, 1.24): "1.19x faster (1.15 to 1.24)",
        (0.98, 1.15, 1.31): "looks 1.15x faster (0.98 to 1.31), not certain",
        (0.4, 0.5, 0.625): "2.00x slower (1.60 to 2.50)",
        (0.8, 0.9, 1.25): "looks 1.11x slower (0.80 to 1.25), not certain",
        (0.98, 0.99, 1.01): "as fast (0.98 to 1.01)",
    }
    for (low, median, high), said in cases.items():
        ratio = answer.Ratio(name="eager", low=low, median=median, high=high, verdict=judge(low, high))
        assert words.gain_words(ratio) == said
    ratio = answer.Ratio(name="eager", low=0.98, median=1.15, high=1.31, verdict="inconclusive")
    assert words.gain_words(ratio, "the default") == "looks 1.15x faster than the default (0.98 to 1.31), not certain"
    assert words.speed_words(ratio) == "eager looks 1.15x faster (0.98 to 1.31), not certain"
    same = answer.Ratio(name="inductor", low=0.98, median=1.0, high=1.01, verdict="equal")
    assert words.speed_words(same, "eager") == "the default is as fast as eager (0.98 to 1.01)"
