"""LD111: the sum of a library's conversions, in a trace and in a model on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_diagnosis,
    a_location,
    a_trial,
    blocked,
    channels_last,
    contiguous,
    kernels,
)
from rule_builders import against
from trace_builders import (
    a_recorded_kernel,
    a_recorded_pair,
    an_eager_copy,
    finder_in_trace,
    recorded_kernels,
    to_channels_last,
    to_contiguous,
)

from layoutdoctor.diagnosis.kernel import Total
from layoutdoctor.rules.ld111_library_conversion import LD111

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.kernel import KernelSummary
    from layoutdoctor.diagnosis.trial import Trial

findings = finder_in_trace(LD111.check)

FUSED = "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4"
CNHW = "transpose_NCHW2CNHW_V2_2D_WG_float"
BATCHED = "batched_transpose_64x64_pack_4x4_ediv_2x2_half"
WEIGHT = (64, 64, 3, 3)
NAMELESS: dict[str, Any] = {"source": None, "target": None}
UNPLACED: dict[str, Any] = {"module": None, "location": None}


def there(number: int, **changes: Any) -> Conversion:
    return to_channels_last(f"in {number}", **{"module": f"conv_{number}", "port": "input 0", **changes})


def weight(number: int, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {"tensor": "weight", "source": contiguous(WEIGHT), "target": channels_last(WEIGHT)}
    return to_channels_last(f"weight {number}", **{"module": f"conv_{number}", "port": "input 1", **fields, **changes})


def back(number: int, **changes: Any) -> Conversion:
    return to_contiguous(f"out {number}", **{"module": f"conv_{number}", "port": "output 0", **changes})


def one_call(number: int, **changes: Any) -> list[Conversion]:
    """What cuDNN converts around one convolution of a contiguous model."""
    return [there(number, **changes), weight(number, **changes), back(number, **changes)]


def a_log(*conversions: Conversion, **changes: Any) -> list[Finding]:
    summary = recorded_kernels(*conversions, sources=("onednn_log",), **changes)
    return findings(*conversions, kernels=summary)


def a_reorder(number: int, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {"kernel": "reorder", "op": None, "module": None, "location": None, "port": None}
    fields |= {"target": blocked(), "direction": "to_blocked", "seconds": 2e-4, "exposed_seconds": None}
    return there(number, **{**fields, **changes})


def on_a_gpu(*conversions: Conversion, **changes: Any) -> KernelSummary:
    """The kernel list of a model that was diagnosed on a GPU."""
    return recorded_kernels(*conversions, sources=("profiler",), **changes)


def of_a_model(*others: Trial, conversions: list[Conversion] | None = None, **changes: Any) -> list[Finding]:
    own = one_call(1, seconds=1e-3) if conversions is None else conversions
    trial = a_trial(kernels=on_a_gpu(*own), **changes.pop("trial", {}))
    return list(LD111.check(a_diagnosis(trial, *others, **changes)))


def test_copies_that_no_library_made_and_runs_on_a_cpu_have_no_finding() -> None:
    copy, nothing = an_eager_copy("copy", seconds=1e-3), there(1, direction="none", seconds=1e-3)
    assert findings(copy, nothing) == findings(there(1), kernels=None) == []
    for summary in (kernels(there(1, seconds=1e-3)), on_a_gpu(), None):  # a CPU, a GPU without conversions, nothing
        assert list(LD111.check(a_diagnosis(a_trial(kernels=summary)))) == []


def test_it_is_a_warning_from_five_percent_or_where_convolutions_pay_a_tenth(told: Told) -> None:
    for seconds, of_convolutions in (
        (5e-4, 1.0),
        (4.9e-4, 0.005),
        (4.9e-4, 0.0049),
        (1.9e-4, 1.9e-4),
        (4.9e-5, 4.9e-5),
    ):
        conversion = there(1, seconds=seconds)
        recorded = recorded_kernels(conversion, seconds=0.01, convolution_seconds=of_convolutions)
        told(
            "It is a warning from five percent or where convolutions pay a tenth and silent where nobody feels it",
            findings(conversion, kernels=recorded),
        )


def test_all_conversions_by_libraries_are_one_finding_with_their_sum(told: Told) -> None:
    dear = {"seconds": 2e-4, "location": a_location(31), "op": "aten::convolution_backward"}
    told(
        "All that a library converts is one finding with its sum and what other findings tell of it",
        findings(*one_call(1), *one_call(2, **dear), redundant_pairs=(a_recorded_pair("out 1", "in 2"),)),
    )
    twice = {"source_value": "input of aten::conv2d (7)"}
    conversions = [there(1, **twice), there(2, **twice), weight(1), back(1), there(3)]
    told(
        "Round trips repetitions and weights are named so that nobody adds them up",
        findings(*conversions, redundant_pairs=(a_recorded_pair("out 1", "in 3"),)),
    )
    launched = (a_recorded_kernel(FUSED), a_recorded_kernel("sm80_xmma_fprop_nhwckrsc_nhwc_tilesize128"))
    told(
        "Convolutions that convert their result themselves explain why there is no conversion back",
        findings(there(1), there(2), kernels=recorded_kernels(there(1), there(2), kernels=launched)),
    )
    told(
        "A log of onednn has a share of the convolution time only where all stand beside convolutions",
        a_log(*[a_reorder(n) for n in range(4)]),
        a_log(a_reorder(9, tensor="unknown"), a_reorder(1, seconds=0.00015)),
    )


def test_the_format_that_the_library_makes_of_most_inputs_is_to_be_tried(told: Told) -> None:
    row: dict[str, Any] = {"tensor": "unknown", "port": None, "confidence": None, "exposed_seconds": None}
    row |= {"bytes_moved": None, **NAMELESS, **UNPLACED}
    told(
        "A line of a table counts for all its launches and says that no tensor is known",
        findings(there(1, count=8710, seconds=0.001, **row), back(1, count=4418, seconds=0.0005, **row)),
    )
    only_back, computing = (
        back(1, count=4000, seconds=4e-4, **row),
        "volta_s884cudnn_fp16_128x128_ldg8_relu_exp_interior_nhwc_tn_v1",
    )
    by_name = [
        recorded_kernels(only_back, totals=(Total(kind="kernel", name=name, count=4000, seconds=6e-4),))
        for name in (computing, "ampere_sgemm_128x64_nn", "sm80_xmma_fprop_implicit_gemm_f32f32_nchwkcrs_nchw_kernel")
    ]
    told(
        "Conversions to contiguous alone do not say what the library computes in and names of convolution kernels do",
        *(findings(only_back, kernels=kernels) for kernels in by_name),
    )
    conversions = [
        back(1, port="input 0"),
        back(2, port="input 1", tensor="weight"),
        there(1, port="output 0", seconds=9e-4),
    ]
    told(
        "A library that wants contiguous is reported by its inputs though the results cost more", findings(*conversions)
    )
    steps = [c for n in range(4) for c in one_call(7, step=f"ProfilerStep#{n}")]
    told("A lone patch embedding is no reason to convert the whole model", findings(*one_call(7)), findings(*steps))
    told(
        "Without modules one convolution is known by how little it converts in a step",
        findings(*one_call(1, **UNPLACED)),
        findings(*one_call(1, **UNPLACED), back(2, **UNPLACED)),
    )
    miopen: dict[str, Any] = {"kernel": BATCHED}
    buffers = [to_channels_last(f"buffer {n}", port="output 0", **miopen) for n in range(2)]
    calls = [[*one_call(n, **miopen), buffers[n]] for n in range(2)]
    told(
        "Buffers that miopen converts before it writes them are reported and so is the switch it needs",
        findings(*calls[0], *calls[1]),
    )
    transposes = [there(n, kernel=CNHW, direction="other", port=None, tensor="unknown", **NAMELESS) for n in (1, 2)]
    told("Transposes to cnhw are named as what they are", findings(*transposes))


def test_a_measured_configuration_with_fewer_conversions_is_suggested_if_it_is_faster(told: Told) -> None:
    name = "inductor-channels-last"
    undecided = [there(1, seconds=1e-3), there(2, seconds=1e-3, direction="to_contiguous")]
    for conversions in (None, [there(1, seconds=1e-3, kernel=BATCHED)], undecided):
        told(
            "Of a model nothing else of which was measured the other format is to be measured",
            of_a_model(conversions=conversions),
        )
    fewer = a_trial(name, kernels=on_a_gpu())
    told(
        "Where every measured configuration with fewer of them is slower they pay",
        of_a_model(fewer, **against(name, 0.7)),
    )
    told("A measured configuration with fewer of them is the cure", of_a_model(fewer, **against(name, 1.3)))
