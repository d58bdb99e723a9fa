from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from builders import (
    Told,
    a_configuration,
    a_graph,
    a_location,
    a_node,
    a_trial,
    an_environment,
    channels_last,
    contiguous,
    finder,
)

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.diagnosis.records import Equivalence, LayoutBreaker, Trial
from layoutdoctor.rules.outputs import LD209

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Finding

findings = finder(LD209.check)

LAST = "inductor-channels-last"
LAST_OFF = "inductor-channels-last-opt-off"
EAGER_LAST = "eager-channels-last"


def returning(name: str, *layouts: Layout, status: Any = "equal", **changes: Any) -> Trial:
    return a_trial(name, equivalence=Equivalence(status=status, output_layouts=layouts), **changes)


a_breaker = partial(
    LayoutBreaker,
    node="clone",
    op="channel_shuffle",
    reason="Inductor returns it contiguous",
    location=a_location(12),
    module="shuffle",
    source=channels_last(),
    target=contiguous(),
)


def test_what_it_says(told: Told) -> None:
    frozen = returning("inductor-freezing", channels_last())
    told(
        "A configuration that leaves the conversion back to its caller is named",
        findings(returning("eager", contiguous()), returning("inductor", contiguous()), frozen),
    )
    shape = (2, 5, 3, 7, 2)
    eager = strided_layout(shape, (210, 1, 70, 10, 5))
    permuted = strided_layout(shape, (210, 1, 14, 42, 7))
    same_order = strided_layout(shape, (420, 1, 140, 20, 10))
    told(
        "A layout in no memory format is compared by its stride order",
        findings(returning("eager", permuted), returning("inductor", eager)),
    )
    assert findings(returning("eager", same_order), returning("inductor", eager)) == []

    small = (4, 8, 6, 6)
    eager = returning("eager", contiguous(), contiguous((4, 8)), contiguous(small))
    compiled = returning("inductor", channels_last(), contiguous((4, 8)), channels_last(small))
    told("Several outputs are told together", findings(eager, compiled))
    for called in ("channel_shuffle", None):
        nodes = (
            a_node("clone", "aten.clone.default", ("x",), called=called, location=a_location(5)),
            a_node("relu", "aten.relu.default", ("clone",)),
        )
        graph = a_graph(nodes=nodes, output_names=("relu",))
        told(
            "Without a breaker the last operation that sets a layout is named",
            findings(returning(EAGER_LAST, channels_last()), returning(LAST, contiguous(), graphs=(graph,))),
        )

    graph = a_graph(breakers=(a_breaker(),))
    trials = (
        returning(EAGER_LAST, channels_last()),
        returning(LAST, contiguous(), graphs=(graph,)),
        returning(LAST_OFF, contiguous()),
    )
    told("A format lost under the compiler is told once with all configurations and the place", findings(*trials))


def test_what_is_no_finding() -> None:
    # Other values or other formats of model and input are not compared.
    different = returning("inductor", channels_last(), status="different")
    assert findings(returning("eager", contiguous()), different) == []
    assert findings(returning("eager", contiguous()), returning(LAST, channels_last())) == []
    assert findings(returning("eager", contiguous()), returning("eager-channels-last", channels_last())) == []

    # What did not run is not compared.
    static = a_trial("inductor", equivalence=None, is_static=True)
    assert findings(a_trial("eager", equivalence=None), static) == []

    # The same bytes under other strides or another shape are no finding.
    for expected, returned in (
        (contiguous((4, 8, 1, 1)), channels_last((4, 8, 1, 1))),
        (strided_layout((4, 8, 1, 1), (8, 1, 8, 8)), strided_layout((4, 8, 1, 1), (8, 1, 1, 1))),
        (contiguous((4, 1, 8, 8)), channels_last((4, 1, 8, 8))),
        (contiguous((4, 8)), contiguous((4, 8))),
        (contiguous((4, 8, 8, 8)), contiguous((4, 16, 8, 8))),
    ):
        assert findings(returning("eager", expected), returning("inductor", returned)) == []


def test_which_facts_it_gives(told: Told) -> None:
    for names in ((), ("relu",), ("small",)):
        nodes = (
            a_node("x", "x", op="placeholder"),
            a_node("relu", "aten.relu.default", ("x",)),
            a_node("small", layout=contiguous((4, 8))),
        )
        graph = a_graph(nodes=nodes, output_names=names, breakers=(a_breaker(target=channels_last()),))
        told(
            "A place that the graph does not tell is not guessed",
            findings(returning(EAGER_LAST, channels_last()), returning(LAST, contiguous(), graphs=(graph,))),
        )

    # A configuration of ones own is compared with the eager one of its formats.
    own = a_configuration("mine", model_format="channels_last", input_format="channels_last")
    trials = (returning(EAGER_LAST, channels_last()), returning("mine", contiguous(), configuration=own))
    assert [f.configuration for f in findings(*trials)] == ["mine"]


def test_how_severe_it_is_rests_on_what_the_conversion_back_takes(told: Told) -> None:
    image = channels_last()  # 802,816 elements: 6.4 MB are read and written
    node = a_node("relu", layout=image)
    graph = a_graph(nodes=(node,), output_names=("relu",))
    trials = (returning("eager", contiguous()), returning("inductor", image, graphs=(graph,)))

    def found(bandwidth: float | None, *of: Trial) -> list[Finding]:
        return findings(*(of or trials), environment=an_environment(copy_bandwidth_bytes_per_second=bandwidth))

    felt = found(3.2e9)
    told("A conversion back that can be felt is a warning with its cost", felt)
    assert [f.severity for f in felt] == ["warning"]
    assert [f.severity for f in found(25e9)] == ["note"]  # 1.7 %
    assert [f.severity for f in found(None)] == ["note"]
    other = msgspec.structs.replace(trials[1], graphs=(a_graph(nodes=(node,), output_names=("other",)),))
    assert [f.severity for f in found(3.2e9, trials[0], other)] == ["note"]  # of what type the output is, is not known
