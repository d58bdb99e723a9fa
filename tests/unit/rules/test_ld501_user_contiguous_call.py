from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_comparison,
    a_conversion,
    a_failed_trial,
    a_graph,
    a_location,
    a_node,
    a_ratio,
    a_trial,
    channels_last,
    contiguous,
    finder,
    kernels,
)
from trace_builders import an_eager_copy, finder_in_trace, to_channels_last

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.rules.copies import LD501

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Conversion, FxNode, Trial

in_trace = finder_in_trace(LD501.check)

findings = finder(LD501.check)

CODE = "y = torch.relu(self.a(x)).contiguous()"
NODE = a_node("relu")


def a_call(id: str = "u0", line: int = 15, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {
        "owner": "user",
        "graph": "eager",
        "node": "clone",
        "op": "aten::clone",
        "location": a_location(line, "/home/me/model.py", CODE),
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
    graph = a_graph(name="eager", nodes=nodes, conversions=conversions)
    return a_trial(name, **{"graphs": (graph,), "kernels": kernels(seconds=20e-3), **changes})


def test_which_facts_it_gives(told: Told) -> None:
    told("Each line is a finding", findings(a_trial_of(a_call(), a_call("u1", line=16), a_call("u2"), BY_TORCH)))

    # The baseline is preferred where it pays a step of its own.
    inductor, eager = a_trial_of(a_call(seconds=1e-3), name="inductor"), a_trial_of(a_call())
    assert [f.configuration for f in findings(eager, inductor)] == ["inductor"]

    # Else the trial where it costs most is told.
    inductor = a_trial_of(a_call(seconds=None, fused=True), name="inductor")
    cheap, dear = a_trial_of(a_call(seconds=1e-3), name="eager"), a_trial_of(a_call())
    assert [f.configuration for f in findings(inductor, cheap, dear)] == ["eager-channels-last"]


def test_what_is_no_finding() -> None:
    # What is no loss of channels last by the model is excused.
    for changes in (
        {"owner": "framework"},
        {"direction": "none"},
        {"direction": "to_channels_last", "role": "entry", "source": contiguous(), "target": channels_last()},
        {"direction": "to_channels_last", "source": contiguous(), "target": channels_last()},
        {"source": strided_layout((4, 64, 56), (3584, 1, 64)), "target": contiguous((4, 64, 56))},
        {"source": None},
    ):
        assert findings(a_trial_of(a_call(**changes))) == []

    # In a trace a strided tensor is left to the eager copies.
    strided = strided_layout((4, 64, 56, 56), (64 * 56 * 56, 56 * 56, 1, 56))
    assert in_trace(a_recorded_call("c0", source=strided, seconds=9e-3)) == []


def test_what_it_says(told: Told) -> None:
    last = a_trial_of(a_call(), a_call("u1", line=16), BY_TORCH)
    others = (a_trial_of(name="inductor"), a_trial_of(name="eager"))
    told(
        "A call on a channels last tensor is a warning with its part and where it does nothing", findings(*others, last)
    )
    told(
        "A call in a fused kernel alone is a note that says so",
        findings(a_trial_of(a_call(seconds=None, fused=True), name="inductor")),
    )
    told(
        "A call of which neither time nor bytes are known is told without a cost",
        findings(a_trial_of(a_call(seconds=None, bytes_moved=None), name="inductor")),
    )

    broken = a_trial("inductor", graphs=(a_graph(nodes=(NODE,), hook_failure="boom"),))
    told(
        "Where it does nothing is said of captured trials only",
        findings(broken, a_trial("eager"), a_failed_trial(), a_trial_of(a_call())),
    )
    told(
        "A copy of the same line that another is said to have made is not nothing",
        findings(a_trial_of(a_call(owner="framework"), name="eager"), a_trial_of(a_call())),
    )
    told(
        "Without a line the module stands for it",
        findings(
            a_trial_of(a_call(location=None, module="block.1")),
            comparison=a_comparison(a_ratio("eager-channels-last", 1.0)),
        ),
    )

    # In a trace a call is told by its line with its launches and exposed time.
    calls = [a_recorded_call(f"c{i}", seconds=2e-4) for i in range(2)]
    (found,) = in_trace(*calls, a_recorded_call("c2", location=None, module=None), to_channels_last("k0"))[:1]
    assert (found.severity, found.seconds, found.evidence) == ("warning", 4e-4, ("c0", "c1"))
    assert found.message == (
        "model.py:9 calls .contiguous() on a channels_last tensor (4x64x56x56): 2 of the 4 conversions of activations "
        "in the trace (3 with the model's other calls), 400 us of 15.0 ms kernel time (2.7 %), 80.0 us of it while "
        "nothing else ran"
    )


def test_what_it_suggests(told: Told) -> None:
    view = a_node("view", "aten.view.default", ("clone",))
    told(
        "A layout that something else needs is a note",
        findings(a_trial_of(a_call(required_by=("view", "convolution_1")), nodes=(NODE, view))),
    )
    told("A call at the exit may be wanted by the reader", findings(a_trial_of(a_call(role="exit"))))
    shape = (2, 8, 4, 16, 16)
    found = findings(a_trial_of(a_call(source=channels_last(shape), target=contiguous(shape))))
    told("Five dimensions have their own format", found)
    told("A strided tensor is a note where it can be felt", findings(a_trial_of(a_call(source=STRIDED))))
    assert findings(a_trial_of(a_call(source=STRIDED, seconds=1e-4))) == []
    assert findings(a_trial_of(a_call(source=STRIDED, seconds=None))) == []

    # Other calls are named as they stand.
    for called, words in (("to", ".to(memory_format=...)"), ("clone", ".clone(memory_format=...)")):
        node = a_node("clone", "aten.clone.default", ("relu",), called=called)
        found = findings(a_trial_of(a_call(), nodes=(NODE, node)))[0]
        assert found.message.startswith(f"model.py:15 calls {words} on a channels_last tensor")
        assert found.suggestion == f"delete the call, or write .{called}(memory_format=torch.channels_last)"


def test_how_severe_it_is() -> None:
    # A layout that only convolutions read is a loss.
    assert [f.severity for f in findings(a_trial_of(a_call(required_by=("convolution_1",))))] == ["warning"]

    # A static trial gives a note.
    assert [f.severity for f in findings(a_trial_of(a_call(), is_static=True))] == ["note"]


STRIDED = strided_layout((4, 64, 56, 56), (200704, 56, 3584, 1))


a_recorded_call = partial(
    an_eager_copy,
    owner="user",
    op="aten::contiguous",
    source=channels_last(),
    target=contiguous(),
    direction="to_contiguous",
)
