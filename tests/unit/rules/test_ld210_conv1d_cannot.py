from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from builders import (
    Told,
    a_configuration,
    a_conversion,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_graph,
    a_node,
    a_trial,
    contiguous,
    kernels,
)

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.rules.decisions import LD210

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Conversion, Convolution, Finding, Graph, Trial

SEQUENCE = (4, 16, 100)
CANNOT = "1-D: layout optimization cannot apply (3-D tensors have no channels-last format)"


def convolutions(count: int = 3, rank: int = 1) -> tuple[Convolution, ...]:
    return tuple(a_convolution(f"c{rank}_{i}", rank=rank, module=f"m{i}", channels_last=False) for i in range(count))


ONE_D = a_decision(*convolutions())
TURNED = a_conversion(
    "buf0",
    owner="compiler",
    node="c1_0",
    module="m0",
    source=strided_layout(SEQUENCE, (1600, 1, 16)),
    target=contiguous(SEQUENCE),
    direction="to_contiguous",
)


def findings(*graphs: Graph, others: tuple[Trial, ...] = (), **changes: Any) -> list[Finding]:
    return list(LD210.check(a_diagnosis(a_trial(graphs=graphs, **changes), *others)))


def an_eager(*conversions: Conversion) -> Trial:
    node = a_node("convolution", "aten.convolution.default", layout=contiguous(SEQUENCE))
    return a_trial("eager", graphs=(a_graph(name="eager", nodes=(node,)),), kernels=kernels(*conversions))


def test_what_it_says(told: Told) -> None:
    told("Convolutions that are all 1 d are counted", findings(a_graph(ONE_D)))
    told(
        "A graph of 1 d convolutions beside one of 2 d is a part of all",
        findings(a_graph(a_decision(*convolutions(1))), a_graph(a_decision(*convolutions(3, rank=2)))),
    )

    backward = a_graph(ONE_D, name="graph 1", direction="backward")
    told("The backward is not counted again", findings(a_graph(ONE_D, direction="forward"), backward))

    second = a_conversion("buf1", owner="compiler", module=None, required_by=("c1_1",), source=None, target=None)
    eager = an_eager(a_conversion("copy", owner="framework", module="m1", source=None, target=None))
    told("Several copies are told together", findings(a_graph(ONE_D, conversions=(TURNED, second)), others=(eager,)))
    for eager in (
        (),
        (an_eager(),),
        (an_eager(a_conversion(module="elsewhere")),),
        (an_eager(a_conversion(module="m0")),),
        (an_eager(a_conversion(module="m0", tensor="weight", source=None, target=None)),),
    ):
        told(
            "A copy that eager does not make is not called needed",
            findings(a_graph(ONE_D, conversions=(TURNED,)), others=eager),
        )

    # It is told whatever the decision was and on a device that is not there.
    for applied in (True, False):
        decision = a_decision(*convolutions(), applied=applied)
        assert len(findings(a_graph(decision), is_static=True, kernels=None, measurement=None)) == 1


def test_what_is_no_finding() -> None:
    # A graph with another convolution too is silent.
    for rank in (2, 3, None):
        other = a_convolution("other", rank=rank)
        assert findings(a_graph(a_decision(*convolutions(), other))) == []
        assert findings(a_graph(None)) == []

    # A configuration that decides the layouts itself is excused.
    off = a_configuration("other", layout_optimization="off")
    assert findings(a_graph(ONE_D), configuration=off) == []


@pytest.mark.parametrize("changes", [{}, {"node": None, "module": None, "required_by": ("convolution",)}])
def test_a_copy_that_eager_makes_too_is_said_to_be_needed(changes: dict[str, Any]) -> None:
    eager = an_eager(
        a_conversion("copy", **{"owner": "framework", "source": None, "target": None, "module": "m0", **changes})
    )

    assert [(f.message, f.evidence) for f in findings(a_graph(ONE_D, conversions=(TURNED,)), others=(eager,))] == [
        (
            f"3 of 3 convolutions are {CANNOT}; the copy in front of m0 is needed by the kernel, and eager makes it "
            "too: not redundant",
            ("c1_0", "c1_1", "c1_2", "buf0"),
        )
    ]
