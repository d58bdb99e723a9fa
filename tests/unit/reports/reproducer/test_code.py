"""Operations as reproducers write them: the layer that runs exactly this, else the function, else the operator."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import reviewed
from builders import a_subject, an_input, channels_last, contiguous
from reproducer_builders import FEATURES, Recorder, a_builtin, a_chain, a_record, begun, reason_of, script_of, telling

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.diagnosis.records import Finding
from layoutdoctor.reports.reproducer.report import build_reproducer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Diagnosis, FxNode

VOLUME, SEQUENCE, ROWS = (2, 8, 4, 16, 16), (4, 196, 64), (4, 128)
OPERATIONS = {
    ((4, 64, 56), False): """
convolution: x, <32, 64, 3>, None, [1], [1], [1], False, [0], 1
upsample_nearest1d: x, [112], 2.0
reflection_pad1d: x, [2, 1]
""",
    (VOLUME, False): """
convolution: x, <16, 8, 3, 3, 3>, <16>, [1, 2, 2], [0, 0, 0], [1, 1, 1], False, [0, 0, 0], 1
upsample_trilinear3d: x, [4, 32, 32], True, 1.0, 2.0, 2.0
replication_pad3d: x, [1, 1, 1, 1, 1, 1]
""",
    (FEATURES, False): """
convolution: x, <64, 1, 1, 7>, <64>, [1, 1], [0, 3], [2, 2], False, [0, 0], 64
convolution: x, <64, 32, 2, 2>, <32>, [2, 2], [0, 0], [1, 1], True, [0, 0], 1
convolution: x, <64, 16, 3, 3>, None, [2, 2], [1, 1], [1, 1], True, [1, 1], 2
upsample_nearest2d: x, [112, 112]
upsample_nearest2d: x, [112, 56], None, None
upsample_nearest2d: x, [112, 112], 2.0, 2.0
upsample_bilinear2d: x, [112, 112], False, None, None
upsample_bicubic2d: x, [112, 112], False
reflection_pad2d: x, [1, 1, 1, 1]
hardtanh: x, 0.0, 6.0
hardtanh_: x, 0, 6
gelu: x, approximate="tanh"
leaky_relu: x, 0.2
relu_: x
pixel_shuffle: x, 2
constant_pad_nd: x, [1, 1, 1, 1], 0.5
constant_pad_nd: x, [1, 1], -inf
constant_pad_nd: x, [1, 1], nan
constant_pad_nd: x, [1, -1]
amax: x, [2]
permute: x, [0, 2, 3, 1]
clamp: x, None, 6
hardtanh: x, -1, 1
reflection_pad2d: x, 1
upsample_nearest2d: x, [112, 112], 2.0
upsample_bilinear2d: x, [112, 112], None, 2.0
upsample_nearest2d: x, None, 2.0, 2.0
convolution: x, None, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1
convolution: x, <8, 64, 1, 1>, None, 1, [0, 0], [1, 1], False, [0, 0], 1
convolution: x, <8, 64, 1, 1>, None, [1, 1], [0, 0], [1, 1], None, [0, 0], 1
convolution: x, <8, 64, 1, 1>, None, [1, 1], [0, 0], [1, 1], False, [0, 0]
linalg_vector_norm: x, 2, [1], True, dtype=torch.float32
""",
    (FEATURES, True): """
native_group_norm: x, <64>, <64>, 4, 64, 3136, 32, 1e-05
native_group_norm: x, None, None, 4, 64, 3136, 1, 1e-06
native_batch_norm: x, None, None, None, None, True, 0.1, 1e-05
max_pool2d_with_indices: x, [3, 3], [2, 2], [1, 1]
native_batch_norm: x, 0.1
native_batch_norm: x, None, None, None, None, False, 0.1, 1e-05
native_batch_norm: x, <64>, None, None, None, True, 0.1, 1e-05
native_group_norm: x, 2
native_group_norm: x, <64>, None, 4, 64, 3136, 32, 1e-05
native_group_norm: x, None, None, 4, None, 3136, 32, 1e-05
""",
    (SEQUENCE, True): """
native_layer_norm: x, [64], <64>, <64>, 1e-05
native_layer_norm: x, [196, 64], None, None, 1e-06
native_layer_norm: x, [64]
native_layer_norm: x, 64, None, None, 1e-05
native_layer_norm: x, [64], <64>, None, 1e-05
""",
    (VOLUME, True): """
native_batch_norm: x, <8>, <8>, <8>, <8>, False, 0.01, 1e-05
""",
    (ROWS, True): """
native_batch_norm: x, None, None, <128>, <128>, False, 0.1, 0.001
""",
    (ROWS, False): """
mm: x, <128, 10>
""",
}
"""Calls by the shape of ``x``, and by whether their first result is read; ``<64, 3>`` is a weight of these sizes."""


def a_subject_of(*layouts: Layout, **changes: object) -> object:
    return a_subject(inputs=tuple(an_input(layout) for layout in layouts), **changes)


def recorded_call(
    target: str, arguments: str, x: Sequence[int] = FEATURES, *, first_result: bool = False, **changes: object
) -> Diagnosis:
    """A model that runs one operation on ``x``; ``<64, 3>`` is a weight of these sizes."""
    recorder = Recorder()
    image = recorder.placeholder(x)

    def weight(match: re.Match[str]) -> str:
        return recorder.placeholder(tuple(int(size) for size in match[1].split(", ")), weight=True)

    text = re.sub(r"<([\d, ]+)>", weight, re.sub(r"\bx\b", image, arguments))
    name = recorder.call(target, text, x, **changes)
    if first_result:
        name = recorder.call("getitem", f"{name}, 0", x, result_index=0)
    return a_record(recorder.nodes, name, subject=a_subject_of(contiguous(tuple(x))))


def written_call(*call: object, **options: object) -> str:
    reproducer = build_reproducer(recorded_call(*call, **options))  # type: ignore[arg-type]
    assert reproducer.reason is None
    compile(reproducer.script, "reproducer", "exec")
    return reproducer.script


def another_result_than_the_first_one_needs_the_operator(index: str) -> str:
    recorder, x = begun()
    pooled = recorder.call("aten.max_pool2d_with_indices.default", f"{x}, [2, 2]")
    return chosen(recorder, recorder.call("getitem", f"{pooled}, {index}"))


def a_result_that_does_not_exist_is_refused(index: str) -> str:
    recorder, x = begun()
    topk = recorder.call("aten.topk.default", f"{x}, 2")
    record = a_record(recorder.nodes, recorder.call("getitem", f"{topk}, {index}"), subject=SUBJECT)
    return reason_of(record)


def model_of(script: str) -> str:
    """The part of a script that makes the model."""
    return script.split("torch.set_grad_enabled(False)\n", 1)[1].split("\nx = ", 1)[0].strip()


def test_every_operation_is_written_as_reviewed(update_golden: bool) -> None:
    said = {
        f"{call}{', first result' if first_result else ''}, {shape}": model_of(
            written_call(f"aten.{call.replace(': ', '.default: ', 1).split(': ')[0]}", call.split(": ", 1)[1], shape,
                         first_result=first_result)
        )
        for (shape, first_result), calls in OPERATIONS.items()
        for call in calls.strip().splitlines()
    }  # fmt: skip

    reviewed.check("operations", said, update=update_golden)


SUBJECT = a_subject_of(contiguous(FEATURES))


def chosen(recorder: Recorder, output: str, **changes: object) -> str:
    return script_of(recorder.nodes, output, **{"subject": SUBJECT, **changes})


def case_a_normalization_by_computed_statistics_is_called_as_it_was() -> str:
    recorder, x = begun()
    weight = recorder.call("aten.exp.default", recorder.placeholder((64,), weight=True), (64,))
    norm = recorder.call("aten.native_batch_norm.default", f"{x}, {weight}, None, None, None, True, 0.1, 1e-05")
    return chosen(recorder, recorder.call("getitem", f"{norm}, 0", result_index=0))


class InstanceNorm(Recorder):
    """What an instance norm runs, with one thing changed at a time."""

    def norm(
        self,
        *,
        copied: bool = False,
        view: str = "[1, 256, 56, 56]",
        training: bool = True,
        repeat: str = "[4]",
        operation: str = "aten.repeat.default",
        back: tuple[int, ...] = FEATURES,
        bias: bool = True,
    ) -> str:
        self.x = self.placeholder(FEATURES)
        source = self.x
        if copied:
            source = self.call("aten.clone.default", f"{source}, memory_format=torch.contiguous_format")
        self.repeats = [
            self.call(operation, f"{self.placeholder((64,), weight=True)}, {repeat}", (256,)) for _ in range(1 + bias)
        ]
        owned = ", ".join(self.repeats) + ("" if bias else ", None")
        sizes = tuple(int(size) for size in view.strip("[]").split(", "))
        self.flat = self.call("aten.view.default", f"{source}, {view}", sizes)
        result = self.call(
            "aten.native_batch_norm.default", f"{self.flat}, {owned}, None, None, {training}, 0.1, 1e-05", sizes
        )
        self.first = self.call("getitem", f"{result}, 0", sizes, result_index=0)
        return self.call("aten.view.default", f"{self.first}, [{', '.join(map(str, back))}]", back)


def an_instance_norm_is_a_layer_also_where_it_copied_its_input(copied: bool) -> str:
    recorder = InstanceNorm()
    return chosen(recorder, recorder.norm(copied=copied))


def what_only_looks_like_an_instance_norm_is_none(changes: dict[str, object]) -> str:
    recorder = InstanceNorm()
    output = recorder.norm(**changes)  # type: ignore[arg-type]
    return chosen(recorder, output)


def what_something_else_needs_is_not_swallowed_by_a_layer(part: str, as_output: bool) -> str:
    recorder = InstanceNorm()
    output = recorder.norm()
    inner = recorder.repeats[0] if part == "repeats" else getattr(recorder, part)
    other = inner if as_output else recorder.call("aten.sigmoid.default", inner)
    record = a_record(recorder.nodes, output, subject=SUBJECT)
    return with_outputs(record, output, other)


def with_outputs(record: Diagnosis, *outputs: str) -> str:
    eager, *others = record.trials
    (graph,) = eager.graphs
    assert eager.equivalence is not None
    graph = msgspec.structs.replace(graph, output_names=outputs)
    equal = msgspec.structs.replace(eager.equivalence, output_layouts=(contiguous(),) * len(outputs))
    eager = msgspec.structs.replace(eager, graphs=(graph,), equivalence=equal)
    reproducer = build_reproducer(msgspec.structs.replace(record, trials=(eager, *others)))
    assert reproducer.reason is None
    compile(reproducer.script, "reproducer", "exec")
    return reproducer.script


def a_product_that_no_linear_layer_runs_is_no_linear_layer(target: str, arguments: str, weight: tuple[int, int]) -> str:
    recorder, x = begun(ROWS)
    turned = recorder.call("aten.t.default", recorder.placeholder(weight, weight=True), weight[::-1])
    text = re.sub(r"<(\d+)>", lambda match: recorder.placeholder((int(match[1]),)), arguments)
    text = re.sub(r"\bx\b", x, text).replace("turned", turned)
    return chosen(
        recorder, recorder.call(f"aten.{target}.default", text, (4, 10)), subject=a_subject_of(contiguous(ROWS))
    )


def case_a_product_with_another_activation_is_no_linear_layer() -> str:
    recorder = Recorder()
    x, y = recorder.placeholder(ROWS), recorder.placeholder((10, 128))
    output = recorder.call("aten.mm.default", f"{x}, {recorder.call('aten.t.default', y, (128, 10))}", (4, 10))
    return chosen(recorder, output, subject=a_subject_of(contiguous(ROWS), contiguous((10, 128))))


def case_a_linear_layer_without_bias() -> str:
    recorder, x = begun(ROWS)
    turned = recorder.call("aten.t.default", recorder.placeholder((10, 128), weight=True), (128, 10))
    output = recorder.call("aten.mm.default", f"{x}, {turned}", (4, 10))
    return chosen(recorder, output, subject=a_subject_of(contiguous(ROWS)))


def case_a_transposed_weight_that_is_returned_too_belongs_to_no_layer() -> str:
    recorder, x = begun(ROWS)
    turned = recorder.call("aten.t.default", recorder.placeholder((10, 128), weight=True), (128, 10))
    output = recorder.call("aten.mm.default", f"{x}, {turned}", (4, 10))
    record = a_record(recorder.nodes, output, subject=a_subject_of(contiguous(ROWS)))
    return with_outputs(record, output, turned)


def case_a_layer_that_is_called_twice_is_made_once() -> str:
    recorder, x = begun()
    weight = recorder.placeholder((64, 64, 3, 3), weight=True)
    for _ in range(2):
        arguments = f"{x}, {weight}, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1"
        x = recorder.call("aten.convolution.default", arguments)
    return chosen(recorder, x)


def case_a_parameter_that_no_layer_owns_is_the_models_own() -> str:
    recorder, x = begun()
    scale = recorder.placeholder((64, 1, 1), weight=True)
    output = recorder.call("aten.mul.Tensor", f"{x}, {scale}")
    return chosen(recorder, output)


def case_a_parameter_in_channels_last_is_made_so() -> str:
    recorder, x = begun()
    scale = recorder.placeholder((1, 64, 8, 8), weight=True, last=True)
    return chosen(recorder, recorder.call("aten.mul.Tensor", f"{x}, {scale}"))


def case_a_table_of_indices_is_no_parameter() -> str:
    recorder, x = begun()
    indices = recorder.placeholder((8,), dtype="int64")
    record = a_record(recorder.nodes, recorder.call("aten.index_select.default", f"{x}, 1, {indices}"), subject=SUBJECT)
    return reason_of(record)


def an_input_of_another_dtype_is_made_so(dtype: str) -> str:
    recorder, x = begun(FEATURES, dtype=dtype)
    subject = a_subject(inputs=(an_input(contiguous(FEATURES), dtype=dtype),))
    return chosen(recorder, recorder.call("aten.mul.Tensor", f"{x}, 2"), subject=subject)


def an_input_that_cannot_be_made_is_told(layout: Layout, dtype: str) -> str:
    recorder, x = begun(FEATURES, layout=layout, dtype=dtype)
    output = recorder.call("aten.relu.default", x)
    subject = a_subject(inputs=(an_input(layout, dtype=dtype),))
    return reason_of(a_record(recorder.nodes, output, subject=subject))


def case_an_input_that_the_model_never_reads_is_left_out() -> str:
    recorder, x = begun()
    output = recorder.call("aten.relu.default", x)
    return chosen(recorder, output, subject=a_subject_of(contiguous((7,)), contiguous(FEATURES)))


def case_a_model_none_of_whose_inputs_is_known_has_no_reproducer() -> str:
    recorder = Recorder()
    output = recorder.call("aten.relu.default", recorder.placeholder(FEATURES))
    record = a_record(recorder.nodes, output, subject=a_subject_of(contiguous((7,))))
    return reason_of(record)


def case_a_model_that_returns_its_input_runs_nothing() -> str:
    recorder, x = begun()
    return reason_of(a_record(recorder.nodes, x, subject=SUBJECT))


def mixed_weights(*layouts: Layout | None, dtypes: Sequence[str] = ()) -> str:
    """Convolutions in a row, with weights of these layouts; None is contiguous."""
    recorder, x = begun()
    for number, layout in enumerate(layouts):
        shape = layout.shape if layout is not None else (64, 64, 3, 3)
        dtype = dtypes[number] if dtypes else "float32"
        weight = recorder.placeholder(shape, weight=True, layout=layout or contiguous((64, 64, 3, 3)), dtype=dtype)
        pad = shape[-1] // 2  # type: ignore[operator]
        arguments = f"{x}, {weight}, None, [1, 1], [{pad}, {pad}], [1, 1], False, [0, 0], 1"
        x = recorder.call("aten.convolution.default", arguments)
    return chosen(recorder, x)


LAST = channels_last((64, 64, 3, 3))
POINTWISE = contiguous((64, 64, 1, 1))


def case_weights_of_one_layout_are_converted_at_once() -> str:
    return mixed_weights(LAST, strided_layout((64, 64, 1, 1), (64, 1, 7, 7)), LAST)


def case_weights_of_several_layouts_are_converted_one_by_one() -> str:
    odd = strided_layout((64, 64, 3, 3), (1, 64, 4096, 12288))
    return mixed_weights(LAST, None, LAST, odd)


def case_a_weight_whose_strides_mean_nothing_is_left_alone() -> str:
    return mixed_weights(None, strided_layout((64, 64, 1, 1), (64, 1, 7, 7)))


def case_layers_of_several_dtypes_are_converted_each() -> str:
    return mixed_weights(None, POINTWISE, dtypes=("float32", "bfloat16"))


def case_a_long_expression_is_written_on_several_lines() -> str:
    recorder, x = begun()
    y = x
    for number in range(8):
        y = recorder.call("aten.clamp.default", f"{y}, {number}.25, {number}.75")
    return chosen(recorder, recorder.call("aten.add.Tensor", f"{y}, {x}"))


def case_what_repeats_without_layers_of_its_own_is_written_out() -> str:
    recorder, x = begun()
    for _ in range(4):
        x = recorder.call("aten.add.Tensor", f"{x}, {recorder.call('aten.relu.default', x)}")
    return chosen(recorder, x)


def case_statements_with_and_without_layers_are_no_loop() -> str:
    recorder, x = begun()
    y = recorder.convolution(x, (64, 64, 3, 3), FEATURES)
    x = recorder.call("aten.add.Tensor", f"{x}, {y}")
    for _ in range(2):
        x = recorder.call("aten.add.Tensor", f"{x}, {recorder.call('aten.relu.default', x)}")
    return chosen(recorder, x)


def case_an_operation_without_recorded_arguments_is_told() -> str:
    recorder = Recorder()
    output = recorder.call("aten.relu.default", recorder.placeholder(FEATURES))
    recorder.nodes[-1] = msgspec.structs.replace(recorder.nodes[-1], arguments=None)
    return reason_of(a_record(recorder.nodes, output, subject=SUBJECT))


def case_a_graph_that_was_not_understood_whole_has_no_reproducer() -> str:
    nodes, output = a_chain(1)
    eager, *others = a_record(nodes, output).trials
    graph = msgspec.structs.replace(eager.graphs[0], not_understood=("symbolic sizes: arg0_1",))
    trials = (msgspec.structs.replace(eager, graphs=(graph,)), *others)
    return reason_of(msgspec.structs.replace(a_record(nodes, output), trials=trials))


def test_a_model_of_too_many_operations_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layoutdoctor.reports.reproducer.program._MOST_OPERATIONS", 3)

    assert reason_of(a_record(*a_chain(1))) == "no reproducer: the model runs more than 3 operations"


def a_reshape_that_copied_is_a_reshape_again(copy_is_read: bool) -> str:
    recorder, x = begun()
    turned = recorder.call("aten.permute.default", f"{x}, [0, 2, 3, 1]", (4, 56, 56, 64))
    copy = recorder.call("aten.clone.default", f"{turned}, memory_format=torch.contiguous_format", (4, 56, 56, 64))
    output = recorder.call("aten._unsafe_view.default", f"{copy}, [4, 3136, 64]", (4, 3136, 64))
    record = a_record(recorder.nodes, output, subject=SUBJECT)
    return with_outputs(record, *((output, copy) if copy_is_read else (output,)))


def case_a_value_named_by_keyword_follows_its_pooling() -> str:
    """In channels_last a pooling to one element sets its strides afterwards; that is part of the pooling."""
    recorder, x = begun()
    mean = recorder.call("aten.mean.dim", f"{x}, [-1, -2], True", (4, 64, 1, 1))
    pooled = recorder.call("aten.as_strided_.default", f"{mean}, [4, 64, 1, 1], [64, 1, 64, 64]", (4, 64, 1, 1))
    return chosen(recorder, recorder.call("aten.where.self", f"{x}, input={pooled}, other={x}"))


def in_both_layouts(nodes: Sequence[FxNode], output: str, other: Sequence[FxNode], other_output: str) -> Diagnosis:
    record = a_record(nodes, output, subject=SUBJECT)
    trial = a_builtin("eager-channels-last", nodes=other, output=other_output)
    return msgspec.structs.replace(record, trials=(*record.trials, trial))


def one_operation(target: str, arguments: str, *, weight: bool = False) -> tuple[list[FxNode], str]:
    recorder, x = begun()
    more = f", {recorder.placeholder((64, 1, 1), weight=True)}" if weight else ""
    return recorder.nodes, recorder.call(target, f"{x}{more}{arguments}")


def crossed(first: str, second: str) -> tuple[list[FxNode], str]:
    """The second operation reads the input in one layout, the result of the first in the other."""
    recorder, x = begun()
    y = recorder.call("aten.relu.default", x)
    z = recorder.call("aten.sigmoid.default", x)
    names = {"x": x, "y": y, "z": z}
    return recorder.nodes, recorder.call("aten.add.Tensor", f"{names[first]}, {names[second]}")


DIFFERENT = "no reproducer: the model runs other operations where its tensors have another layout"


def two_layouts_that_run_different_programs_have_no_reproducer(
    one: tuple[list[FxNode], str], other: tuple[list[FxNode], str]
) -> str:
    return reason_of(in_both_layouts(*one, *other))


def test_a_copy_that_one_layout_needs_and_another_does_not_is_found_in_either() -> None:
    def network(*, copied: bool) -> tuple[list[FxNode], str]:
        recorder = Recorder()
        x = recorder.placeholder(FEATURES)
        y = recorder.call("aten.relu.default", x)
        if copied:
            y = recorder.call("aten.clone.default", f"{y}, memory_format=torch.contiguous_format")
        return recorder.nodes, recorder.call("aten.add.Tensor", f"{y}, {x}")

    for first, second in ((False, True), (True, False)):
        script = build_reproducer(in_both_layouts(*network(copied=first), *network(copied=second))).script
        assert "torch.relu(x).contiguous() + x" in script


def case_the_title_names_no_finding_of_a_third_configuration() -> str:
    finding = Finding(code="LD101", rule="round-trip", severity="warning", configuration="eager", message="m")
    return build_reproducer(a_record(*a_chain(1), findings=(finding,))).script


def case_configurations_that_all_stand_for_one_are_fewer_than_two() -> str:
    nodes, output = a_chain(1)
    eager, inductor, *_ = a_record(nodes, output).trials
    record = a_record(nodes, output, recommendation=None, comparison=None)
    twin = msgspec.structs.replace(eager, same_as="inductor")
    return reason_of(msgspec.structs.replace(record, trials=(inductor, twin)))


def counts_that_were_not_recorded_whole_are_not_asked_for(changes: dict[str, object]) -> str:
    record = a_record(*a_chain(1))
    eager, inductor, other = record.trials
    summary = None if "kernels" in changes else msgspec.structs.replace(inductor.kernels, **changes)
    trials = (eager, msgspec.structs.replace(inductor, kernels=summary), other)
    return build_reproducer(msgspec.structs.replace(record, trials=trials)).script


def case_training_goes_back_through_every_output_that_can() -> str:
    recorder, x = begun()
    first = recorder.convolution(x, (64, 64, 3, 3), FEATURES)
    second = recorder.call("aten.relu.default", first)
    subject = a_subject_of(contiguous(FEATURES), mode="training")
    return with_outputs(a_record(recorder.nodes, first, subject=subject), first, second)


def two_inputs(first: Sequence[int], second: Sequence[int], **changes: object) -> Diagnosis:
    recorder = Recorder()
    x, y = recorder.placeholder(first), recorder.placeholder(second)
    output = recorder.call("aten.add.Tensor", f"{x}, {y}", first)
    subject = a_subject_of(contiguous(tuple(first)), contiguous(tuple(second)), **changes)
    return a_record(recorder.nodes, output, subject=subject)


def case_of_several_inputs_those_of_the_format_are_converted() -> str:
    return build_reproducer(two_inputs(FEATURES, (64, 1, 1))).script


def case_many_inputs_stand_on_lines_of_their_own() -> str:
    recorder = Recorder()
    inputs = [recorder.placeholder((4, 64, 56, 50 + number)) for number in range(6)]
    output = recorder.call("aten.cat.default", f"[{', '.join(inputs)}], 3")
    shapes = [contiguous((4, 64, 56, 50 + number)) for number in range(6)]
    return chosen(recorder, output, subject=a_subject_of(*shapes))


def case_inputs_of_four_and_of_five_dimensions_get_each_its_own_format() -> str:
    return build_reproducer(two_inputs(FEATURES, (1, 1, 1, 1, 56))).script


def case_weights_of_four_and_of_five_dimensions_get_each_its_own_format() -> str:
    recorder = Recorder()
    x = recorder.convolution(recorder.placeholder(FEATURES), (64, 64, 3, 3), FEATURES)
    x = recorder.call("aten.mul.Tensor", f"{x}, {recorder.placeholder((1, 1, 1, 1, 56), weight=True)}")
    return chosen(recorder, x)


def case_a_model_without_an_input_is_told() -> str:
    recorder = Recorder()
    output = recorder.call("aten.arange.default", "8", (8,))
    return reason_of(a_record(recorder.nodes, output, subject=SUBJECT))


def each(write: Callable[..., str], *cases: object) -> dict[str, str]:
    """What is written of each case, by the name of the function and its number."""
    arguments = [case if isinstance(case, tuple) else (case,) for case in cases]
    return {f"{write.__name__.replace('_', ' ')} {n}": write(*case) for n, case in enumerate(arguments, 1)}


CASES = {
    **{name.removeprefix("case_").replace("_", " "): case() for name, case in globals().items() if name[:5] == "case_"},
    **each(another_result_than_the_first_one_needs_the_operator, "1", "999"),
    **each(a_result_that_does_not_exist_is_refused, "-1", "1000", "None", "True", "1.0"),
    **each(an_instance_norm_is_a_layer_also_where_it_copied_its_input, False, True),
    **each(
        what_only_looks_like_an_instance_norm_is_none,
        {"view": "[2, 128, 56, 56]"},
        {"training": False},
        {"repeat": "[2]"},
        {"operation": "aten.tile.default"},
        {"back": (4, 64, 56 * 56)},
        {"bias": False},
    ),
    **each(
        what_something_else_needs_is_not_swallowed_by_a_layer,
        *((part, as_output) for as_output in (True, False) for part in ("flat", "repeats", "first")),
    ),
    **each(
        a_product_that_no_linear_layer_runs_is_no_linear_layer,
        ("addmm", "<10>, x, turned, beta=1", (10, 128)),
        ("addmm", "<128>, x, turned", (10, 128)),
        ("mm", "turned, x", (128, 4)),
    ),
    **each(an_input_of_another_dtype_is_made_so, "int64", "bool", "float16"),
    **each(
        an_input_that_cannot_be_made_is_told,
        (contiguous(FEATURES), "complex64"),
        (strided_layout((4, 64, 8, 8), (64, 1, 0, 0)), "float32"),
    ),
    **each(a_reshape_that_copied_is_a_reshape_again, False, True),
    **each(
        two_layouts_that_run_different_programs_have_no_reproducer,
        (one_operation("aten.mul.Tensor", ", 2"), one_operation("aten.mul.Tensor", "", weight=True)),
        (one_operation("aten.amax.default", ", [1]"), one_operation("aten.amax.default", ", [2]")),
        tuple(one_operation("aten.gelu.default", f', approximate="{way}"') for way in ("tanh", "none")),
        (crossed("y", "z"), crossed("z", "y")),
        (one_operation("aten.relu.default", ""), one_operation("aten.clone.default", "")),
    ),
    **each(
        counts_that_were_not_recorded_whole_are_not_asked_for,
        {"kernels": None},
        {"count": 9},
        {"sources": ("torch.profiler",)},
    ),
}


def test_every_case_is_written_as_reviewed(update_golden: bool) -> None:
    for script in CASES.values():
        assert script.startswith("no reproducer: ") or compile(script, "reproducer", "exec")
    reviewed.check("reproducers_code", {name: telling(script) for name, script in CASES.items()}, update=update_golden)
