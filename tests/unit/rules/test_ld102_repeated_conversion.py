from __future__ import annotations

from typing import Any

import pytest
from builders import (
    a_comparison,
    a_conversion,
    a_diagnosis,
    a_graph,
    a_location,
    a_node,
    a_ratio,
    a_trial,
    blocked,
    channels_last,
    contiguous,
    kernels,
)
from trace_builders import a_recorded_trial, a_trace_diagnosis, to_channels_last, to_contiguous

from layoutdoctor.records import Buffer, Conversion, Diagnosis, Finding, FxNode, Graph, Trial
from layoutdoctor.rules.ld102_repeated_conversion import check

CONVOLUTION = "aten.convolution.default"
WEIGHT = a_node("primals_1", "primals_1", op="placeholder", layout=contiguous((64, 64, 3, 3)), tensor="weight")
RELU = a_node("relu", inputs=("x",))
READERS = tuple(a_node(f"convolution_{i}", CONVOLUTION, ("relu", "primals_1")) for i in (1, 2, 3))


def a_reading(id: str, node: str | None, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {"source": contiguous(), "target": blocked(), "direction": "to_blocked", "node": node}
    return a_conversion(id, **{**fields, **changes})


def a_trial_of(conversions: tuple[Conversion, ...], *graphs: Graph, name: str = "inductor", **changes: Any) -> Trial:
    return a_trial(name, **{"kernels": kernels(*conversions), "graphs": graphs, **changes})


def an_inference(*nodes: FxNode) -> Graph:
    return a_graph(nodes=(WEIGHT, RELU, *READERS, *nodes))


THREE = tuple(a_reading(f"r{i}", f"convolution_{i}", location=a_location(i), module=f"branch.{i}") for i in (1, 2, 3))


def findings(*trials: Trial, **changes: Any) -> list[Finding]:
    diagnosis: Diagnosis = a_diagnosis(*trials, **changes)
    return list(check(diagnosis))


def test_one_activation_converted_for_three_readers_is_one_finding_about_the_two_repetitions() -> None:
    assert findings(a_trial_of(THREE, an_inference())) == [
        Finding(
            code="LD102",
            rule="repeated-conversion",
            severity="warning",
            configuration="inductor",
            message="relu (4x64x56x56, made by relu) is converted 3 times from contiguous to blocked aBcd16b, for "
            "convolution_1, convolution_2 and convolution_3; all but one is repetition: "
            "2.00 ms of 15.0 ms kernel time (13 %), 12.2 MiB",
            suggestion="let the producer write the layout its readers want: give the model and its input channels_last",
            location=a_location(2),
            module="branch.2",
            seconds=2e-3,
            bytes_moved=12_845_056,
            evidence=("r1", "r2", "r3"),
        )
    ]


def test_a_small_repetition_is_a_note() -> None:
    conversions = tuple(a_reading(f"r{i}", f"convolution_{i}", seconds=1e-4) for i in (1, 2))

    assert [f.severity for f in findings(a_trial_of(conversions, an_inference()))] == ["note"]


def test_without_times_and_bytes_the_repetition_is_told_without_a_cost() -> None:
    conversions = tuple(a_reading(f"r{i}", f"convolution_{i}", seconds=None, bytes_moved=None) for i in (1, 2))

    assert [(f.severity, f.message) for f in findings(a_trial_of(conversions, an_inference()))] == [
        (
            "warning",
            "relu (4x64x56x56, made by relu) is converted 2 times from contiguous to blocked aBcd16b, for "
            "convolution_1 and convolution_2; all but one is repetition",
        )
    ]


def test_a_configuration_that_repeats_nothing_is_the_cure() -> None:
    found = findings(
        a_trial_of(THREE, an_inference()),
        a_trial("inductor-channels-last"),
        comparison=a_comparison(a_ratio("inductor-channels-last", 1.28)),
    )

    assert [f.suggestion for f in found] == [
        "use inductor-channels-last: it repeats no conversion; "
        "inductor-channels-last runs at 1.28x the speed of inductor (99 % interval 1.25x to 1.31x)"
    ]


def test_two_targets_are_two_conversions_that_are_both_needed() -> None:
    conversions = (THREE[0], a_reading("r2", "convolution_2", target=blocked(tag="aBcd8b")))

    assert findings(a_trial_of(conversions, an_inference())) == []


def test_two_tensors_of_one_shape_are_not_one_tensor() -> None:
    other = a_node("relu_1", inputs=("x",))
    reader = a_node("convolution_4", CONVOLUTION, ("relu_1", "primals_1"))
    conversions = (THREE[0], a_reading("r4", "convolution_4"))

    assert findings(a_trial_of(conversions, an_inference(other, reader))) == []


def test_without_a_node_there_is_no_proof() -> None:
    assert findings(a_trial_of((a_reading("r1", None), a_reading("r2", None)), an_inference())) == []


def test_a_node_of_that_name_in_two_graphs_is_no_proof() -> None:
    second = a_graph(name="graph 1", nodes=an_inference().nodes)

    assert findings(a_trial_of(THREE, an_inference(), second)) == []


def test_an_operation_that_reads_two_values_of_the_shape_is_no_proof() -> None:
    readers = tuple(a_node(f"add_{i}", "aten.add.Tensor", ("relu", "x")) for i in (1, 2))
    nodes = (a_node("x", "x", op="placeholder"), RELU, *readers)
    conversions = tuple(a_reading(f"r{i}", f"add_{i}") for i in (1, 2))

    assert findings(a_trial_of(conversions, a_graph(nodes=nodes))) == []


def test_a_value_whose_layout_was_not_recorded_is_no_proof() -> None:
    nodes = (WEIGHT, a_node("relu", layout=None), *READERS)

    assert findings(a_trial_of(THREE, a_graph(nodes=nodes))) == []


def test_a_value_changed_in_place_between_its_readers_is_excused() -> None:
    assert findings(a_trial_of(THREE, an_inference(a_node("add_", "aten.add_.Tensor", ("relu", "x"))))) == []


def test_weights_outputs_and_conversions_without_layouts_are_not_looked_at() -> None:
    for changes in (
        {"tensor": "weight"},
        {"direction": "from_blocked"},
        {"source": None},
        {"target": None},
    ):
        conversions = tuple(a_reading(f"r{i}", f"convolution_{i}", **changes) for i in (1, 2))

        assert findings(a_trial_of(conversions, an_inference())) == []


FORWARD = a_graph(
    name="forward", direction="forward", nodes=(WEIGHT, RELU, READERS[0]), output_names=("convolution_1", "relu")
)
SAVED = a_node("relu", "relu", op="placeholder")
TANGENT = a_node("tangents_1", "tangents_1", op="placeholder", layout=contiguous((4, 32, 56, 56)))
BACKWARD_NODE = a_node("convolution_backward", "aten.convolution_backward.default", ("tangents_1", "relu", "primals_1"))
BACKWARD = a_graph(name="backward", direction="backward", nodes=(SAVED, TANGENT, WEIGHT, BACKWARD_NODE))
IN_TRAINING = (THREE[0], a_reading("r9", "convolution_backward"))


def test_an_activation_converted_in_the_forward_and_again_in_the_backward_is_a_repetition() -> None:
    assert [f.message for f in findings(a_trial_of(IN_TRAINING, FORWARD, BACKWARD))] == [
        "relu (4x64x56x56, made by relu) is converted 2 times from contiguous to blocked aBcd16b, for "
        "convolution_1 and convolution_backward; all but one is repetition: "
        "1.00 ms of 15.0 ms kernel time (6.7 %), 6.12 MiB"
    ]


def test_with_a_gradient_of_the_same_shape_the_backward_proves_nothing() -> None:
    twin = a_node("tangents_1", "tangents_1", op="placeholder")
    backward = a_graph(name="backward", direction="backward", nodes=(SAVED, twin, WEIGHT, BACKWARD_NODE))

    assert findings(a_trial_of(IN_TRAINING, FORWARD, backward)) == []


def test_two_pairs_of_graphs_leave_open_which_forward_a_saved_value_is_from() -> None:
    second = a_graph(name="backward 1", direction="backward")

    assert findings(a_trial_of(IN_TRAINING, FORWARD, BACKWARD, second)) == []


def test_a_backward_input_that_no_forward_returns_is_a_value_of_its_own() -> None:
    nodes = (
        a_node("tangents_1", "tangents_1", op="placeholder"),
        *(a_node(f"convolution_{i}", CONVOLUTION, ("tangents_1",)) for i in (1, 2)),
    )
    backward = a_graph(name="backward", direction="backward", nodes=nodes)

    assert [f.message for f in findings(a_trial_of(THREE[:2], backward))] == [
        "tangents_1 (4x64x56x56) is converted 2 times from contiguous to blocked aBcd16b, for "
        "convolution_1 and convolution_2; all but one is repetition: "
        "1.00 ms of 15.0 ms kernel time (6.7 %), 6.12 MiB"
    ]


def test_a_move_to_channels_last_counts_as_well() -> None:
    conversions = tuple(
        a_reading(f"r{i}", f"convolution_{i}", target=channels_last(), direction="to_channels_last") for i in (1, 2)
    )

    assert [f.evidence for f in findings(a_trial_of(conversions, an_inference()))] == [("r1", "r2")]


def test_the_dearest_conversion_counts_as_the_one_that_has_to_stay() -> None:
    conversions = (THREE[0], a_reading("r2", "convolution_2", seconds=5e-3, bytes_moved=8))

    assert [(f.seconds, f.bytes_moved) for f in findings(a_trial_of(conversions, an_inference()))] == [(1e-3, 8)]


HELD = Buffer(name="buf3", layout=contiguous(), dtype="float32", kernel="k0", source_node="relu")


def a_copy(id: str, node: str | None = None, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {
        "owner": "compiler",
        "graph": "graph 0",
        "source": contiguous(),
        "target": channels_last(),
        "direction": "to_channels_last",
        "node": node,
        "value": f"{id} buffer",
        "source_value": "buf3",
    }
    return a_conversion(id, **{**fields, **changes})


def a_compiled(*copies: Conversion, nodes: tuple[FxNode, ...] = (RELU,)) -> Trial:
    return a_trial(graphs=(a_graph(nodes=nodes, buffers=(HELD,), conversions=copies),))


def test_a_buffer_that_the_compiler_copies_twice_is_a_repetition() -> None:
    found = findings(a_compiled(a_copy("c0", "convolution_1"), a_copy("c1", seconds=5e-4)))

    assert [(f.message, f.evidence) for f in found] == [
        (
            "buf3 (4x64x56x56, made by relu) is converted 2 times from contiguous to channels_last, for convolution_1 "
            "and c1 buffer; all but one is repetition: 500 us of 15.0 ms kernel time (3.3 %), 6.12 MiB",
            ("c0", "c1"),
        )
    ]


def test_a_graph_input_that_is_copied_twice_is_one_as_well() -> None:
    copies = tuple(a_copy(f"c{i}", source_value="arg0_1", value=None) for i in range(2))

    assert findings(a_compiled(*copies))[0].message.startswith(
        "arg0_1 (4x64x56x56) is converted 2 times from contiguous to channels_last; all but one is repetition"
    )


def test_several_repeated_tensors_are_one_finding_about_the_dearest() -> None:
    cheap = (a_copy("a0", "convolution_1", seconds=1e-4), a_copy("a1", "convolution_2", seconds=1e-4))
    dear = tuple(a_copy(f"b{i}", f"convolution_{i}", source_value="arg0_1") for i in (1, 2, 3))

    assert [(f.message, f.evidence, f.seconds) for f in findings(a_compiled(*cheap, *dear))] == [
        (
            "2 tensors are converted 5 times, where 2 would do: 2.10 ms of 15.0 ms kernel time (14 %), 18.4 MiB; "
            "the dearest: arg0_1 (4x64x56x56) is converted 3 times from contiguous to channels_last, for "
            "convolution_1, convolution_2 and convolution_3",
            ("b1", "b2", "b3", "a0", "a1"),
            pytest.approx(2.1e-3),
        )
    ]


def test_what_is_repeated_in_a_channels_last_model_is_better_converted_once_by_hand() -> None:
    conversions = tuple(a_reading(f"r{i}", f"convolution_{i}") for i in (1, 2))

    assert [f.suggestion for f in findings(a_trial_of(conversions, an_inference(), name="inductor-channels-last"))] == [
        "convert the value once by hand, in front of its readers, and give them the copy"
    ]


def test_copies_of_other_buffers_graphs_targets_or_in_fused_kernels_are_no_repetition() -> None:
    for changes in (
        {"source_value": "buf4"},
        {"graph": "graph 1"},
        {"target": blocked()},
        {"fused": True},
        {"tensor": "weight"},
        {"owner": "framework"},
        {"source_value": None},
    ):
        assert findings(a_compiled(a_copy("c0"), a_copy("c1", **changes))) == []


def test_a_buffer_of_a_value_that_is_changed_in_place_is_excused() -> None:
    nodes = (RELU, a_node("add_", "aten.add_.Tensor", ("relu", "x")))

    assert findings(a_compiled(a_copy("c0"), a_copy("c1"), nodes=nodes)) == []


def in_trace(*conversions: Conversion) -> list[Finding]:
    return list(check(a_trace_diagnosis(a_recorded_trial(*conversions))))


def test_in_a_trace_what_forward_and_backward_convert_of_one_tensor_is_repeated() -> None:
    forward = to_channels_last("k0", source_value="t1", module="conv_1")
    backward = to_channels_last(
        "k1", source_value="t1", op="aten::convolution_backward", seconds=3e-4, exposed_seconds=3e-4
    )

    assert in_trace(forward, backward) == [
        Finding(
            code="LD102",
            rule="repeated-conversion",
            severity="note",
            configuration="recorded",
            message="an activation (4x64x56x56) is converted 2 times from contiguous to channels_last, for "
            "convolution_backward and cudnn_convolution; all but one is repetition: 100 us of 15.0 ms kernel time "
            "(0.7 %, 2.5 % of the convolution time), 40.0 us of it while nothing else ran, 6.12 MiB",
            suggestion="let the producer write the layout its readers want: record it again with model = "
            "model.to(memory_format=torch.channels_last) and x = x.to(memory_format=torch.channels_last); "
            "or diagnose the model itself, which measures: python -m layoutdoctor model.py",
            location=a_location(),
            module="conv_1",
            seconds=1e-4,
            bytes_moved=6_422_528,
            evidence=("k1", "k0"),
        )
    ]


def test_in_a_trace_only_the_same_value_in_the_same_two_layouts_is_proven_to_be_one_tensor() -> None:
    first = to_channels_last("k0", source_value="t1")

    assert in_trace(first, to_channels_last("k1", source_value="t2")) == []
    assert in_trace(first, to_channels_last("k1", source_value="t1", target=blocked())) == []
    assert in_trace(to_channels_last("k0", source_value=None), to_channels_last("k1", source_value=None)) == []
    assert in_trace(*(to_channels_last(f"k{i}", source_value="t1", source=None) for i in range(2))) == []


def test_in_a_trace_weights_and_what_changes_no_layout_are_told_elsewhere() -> None:
    assert in_trace(*(to_channels_last(f"k{i}", source_value="t1", tensor="weight") for i in range(2))) == []
    assert in_trace(*(to_channels_last(f"k{i}", source_value="t1", direction="none") for i in range(2))) == []


def test_in_a_trace_many_tensors_are_one_finding_about_the_dearest_and_a_loss_together() -> None:
    gradients = [to_contiguous(f"g{i}", source_value="t2", tensor="gradient", op=None, seconds=2e-4) for i in range(3)]

    (found,) = in_trace(*(to_channels_last(f"k{i}", source_value="t1") for i in range(2)), *gradients)

    assert (found.severity, found.seconds) == ("warning", pytest.approx(5e-4))
    assert found.message == (
        "2 tensors are converted 5 times, where 2 would do: 500 us of 15.0 ms kernel time (3.3 %, 12 % of the "
        "convolution time), 120 us of it while nothing else ran, 18.4 MiB; the dearest: a gradient (4x64x56x56) is "
        "converted 3 times from channels_last to contiguous"
    )
    assert found.suggestion is not None
    assert "model.to(memory_format=torch.contiguous_format)" in found.suggestion


def test_in_a_trace_a_direction_that_is_not_known_is_answered_by_trying_the_other_format() -> None:
    (found,) = in_trace(*(to_channels_last(f"k{i}", source_value="t1", direction="other") for i in range(2)))

    assert found.suggestion is not None
    assert "with model and input in the other memory format" in found.suggestion


def test_in_a_trace_of_an_amd_gpu_the_switch_is_named_that_channels_last_needs_there() -> None:
    kernel = "batched_transpose_64x64_pack_4x4_ediv_2x2_half"

    (found,) = in_trace(*(to_channels_last(f"k{i}", source_value="t1", kernel=kernel) for i in range(2)))

    assert found.suggestion is not None
    assert "memory_format=torch.channels_last); " in found.suggestion
    assert found.suggestion.endswith("only with PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment")
