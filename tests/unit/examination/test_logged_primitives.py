from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
import torch
from recorded_builders import logged

from layoutdoctor.examination.kernels.host import base_seconds, operation_tree, place_primitives
from layoutdoctor.examination.kernels.primitives import annotate_sequence
from layoutdoctor.examination.kernels.summaries import summarize_log
from layoutdoctor.measure.profiling import record_iteration
from layoutdoctor.recording.onednn import read_onednn_log

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import KernelSummary

MILLISECOND = 1e-3
PROBLEM = "mb4_ic32oc64_ih8oh8kh3sh1dh0ph1_iw8ow8kw3sw1dw0pw1"


def reorder(source: str, target: str, shape: str = "4x32x8x8", at: float | None = None) -> str:
    return logged("reorder", shape, src=source, dst=target, at=at)


def convolution(problem: str = PROBLEM, at: float | None = None) -> str:
    tags = {"src": "aBcd16b", "wei": "ABcd16b16a", "bia": "a", "dst": "aBcd16b"}
    return logged("convolution", problem, "forward_training", at=at, **tags)


def relu(at: float | None = None) -> str:
    return logged("eltwise", "4x64x8x8", "forward_training", at=at, data="aBcd16b")


INPUT, WEIGHT = reorder("abcd", "aBcd16b"), reorder("abcd", "ABcd16b16a", "64x32x3x3")
OUTPUT = reorder("aBcd16b", "abcd", "4x64x8x8")


def summary(*lines: str) -> KernelSummary:
    return summarize_log(read_onednn_log("\n".join(lines)))


def tensors(found: KernelSummary) -> list[str]:
    return [conversion.tensor for conversion in found.conversions]


def test_the_reorders_around_convolutions_are_theirs_and_the_list_is_summed_by_kind() -> None:
    found = summary(INPUT, WEIGHT, convolution(), OUTPUT, relu())

    assert tensors(found) == ["activation", "weight", "activation"]
    assert [conversion.direction for conversion in found.conversions] == ["to_blocked", "to_blocked", "from_blocked"]
    assert {(item.owner, item.confidence, item.seconds_source) for item in found.conversions} == {
        ("library", "shapes", "measured")
    }
    assert (found.count, found.conversion_count, found.convolution_count) == (5, 3, 4)
    assert found.seconds == pytest.approx(2.5 * MILLISECOND)
    assert found.conversion_seconds == pytest.approx(1.5 * MILLISECOND)
    assert found.convolution_seconds == pytest.approx(2 * MILLISECOND)
    assert found.share == pytest.approx(0.6)
    assert found.sources == ("oneDNN verbose log",)

    second = convolution("mb4_ic64oc64_ih8oh8kh3sh1dh0ph1_iw8ow8kw3sw1dw0pw1")
    again = reorder("abcd", "aBcd16b", "4x64x8x8")

    found = summary(convolution(), OUTPUT, again, second)

    assert tensors(found) == ["activation", "activation"]
    assert found.convolution_count == 4

    found = summary(INPUT, WEIGHT, convolution(), OUTPUT, relu(), relu())

    assert [(total.kind, total.name, total.count, total.conversion_count) for total in found.totals] == [
        ("kernel", "reorder", 3, 3),
        ("kernel", "eltwise", 2, 0),
        ("kernel", "convolution", 1, 0),
    ]
    assert found.totals[0].conversion_seconds == pytest.approx(1.5 * MILLISECOND)
    assert {total.library for total in found.totals} == {"onednn"}

    found = summary(relu(at=20), convolution(at=10))

    assert [kernel.name for kernel in found.kernels] == ["convolution", "eltwise"]
    assert [kernel.start_seconds for kernel in found.kernels] == pytest.approx([0.0, 10 * MILLISECOND], abs=1e-6)
    assert not any("TIMESTAMP" in lack for lack in found.lacks)

    in_turn = summary(reorder("abcd", "aBcd16b", at=10), convolution(at=11))
    at_once = summary(reorder("abcd", "aBcd16b", at=10), convolution(at=10.2))

    assert (tensors(in_turn), tensors(at_once)) == (["activation"], ["unknown"])


def residual() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 32, 3, padding=1, groups=32),
        torch.nn.Conv2d(32, 64, 1),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(64, 64, 3, stride=2),
        torch.nn.Flatten(),
        torch.nn.Linear(64 * 9, 10),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("channels_last_model", [False, True])
@pytest.mark.parametrize("is_training", [False, True])
def test_a_real_log_alone_says_the_same_as_with_the_operations_beside_it(
    is_training: bool, channels_last_model: bool
) -> None:
    torch.manual_seed(0)
    module, x = residual().train(is_training), torch.randn(2, 3, 16, 16)
    if channels_last_model:
        module = module.to(memory_format=torch.channels_last)

    def step() -> None:
        with torch.set_grad_enabled(is_training):
            result = module(x)
        if is_training:
            module.zero_grad()
            result.sum().backward()

    step()
    recording = record_iteration(step, "cpu")
    assert recording.log is not None
    if not recording.log.primitives:
        pytest.skip("this processor runs no convolution through oneDNN")
    tree = operation_tree(recording.events)
    homeless = place_primitives(tree, recording.log, base_seconds(recording.events))
    beside = [item for entry in tree for item in annotate_sequence(entry.primitives)]
    expected = {item.primitive.line_number: item.tensor for item in beside}

    found = summarize_log(recording.log)

    reorders = [primitive for primitive in recording.log.primitives if primitive.kind == "reorder"]
    assert homeless == []
    assert len(reorders) == len(found.conversions) > 0
    for primitive, conversion in zip(reorders, found.conversions, strict=True):
        assert conversion.tensor == expected[primitive.line_number], primitive
    kinds = Counter(primitive.kind for primitive in recording.log.primitives)
    assert {total.name: total.count for total in found.totals} == kinds
