"""Operations as reproducers write them: the layer that runs exactly this, else the function, else the operator."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import pytest
from builders import a_location, a_subject, an_input, channels_last, contiguous
from loops import for_each
from reproducer_builders import FEATURES, IMAGES, Recorder, a_builtin, a_chain, a_record, reason_of, script_of

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.diagnosis.records import Finding
from layoutdoctor.reports.reproducer.report import build_reproducer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Diagnosis, FxNode

VOLUME, SEQUENCE, ROWS = (2, 8, 4, 16, 16), (4, 196, 64), (4, 128)
OWNED = "<64>, <64>, <64>, <64>"


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


def sequential_of(script: str) -> str:
    """The one layer of a chain, however its line is broken."""
    made = re.search(r"^model = nn\.Sequential\(\s*(.*?),?\s*\)\.eval\(\)$", script, re.MULTILINE | re.DOTALL)
    assert made is not None
    return made[1]


@for_each(
    ("layer", "target", "arguments", "x"),
    [
        (
            "nn.Conv1d(64, 32, 3, padding=1, bias=False)",
            "convolution",
            "x, <32, 64, 3>, None, [1], [1], [1], False, [0], 1",
            (4, 64, 56),
        ),
        (
            "nn.Conv3d(8, 16, 3, stride=(1, 2, 2))",
            "convolution",
            "x, <16, 8, 3, 3, 3>, <16>, [1, 2, 2], [0, 0, 0], [1, 1, 1], False, [0, 0, 0], 1",
            VOLUME,
        ),
        (
            "nn.Conv2d(64, 64, (1, 7), padding=(0, 3), groups=64, dilation=2)",
            "convolution",
            "x, <64, 1, 1, 7>, <64>, [1, 1], [0, 3], [2, 2], False, [0, 0], 64",
            FEATURES,
        ),
        (
            "nn.ConvTranspose2d(64, 32, 2, stride=2)",
            "convolution",
            "x, <64, 32, 2, 2>, <32>, [2, 2], [0, 0], [1, 1], True, [0, 0], 1",
            FEATURES,
        ),
        (
            "nn.ConvTranspose2d(64, 32, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False)",
            "convolution",
            "x, <64, 16, 3, 3>, None, [2, 2], [1, 1], [1, 1], True, [1, 1], 2",
            FEATURES,
        ),
        ("nn.GroupNorm(32, 64)", "native_group_norm", "x, <64>, <64>, 4, 64, 3136, 32, 1e-05", FEATURES),
        (
            "nn.GroupNorm(1, 64, eps=1e-06, affine=False)",
            "native_group_norm",
            "x, None, None, 4, 64, 3136, 1, 1e-06",
            FEATURES,
        ),
        ("nn.LayerNorm(64)", "native_layer_norm", "x, [64], <64>, <64>, 1e-05", SEQUENCE),
        (
            "nn.LayerNorm((196, 64), eps=1e-06, elementwise_affine=False)",
            "native_layer_norm",
            "x, [196, 64], None, None, 1e-06",
            SEQUENCE,
        ),
        (
            "nn.BatchNorm3d(8, momentum=0.01)",
            "native_batch_norm",
            "x, <8>, <8>, <8>, <8>, False, 0.01, 1e-05",
            VOLUME,
        ),
        (
            "nn.BatchNorm1d(128, eps=0.001, affine=False)",
            "native_batch_norm",
            "x, None, None, <128>, <128>, False, 0.1, 0.001",
            ROWS,
        ),
        (
            "nn.BatchNorm2d(64, affine=False, track_running_stats=False)",
            "native_batch_norm",
            "x, None, None, None, None, True, 0.1, 1e-05",
            FEATURES,
        ),
        ("nn.MaxPool2d((3, 3), (2, 2), (1, 1))", "max_pool2d_with_indices", "x, [3, 3], [2, 2], [1, 1]", FEATURES),
    ],
)
def test_an_operation_with_weights_or_several_results_is_its_layer(
    layer: str, target: str, arguments: str, x: Sequence[int]
) -> None:
    script = written_call(f"aten.{target}.default", arguments, x, first_result=target != "convolution")

    assert sequential_of(script) == layer


@for_each(
    ("layer", "target", "arguments", "x"),
    [
        ('nn.Upsample(size=112, mode="nearest")', "upsample_nearest2d", "x, [112, 112]", FEATURES),
        ('nn.Upsample(size=(112, 56), mode="nearest")', "upsample_nearest2d", "x, [112, 56], None, None", FEATURES),
        ('nn.Upsample(scale_factor=2.0, mode="nearest")', "upsample_nearest2d", "x, [112, 112], 2.0, 2.0", FEATURES),
        ('nn.Upsample(scale_factor=2.0, mode="nearest")', "upsample_nearest1d", "x, [112], 2.0", (4, 64, 56)),
        (
            'nn.Upsample(scale_factor=(1.0, 2.0, 2.0), mode="trilinear", align_corners=True)',
            "upsample_trilinear3d",
            "x, [4, 32, 32], True, 1.0, 2.0, 2.0",
            VOLUME,
        ),
        (
            'nn.Upsample(size=112, mode="bilinear", align_corners=False)',
            "upsample_bilinear2d",
            "x, [112, 112], False, None, None",
            FEATURES,
        ),
        (
            'nn.Upsample(size=112, mode="bicubic", align_corners=False)',
            "upsample_bicubic2d",
            "x, [112, 112], False",
            FEATURES,
        ),
        ("nn.ReflectionPad2d(1)", "reflection_pad2d", "x, [1, 1, 1, 1]", FEATURES),
        ("nn.ReflectionPad1d((2, 1))", "reflection_pad1d", "x, [2, 1]", (4, 64, 56)),
        ("nn.ReplicationPad3d(1)", "replication_pad3d", "x, [1, 1, 1, 1, 1, 1]", VOLUME),
        ("nn.ReLU6()", "hardtanh", "x, 0.0, 6.0", FEATURES),
        ("nn.ReLU6(inplace=True)", "hardtanh_", "x, 0, 6", FEATURES),
        ('nn.GELU(approximate="tanh")', "gelu", 'x, approximate="tanh"', FEATURES),
        ("nn.ReLU(inplace=True)", "relu_", "x", FEATURES),
        ("nn.PixelShuffle(2)", "pixel_shuffle", "x, 2", FEATURES),
    ],
)
def test_an_operation_without_weights_is_its_layer_in_a_chain(
    layer: str, target: str, arguments: str, x: Sequence[int]
) -> None:
    assert sequential_of(written_call(f"aten.{target}.default", arguments, x)) == layer


@for_each(
    ("code", "target", "arguments", "x"),
    [
        ("F.pad(x, (1, 1, 1, 1), value=0.5)", "constant_pad_nd", "x, [1, 1, 1, 1], 0.5", FEATURES),
        ('F.pad(x, (1, 1), value=float("-inf"))', "constant_pad_nd", "x, [1, 1], -inf", FEATURES),
        ('F.pad(x, (1, 1), value=float("nan"))', "constant_pad_nd", "x, [1, 1], nan", FEATURES),
        ("F.pad(x, (1, -1))", "constant_pad_nd", "x, [1, -1]", FEATURES),
        ("x.amax((2,))", "amax", "x, [2]", FEATURES),
        ("x.permute((0, 2, 3, 1))", "permute", "x, [0, 2, 3, 1]", FEATURES),
        ("torch.ops.aten.clamp.default(x, None, 6)", "clamp", "x, None, 6", FEATURES),
        ("torch.ops.aten.hardtanh.default(x, -1, 1)", "hardtanh", "x, -1, 1", FEATURES),
        ("torch.ops.aten.mm.default(x, self.p[0])", "mm", "x, <128, 10>", ROWS),
        (
            "torch.ops.aten.reflection_pad2d.default(x, 1)",
            "reflection_pad2d",
            "x, 1",
            FEATURES,
        ),
        (
            "torch.ops.aten.upsample_nearest2d.default(x, (112, 112), 2.0)",
            "upsample_nearest2d",
            "x, [112, 112], 2.0",
            FEATURES,
        ),
        (
            "torch.ops.aten.upsample_bilinear2d.default(x, (112, 112), None, 2.0)",
            "upsample_bilinear2d",
            "x, [112, 112], None, 2.0",
            FEATURES,
        ),
        (
            "torch.ops.aten.upsample_nearest2d.default(x, None, 2.0, 2.0)",
            "upsample_nearest2d",
            "x, None, 2.0, 2.0",
            FEATURES,
        ),
        (
            "torch.ops.aten.convolution.default(x, None, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)",
            "convolution",
            "x, None, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1",
            FEATURES,
        ),
        (
            "torch.ops.aten.convolution.default(x, p[0], None, 1, (0, 0), (1, 1), False, (0, 0), 1)",
            "convolution",
            "x, <8, 64, 1, 1>, None, 1, [0, 0], [1, 1], False, [0, 0], 1",
            FEATURES,
        ),
        (
            "torch.ops.aten.convolution.default(x, p[0], None, (1, 1), (0, 0), (1, 1), None, (0, 0), 1)",
            "convolution",
            "x, <8, 64, 1, 1>, None, [1, 1], [0, 0], [1, 1], None, [0, 0], 1",
            FEATURES,
        ),
        (
            "torch.ops.aten.convolution.default(x, p[0], None, (1, 1), (0, 0), (1, 1), False, (0, 0))",
            "convolution",
            "x, <8, 64, 1, 1>, None, [1, 1], [0, 0], [1, 1], False, [0, 0]",
            FEATURES,
        ),
        (
            "torch.ops.aten.linalg_vector_norm.default(x, 2, (1,), True, dtype=torch.float32)",
            "linalg_vector_norm",
            "x, 2, [1], True, dtype=torch.float32",
            FEATURES,
        ),
    ],
)
def test_what_no_layer_runs_exactly_so_is_called_as_it_was(
    code: str, target: str, arguments: str, x: Sequence[int]
) -> None:
    code = code.replace("self.p[", "p[")

    assert f"        return {code}\n" in written_call(f"aten.{target}.default", arguments, x)


@for_each(
    ("code", "target", "arguments", "x"),
    [
        ("native_batch_norm.default(x, 0.1)", "native_batch_norm", "x, 0.1", FEATURES),
        (
            "native_batch_norm.default(x, None, None, None, None, False, 0.1, 1e-05)",
            "native_batch_norm",
            "x, None, None, None, None, False, 0.1, 1e-05",
            FEATURES,
        ),
        (
            "native_batch_norm.default(x, p[0], None, None, None, True, 0.1, 1e-05)",
            "native_batch_norm",
            "x, <64>, None, None, None, True, 0.1, 1e-05",
            FEATURES,
        ),
        ("native_group_norm.default(x, 2)", "native_group_norm", "x, 2", FEATURES),
        (
            "native_group_norm.default(x, p[0], None, 4, 64, 3136, 32, 1e-05)",
            "native_group_norm",
            "x, <64>, None, 4, 64, 3136, 32, 1e-05",
            FEATURES,
        ),
        (
            "native_group_norm.default(x, None, None, 4, None, 3136, 32, 1e-05)",
            "native_group_norm",
            "x, None, None, 4, None, 3136, 32, 1e-05",
            FEATURES,
        ),
        ("native_layer_norm.default(x, (64,))", "native_layer_norm", "x, [64]", SEQUENCE),
        (
            "native_layer_norm.default(x, 64, None, None, 1e-05)",
            "native_layer_norm",
            "x, 64, None, None, 1e-05",
            SEQUENCE,
        ),
        (
            "native_layer_norm.default(x, (64,), p[0], None, 1e-05)",
            "native_layer_norm",
            "x, [64], <64>, None, 1e-05",
            SEQUENCE,
        ),
    ],
)
def test_the_first_result_of_an_operator_is_taken_by_its_number(
    code: str, target: str, arguments: str, x: Sequence[int]
) -> None:
    script = written_call(f"aten.{target}.default", arguments, x, first_result=True)

    assert f"        return torch.ops.aten.{code}[0]\n" in script


@pytest.mark.parametrize("index", ["1", "999"])
def test_another_result_than_the_first_one_needs_the_operator(index: str) -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    pooled = recorder.call("aten.max_pool2d_with_indices.default", f"{x}, [2, 2]")
    script = chosen(recorder, recorder.call("getitem", f"{pooled}, {index}"))

    assert "F.max_pool2d" not in script  # which returns a tensor
    assert f"torch.ops.aten.max_pool2d_with_indices.default(x, (2, 2))[{index}]" in script


@pytest.mark.parametrize("index", ["-1", "1000", "None", "True", "1.0"])
def test_a_result_that_does_not_exist_is_refused(index: str) -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    topk = recorder.call("aten.topk.default", f"{x}, 2")
    record = a_record(recorder.nodes, recorder.call("getitem", f"{topk}, {index}"), subject=SUBJECT)

    assert reason_of(record) == "no reproducer: an operation takes a result that does not exist"


SUBJECT = a_subject_of(contiguous(FEATURES))


def chosen(recorder: Recorder, output: str, **changes: object) -> str:
    return script_of(recorder.nodes, output, **{"subject": SUBJECT, **changes})


def test_a_normalization_by_computed_statistics_is_called_as_it_was() -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    weight = recorder.call("aten.exp.default", recorder.placeholder((64,), weight=True), (64,))
    norm = recorder.call("aten.native_batch_norm.default", f"{x}, {weight}, None, None, None, True, 0.1, 1e-05")
    script = chosen(recorder, recorder.call("getitem", f"{norm}, 0", result_index=0))

    assert "torch.ops.aten.native_batch_norm.default(x, " in script
    assert "p[0].exp()" in script


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


@pytest.mark.parametrize("copied", [False, True])
def test_an_instance_norm_is_a_layer_also_where_it_copied_its_input(copied: bool) -> None:
    recorder = InstanceNorm()

    assert "model = nn.Sequential(nn.InstanceNorm2d(64, affine=True)).eval()" in chosen(
        recorder, recorder.norm(copied=copied)
    )


@for_each(
    "changes",
    [
        {"view": "[2, 128, 56, 56]"},
        {"training": False},
        {"repeat": "[2]"},
        {"operation": "aten.tile.default"},
        {"back": (4, 64, 56 * 56)},
        {"bias": False},
    ],
)
def test_what_only_looks_like_an_instance_norm_is_none(changes: dict[str, object]) -> None:
    recorder = InstanceNorm()
    output = recorder.norm(**changes)  # type: ignore[arg-type]

    assert "InstanceNorm" not in chosen(recorder, output)


@for_each("part", ["flat", "repeats", "first"])
@for_each("as_output", [True, False])
def test_what_something_else_needs_is_not_swallowed_by_a_layer(part: str, as_output: bool) -> None:
    recorder = InstanceNorm()
    output = recorder.norm()
    inner = recorder.repeats[0] if part == "repeats" else getattr(recorder, part)
    other = inner if as_output else recorder.call("aten.sigmoid.default", inner)
    record = a_record(recorder.nodes, output, subject=SUBJECT)
    script = with_outputs(record, output, other)

    assert "InstanceNorm" not in script
    assert (".repeat" in script) if part == "repeats" else ("reshape(1, 256, 56, 56)" in script)


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


@pytest.mark.parametrize(
    ("target", "arguments", "weight"),
    [
        ("addmm", "<10>, x, turned, beta=1", (10, 128)),
        ("addmm", "<128>, x, turned", (10, 128)),
        ("mm", "turned, x", (128, 4)),
    ],
)
def test_a_product_that_no_linear_layer_runs_is_no_linear_layer(
    target: str, arguments: str, weight: tuple[int, int]
) -> None:
    recorder = Recorder()
    x = recorder.placeholder(ROWS)
    turned = recorder.call("aten.t.default", recorder.placeholder(weight, weight=True), weight[::-1])
    text = re.sub(r"<(\d+)>", lambda match: recorder.placeholder((int(match[1]),)), arguments)
    text = re.sub(r"\bx\b", x, text).replace("turned", turned)
    script = chosen(
        recorder, recorder.call(f"aten.{target}.default", text, (4, 10)), subject=a_subject_of(contiguous(ROWS))
    )

    assert "nn.Linear" not in script
    assert f"torch.ops.aten.{target}.default(" in script


def test_a_product_with_another_activation_is_no_linear_layer() -> None:
    recorder = Recorder()
    x, y = recorder.placeholder(ROWS), recorder.placeholder((10, 128))
    output = recorder.call("aten.mm.default", f"{x}, {recorder.call('aten.t.default', y, (128, 10))}", (4, 10))
    script = chosen(recorder, output, subject=a_subject_of(contiguous(ROWS), contiguous((10, 128))))

    assert "return torch.ops.aten.mm.default(x1, x2.t())" in script


def test_a_linear_layer_without_bias() -> None:
    recorder = Recorder()
    x = recorder.placeholder(ROWS)
    turned = recorder.call("aten.t.default", recorder.placeholder((10, 128), weight=True), (128, 10))
    output = recorder.call("aten.mm.default", f"{x}, {turned}", (4, 10))

    assert "nn.Linear(128, 10, bias=False)" in chosen(recorder, output, subject=a_subject_of(contiguous(ROWS)))


def test_a_transposed_weight_that_is_returned_too_belongs_to_no_layer() -> None:
    recorder = Recorder()
    x = recorder.placeholder(ROWS)
    turned = recorder.call("aten.t.default", recorder.placeholder((10, 128), weight=True), (128, 10))
    output = recorder.call("aten.mm.default", f"{x}, {turned}", (4, 10))
    record = a_record(recorder.nodes, output, subject=a_subject_of(contiguous(ROWS)))
    script = with_outputs(record, output, turned)

    assert "nn.Linear" not in script
    assert "p[0].t()" in script


def test_a_layer_that_is_called_twice_is_made_once() -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    weight = recorder.placeholder((64, 64, 3, 3), weight=True)
    for _ in range(2):
        arguments = f"{x}, {weight}, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1"
        x = recorder.call("aten.convolution.default", arguments)
    script = chosen(recorder, x)

    assert script.count("nn.Conv2d(") == 1
    assert "        return self.m[0](self.m[0](x))\n" in script


def test_a_parameter_that_no_layer_owns_is_the_models_own() -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    scale = recorder.placeholder((64, 1, 1), weight=True)
    output = recorder.call("aten.mul.Tensor", f"{x}, {scale}")

    assert """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.ParameterList([
            0.05 * torch.randn(64, 1, 1),
        ])

    def forward(self, x):
        p = self.p
        return x * p[0]
""" in chosen(recorder, output)


def test_a_parameter_in_channels_last_is_made_so() -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    scale = recorder.placeholder((1, 64, 8, 8), weight=True, last=True)

    assert "(0.05 * torch.randn(1, 64, 8, 8)).to(memory_format=torch.channels_last)," in chosen(
        recorder, recorder.call("aten.mul.Tensor", f"{x}, {scale}")
    )


def test_a_table_of_indices_is_no_parameter() -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    indices = recorder.placeholder((8,), dtype="int64")
    record = a_record(recorder.nodes, recorder.call("aten.index_select.default", f"{x}, 1, {indices}"), subject=SUBJECT)

    assert reason_of(record) == "no reproducer: the model reads a tensor of integers that is none of its inputs"


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        ("int64", "torch.randint(0, 2, (4, 64, 56, 56), dtype=torch.int64)"),
        ("bool", "(torch.rand(4, 64, 56, 56) > 0.5)"),
        ("float16", "torch.randn(4, 64, 56, 56, dtype=torch.float16)"),
    ],
)
def test_an_input_of_another_dtype_is_made_so(dtype: str, code: str) -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES, dtype=dtype)
    subject = a_subject(inputs=(an_input(contiguous(FEATURES), dtype=dtype),))

    assert f"x = {code}\n" in chosen(recorder, recorder.call("aten.mul.Tensor", f"{x}, 2"), subject=subject)


@pytest.mark.parametrize(
    ("layout", "dtype", "reason"),
    [
        (contiguous(FEATURES), "complex64", "a tensor that the model reads has no layout or dtype that can be made"),
        (strided_layout((4, 64, 8, 8), (64, 1, 0, 0)), "float32", "a tensor that the model reads overlaps itself"),
    ],
)
def test_an_input_that_cannot_be_made_is_told(layout: Layout, dtype: str, reason: str) -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES, layout=layout, dtype=dtype)
    output = recorder.call("aten.relu.default", x)
    subject = a_subject(inputs=(an_input(layout, dtype=dtype),))

    assert reason_of(a_record(recorder.nodes, output, subject=subject)) == f"no reproducer: {reason}"


def test_an_input_that_the_model_never_reads_is_left_out() -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    output = recorder.call("aten.relu.default", x)
    script = chosen(recorder, output, subject=a_subject_of(contiguous((7,)), contiguous(FEATURES)))

    assert "x = torch.randn(4, 64, 56, 56)\n" in script


def test_a_model_none_of_whose_inputs_is_known_has_no_reproducer() -> None:
    recorder = Recorder()
    output = recorder.call("aten.relu.default", recorder.placeholder(FEATURES))
    record = a_record(recorder.nodes, output, subject=a_subject_of(contiguous((7,))))

    assert reason_of(record) == "no reproducer: the record does not say which tensor is the model's input"


def test_a_model_that_returns_its_input_runs_nothing() -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)

    assert reason_of(a_record(recorder.nodes, x, subject=SUBJECT)) == "no reproducer: the model runs no operation"


def mixed_weights(*layouts: Layout | None, dtypes: Sequence[str] = ()) -> str:
    """Convolutions in a row, with weights of these layouts; None is contiguous."""
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
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


def test_weights_of_one_layout_are_converted_at_once() -> None:
    script = mixed_weights(LAST, strided_layout((64, 64, 1, 1), (64, 1, 7, 7)), LAST)

    assert ").eval().to(memory_format=torch.channels_last)\n" in script
    assert ".weight.data" not in script


def test_weights_of_several_layouts_are_converted_one_by_one() -> None:
    odd = strided_layout((64, 64, 3, 3), (1, 64, 4096, 12288))
    script = mixed_weights(LAST, None, LAST, odd)

    assert (
        """
for i in (0, 2):
    model[i].weight.data = model[i].weight.data.to(memory_format=torch.channels_last)
model[3].weight.data = torch.empty_strided((64, 64, 3, 3), (1, 64, 4096, 12288)).copy_(model[3].weight.data)
"""
        in script
    )


def test_a_weight_whose_strides_mean_nothing_is_left_alone() -> None:
    script = mixed_weights(None, strided_layout((64, 64, 1, 1), (64, 1, 7, 7)))

    assert "weight.data" not in script
    assert "memory_format=torch.channels_last)\n" not in script.split("steps = ")[0]


def test_layers_of_several_dtypes_are_converted_each() -> None:
    script = mixed_weights(None, POINTWISE, dtypes=("float32", "bfloat16"))

    assert "nn.Conv2d(64, 64, 1, bias=False).to(torch.bfloat16)," in script
    assert "nn.Conv2d(64, 64, 3, padding=1, bias=False)," in script


def test_a_long_expression_is_written_on_several_lines() -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    y = x
    for number in range(8):
        y = recorder.call("aten.clamp.default", f"{y}, {number}.25, {number}.75")
    script = chosen(recorder, recorder.call("aten.add.Tensor", f"{y}, {x}"))
    body = script.split("def forward(self, x):\n")[1].split("\n\n")[0].splitlines()

    assert len(body) > 2
    assert max(map(len, body)) <= 160
    assert body[-1].strip().startswith("return ")


def test_what_repeats_without_layers_of_its_own_is_written_out() -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    for _ in range(4):
        x = recorder.call("aten.add.Tensor", f"{x}, {recorder.call('aten.relu.default', x)}")
    script = chosen(recorder, x)

    assert "for i in range" not in script.split("def forward")[1].split("model = Model()")[0]
    assert script.count("x = x + torch.relu(x)\n") == 3
    assert "ModuleList" not in script


def test_statements_with_and_without_layers_are_no_loop() -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    y = recorder.convolution(x, (64, 64, 3, 3), FEATURES)
    x = recorder.call("aten.add.Tensor", f"{x}, {y}")
    for _ in range(2):
        x = recorder.call("aten.add.Tensor", f"{x}, {recorder.call('aten.relu.default', x)}")
    script = chosen(recorder, x)

    assert "        x = x + self.m[0](x)\n        x = x + torch.relu(x)\n        return x + torch.relu(x)\n" in script


def test_an_operation_without_recorded_arguments_is_told() -> None:
    recorder = Recorder()
    output = recorder.call("aten.relu.default", recorder.placeholder(FEATURES))
    recorder.nodes[-1] = msgspec.structs.replace(recorder.nodes[-1], arguments=None)

    assert reason_of(a_record(recorder.nodes, output, subject=SUBJECT)) == (
        "no reproducer: the record does not hold the arguments of an operation"
    )


def test_a_graph_that_was_not_understood_whole_has_no_reproducer() -> None:
    nodes, output = a_chain(1)
    eager, *others = a_record(nodes, output).trials
    graph = msgspec.structs.replace(eager.graphs[0], not_understood=("symbolic sizes: arg0_1",))
    trials = (msgspec.structs.replace(eager, graphs=(graph,)), *others)

    assert reason_of(msgspec.structs.replace(a_record(nodes, output), trials=trials)) == (
        "no reproducer: the model has symbolic sizes or sub-graphs"
    )


def test_a_model_of_too_many_operations_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layoutdoctor.reports.reproducer.program._MOST_OPERATIONS", 3)

    assert reason_of(a_record(*a_chain(1))) == "no reproducer: the model runs more than 3 operations"


@pytest.mark.parametrize("copy_is_read", [False, True])
def test_a_reshape_that_copied_is_a_reshape_again(copy_is_read: bool) -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    turned = recorder.call("aten.permute.default", f"{x}, [0, 2, 3, 1]", (4, 56, 56, 64))
    copy = recorder.call("aten.clone.default", f"{turned}, memory_format=torch.contiguous_format", (4, 56, 56, 64))
    output = recorder.call("aten._unsafe_view.default", f"{copy}, [4, 3136, 64]", (4, 3136, 64))
    record = a_record(recorder.nodes, output, subject=SUBJECT)
    script = with_outputs(record, *((output, copy) if copy_is_read else (output,)))

    if copy_is_read:
        assert "x = x.permute((0, 2, 3, 1)).contiguous()\n" in script
        assert "y = x.reshape(4, 3136, 64)\n" in script
    else:
        assert "return x.permute((0, 2, 3, 1)).reshape(4, 3136, 64)\n" in script


def test_a_value_named_by_keyword_follows_its_pooling() -> None:
    """In channels_last a pooling to one element sets its strides afterwards; that is part of the pooling."""
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    mean = recorder.call("aten.mean.dim", f"{x}, [-1, -2], True", (4, 64, 1, 1))
    pooled = recorder.call("aten.as_strided_.default", f"{mean}, [4, 64, 1, 1], [64, 1, 64, 64]", (4, 64, 1, 1))
    script = chosen(recorder, recorder.call("aten.where.self", f"{x}, input={pooled}, other={x}"))

    assert "torch.ops.aten.where.self(x, input=F.adaptive_avg_pool2d(x, 1), other=x)" in script


def in_both_layouts(nodes: Sequence[FxNode], output: str, other: Sequence[FxNode], other_output: str) -> Diagnosis:
    record = a_record(nodes, output, subject=SUBJECT)
    trial = a_builtin("eager-channels-last", nodes=other, output=other_output)
    return msgspec.structs.replace(record, trials=(*record.trials, trial))


def one_operation(target: str, arguments: str, *, weight: bool = False) -> tuple[list[FxNode], str]:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    more = f", {recorder.placeholder((64, 1, 1), weight=True)}" if weight else ""
    return recorder.nodes, recorder.call(target, f"{x}{more}{arguments}")


def crossed(first: str, second: str) -> tuple[list[FxNode], str]:
    """The second operation reads the input in one layout, the result of the first in the other."""
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    y = recorder.call("aten.relu.default", x)
    z = recorder.call("aten.sigmoid.default", x)
    names = {"x": x, "y": y, "z": z}
    return recorder.nodes, recorder.call("aten.add.Tensor", f"{names[first]}, {names[second]}")


DIFFERENT = "no reproducer: the model runs other operations where its tensors have another layout"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (one_operation("aten.mul.Tensor", ", 2"), one_operation("aten.mul.Tensor", "", weight=True)),
        (one_operation("aten.amax.default", ", [1]"), one_operation("aten.amax.default", ", [2]")),
        (
            one_operation("aten.gelu.default", ', approximate="tanh"'),
            one_operation("aten.gelu.default", ', approximate="none"'),
        ),
        (crossed("y", "z"), crossed("z", "y")),
        (one_operation("aten.relu.default", ""), one_operation("aten.clone.default", "")),
    ],
    ids=["weights", "arguments", "keywords", "inputs", "operations"],
)
def test_two_layouts_that_run_different_programs_have_no_reproducer(
    one: tuple[list[FxNode], str], other: tuple[list[FxNode], str]
) -> None:
    assert reason_of(in_both_layouts(*one, *other)) == DIFFERENT


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


def test_a_long_model_without_convolutions_is_cut_around_the_line_of_its_finding() -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    for number in range(150):
        y = recorder.call("aten.clamp.default", f"{x}, {number}.25, {number}.75")
        x = recorder.call("aten.add.Tensor", f"{x}, {y}", location=a_location(number))
    finding = Finding(
        code="LD501",
        rule="user-contiguous-call",
        severity="warning",
        configuration="inductor",
        message="m",
        location=a_location(70),
    )
    script = chosen(recorder, x, findings=(finding,))

    assert "Operations 138 to 146 of the model's 300, with random weights" in script
    assert "70.25, 70.75" in script


def test_a_part_that_is_too_long_itself_has_no_reproducer() -> None:
    recorder = Recorder()
    x = recorder.convolution(recorder.placeholder(IMAGES), (64, 3, 3, 3), FEATURES)
    for number in range(150):
        y = recorder.call("aten.clamp.default", f"{x}, {number}.25, {number}.75")
        x = recorder.call("aten.add.Tensor", f"{x}, {y}")
    record = a_record(recorder.nodes, recorder.convolution(x, (64, 64, 3, 3), FEATURES))

    assert reason_of(record) == "no reproducer: the part of the model around the worst finding is too long"


def test_the_title_names_no_finding_of_a_third_configuration() -> None:
    finding = Finding(code="LD101", rule="round-trip", severity="warning", configuration="eager", message="m")

    assert build_reproducer(a_record(*a_chain(1), findings=(finding,))).title == (
        "inductor-channels-last against inductor"
    )


def test_configurations_that_all_stand_for_one_are_fewer_than_two() -> None:
    nodes, output = a_chain(1)
    eager, inductor, *_ = a_record(nodes, output).trials
    record = a_record(nodes, output, recommendation=None, comparison=None)
    twin = msgspec.structs.replace(eager, same_as="inductor")

    assert reason_of(msgspec.structs.replace(record, trials=(inductor, twin))) == (
        "no reproducer: fewer than two configurations ran"
    )


@pytest.mark.parametrize("changes", [{"kernels": None}, {"count": 9}, {"sources": ("torch.profiler",)}])
def test_counts_that_were_not_recorded_whole_are_not_asked_for(changes: dict[str, object]) -> None:
    record = a_record(*a_chain(1))
    eager, inductor, other = record.trials
    assert inductor.kernels is not None
    summary = None if "kernels" in changes else msgspec.structs.replace(inductor.kernels, **changes)
    trials = (eager, msgspec.structs.replace(inductor, kernels=summary), other)
    script = build_reproducer(msgspec.structs.replace(record, trials=trials)).script

    assert 'recorded = {"inductor": None, "inductor-channels-last": (1, 0)}' in script
    assert '"reproduced" if verdict == "faster" else' in script


def test_training_goes_back_through_every_output_that_can() -> None:
    recorder = Recorder()
    x = recorder.placeholder(FEATURES)
    first = recorder.convolution(x, (64, 64, 3, 3), FEATURES)
    second = recorder.call("aten.relu.default", first)
    subject = a_subject_of(contiguous(FEATURES), mode="training")
    script = with_outputs(a_record(recorder.nodes, first, subject=subject), first, second)

    assert "    ys = [y for y in model(*inputs) if y.requires_grad]\n" in script
    assert "    torch.autograd.backward(ys, [torch.ones_like(y) for y in ys])\n" in script


def two_inputs(first: Sequence[int], second: Sequence[int], **changes: object) -> Diagnosis:
    recorder = Recorder()
    x, y = recorder.placeholder(first), recorder.placeholder(second)
    output = recorder.call("aten.add.Tensor", f"{x}, {y}", first)
    subject = a_subject_of(contiguous(tuple(first)), contiguous(tuple(second)), **changes)
    return a_record(recorder.nodes, output, subject=subject)


def test_of_several_inputs_those_of_the_format_are_converted() -> None:
    script = build_reproducer(two_inputs(FEATURES, (64, 1, 1))).script

    assert "inputs = [torch.randn(4, 64, 56, 56), torch.randn(64, 1, 1)]\n" in script
    assert "*(x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs)" in script


def test_many_inputs_stand_on_lines_of_their_own() -> None:
    recorder = Recorder()
    inputs = [recorder.placeholder((4, 64, 56, 50 + number)) for number in range(6)]
    output = recorder.call("aten.cat.default", f"[{', '.join(inputs)}], 3")
    shapes = [contiguous((4, 64, 56, 50 + number)) for number in range(6)]
    script = chosen(recorder, output, subject=a_subject_of(*shapes))

    assert "inputs = [\n    torch.randn(4, 64, 56, 50),\n    torch.randn(4, 64, 56, 51),\n" in script
    assert "def forward(self, x1, x2, x3, x4, x5, x6):" in script


def test_inputs_of_four_and_of_five_dimensions_have_no_format_in_common() -> None:
    record = two_inputs(FEATURES, (1, 1, 1, 1, 56))

    assert reason_of(record) == "no reproducer: the model has inputs of four and of five dimensions"


def test_weights_of_four_and_of_five_dimensions_have_no_format_in_common() -> None:
    recorder = Recorder()
    x = recorder.convolution(recorder.placeholder(FEATURES), (64, 64, 3, 3), FEATURES)
    x = recorder.call("aten.mul.Tensor", f"{x}, {recorder.placeholder((1, 1, 1, 1, 56), weight=True)}")

    assert reason_of(a_record(recorder.nodes, x, subject=SUBJECT)) == (
        "no reproducer: the model has weights of four and of five dimensions"
    )


def test_a_model_without_an_input_is_told() -> None:
    recorder = Recorder()
    output = recorder.call("aten.arange.default", "8", (8,))

    assert "which tensor is the model's input" in reason_of(a_record(recorder.nodes, output, subject=SUBJECT))
