"""
Is what ``--target cuda:90`` says without a GPU what happens on one? Static lowering against the real one, node by node.

Each item lowers a model statically for the GPU that is there (its compute capability chooses the target), compiles it
there for real under the same capture, and compares graph by graph: the decision on layout optimization and its reason,
every FX node with its layout, every buffer with its layout and kernel, every conversion, the names of generated
kernels.

    python benchmarks/gpu/target_check.py OUT [--device cuda|cpu] [--small] [--seconds 480] [--only claim,conv3d]

How to read it: ``differing_configurations`` empty means that the static diagnosis said exactly what the device did.
Else ``differences`` has each difference with both sides in full (``differences_left_out`` where there were more than
could be kept). A differing ``decisions`` entry or layout of a convolution is a fault of
``layoutdoctor/capture/retarget*``; an FX node on one side only comes from an operation that torch decomposes otherwise
on a GPU, and shifts the names of what follows, so read those from the top; differing ``kernel_names`` alone change no
layout.
``failed`` holds configurations that one side could not lower.

Items, the most telling ones first:

- ``claim bfloat16``, ``claim float16``: with contiguous weights and an input in channels_last_3d, the static lowering
  of three Conv3d says that layout optimization loses channels_last_3d behind the first convolution in inference, and
  that switching it off keeps it. ``is_confirmed`` is the answer, ``is_lost_with_it_real`` and
  ``is_kept_without_it_real`` its halves, ``formats_*`` the formats of the convolutions' results on either side.
  ``ratio_<configuration>`` is what it costs ([low, median, high]; above 1: faster than with layout optimization on),
  measured in turns between events on the device; ``kernels_<configuration>`` what the kernels of one profiled iteration
  took.
- ``conv3d ...``: the eight graphs of that network (weights, mode, layout optimization), small and at GPU size.
- ``<network> <mode>``: networks in bfloat16 and cases of the casebook in float32, under a few configurations.
- ``autocast``: known to differ, because a CPU traces its own autocast; says by how much.

At GPU size nothing is computed on the processor: results of the static side are empty tensors in the traced layouts.
On a CPU there is no real lowering; then two static lowerings are compared, which must agree. That tries this program
and says nothing about the target.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from graph_difference import compare_lowerings, convolution_formats, loses_channels_last, summed
from launch_grid import recorded
from networks import Autocast, networks
from parts import Part, parse_arguments
from torch import nn
from two_lowerings import Model, alone, lowered_for_real, lowered_statically, moved, target_of

from layoutdoctor.analysis.comparison import compare
from layoutdoctor.analysis.trace_conversions import examine_recorded
from layoutdoctor.configurations import choose_configurations
from layoutdoctor.measure.timing import CudaTimer, measure_rounds
from layoutdoctor.records import Configuration
from layoutdoctor.subjects.prepare import prepare
from layoutdoctor.subjects.subject import subject_from_python

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from layoutdoctor.records import Graph, Mode

MOST_LISTED = 300
"""Differences kept in full for each item."""

CLAIMS = {"claim bfloat16": torch.bfloat16, "claim float16": torch.float16}
AUTOCAST = "autocast"
SMALL_SHAPE, GPU_SHAPE = (1, 8, 16, 32, 32), (4, 8, 64, 256, 256)
ON = Configuration(name="layout-optimization-on", backend="inductor", layout_optimization="on")
OFF = Configuration(name="layout-optimization-off", backend="inductor", layout_optimization="off")
CASES = ("case-09", "case-15", "case-30", "case-32", "case-38", "case-03", "case-24", "case-25", "case-34", "case-36")
NETWORKS = ("resnet50", "unet", "r3d-18", "efficientnet_b0", "convnext_tiny", "mobilenetv3_large_100", "regnety_016")
MODES: tuple[Mode, ...] = ("inference", "training")


class Conv3dRelu(nn.Module):
    """Three Conv3d without bias and a ReLU behind the first two; x is [B, C, T, H, W]."""

    def __init__(self, *, is_channels_last: bool, channels: int = 64) -> None:
        super().__init__()
        sizes = ((8, channels), (channels, channels), (channels, channels))
        self.conv_1, self.conv_2, self.conv_3 = (nn.Conv3d(a, b, 3, padding=1, bias=False) for a, b in sizes)
        if is_channels_last:
            self.to(memory_format=torch.channels_last_3d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, C, T, H, W]."""
        return self.conv_3(torch.relu(self.conv_2(torch.relu(self.conv_1(x)))))


def item_names() -> list[str]:
    """Items, the most telling ones first."""
    weights = ("contiguous", "channels_last_3d")
    stacks = [f"conv3d {weight} weights {mode}" for weight in weights for mode in MODES]
    known = networks()
    cases = [name for part in CASES for name in known if name.startswith(part)]
    first, later = [[name for name in chosen if name in known] for chosen in (NETWORKS[:3], NETWORKS[3:])]
    groups = [(names, mode) for mode in MODES for names in (cases, first)] + [(later, mode) for mode in MODES]
    others = [f"{name} {mode}" for names, mode in groups for name in names]
    return [*CLAIMS, *stacks, *(f"{name} at GPU size" for name in stacks), *others, f"{AUTOCAST} inference"]


def model_of(name: str, device: str, *, is_small: bool) -> Model:
    """
    The model of an item.

    Args:
        name: The item.
        device: Where the real side runs.
        is_small: Whether shapes are small.
    """
    torch.manual_seed(0)
    if name.startswith("conv3d "):
        mode: Mode = "training" if "training" in name else "inference"
        shape = GPU_SHAPE if name.endswith("at GPU size") and not is_small else SMALL_SHAPE
        # Half precision takes a processor long: only what a user would diagnose there is computed.
        is_computed = shape == SMALL_SHAPE and not is_small
        is_channels_last = "channels_last_3d weights" in name
        return conv3d(shape, mode, device, is_channels_last=is_channels_last, is_computed=is_computed)
    title, _, chosen = name.rpartition(" ")
    mode = "training" if chosen == "training" else "inference"
    network = networks()["unet" if title == AUTOCAST else title]
    names = (
        "inductor,inductor-channels-last"
        if network.is_large
        else ("inductor,inductor-layout-opt-off,inductor-channels-last")
    )
    module, inputs = network.build(is_small)
    if title == AUTOCAST:
        on_processor = Autocast(module, "cpu"), inputs
        return Model(
            on_processor,
            lambda: moved((Autocast(module, device), inputs), device),
            mode,
            choose_configurations(names, mode),
            is_computed=False,
        )
    dtype = torch.float32 if title.startswith("case-") else torch.bfloat16
    on_processor = module.to(dtype), tuple(tensor.to(dtype) for tensor in inputs)
    return Model(
        on_processor, lambda: moved(on_processor, device), mode, choose_configurations(names, mode), is_computed=False
    )


def conv3d(
    shape: tuple[int, ...],
    mode: Mode,
    device: str,
    *,
    is_channels_last: bool,
    is_computed: bool,
    dtype: torch.dtype = torch.bfloat16,
) -> Model:
    """
    The Conv3d network with an input in channels_last_3d.

    Args:
        shape: Of the input.
        mode: ``inference`` or ``training``.
        device: Where the real side runs.
        is_channels_last: Whether the weights are in channels_last_3d as well.
        is_computed: As in ``Model``.
        dtype: Of weights and input.
    """
    network = Conv3dRelu(is_channels_last=is_channels_last).to(dtype)
    x = torch.randn(shape, dtype=dtype).to(memory_format=torch.channels_last_3d)
    return Model((network, (x,)), lambda: moved((network, (x,)), device), mode, (ON, OFF), is_computed)


def check(name: str, part: Part) -> dict[str, Any]:
    """
    Compares both sides of a model under each of its configurations.

    Args:
        name: The item.
        part: Says where.
    """
    if name in CLAIMS:
        return check_claim(part, CLAIMS[name])
    target = target_of(part.device)
    model = model_of(name, part.device, is_small=part.is_small)
    differences, failed = {}, []
    static_seconds = real_seconds = 0.0
    for configuration in model.configurations:
        sides = []
        for side in ("static", "real" if part.device == "cuda" else "static again"):
            start = time.monotonic()
            try:
                if side == "real":
                    with alone():
                        sides.append(lowered_for_real(model, configuration)[0])
                else:
                    sides.append(lowered_statically(model, configuration, target))
            except Exception as error:  # the other configurations go on
                failed.append(f"{configuration.name}: {side}: {type(error).__name__}: {str(error)[:300]}")
                break
            if side == "static":
                static_seconds += time.monotonic() - start
            else:
                real_seconds += time.monotonic() - start
        else:
            differences[configuration.name] = compare_lowerings(*sides)
    result = summed(differences)
    return {
        "summary": summary_of(result, failed, is_real=part.device == "cuda"),
        "target": target.name,
        "compared_with": "the real lowering" if part.device == "cuda" else "a second static lowering, no GPU",
        "configurations": [configuration.name for configuration in model.configurations],
        "failed": failed,
        "static_seconds": round(static_seconds, 1),
        "real_seconds": round(real_seconds, 1) if part.device == "cuda" else None,
        **result,
        "differences": result["differences"][:MOST_LISTED],
        "differences_left_out": max(0, result["difference_count"] - MOST_LISTED),
    }


def summary_of(result: Mapping[str, Any], failed: list[str], *, is_real: bool) -> str:
    """
    A comparison in a line.

    Args:
        result: From ``summed``.
        failed: Configurations that one side could not lower.
        is_real: Whether the other side is a device's.
    """
    kinds = ("decisions", "nodes", "buffers", "conversions", "kernel_names")
    words = [f"{result[f'{k}_differing']} of {result[f'{k}_compared']} {k.replace('_', ' ')}" for k in kinds]
    who = "differ from the device" if is_real else "differ between two static lowerings (no GPU)"
    tail = f"; {len(failed)} not lowered" if failed else ""
    return f"{', '.join(words)} {who}{tail}"


def check_claim(part: Part, dtype: torch.dtype) -> dict[str, Any]:
    """
    Whether layout optimization loses channels_last_3d in inference, and what that costs.

    Args:
        part: Says where.
        dtype: Of weights and input.
    """
    shape = SMALL_SHAPE if part.is_small else GPU_SHAPE
    target = target_of(part.device)
    model = conv3d(shape, "inference", part.device, is_channels_last=False, is_computed=False, dtype=dtype)
    result: dict[str, Any] = {
        "question": "does layout optimization lose channels_last_3d behind the first of three Conv3d in inference "
        "(contiguous weights, input in channels_last_3d), and does switching it off keep it?",
        "dtype": str(dtype).removeprefix("torch."),
        "shape": list(shape),
        "target": target.name,
    }
    static = {configuration.name: lowered_statically(model, configuration, target) for configuration in (ON, OFF)}
    claimed, facts = claim_of("static", static)
    result |= {"is_claimed_statically": claimed, **facts}
    if part.device != "cuda":
        summary = f"not asked: no GPU; claimed statically: {claimed}"
        return {"summary": summary, "is_confirmed": None} | result
    with alone():  # what is compiled lives until it has been timed
        real: dict[str, tuple[Graph, ...]] = {}
        steps: dict[str, Callable[[], None]] = {}
        for configuration in (ON, OFF):
            real[configuration.name], steps[configuration.name] = lowered_for_real(model, configuration)
        confirmed, facts = claim_of("real", real)
        result |= {"is_confirmed": confirmed, **facts}
        steps |= _other_steps(shape, part, dtype)
        result |= _times(steps)
        result |= {f"kernels_{name}": kernel_facts(step) for name, step in steps.items()}
    ratio = result.get(f"ratio_{OFF.name}")
    cost = f"without it {ratio[1]:.3f}x as fast ({ratio[0]:.3f} to {ratio[2]:.3f})" if ratio else "not measured"
    return {"summary": f"confirmed: {confirmed}; {cost}"} | result


def claim_of(side: str, graphs: Mapping[str, Sequence[Graph]]) -> tuple[str, dict[str, Any]]:
    """
    The answer to the question as one side gives it, and the evidence.

    Args:
        side: ``static`` or ``real``.
        graphs: Of the network, by configuration.

    Returns:
        ``yes`` where channels_last_3d is lost with layout optimization and kept by every convolution without, else
        ``no``; and formats, decision and conversions of either graph as fields.
    """
    with_it, without = (convolution_formats(graphs[name][0]) for name in (ON.name, OFF.name))
    is_lost = loses_channels_last(with_it)
    is_kept = len(without) == len(with_it) and {kind for _, kind in without} == {"channels_last_3d"}
    facts: dict[str, Any] = {f"is_lost_with_it_{side}": is_lost, f"is_kept_without_it_{side}": is_kept}
    for choice, name in (("on", ON.name), ("off", OFF.name)):
        facts |= _facts_of(f"{side}_{choice}", graphs[name])
    return "yes" if is_lost and is_kept else "no", facts


def _facts_of(side: str, graphs: Sequence[Graph]) -> dict[str, Any]:
    """Formats, decision and conversions of the one inference graph."""
    graph = graphs[0]
    decision = graph.decision
    return {
        f"formats_{side}": [f"{node}: {kind}" for node, kind in convolution_formats(graph)],
        f"applied_{side}": decision.applied if decision is not None else None,
        f"explanation_{side}": decision.explanation if decision is not None else None,
        f"conversions_{side}": [
            f"{conversion.node}: {conversion.tensor} {conversion.direction}{' (fused)' if conversion.fused else ''}, "
            f"{conversion.kernel}"
            for conversion in graph.conversions
        ],
    }


def _other_steps(shape: tuple[int, ...], part: Part, dtype: torch.dtype) -> dict[str, Callable[[], None]]:
    """What else the user could do: all weights in channels_last_3d, and eager code in either format."""
    found: dict[str, Callable[[], None]] = {}
    eager = Configuration(name="eager", backend="eager")
    for is_last in (True, False):
        model = conv3d(shape, "inference", part.device, is_channels_last=is_last, is_computed=False, dtype=dtype)
        name = "weights-channels-last" if is_last else "weights-contiguous"
        prepared = prepare(subject_from_python(*model.on_device()), eager, "inference")
        step = prepared.step("inference", fresh_inputs=False)
        step()
        step.forget_results()
        found[f"eager-{name}"] = step
        if is_last:
            found[f"compiled-{name}"] = lowered_for_real(model, OFF)[1]
    return found


def _times(steps: Mapping[str, Callable[[], None]]) -> dict[str, Any]:
    """Median seconds of each step, and how many times faster than with layout optimization on each other one is."""
    times = measure_rounds(steps, baseline=ON.name, budget_seconds=20.0, timer=CudaTimer())
    compared = compare({name: one.round_seconds for name, one in times.items()}, ON.name)
    result: dict[str, Any] = {}
    for name, one in times.items():
        ordered = sorted(one.round_seconds)
        result[f"seconds_{name}"] = ordered[len(ordered) // 2] if ordered else None
    for ratio in compared.ratios if compared is not None else ():
        result[f"ratio_{ratio.name}"] = [ratio.low, ratio.median, ratio.high]
        result[f"verdict_{ratio.name}"] = ratio.verdict
    return result


def kernel_facts(step: Callable[[], None]) -> dict[str, Any]:
    """
    What one iteration launched, by the profiler.

    Args:
        step: One warm iteration on a GPU.
    """
    trace, _ = recorded(step, "cuda")
    facts = examine_recorded(trace)
    names = sorted({trace.names[index] for index in trace.kernels.name.tolist()})
    return {
        "kernels": len(trace.kernels),
        "kernel_seconds": facts.kernels.seconds,
        "library_conversions": facts.kernels.conversion_count,
        "library_conversion_seconds": facts.kernels.conversion_seconds,
        "names": [name[:120] for name in names],
    }


def expected_seconds(name: str) -> float:
    """
    What an item takes on a large GPU, at most.

    Args:
        name: The item.
    """
    if not name.startswith(NETWORKS):
        return 30.0
    return 120.0 if name.endswith("training") else 60.0


def main() -> int:
    part, _ = parse_arguments("target_check", __doc__)
    return part.run(item_names(), lambda name: check(name, part), expected_seconds=expected_seconds)


if __name__ == "__main__":
    sys.exit(main())
