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
    from layoutdoctor.diagnosis.conversion import RedundantPair
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.kernel import KernelSummary

TRACES = Path(__file__).parents[2] / "traces"
MICROSECOND = 1e-6
EXACT = 1e-9  # seconds: what is closer is the same sum of whole nanoseconds


class Facts(NamedTuple):
    """What a file holds; times in microseconds, directions as counts to channels_last and to contiguous."""

    kernels: int
    kernel_us: float
    conversions: int = 0
    conversion_us: float = 0
    exposed_us: float | None = None
    directions: tuple[int, int] | None = None
    round_trips: tuple[tuple[str, int], ...] = ()
    round_trip_us: float | None = 0


FACTS = {
    "a100_alexnet": Facts(79, 10_692, 12, 277, None, (12, 0)),
    "a100_conv_training_nccl": Facts(
        2_700, 162_532.34, 633, 15_120.91, 13_446.628, (474, 159), (("grid", 18),), 235.546
    ),
    "a100_particle_transformer_cast_decoy": Facts(549, 89_730.099),
    "a100_triton_example": Facts(1, 1.76),
    "b200_eager_control": Facts(768, 10_862.916),
    "h100_bert_control": Facts(60, 307.197),
    "h100_timesformer": Facts(446, 154_855.595, 3, 335.167, None, (2, 1)),
    "h100_vit_patch_embed": Facts(154, 1_220.926, 3, 23.072, 23.072, (2, 1)),
    "large_integers": Facts(1, 50),
    "mi300_flux_vae_hip_graph_capture": Facts(
        2_551, 226_024.43, 115, 9_425.42, 9_425.42, (83, 32), (("shapes", 22),), 6_095.256
    ),
    "mi300_graph_replay_control": Facts(555, 9_765.437),
    "mi300_resnet_act_checkpoint": Facts(
        2_995, 97_255.826, 999, 5_642.202, 2_253.361, None, (("shapes", 63), ("order", 21)), None
    ),
    "v100_resnet50_2020_12_list_rooted": Facts(9_538, 635_237),
    "v100_resnet50_2021_01_cublas_transposes_cut": Facts(395, 137_861, 16, 443, None, (10, 6)),
    "v100_resnet50_2021_06": Facts(8_772, 591_532, 18, 558, None, (12, 6)),
}

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
    return trial.kernel_summary


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


@pytest.mark.parametrize("name", FACTS)
def test_a_real_trace_is_read_as_python_s_own_reader_sees_it(name: str) -> None:
    found = trace(name)

    for kind in ("kernels", "transfers", "operations", "launches"):
        assert _starts(found, getattr(found, kind)) == Counter(map(_start, events(name, kind))), kind
    frames, recorded = _starts(found, found.frames), Counter(map(_start, events(name, "frames")))
    calls = Counter({frame: count for frame, count in recorded.items() if frame[0].startswith("nn.Module: ")})
    assert calls <= frames <= recorded
    assert found.has_stack == bool(recorded)
    assert found.problems == []
    kernels = found.kernels
    grids = (found.grids[index] if index >= 0 else None for index in kernels.grid.tolist())
    columns = (kernels.device.tolist(), kernels.stream.tolist(), kernels.correlation.tolist())
    assert Counter(zip(*columns, grids, strict=True)) == Counter(map(_of_kernel, events(name, "kernels")))


def _starts(found: RecordedTrace, table: Any) -> Counter[tuple[str, int]]:
    starts = (table.start + found.base_nanoseconds).tolist()
    return Counter(zip((found.names[index] for index in table.name.tolist()), starts, strict=True))


def _start(event: dict[str, Any]) -> tuple[str, int]:
    return event["name"], nanoseconds(event, "ts")


def _of_kernel(event: dict[str, Any]) -> tuple[Any, ...]:
    args = event.get("args", {})
    stream = args.get("stream", event["tid"])
    grid = tuple(args["grid"]) if "grid" in args else None
    return args.get("device", event["pid"]), int(str(stream).split()[-1]), args.get("correlation", -1), grid


@pytest.mark.parametrize("name", FACTS)
def test_the_conversions_of_libraries_and_round_trips_are_found_exactly(name: str) -> None:
    facts, kernels = FACTS[name], kernels_of(name)
    by_name = [event for event in events(name, "kernels") if CONVERSION.match(event["name"])]
    conversion_us = sum(nanoseconds(event, "dur") for event in by_name) / 1000

    assert (kernels.count, kernels.seconds) == (facts.kernels, pytest.approx(facts.kernel_us * MICROSECOND, abs=EXACT))
    assert (len(by_name), conversion_us) == (facts.conversions, pytest.approx(facts.conversion_us, abs=1e-6))
    assert kernels.conversion_count == facts.conversions
    assert kernels.conversion_seconds == pytest.approx(facts.conversion_us * MICROSECOND, abs=EXACT)
    assert Counter(c.kernel for c in kernels.conversions) == Counter(event["name"] for event in by_name)
    if facts.directions is not None:
        found = Counter(conversion.direction for conversion in kernels.conversions)
        assert (found["to_channels_last"], found["to_contiguous"]) == facts.directions
        assert sum(found.values()) == sum(facts.directions)
    if facts.exposed_us is not None:
        assert in_microseconds(kernels.exposed_conversion_seconds) == pytest.approx(facts.exposed_us, abs=1e-3)
    pairs = pairs_of(name)
    assert Counter(pair.confidence for pair in pairs) == dict(facts.round_trips)
    if facts.round_trip_us is not None:
        assert sum(in_microseconds(pair.seconds) for pair in pairs) == pytest.approx(facts.round_trip_us, abs=1e-3)


def test_a_quarter_of_the_convolution_time_of_a_video_decoder_is_conversion() -> None:
    totals = read_trace(TRACES / "h100_wan21_kernel_summary.csv")
    assert isinstance(totals, KernelTotals)
    assert (totals.source, len(totals.rows), totals.problems) == ("tracelens_summary", 107, [])
    found = examine_trace(TRACES / "h100_wan21_kernel_summary.csv").trials[0].kernel_summary

    assert found.conversion_count == 13_128
    assert {conversion.op for conversion in found.conversions} == {"aten::cudnn_convolution"}
    assert in_microseconds(found.conversion_seconds) == pytest.approx(246_753.245, abs=1e-3)
    share = in_microseconds(found.conversion_seconds) / in_microseconds(found.convolution_seconds)
    assert share == pytest.approx(0.266, abs=5e-4)


def test_the_grid_shows_activations_and_weights_if_no_sizes_were_recorded() -> None:
    conversions = kernels_of("a100_conv_training_nccl").conversions
    spent = {side: sum(c.seconds or 0 for c in conversions if c.of_batch is side) for side in (True, False, None)}
    assert spent == pytest.approx({True: 10_718.836 * MICROSECOND, False: 4_402.074 * MICROSECOND, None: 0}, abs=EXACT)
    report = " ".join(str(diagnosis("a100_conv_training_nccl")).split())
    assert "by launch grids, 10.7 ms of activations and their gradients" in report
