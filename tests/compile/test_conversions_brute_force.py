"""
The conversions that a compiled graph claims, against what its kernels do to values: random networks, no shared code.

The oracle (``kernel_oracle``) looks at values and strides at the moment of each call. Every conversion that is claimed
of a buffer that computes nothing has to be confirmed by it, and none that it sees may be missing; of one fused into a
loop that computes the values are others, so only the two stride orders are compared.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kernel_oracle as oracle
import pytest
import torch
from random_graphs import CHANNELS_LAST, RandomNetwork

from layoutdoctor.analysis.graph_conversions import graph_conversions
from layoutdoctor.capture.compat import DynamoState, compile_settings, distinct_options
from layoutdoctor.capture.session import CompileCapture

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.capture.session import CapturedGraph
    from layoutdoctor.records import Conversion

pytestmark = pytest.mark.compile

FAST_SEEDS, SLOW_SEEDS = range(8), range(8, 68)
SETTINGS = [(True, "contiguous"), (False, "channels_last")]
OTHER_SETTINGS = [(True, "channels_last"), (False, "contiguous")]
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def _dynamo_as_before() -> Iterator[None]:
    state = DynamoState()
    yield
    state.restore()


@dataclass
class Ran:
    """A compiled network, what its graph claims, and every launch of one call."""

    captured: CapturedGraph
    conversions: tuple[Conversion, ...]
    launches: list[oracle.Launch]

    def launch_of(self, conversion: Conversion) -> oracle.Launch:
        (buffer,) = [b for b in self.captured.graph.buffers if b.name == conversion.value]
        assert buffer.launch is not None
        return self.launches[buffer.launch]

    def only_moves(self, conversion: Conversion) -> bool:
        (buffer,) = [b for b in self.captured.graph.buffers if b.name == conversion.value]
        return buffer.operations == ()


def ran(model: torch.nn.Module, x: torch.Tensor, *, layout_optimization: bool) -> Ran:
    own = distinct_options(f"brute force {next(NUMBERS)}")
    # Without vector code the kernels compile faster; which buffers there are does not depend on it.
    options = {"layout_optimization": layout_optimization, "cpp.simdlen": 1, **own}
    compiled = torch.compile(model, options=options)
    with compile_settings({}), CompileCapture() as capture, torch.no_grad():
        compiled(x)
    (captured,) = capture.captured
    assert captured.graph.hook_failure is None
    with oracle.watched(captured) as launches, torch.no_grad():
        compiled(x)
    return Ran(captured, graph_conversions(captured.graph), launches)


def check(result: Ran) -> Counter[str]:
    """Every claim against the oracle, both ways; how many there were of each kind."""
    same_memory = oracle.shared_memory(Path(result.captured.module.__file__))
    met: Counter[str] = Counter()
    claimed = {str(c.value) for c in result.conversions}
    for conversion in result.conversions:
        launch = result.launch_of(conversion)
        assert launch.kernel == conversion.kernel
        value, source = str(conversion.value), str(conversion.source_value)
        if not result.only_moves(conversion):
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


def check_network(seed: int, settings: list[tuple[bool, str]]) -> Counter[str]:
    met: Counter[str] = Counter()
    for layout_optimization, input_format in settings:
        network = RandomNetwork(seed).eval()
        x = network.input
        if input_format == "channels_last" and x.dim() in CHANNELS_LAST:
            x = x.to(memory_format=CHANNELS_LAST[x.dim()])
        met += check(ran(network, x, layout_optimization=layout_optimization))
    return met


def test_conversions_of_random_networks_are_those_that_their_kernels_make() -> None:
    met: Counter[str] = Counter()
    for seed in FAST_SEEDS:
        met += check_network(seed, SETTINGS)

    print(met)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_conversions_of_many_random_networks_are_those_that_their_kernels_make(seed: int) -> None:
    check_network(seed, SETTINGS + OTHER_SETTINGS)
