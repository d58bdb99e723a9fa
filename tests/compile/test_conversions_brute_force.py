"""
The conversions that a compiled graph claims, against what its kernels do to values: random networks, no shared code.

The oracle (``kernel_oracle``) looks at values and strides at the moment of each call. Every conversion that is claimed
of a buffer that computes nothing has to be confirmed by it, and none that it sees may be missing; of one fused into a
loop that computes the values are others, so only the two stride orders are compared.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kernel_oracle as oracle
import pytest
import torch
from random_graphs import CHANNELS_LAST, RandomNetwork

from layoutdoctor.capture.compat import compile_settings
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.examination.graphs.conversions import layout_change, with_graph_conversions
from layoutdoctor.examination.graphs.round_trips import redundant_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.capture.session import CapturedGraph
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.graph import Buffer, Graph

pytestmark = pytest.mark.compile

IS_SWEEP = "SWEEP" in os.environ
# Among the few are networks (5, 17, 23, 40) in which shuffles, slices and permutes move into another order.
SEEDS = range(68) if IS_SWEEP else (1, 3, 4, 5, 7, 17, 23, 40)
SETTINGS = [(True, "contiguous"), (False, "channels_last")]
if IS_SWEEP:
    SETTINGS += [(True, "channels_last"), (False, "contiguous")]


@pytest.fixture(autouse=True)
def _dynamo_as_before() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@dataclass
class Ran:
    """A compiled network, what its graph claims, and every launch of one call."""

    captured: CapturedGraph
    graph: Graph
    launches: list[oracle.Launch]
    library_arguments: list[oracle.Argument]
    outputs: list[oracle.Argument]

    def launch_of(self, conversion: Conversion) -> oracle.Launch:
        buffer = self.buffer(str(conversion.value))
        assert buffer.launch is not None
        return self.launches[buffer.launch]

    def buffer(self, name: str) -> Buffer:
        (buffer,) = [buffer for buffer in self.graph.buffers if buffer.name == name]
        return buffer

    def written(self, name: str) -> oracle.Argument:
        """A buffer as the launch that writes it left it."""
        launch = self.buffer(name).launch
        assert launch is not None
        argument = self.launches[launch].argument(name)
        assert argument is not None
        return argument


def ran(model: torch.nn.Module, x: torch.Tensor, *, layout_optimization: bool) -> Ran | None:
    """One watched call; None where the model only makes views, so that nothing is lowered."""
    torch._dynamo.reset()
    # Without vector code the kernels compile faster; which buffers there are does not depend on it.
    options = {"layout_optimization": layout_optimization, "cpp.simdlen": 1}
    compiled = torch.compile(model, options=options)
    with compile_settings({}), CompileCapture() as capture, torch.no_grad():
        expected, result = model(x), compiled(x)
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-4)
    assert capture.lacks == ()
    if not capture.captured:
        return None
    (captured,) = capture.captured
    (graph,) = with_graph_conversions([captured.graph], 0)
    assert graph.hook_failure is None
    with oracle.watched(captured) as (launches, arguments), torch.no_grad():
        outputs = compiled(x)
    outputs = [
        oracle.as_argument("output", output) for output in (outputs if isinstance(outputs, tuple) else (outputs,))
    ]
    return Ran(captured, graph, launches, arguments, outputs)


def check(result: Ran) -> Counter[str]:
    """Every claim against the oracle, both ways; how many there were of each kind."""
    same_memory = oracle.shared_memory(Path(result.captured.generated.__file__))
    met: Counter[str] = Counter()
    claimed = {str(c.value) for c in result.graph.conversions}
    for conversion in result.graph.conversions:
        launch = result.launch_of(conversion)
        assert launch.kernel == conversion.kernel
        value, source = str(conversion.value), str(conversion.source_value)
        if conversion.fused or result.buffer(value).operations:
            assert_strides_differ(launch, conversion)
            met["fused"] += 1
        elif (value, source) in {(target.name, other.name) for target, other in oracle.conversions_in(launch)}:
            met["whole"] += 1
        elif oracle.is_view_reordered(launch, value, source):
            met["view"] += 1
        else:
            assert oracle.is_part_reordered(launch, value, source), conversion
            met["part"] += 1
    for launch in result.launches:
        for target, source in (*oracle.conversions_in(launch), *oracle.concatenations_in(launch)):
            # Where one launch writes both, values do not say which of the two was made from the other.
            written = [argument.name for argument in (target, source) if argument.is_written]
            names = {name for name in (*written, *same_memory) if same_memory.get(name, name) in written}
            assert (set(written) | names) & claimed, (launch.kernel, target.name, source.name)
            met["seen"] += 1
    return met


def assert_strides_differ(launch: oracle.Launch, conversion: Conversion) -> None:
    """The layouts that are claimed are those of the call's arguments, and their dimensions lie in another order."""
    target, source = launch.argument(str(conversion.value)), launch.argument(str(conversion.source_value))
    assert target is not None, conversion
    assert source is not None, conversion
    assert conversion.source is not None
    seen_shape, seen_stride = conversion.source.shape, conversion.source.stride
    assert large(seen_shape, seen_stride) == large(source.after.shape, source.stride), conversion
    assert large(conversion.target.shape, conversion.target.stride) == large(target.after.shape, target.stride)
    assert oracle.order_of(seen_shape, seen_stride) != oracle.order_of(target.after.shape, target.stride), conversion


def large(shape: Sequence[Any], stride: Sequence[Any] | None) -> list[tuple[int, int]]:
    """Sizes larger than one with their strides, whatever the order of the dimensions."""
    return sorted((size, step) for size, step in zip(shape, stride or (), strict=True) if size != 1)


def check_pairs(result: Ran) -> Counter[str]:
    """
    Of each redundant pair that the graph proves: no library call reads what lies between, and nobody is given it.

    Both by values: a tensor that holds the same elements in the same order in memory. Pairs of regions that something
    needs as it is, which keeps a conversion of its own, say so in their proof.
    """
    met: Counter[str] = Counter()
    by_id = {conversion.id: conversion for conversion in result.graph.conversions}
    for pair in redundant_pairs([result.graph], ()):
        met["pair"] += 1
        first, second = by_id[pair.first], by_id[pair.second]
        assert first.source is not None
        assert second.target is not None
        assert layout_change(first.source, second.target) == "none" or pair.kind == "through"
        if "no library call reads them" not in str(pair.proof):
            continue
        met["free pair"] += 1
        between = {*(str(by_id[id_].value) for id_ in (pair.first, *pair.also)), str(second.source_value)}
        for name in between:
            if result.buffer(name).launch is None:  # a concatenation: its parts are written
                continue
            held = result.written(name)
            assert not any(oracle.lies_as(held, other) for other in (*result.library_arguments, *result.outputs)), pair
    return met


def test_conversions_of_random_networks_are_those_that_their_kernels_make() -> None:
    met: Counter[str] = Counter()
    for seed, (layout_optimization, input_format) in itertools.product(SEEDS, SETTINGS):
        network = RandomNetwork(seed).eval()
        x = network.input
        if input_format == "channels_last" and x.dim() in CHANNELS_LAST:
            x = x.to(memory_format=CHANNELS_LAST[x.dim()])
        result = ran(network, x, layout_optimization=layout_optimization)
        if result is not None:
            met += check(result) + check_pairs(result)

    # Else the draw would say nothing.
    assert met["whole"] >= 15, met
    assert met["seen"] >= 15, met
    assert met["fused"] >= 2, met


class Branches(torch.nn.Module):
    """Dilated convolutions side by side, joined and read by another one: Inductor writes the whole contiguous."""

    def __init__(self, reading: str = "convolution") -> None:
        super().__init__()
        self.branches = torch.nn.ModuleList(torch.nn.Conv2d(8, 8, 3, padding=rate, dilation=rate) for rate in (1, 2, 3))
        self.fuse = torch.nn.Conv2d(24, 8, 1)
        self.reading = reading

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = [torch.relu(branch(x)) for branch in self.branches]
        whole = torch.cat(parts, 1)
        others = {
            "convolution": (),
            "two convolutions": (self.fuse(torch.sigmoid(whole)),),
            "the caller": (whole,),
            "the caller, one branch": (parts[0],),
            "a matrix product": (whole.flatten(1) @ torch.ones(whole[0].numel(), 3),),
        }[self.reading]
        return (self.fuse(whole), *others)


@pytest.mark.parametrize(
    ("reading", "met"),
    [
        ("convolution", {"pair": 1, "free pair": 1}),
        ("two convolutions", {"pair": 1, "free pair": 1}),
        ("the caller", {}),
        ("the caller, one branch", {"pair": 1}),
        ("a matrix product", {}),
    ],
)
def test_what_lies_between_a_pair_is_read_by_no_library_and_returned_to_nobody(
    reading: str, met: dict[str, int]
) -> None:
    result = ran(Branches(reading), torch.randn(2, 8, 12, 12), layout_optimization=True)
    assert result is not None
    check(result)

    assert check_pairs(result) == Counter(met)
