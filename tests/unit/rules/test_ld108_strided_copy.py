from __future__ import annotations

from typing import Any

import pytest
from builders import a_conversion, a_diagnosis, a_graph, a_location, a_trial, channels_last, contiguous
from trace_builders import (
    a_generated_copy,
    a_permuted_copy,
    a_recorded_trial,
    a_trace_diagnosis,
    an_eager_copy,
    finder_in_trace,
    to_channels_last,
)

from layoutdoctor.diagnosis.records import Conversion, Finding
from layoutdoctor.rules import ld501_user_contiguous_call
from layoutdoctor.rules.ld108_strided_copy import check

findings = finder_in_trace(check)

ADVICE = (
    "look there for a permute or transpose, an input in another format than the model, or an operation that returns "
    "contiguous; keep one memory format from the input to the output"
)


def a_copy_back(id: str, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {"source": channels_last(), "target": contiguous(), "direction": "to_contiguous"}
    return an_eager_copy(id, **{**fields, **changes})


def test_eager_copies_are_told_with_operation_shape_line_and_how_often() -> None:
    copies = (
        an_eager_copy("c0", location=a_location(12), module="block.norm"),
        an_eager_copy("c1", location=a_location(12), module="block.norm"),
        a_copy_back("c2", location=a_location(20), module=None, op="aten::clone", seconds=1.5e-4),
    )

    assert findings(*copies) == [
        Finding(
            code="LD108",
            rule="strided-copy",
            severity="warning",
            configuration="recorded",
            message="3 eager copies change the memory format to channels_last (2) and to contiguous (1), by copy_ (2) "
            "and clone (1), on 4x64x56x56; 350 us of 15.0 ms kernel time (2.3 %), 120 us of it while nothing else ran; "
            "2 in block.norm (model.py:12) and 1 at model.py:20",
            suggestion=f"{ADVICE}, and record again",
            location=a_location(12),
            module="block.norm",
            seconds=pytest.approx(3.5e-4),
            bytes_moved=3 * 6_422_528,
            evidence=("c0", "c1", "c2"),
        )
    ]


def test_what_it_says() -> None:
    # Below two percent it is a note.
    (found,) = findings(an_eager_copy("c0"))
    assert found.severity == "note"
    assert found.message == (
        "1 eager copy changes the memory format to channels_last, by copy_, on 4x64x56x56; "
        "100 us of 15.0 ms kernel time (0.7 %), 40.0 us of it while nothing else ran"
    )

    # What the model asks for in channels last is counted but no loss.
    entry = an_eager_copy("c0", owner="user", seconds=9e-4)
    assert [f.severity for f in findings(entry)] == ["note"]
    assert [f.severity for f in findings(entry, an_eager_copy("c1", seconds=3e-4))] == ["warning"]
    assert ", on 4x64x56x56, 1 asked for by the model's own code; " in findings(entry)[0].message


def test_without_a_line_it_says_how_to_record_one() -> None:
    (found,) = findings(an_eager_copy("c0", location=None, op=None))

    assert found.suggestion == (
        f"{ADVICE}; no line was recorded: record again with torch.profiler.profile(with_stack=True)"
    )
    assert found.message.startswith("1 eager copy changes the memory format to channels_last, on 4x64x56x56; ")


def test_what_is_no_finding() -> None:
    # What others convert and what changes no format is told elsewhere.
    others = (to_channels_last("a"), a_generated_copy("b"), a_permuted_copy("c"), an_eager_copy("d", fused=True))
    assert findings(*others) == []

    # In the diagnosis of a model such copies are told by the operation that causes them.
    copy = a_conversion(owner="framework", direction="to_contiguous")
    assert list(check(a_diagnosis(a_trial(graphs=(a_graph(conversions=(copy,)),))))) == []


def test_a_call_of_the_model_out_of_channels_last_is_left_to_its_own_rule() -> None:
    call = a_copy_back("c0", owner="user")
    diagnosis = a_trace_diagnosis(a_recorded_trial(call))

    assert list(check(diagnosis)) == []
    assert [f.code for f in ld501_user_contiguous_call.check(diagnosis)] == ["LD501"]
