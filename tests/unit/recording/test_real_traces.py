"""Real traces: what each file holds is written down here as a number and must be found exactly."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from layoutdoctor.recording.reading import read_trace
from layoutdoctor.recording.recording import KernelTotals, RecordedTrace
from layoutdoctor.run.recorded import examine_trace

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.conversion import Conversion, RedundantPair
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.kernel import KernelSummary

TRACES = Path(__file__).parents[2] / "traces"
MICROSECOND = 1e-6
EXACT = 1e-9  # seconds: what is closer is the same sum of whole nanoseconds


class Facts(NamedTuple):
    """What a file holds: numbers of events, and times in microseconds."""

    events: int
    kernels: int
    kernel_us: float
    transfers: int
    operations: int
    launches: int
    conversions: int
    conversion_us: float


FACTS = {
    "a100_alexnet": Facts(1_408, 79, 10_692, 19, 359, 361, 12, 277),
    "a100_conv_training_nccl": Facts(40_573, 2_700, 162_532.34, 1_074, 14_346, 8_740, 633, 15_120.91),
    "a100_particle_transformer_cast_decoy": Facts(7_129, 549, 89_730.099, 11, 2_851, 1_050, 0, 0),
    "a100_triton_example": Facts(71, 1, 1.76, 0, 3, 2, 0, 0),
    "b200_eager_control": Facts(24_656, 768, 10_862.916, 161, 4_809, 1_372, 0, 0),
    "h100_bert_control": Facts(2_551, 60, 307.197, 1, 479, 132, 0, 0),
    "h100_timesformer": Facts(50_125, 446, 154_855.595, 88, 3_540, 929, 3, 335.167),
    "h100_vit_patch_embed": Facts(5_138, 154, 1_220.926, 2, 1_258, 383, 3, 23.072),
    "large_integers": Facts(2, 1, 50, 0, 1, 0, 0, 0),
    "mi300_flux_vae_hip_graph_capture": Facts(193_628, 2_551, 226_024.43, 15, 7_538, 9_043, 115, 9_425.42),
    "mi300_graph_replay_control": Facts(2_058, 555, 9_765.437, 3, 61, 29, 0, 0),
    "mi300_resnet_act_checkpoint": Facts(56_451, 2_995, 97_255.826, 658, 8_004, 3_100, 999, 5_642.202),
    "v100_resnet50_2020_12_list_rooted": Facts(82_276, 9_538, 635_237, 389, 42_438, 10_800, 0, 0),
    "v100_resnet50_2021_01_cublas_transposes_cut": Facts(878, 395, 137_861, 0, 68, 395, 16, 443),
    "v100_resnet50_2021_06": Facts(75_718, 8_772, 591_532, 324, 23_646, 11_923, 18, 558),
}
MIOPEN_CONVOLUTIONS = {"mi300_flux_vae_hip_graph_capture": 22, "mi300_resnet_act_checkpoint": 63}
"""Round trips that the recorded shapes prove."""

KINDS = {
    "kernels": {"kernel"},
    "transfers": {"memcpy", "memset", "gpu_memcpy", "gpu_memset"},
    "operations": {"cpu_op", "operator"},
    "launches": {"runtime", "cuda_runtime", "cuda_driver"},
    "frames": {"python_function"},
}
CONVERSION = re.compile(
    r"(?:void )?(?:cudnn::\w+::)*(?:nchwToNhwcKernel|nhwcToNchwKernel)\b"
    r"|batched_transpose_\d|transpose_(?:NCHW2CNHW|CNHW2NCHW)_"
)


def file_of(name: str) -> Path:
    return TRACES / f"{name}.json.gz"


@cache
def document(name: str) -> Any:
    """The same file as Python's own reader sees it."""
    return json.loads(gzip.decompress(file_of(name).read_bytes()), parse_float=Decimal)


def events(name: str, kind: str) -> list[dict[str, Any]]:
    found = document(name)
    listed = found if isinstance(found, list) else found["traceEvents"]
    return [event for event in listed if event.get("cat", "").lower() in KINDS[kind] and event["ph"] == "X"]


@cache
def trace(name: str) -> RecordedTrace:
    found = read_trace(file_of(name))
    assert isinstance(found, RecordedTrace)
    return found


@cache
def diagnosis(name: str) -> Diagnosis:
    return examine_trace(file_of(name))


def kernels_of(name: str) -> KernelSummary:
    (trial,) = diagnosis(name).trials
    assert trial.kernels is not None
    return trial.kernels


def pairs_of(name: str) -> tuple[RedundantPair, ...]:
    return diagnosis(name).trials[0].redundant_pairs


def in_microseconds(seconds: float | None) -> float:
    assert seconds is not None
    return seconds / MICROSECOND


def nanoseconds(event: dict[str, Any], key: str) -> int:
    """An event's time, from the digits in the file."""
    return round(Decimal(event[key]) * 1000)


def test_every_trace_here_is_tested_and_all_together_stay_small() -> None:
    found = {path.name.removesuffix(".json.gz") for path in TRACES.glob("*.json.gz")}

    assert found == set(FACTS)
    assert sum(path.stat().st_size for path in TRACES.iterdir()) < 10_000_000


_TABLES = ("kernels", "transfers", "operations", "launches")


@pytest.mark.parametrize("name", FACTS)
def test_a_real_trace_is_read_completely(name: str) -> None:
    facts, found = FACTS[name], trace(name)

    assert (found.event_count, *(len(getattr(found, kind)) for kind in _TABLES)) == facts[:2] + facts[3:6]
    assert int(found.kernels.duration.sum()) / 1000 == pytest.approx(facts.kernel_us, abs=1e-6)
    assert found.problems == []


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (facts.events > 50_000)) for name, facts in FACTS.items()],
)
def test_python_s_own_reader_sees_the_same_events(name: str) -> None:
    found = trace(name)
    for kind in _TABLES:
        table = getattr(found, kind)
        assert _starts(found, table) == Counter(_start(event) for event in events(name, kind))


def _starts(found: RecordedTrace, table: Any) -> Counter[tuple[str, int]]:
    starts = (table.start + found.base_nanoseconds).tolist()
    return Counter(zip((found.names[index] for index in table.name.tolist()), starts, strict=True))


def _start(event: dict[str, Any]) -> tuple[str, int]:
    return event["name"], nanoseconds(event, "ts")


@pytest.mark.parametrize("name", FACTS)
def test_every_call_of_a_module_is_kept_and_no_frame_is_made_up(name: str) -> None:
    found = _starts(trace(name), trace(name).frames)
    recorded = Counter(_start(event) for event in events(name, "frames"))
    calls = Counter({frame: count for frame, count in recorded.items() if frame[0].startswith("nn.Module: ")})

    assert calls <= found <= recorded
    assert trace(name).has_stack == bool(recorded)


@pytest.mark.parametrize("name", FACTS)
def test_a_kernel_keeps_its_device_stream_correlation_and_grid(name: str) -> None:
    found = trace(name).kernels
    grids = (trace(name).grids[index] if index >= 0 else None for index in found.grid.tolist())
    seen = Counter(zip(found.device.tolist(), found.stream.tolist(), found.correlation.tolist(), grids, strict=True))

    assert seen == Counter(_of_kernel(event) for event in events(name, "kernels"))


def _of_kernel(event: dict[str, Any]) -> tuple[Any, ...]:
    args = event.get("args", {})
    stream = args.get("stream", event["tid"])
    grid = tuple(args["grid"]) if "grid" in args else None
    return args.get("device", event["pid"]), int(str(stream).split()[-1]), args.get("correlation", -1), grid


@pytest.mark.parametrize("name", FACTS)
def test_the_conversions_of_libraries_are_found_exactly(name: str) -> None:
    facts, kernels = FACTS[name], kernels_of(name)
    by_name = [event for event in events(name, "kernels") if CONVERSION.match(event["name"])]

    assert (len(by_name), sum(nanoseconds(event, "dur") for event in by_name) / 1000) == (
        facts.conversions,
        pytest.approx(facts.conversion_us, abs=1e-6),
    )
    assert kernels.conversion_count == facts.conversions
    assert kernels.conversion_seconds == pytest.approx(facts.conversion_us * MICROSECOND, abs=EXACT)
    assert Counter(c.kernel for c in kernels.conversions) == Counter(event["name"] for event in by_name)
    assert kernels.count == facts.kernels


@pytest.mark.parametrize(
    ("name", "to_channels_last", "to_contiguous"),
    [
        ("a100_alexnet", 12, 0),
        ("a100_conv_training_nccl", 474, 159),
        ("h100_timesformer", 2, 1),
        ("h100_vit_patch_embed", 2, 1),
        ("v100_resnet50_2021_06", 12, 6),
        ("v100_resnet50_2021_01_cublas_transposes_cut", 10, 6),
        ("mi300_flux_vae_hip_graph_capture", 83, 32),
    ],
)
def test_each_conversion_has_its_direction(name: str, to_channels_last: int, to_contiguous: int) -> None:
    found = Counter(conversion.direction for conversion in kernels_of(name).conversions)

    assert found == Counter(to_channels_last=to_channels_last, to_contiguous=to_contiguous)


@pytest.mark.parametrize(
    ("name", "exposed_us"),
    [
        ("mi300_resnet_act_checkpoint", 2_253.361),
        ("a100_conv_training_nccl", 13_446.628),
        ("mi300_flux_vae_hip_graph_capture", 9_425.42),
        ("h100_vit_patch_embed", 23.072),
    ],
)
def test_time_in_which_nothing_else_ran_is_counted_once(name: str, exposed_us: float) -> None:
    kernels = kernels_of(name)

    assert in_microseconds(kernels.exposed_conversion_seconds) == pytest.approx(exposed_us, abs=1e-3)
    assert kernels.exposed_conversion_seconds <= kernels.conversion_seconds  # type: ignore[operator]


ROUND_TRIPS: dict[str, tuple[dict[str, int], float | None]] = {
    "mi300_flux_vae_hip_graph_capture": ({"shapes": 22}, 6_095.256),
    "mi300_resnet_act_checkpoint": ({"shapes": 63, "order": 21}, None),
    "a100_conv_training_nccl": ({"grid": 18}, 235.546),
}


@pytest.mark.parametrize("name", FACTS)
def test_round_trips_are_found_with_what_each_rests_on_and_none_is_claimed_elsewhere(name: str) -> None:
    confidences, whole_us = ROUND_TRIPS.get(name, ({}, 0.0))

    assert Counter(pair.confidence for pair in pairs_of(name)) == confidences
    if whole_us is not None:
        assert sum(in_microseconds(pair.seconds) for pair in pairs_of(name)) == pytest.approx(whole_us, abs=1e-3)


@pytest.mark.parametrize("name", MIOPEN_CONVOLUTIONS)
def test_sizes_computed_from_the_arguments_say_that_both_ends_of_a_round_trip_are_one_tensor(name: str) -> None:
    operations = {event["args"].get("External id"): event for event in events(name, "operations")}
    recorded = sorted(
        (event for event in events(name, "kernels") if CONVERSION.match(event["name"])), key=lambda event: event["ts"]
    )
    conversions = dict(zip((c.id for c in kernels_of(name).conversions), recorded, strict=True))
    by_id = {conversion.id: conversion for conversion in kernels_of(name).conversions}
    proved = [pair for pair in pairs_of(name) if pair.confidence == "shapes"]

    for pair in proved:
        first, second = (_convolution(conversions[id], by_id[id], operations) for id in (pair.first, pair.second))

        assert _output_sizes(first) == tuple(second["args"]["Input Dims"][0]) == pair.tensor_shape
        assert first is not second
    assert len(proved) == MIOPEN_CONVOLUTIONS[name]


def _convolution(kernel: dict[str, Any], record: Conversion, operations: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """The convolution that launched a kernel, by the ids in the file."""
    assert (kernel["name"], nanoseconds(kernel, "dur")) == (record.kernel, round(1e9 * (record.seconds or 0)))
    operation = operations[kernel["args"]["External id"]]
    assert operation["name"] == "aten::miopen_convolution"
    return operation


def _output_sizes(convolution: dict[str, Any]) -> tuple[int, ...]:
    """What torch's documentation of Conv2d says of the sizes of its result."""
    sizes, weight = convolution["args"]["Input Dims"][:2]
    padding, stride, dilation = (json.loads(text) for text in convolution["args"]["Concrete Inputs"][3:6])
    spatial = (
        (size + 2 * pad - spread * (kernel - 1) - 1) // step + 1
        for size, pad, spread, kernel, step in zip(sizes[2:], padding, dilation, weight[2:], stride, strict=True)
    )
    return (sizes[0], weight[0], *spatial)


@pytest.mark.parametrize("name", ["b200_eager_control", "h100_bert_control", "mi300_graph_replay_control"])
def test_a_trace_without_layout_conversions_has_no_warning(name: str) -> None:
    assert [finding for finding in diagnosis(name).findings if finding.severity != "note"] == []


def test_a_quarter_of_the_convolution_time_of_a_video_decoder_is_conversion() -> None:
    totals = read_trace(TRACES / "h100_wan21_kernel_summary.csv")
    assert isinstance(totals, KernelTotals)
    assert (totals.source, len(totals.rows), totals.problems) == ("TraceLens kernel summary", 107, [])
    assert not any(row.is_cut for row in totals.rows)
    found = examine_trace(TRACES / "h100_wan21_kernel_summary.csv").trials[0].kernels
    assert found is not None

    assert found.conversion_count == 13_128
    assert {conversion.op for conversion in found.conversions} == {"aten::cudnn_convolution"}
    assert in_microseconds(found.conversion_seconds) == pytest.approx(246_753.245, abs=1e-3)
    assert found.convolution_seconds is not None
    assert found.conversion_seconds is not None
    assert found.conversion_seconds / found.convolution_seconds == pytest.approx(0.266, abs=5e-4)


def test_the_grid_shows_activations_and_weights_if_no_sizes_were_recorded() -> None:
    diagnosis = examine_trace(TRACES / "a100_conv_training_nccl.json.gz")
    kernels = diagnosis.trials[0].kernels
    assert kernels is not None
    spent = {
        side: sum(c.seconds or 0 for c in kernels.conversions if c.of_batch is side) for side in (True, False, None)
    }
    assert spent == pytest.approx({True: 10_718.836 * MICROSECOND, False: 4_402.074 * MICROSECOND, None: 0}, abs=EXACT)
    assert "by launch grids 10.7 ms of activations and their gradients" in " ".join(str(diagnosis).split())
