from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_diagnosis,
    a_graph,
    a_kernel,
    a_location,
    a_node,
    a_subject,
    a_trial,
    an_input,
    channels_last,
    contiguous,
    kernels,
)

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.rules.slower import LD302

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Finding, FxNode, Trial

SHAPE = (4, 16, 30, 30)


def a_norm(source: str, name: str = "norm", **changes: Any) -> FxNode:
    fields: dict[str, Any] = {"location": a_location(22), "module": "bn"}
    return a_node(name, "aten.native_batch_norm.default", (source, "weight", "bias"), **{**fields, **changes})


def unfolded(layout: Any = None, maker: str = "aten.bmm.default") -> tuple[FxNode, ...]:
    """An unfolded convolution: the product's transpose, viewed as an image."""
    layout = layout or channels_last(SHAPE)
    return (
        a_node("product", maker, ("patches", "w")),
        a_node("transpose", "aten.transpose.int", ("product",)),
        a_node("view", "aten.view.default", ("transpose",), layout=layout),
    )


def an_eager(*nodes: FxNode, name: str = "eager", **changes: Any) -> Trial:
    return a_trial(name, graphs=(a_graph(name="eager", nodes=nodes),), **changes)


def findings(*nodes: FxNode, **changes: Any) -> list[Finding]:
    return list(LD302.check(a_diagnosis(an_eager(*nodes), **changes)))


def test_what_it_says(told: Told) -> None:
    told("A batch norm behind a transposed product is a note", findings(*unfolded(), a_norm("view")))

    layout = strided_layout(SHAPE, (14400, 1, 32, 480))
    ran = kernels(kernels=(a_kernel("aten::native_batch_norm", 3e-3, node="norm"),))
    trial = an_eager(*unfolded(layout, "aten.mm.default"), a_norm("view", module=None), kernels=ran)
    told("A layout in no format is given by its strides with the time of the norm", LD302.check(a_diagnosis(trial)))

    relu = a_node("relu", "aten.relu.default", ("view",), layout=channels_last(SHAPE), dtype=None)
    second = a_norm("view", "norm_1")
    told(
        "Operations that keep the layout are seen through and further norms counted",
        findings(*unfolded(), relu, a_norm("relu"), second),
    )


def test_which_facts_it_gives() -> None:
    # Every kind of batch norm counts.
    for target in (
        "aten.cudnn_batch_norm.default",
        "aten.batch_norm.default",
        "aten._native_batch_norm_legit_no_training.default",
    ):
        assert len(findings(*unfolded(), a_node("norm", target, ("view",)))) == 1

    # Parameters that satisfy both formats are contiguous.
    subject = a_subject(parameter_formats={"channels_last": 2, "contiguous_format": 4})
    assert len(findings(*unfolded(), a_norm("view"), subject=subject)) == 1


def test_what_is_no_finding() -> None:
    # A convolutions own result is fine.
    convolution = a_node("convolution", "aten.convolution.default", ("x", "w"), layout=channels_last(SHAPE))
    assert findings(convolution, a_norm("convolution")) == []

    # A graph input a backward and an unknown or flat layout are fine.
    given = a_node("x", "x", op="placeholder", layout=channels_last(SHAPE))
    bare = a_node("view", "aten.view.default", ("product",), layout=None)
    flat = strided_layout((4, 16, 30), (480, 1, 16))
    assert findings(given, a_norm("x")) == []
    assert findings(*unfolded(), a_norm("view", backward=True)) == []
    assert findings(bare, a_norm("view")) == []
    assert findings(*unfolded(flat), a_norm("view")) == []
    assert findings(a_norm("elsewhere"), a_node("empty", "aten.batch_norm.default")) == []

    # A channels last configuration is excused.
    trial = an_eager(*unfolded(), a_norm("view"), name="eager-channels-last")
    assert list(LD302.check(a_diagnosis(trial))) == []

    # A contiguous layout or one that is both is fine.
    for layout in (contiguous(SHAPE), channels_last((4, 16, 1, 1)), channels_last((4, 1, 30, 30))):
        assert findings(*unfolded(layout), a_norm("view")) == []

    # A model or input in channels last is excused.
    for changes in (
        {"inputs": (an_input(channels_last()),)},
        {"parameter_formats": {"channels_last": 4, "contiguous_format": 1}},
    ):
        assert findings(*unfolded(), a_norm("view"), subject=a_subject(**changes)) == []
