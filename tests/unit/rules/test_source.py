"""LD211, LD503, LD504, LD507 and LD508: how the model is written."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from builders import (
    Told,
    a_comparison,
    a_convolution,
    a_decision,
    a_failed_trial,
    a_graph,
    a_kernel,
    a_location,
    a_node,
    a_placeholder,
    a_ratio,
    a_trial,
    channels_last,
    contiguous,
    finder,
    kernels,
)
from rule_builders import with_graph

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.diagnosis.subject import SourceLocation
from layoutdoctor.diagnosis.trial import Failure, GradientLayout, Trial
from layoutdoctor.rules.ld201_without_effect import LD201
from layoutdoctor.rules.ld210_conv1d import LD210
from layoutdoctor.rules.ld211_parameter_strides import LD211
from layoutdoctor.rules.ld503_flat_conv3d import LD503
from layoutdoctor.rules.ld504_ambiguous_format import LD504
from layoutdoctor.rules.ld507_refused_view import LD507
from layoutdoctor.rules.ld508_matrix_product import LD508

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.graph import Convolution, FxNode

recompiled, flat_ones = finder(LD211.check), finder(LD503.check)
ambiguous, refusing, multiplied = finder(LD504.check), finder(LD507.check), finder(LD508.check)

OLD = "tensor 'L['self'].encoder_q.layer1[0].conv1.weight' stride mismatch at index 2. expected 1, actual 64"
NEW = (
    "0/0: tensor 'fn._modules['body']._modules['0']._parameters['weight']' stride mismatch at index 1. expected 9, "
    "actual 1. Guard failed on a parameter, consider using torch._dynamo.config.force_parameter_static_shapes = False"
)


def compiled_again(*reasons: str, name: str = "inductor") -> Trial:
    return a_trial(name, recompile_reasons=reasons, recompile_count=len(reasons))


def test_a_recompilation_because_of_strides_names_the_tensor(told: Told) -> None:
    told("A recompile for the strides of a parameter names it", recompiled(compiled_again(OLD)))
    told(
        "The names of torch 2 13 are made plain and other reasons are counted",
        recompiled(compiled_again(NEW, "L['x'] is None", OLD)),
    )
    for reasons in ((), (OLD.replace("stride", "size"),), (OLD, OLD.replace("stride mismatch", "size mismatch"))):
        assert recompiled(compiled_again(*reasons)) == []
    both = recompiled(compiled_again(OLD, name="inductor-layout-opt-on"), compiled_again(OLD))
    assert [f.configuration for f in both] == ["inductor"]


def a_flat_one(node: str = "convolution", **changes: Any) -> Convolution:
    fields: dict[str, Any] = {"rank": 3, "weight_shape": (16, 16, 1, 3, 3), "stride": (1, 2, 2), "padding": (0, 1, 1)}
    fields |= {"dilation": (1, 1, 1), "is_transposed": False, "channels_last": False}
    return a_convolution(node, **{**fields, **changes})


def with_convolutions(*convolutions: Convolution, **changes: Any) -> Trial:
    return with_graph(graph={"decision": a_decision(*convolutions), **changes})


def test_a_conv3d_with_a_kernel_of_1_in_depth_is_a_note_with_the_code_to_write(told: Told) -> None:
    thick = a_flat_one("convolution_2", weight_shape=(16, 16, 3, 3, 3), padding=(1, 1, 1))
    flat = (
        a_flat_one(location=a_location(4), module="a"),
        a_flat_one("convolution_1", module=None, weight_shape=(8, 16, 1, 5, 5)),
    )
    told(
        "Convolutions that leave the depth alone are a note with the code to write",
        flat_ones(with_convolutions(*flat, thick)),
    )
    for changes in (
        {"weight_shape": (16, 16, 3, 3, 3)},
        {"weight_shape": (16, 16, 1, 1, 1)},
        {"is_transposed": True},
        {"rank": 2, "weight_shape": (16, 16, 1, 3)},
        {"weight_shape": (16, 16, 1, 2, 2), "stride": (1, 2, 2)},
        {"padding": (1, 1, 1)},
        {"weight_shape": None},
    ):
        assert flat_ones(with_convolutions(a_flat_one(**changes))) == []


def with_patches(image: tuple[int, ...] = (2, 14, 14), *more: FxNode, seconds: float = 4e-3, **changes: Any) -> Trial:
    """A convolution whose kernel is its stride, on an image."""
    fields: dict[str, Any] = {"rank": 3, "weight_shape": (32, 3, 2, 14, 14), "stride": (2, 14, 14), "module": "proj"}
    fields |= {"padding": (0, 0, 0), "dilation": (1, 1, 1), "groups": 1, "is_transposed": False, **changes}
    nodes = (
        a_placeholder("w", contiguous(fields["weight_shape"]), "weight"),
        a_placeholder("x", contiguous((8, 3, *image))),
        a_node("convolution", "aten.convolution.default", ("x", "w"), layout=contiguous((8, 32, 1, 1, 1))),
    )
    ran = kernels(kernels=(a_kernel(seconds=seconds, node="convolution"),), seconds=5e-3)
    graph = a_graph(a_decision(a_convolution(**fields)), nodes=(*nodes, *more))
    return a_trial(graphs=(graph,), kernels=ran)


def test_a_convolution_whose_patches_do_not_overlap_is_a_matrix_product(told: Told) -> None:
    told("A kernel that is its stride and its input is a matrix product", multiplied(with_patches()))
    told("Without a kernel list no time is named", multiplied(msgspec.structs.replace(with_patches(), kernels=None)))
    pointwise = {"rank": 2, "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "weight_shape": (32, 3, 1, 1)}
    one_pixel = with_patches((1, 1), **pointwise)
    assert len(multiplied(one_pixel)) == 1
    assert multiplied(msgspec.structs.replace(one_pixel, kernels=None)) == []  # it may take next to no time
    matrix = contiguous((4096, 4096))
    larger = (a_placeholder("a", matrix), a_node("mm", "aten.mm.default", ("a", "a"), layout=matrix))
    for trial in (
        with_patches((2, 15, 14)),
        with_patches(groups=3),
        with_patches(padding=(0, 1, 1)),
        with_patches(dilation=(1, 2, 2)),
        with_patches(is_transposed=True),
        with_patches(stride=(1, 7, 7), image=(2, 28, 28)),
        with_patches((8, 8), **pointwise),
        with_patches((2, 14, 14), *larger),
        with_patches(seconds=5e-5),
    ):
        assert multiplied(trial) == []


def test_matrix_products_are_not_advised_to_run_channels_last_as_well() -> None:
    idle, one_dimensional = finder(LD201.check), finder(LD210.check)
    volumes = with_patches(channels_last=False)
    series = with_patches((64,), rank=1, stride=(16,), padding=(0,), dilation=(1,), weight_shape=(32, 3, 16))
    gain = a_comparison(a_ratio("inductor-channels-last", 1.5))
    assert [len(multiplied(volumes)), len(multiplied(series))] == [1, 1]
    assert idle(volumes) == one_dimensional(series) == []
    assert [finding.code for finding in idle(volumes, comparison=gain)] == ["LD201"]
    overlapping = with_patches(channels_last=False, stride=(1, 7, 7), image=(2, 28, 28))
    assert [finding.code for finding in idle(overlapping)] == ["LD201"]


POINTWISE = (64, 64, 1, 1)
NOMINAL = GradientLayout(
    parameter="net.2.weight",
    layout=strided_layout(POINTWISE, (64, 1, 1, 1)),
    gradient=strided_layout(POINTWISE, (64, 1, 64, 64)),
)
REAL = GradientLayout(parameter="net.0.weight", layout=contiguous((64, 3, 3, 3)), gradient=channels_last((64, 3, 3, 3)))
a_trial_of = partial(with_graph, graph={"decision": a_decision()})


def test_gradients_in_both_formats_are_a_note_that_nothing_is_due(told: Told) -> None:
    off = a_trial("inductor-layout-opt-off", gradient_layouts=(REAL,))
    told(
        "Gradients with nominally other strides are the same bytes",
        ambiguous(a_trial_of(gradient_layouts=(REAL, NOMINAL)), off),
    )
    assert ambiguous(a_trial_of(gradient_layouts=(REAL,))) == []


def test_configurations_that_a_view_made_fail_are_one_finding(told: Told) -> None:
    line = SourceLocation(file="net.py", line=10, code="return self.head(x.view(2, -1))")

    def refused(name: str, location: SourceLocation | None = line) -> Trial:
        failure = Failure(kind="run", message="RuntimeError: no", location=location, cause="refused_view")
        return msgspec.structs.replace(a_failed_trial(name), failure=failure)

    told("One configuration", refusing(a_trial(), refused("eager-channels-last")))
    told("Several, without a line", refusing(*(refused(name, location=None) for name in ("a", "b", "c", "d"))))
    assert refusing(a_trial(), a_failed_trial("eager", "RuntimeError: boom")) == []
