from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from recorded_builders import logged

from layoutdoctor.examination.kernels.operations import base_seconds, operation_tree
from layoutdoctor.examination.kernels.placing import place_primitives
from layoutdoctor.examination.kernels.primitives import annotate_sequence
from layoutdoctor.measure.profiling import Recorder
from layoutdoctor.recording.onednn import read_onednn_log

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.conversion import ConversionDirection
    from layoutdoctor.examination.kernels.primitives import AnnotatedPrimitive

PROBLEM = "mb4_ic32oc64_ih8oh8kh3sh1dh0ph1_iw8ow8kw3sw1dw0pw1"
EQUAL = "mb4_ic32oc32_ih8oh8kh3sh1dh0ph1_iw8ow8kw3sw1dw0pw1"


def reorder(source: str, target: str, shape: str = "4x32x8x8", dtypes: tuple[str, str] = ("f32", "f32")) -> str:
    return logged("reorder", shape, src=source, dst=target, dtypes=dtypes)


def main(
    prop_kind: str = "forward_training",
    source: str = "aBcd16b",
    weight: str = "ABcd16b16a",
    target: str = "aBcd16b",
    problem: str = PROBLEM,
    kind: str = "convolution",
) -> str:
    return logged(kind, problem, prop_kind, src=source, wei=weight, bia="a", dst=target)


def annotated(*lines: str) -> list[AnnotatedPrimitive]:
    return annotate_sequence(read_onednn_log("\n".join(lines)).primitives)


def places(*lines: str) -> list[tuple[str, str | None]]:
    return [(item.tensor, item.port) for item in annotated(*lines) if item.primitive.kind == "reorder"]


def direction(line: str) -> ConversionDirection:
    return annotated(line)[0].direction


def test_five_dimensions_before_a_recurrent_layer_are_its_weights() -> None:
    packs = reorder("abcde", "abdEc32e", "1x1x192x4x96")
    rnn = logged("rnn", "l1t33mb4sic96slc192dhc96dic96", "forward_inference")
    assert places(packs, rnn) == [("weight", None)]
    assert places(reorder("abc", "acb", "33x4x192"), rnn) == [("unknown", None)]
    assert places(packs, main()) == [("unknown", None)]


def test_a_reorder_is_told_apart_where_one_tensor_fits_and_unknown_where_several_do() -> None:
    lines = (
        reorder("abcd", "aBcd16b"),
        reorder("abcd", "ABcd16a16b", "32x32x3x3"),
        main("backward_data", weight="ABcd16a16b", problem=EQUAL),
        reorder("aBcd16b", "abcd"),
        reorder("abcd", "aBcd16b"),
        reorder("abcd", "aBcd16b"),
        main("backward_weights", problem=EQUAL),
        reorder("a", "a", "32"),
        reorder("ABcd16b16a", "abcd", "32x32x3x3"),
    )

    assert places(*lines) == [
        ("gradient", "input 0"),
        ("weight", "input 2"),
        ("gradient", "output 0"),
        ("gradient", "input 0"),
        ("activation", "input 1"),
        ("gradient", "output 2"),
        ("gradient", "output 1"),
    ]

    # torch's own tensors are strided.
    lines = (
        main("backward_data", source="aBcd16b", problem=EQUAL),
        reorder("aBcd16b", "abcd"),
        main("backward_weights", source="abcd", target="acdb", problem=EQUAL),
    )
    others = (
        main("backward_data", source="abcd", problem=EQUAL),
        reorder("abcd", "aBcd16b"),
        main("backward_weights", source="aBcd16b", target="acdb", problem=EQUAL),
    )

    assert places(*lines) == [("gradient", "output 0")]
    assert places(*others) == [("activation", "input 1")]

    # Gradient and input have one size and one format here; only one of them was converted, and nothing says which.
    assert places(reorder("abcd", "acdb"), main("backward_weights", "acdb", target="acdb", problem=EQUAL)) == [
        ("unknown", None)
    ]

    line = reorder("abcd", "ABcd16b16a", "64x32x3x3")

    assert places(line, line, main()) == [("weight", None), ("weight", None)]

    assert places(reorder("abcd", "aBcd16b", "7x7x7x7"), main()) == [("unknown", None)]
    assert places(reorder("abcd", "aBcd16b")) == [("unknown", None)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (reorder("abcd", "acdb"), "to_channels_last"),
        (reorder("abcd", "bacd"), "other"),
        (reorder("abcd", "acdb", "4x1x8x8"), "none"),
        (reorder("a", "A16a", "64"), "none"),
        (reorder("abcd", "abcd", dtypes=("f32", "bf16")), "none"),
        (reorder("abcde", "acdeb", "2x8x4x4x4"), "to_channels_last"),
    ],
)
def test_a_reorder_has_the_direction_that_its_formats_say(line: str, expected: ConversionDirection) -> None:
    assert direction(line) == expected


CONVOLUTIONS = {
    "2d": (lambda: torch.nn.Conv2d(32, 48, 3, padding=1), (2, 32, 12, 12)),
    "2d, equal sizes": (lambda: torch.nn.Conv2d(32, 32, 3, padding=1), (2, 32, 12, 12)),
    "2d, sizes of its weight": (lambda: torch.nn.Conv2d(32, 32, 3, padding=1, bias=False), (32, 32, 3, 3)),
    "1x1": (lambda: torch.nn.Conv2d(32, 32, 1), (2, 32, 12, 12)),
    "depthwise": (lambda: torch.nn.Conv2d(32, 32, 3, padding=1, groups=32), (2, 32, 12, 12)),
    "grouped": (lambda: torch.nn.Conv2d(32, 64, 3, padding=1, groups=4), (2, 32, 12, 12)),
    "1d": (lambda: torch.nn.Conv1d(32, 32, 3, padding=1), (2, 32, 40)),
    "3d": (lambda: torch.nn.Conv3d(32, 32, 3, padding=1), (2, 32, 6, 6, 6)),
    "transposed": (lambda: torch.nn.ConvTranspose2d(32, 48, 3, stride=2), (2, 32, 12, 12)),
    "three channels": (lambda: torch.nn.Conv2d(3, 32, 3, padding=1), (2, 3, 16, 16)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("channels_last_model", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_every_reorder_of_a_real_step_is_the_tensor_its_sizes_say(
    name: str, channels_last_model: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Forward and backward of one convolution: what each reorder is said to convert has that tensor's element count."""
    make, shape = CONVOLUTIONS[name]
    module, x = make(), torch.randn(shape)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if channels_last_model and len(shape) in formats:
        module, x = module.to(memory_format=formats[len(shape)]), x.to(memory_format=formats[len(shape)])
    x.requires_grad_()

    def step() -> None:
        module.zero_grad()
        x.grad = None
        (module(x) ** 2).sum().backward()

    step()
    recording = Recorder().record(lambda: step, "cpu", ())
    tree = operation_tree(recording.events)
    assert recording.log is not None
    if not recording.log.primitives:
        pytest.skip("this processor runs no convolution through oneDNN")
    assert place_primitives(tree, recording.log, base_seconds(recording.events)) == []
    items = [item for entry in tree for item in annotate_sequence(entry.primitives)]

    output = module(x)
    counts = {
        ("forward", "input 0"): x.numel(),
        ("forward", "input 1"): module.weight.numel(),
        ("forward", "output 0"): output.numel(),
        ("backward", "input 0"): output.numel(),
        ("backward", "input 1"): x.numel(),
        ("backward", "input 2"): module.weight.numel(),
        ("backward", "output 0"): x.numel(),
        ("backward", "output 1"): module.weight.numel(),
        ("backward", "output 2"): output.shape[1],
    }
    pass_, weights = "forward", 0
    for item in items:
        if item.primitive.kind != "reorder":
            continue
        backward = item.tensor == "gradient" or (item.tensor, item.port) in {
            ("weight", "input 2"),
            ("activation", "input 1"),
        }
        pass_ = "backward" if backward else pass_
        weights += item.tensor == "weight"
        if item.port is None:
            assert name == "transposed"  # its weight gradient comes back with the first two dimensions exchanged
            continue
        shape_ = item.primitive.shape
        assert shape_ is not None
        assert torch.Size(shape_).numel() == counts[pass_, item.port], (pass_, item)
    assert weights == 2  # once for the forward, once for the gradient of the input
