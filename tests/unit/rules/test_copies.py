"""LD108, LD110 and LD501: copies in eager code, and those that a line of the model asks for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_conversion,
    a_diagnosis,
    a_failed_trial,
    a_graph,
    a_location,
    a_node,
    a_trial,
    channels_last,
    contiguous,
    finder,
    kernels,
)
from rule_builders import with_graph
from trace_builders import (
    a_generated_copy,
    a_permuted_copy,
    a_recorded_trial,
    a_trace_diagnosis,
    an_eager_copy,
    finder_in_trace,
    to_channels_last,
)

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.rules.ld108_strided_copy import LD108
from layoutdoctor.rules.ld110_permuted_copy import LD110
from layoutdoctor.rules.ld501_contiguous_call import LD501

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.graph import FxNode
    from layoutdoctor.diagnosis.trial import Trial

strided, permuted = finder_in_trace(LD108.check), finder_in_trace(LD110.check)
called, called_in_trace = finder(LD501.check), finder_in_trace(LD501.check)

a_copy_back = partial(an_eager_copy, source=channels_last(), target=contiguous(), direction="to_contiguous")


def test_eager_copies_of_a_trace_are_one_finding_with_their_ways_shapes_and_cost(told: Told) -> None:
    copies = (
        an_eager_copy("c0", location=a_location(12), module="block.norm"),
        an_eager_copy("c1", location=a_location(12), module="block.norm"),
        a_copy_back("c2", location=a_location(20), module=None, op="aten::clone", seconds=1.5e-4),
    )
    told("Eager copies are reported with operation shape line and how often", strided(*copies))
    told("Without a line it says how to record one", strided(an_eager_copy("c0", location=None, op=None)))
    entry = an_eager_copy("c0", owner="user", seconds=9e-4)
    told("What the model asks for in channels last is counted but no loss", strided(entry))
    assert [f.severity for f in strided(entry, an_eager_copy("c1", seconds=3e-4))] == ["warning"]
    others = (to_channels_last("a"), a_generated_copy("b"), a_permuted_copy("c"), an_eager_copy("d", fused=True))
    assert strided(*others) == []
    # A call of the model out of channels_last is a matter of LD501.
    call = a_trace_diagnosis(a_recorded_trial(a_copy_back("c0", owner="user")))
    assert [finding.code for rule in (LD108, LD501) for finding in rule.check(call)] == ["LD501"]
    of_a_model = a_trial(graphs=(a_graph(conversions=(a_conversion(owner="framework", direction="to_contiguous"),)),))
    assert list(LD108.check(a_diagnosis(of_a_model))) == []


def test_copies_that_permute_are_a_note_if_they_take_one_percent(told: Told) -> None:
    copies = (a_permuted_copy("p0"), a_permuted_copy("p1", location=a_location(31), module="blocks.1"))
    told("Copies of attention are a note that keeps them apart from layout conversions", permuted(*copies))
    sliced = strided_layout((8, 12, 197, 64), (12 * 200 * 64, 200 * 64, 64, 1))
    flat = {"source": strided_layout((8, 1, 197, 64), (197 * 64, 64, 64, 1)), "target": contiguous((8, 1, 197, 64))}
    for changes in ({"seconds": 1.49e-4}, {"seconds": None}, {"source": sliced}, flat, {"source": None}):
        assert permuted(a_permuted_copy("p0", **{"seconds": 1e-3, **changes})) == []
    assert permuted(an_eager_copy("c0"), a_generated_copy("g0"), to_channels_last("k0", direction="none")) == []
    trial = a_trial(kernels=kernels(), graphs=(a_graph(conversions=(a_permuted_copy("p0", seconds=1e-3),)),))
    assert list(LD110.check(a_diagnosis(trial))) == []


# ---------------------------------------------------------------------------------------------------------- LD501
NODE = a_node("relu")
STRIDED = strided_layout((4, 64, 56, 56), (200704, 56, 3584, 1))
a_recorded_call = partial(a_copy_back, owner="user", op="aten::contiguous")


def a_call(id: str = "u0", line: int = 15, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {
        "owner": "user",
        "graph": "eager",
        "node": "clone",
        "op": "aten::clone",
        "location": a_location(line, "/home/me/model.py", "y = torch.relu(self.a(x)).contiguous()"),
        "module": None,
        "source": channels_last(),
        "target": contiguous(),
        "direction": "to_contiguous",
        "seconds": 2e-3,
    }
    return a_conversion(id, **{**fields, **changes})


BY_TORCH = a_call("f0", owner="framework", direction="to_channels_last", location=a_location(16))


def a_trial_of(
    *conversions: Conversion, name: str = "eager-channels-last", nodes: tuple[FxNode, ...] = (NODE,), **changes: Any
) -> Trial:
    graph = {"name": "eager", "conversions": conversions}
    return with_graph(*nodes, name=name, graph=graph, **{"kernels": kernels(seconds=20e-3), **changes})


def test_each_line_that_calls_contiguous_is_a_finding_with_its_part_of_the_conversions(told: Told) -> None:
    told("Each line is a finding", called(a_trial_of(a_call(), a_call("u1", line=16), a_call("u2"), BY_TORCH)))
    last = a_trial_of(a_call(), a_call("u1", line=16), BY_TORCH)
    told(
        "A call on a channels last tensor is a warning with its part and where it does nothing",
        called(a_trial_of(name="inductor"), a_trial_of(name="eager"), last),
    )
    broken = a_trial("inductor", graphs=(a_graph(nodes=(NODE,), hook_failure="boom"),))
    told(
        "Where it does nothing is said of captured trials only",
        called(broken, a_trial("eager"), a_failed_trial(), a_trial_of(a_call())),
    )
    calls = [a_recorded_call(f"c{i}", seconds=2e-4) for i in range(2)]
    unplaced = a_recorded_call("c2", location=None, module=None)
    told(
        "In a trace a call is reported by its line with its launches and exposed time",
        called_in_trace(*calls, unplaced, to_channels_last("k0")),
    )


def test_a_call_is_reported_of_the_default_else_where_it_costs_most() -> None:
    eager, inductor = a_trial_of(a_call()), a_trial_of(a_call(seconds=1e-3), name="inductor")
    fused = a_trial_of(a_call(seconds=None, fused=True), name="inductor")
    assert [f.configuration for f in called(eager, inductor)] == ["inductor"]
    cheap = a_trial_of(a_call(seconds=1e-3), name="eager")
    assert [f.configuration for f in called(fused, cheap, eager)] == ["eager-channels-last"]
    last = {"source": contiguous(), "target": channels_last()}
    flat = {"source": strided_layout((4, 64, 56), (3584, 1, 64)), "target": contiguous((4, 64, 56))}
    for changes in (
        {"owner": "framework"},
        {"direction": "none"},
        {"direction": "to_channels_last", **last},
        flat,
        {"source": STRIDED, "seconds": 1e-4},
    ):
        assert called(a_trial_of(a_call(**changes))) == []
    assert called_in_trace(a_recorded_call("c0", source=STRIDED, seconds=9e-3)) == []
    assert [f.severity for f in called(a_trial_of(a_call(required_by=("convolution_1",))))] == ["warning"]
    assert [f.severity for f in called(a_trial_of(a_call(), is_static=True))] == ["note"]


def test_a_call_is_to_be_deleted_unless_something_else_needs_the_layout(told: Told) -> None:
    view = a_node("view", "aten.view.default", ("clone",))
    told(
        "A layout that something else needs is a note",
        called(a_trial_of(a_call(required_by=("view", "convolution_1")), nodes=(NODE, view))),
    )
    told("A strided tensor is a note where it can be felt", called(a_trial_of(a_call(source=STRIDED))))
    copy = a_node("copy_", "aten.copy_.default", called="copy_", is_called_directly=True)
    line = a_location(17, code="volume[:, :, 0] = x")
    assigned = a_call(node="copy_", op="aten::copy_", location=line)
    told(
        "An assignment to a slice calls nothing",
        called(a_trial_of(assigned, nodes=(NODE, copy)), a_trial_of(name="eager")),
    )
