from __future__ import annotations

from functools import partial

from builders import Told, a_conversion, a_diagnosis, a_graph, a_location, a_trial, channels_last, contiguous
from trace_builders import (
    a_generated_copy,
    a_permuted_copy,
    a_recorded_trial,
    a_trace_diagnosis,
    an_eager_copy,
    finder_in_trace,
    to_channels_last,
)

from layoutdoctor.rules.copies import LD108, LD501

findings = finder_in_trace(LD108.check)


a_copy_back = partial(an_eager_copy, source=channels_last(), target=contiguous(), direction="to_contiguous")


def test_what_it_says(told: Told) -> None:
    copies = (
        an_eager_copy("c0", location=a_location(12), module="block.norm"),
        an_eager_copy("c1", location=a_location(12), module="block.norm"),
        a_copy_back("c2", location=a_location(20), module=None, op="aten::clone", seconds=1.5e-4),
    )
    told("Eager copies are told with operation shape line and how often", findings(*copies))
    told("Without a line it says how to record one", findings(an_eager_copy("c0", location=None, op=None)))
    told("Below two percent it is a note", findings(an_eager_copy("c0")))

    entry = an_eager_copy("c0", owner="user", seconds=9e-4)
    assert [f.severity for f in findings(entry)] == ["note"]
    assert [f.severity for f in findings(entry, an_eager_copy("c1", seconds=3e-4))] == ["warning"]
    told("What the model asks for in channels last is counted but no loss", findings(entry))

    # A call of the model out of channels last is left to its own rule.
    call = a_copy_back("c0", owner="user")
    diagnosis = a_trace_diagnosis(a_recorded_trial(call))
    assert list(LD108.check(diagnosis)) == []
    assert [f.code for f in LD501.check(diagnosis)] == ["LD501"]


def test_what_is_no_finding() -> None:
    # What others convert and what changes no format is told elsewhere.
    others = (to_channels_last("a"), a_generated_copy("b"), a_permuted_copy("c"), an_eager_copy("d", fused=True))
    assert findings(*others) == []

    # In the diagnosis of a model such copies are told by the operation that causes them.
    copy = a_conversion(owner="framework", direction="to_contiguous")
    assert list(LD108.check(a_diagnosis(a_trial(graphs=(a_graph(conversions=(copy,)),))))) == []
