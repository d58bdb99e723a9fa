from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_comparison,
    a_diagnosis,
    a_location,
    a_pair,
    a_ratio,
    a_trial,
    blocked,
    channels_last,
    contiguous,
    kernels,
)
from trace_builders import (
    a_recorded_kernel,
    a_recorded_pair,
    a_total,
    an_eager_copy,
    finder_in_trace,
    recorded_kernels,
    to_channels_last,
    to_contiguous,
)

from layoutdoctor.examination.examine import without_kernel_seconds
from layoutdoctor.rules.library import LD111

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Conversion, Finding, KernelSummary, Trial

findings = finder_in_trace(LD111.check)

FUSED = "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4"
CNHW = "transpose_NCHW2CNHW_V2_2D_WG_float"
BATCHED = "batched_transpose_64x64_pack_4x4_ediv_2x2_half"
WEIGHT = (64, 64, 3, 3)


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


def test_what_is_no_finding() -> None:
    # Only a trace and only what libraries convert is looked at.
    copy, nothing = an_eager_copy("copy", seconds=1e-3), there(1, direction="none", seconds=1e-3)
    assert findings(copy, nothing) == []
    assert findings(there(1), kernels=None) == []
    assert list(LD111.check(a_diagnosis(a_trial(kernels=kernels(there(1, seconds=1e-3)))))) == []

    # On a gpu without conversions there is nothing to tell.
    assert list(LD111.check(a_diagnosis(a_trial(kernels=on_a_gpu())))) == []
    assert list(LD111.check(a_diagnosis(a_trial(kernels=None)))) == []


def test_on_a_gpu_whose_times_cannot_be_true_it_is_a_note_with_bytes() -> None:
    doubted = without_kernel_seconds(a_trial(kernels=on_a_gpu(there(1, seconds=1e-3), back(1, seconds=1e-3))))
    (finding,) = LD111.check(a_diagnosis(doubted))

    assert (finding.severity, finding.seconds) == ("note", None)
    assert "moved" in finding.message
    assert "kernel time" not in finding.message


def test_what_it_suggests(told: Told) -> None:
    row: dict[str, Any] = {"tensor": "unknown", "source": None, "target": None, "location": None, "port": None}
    row |= {"module": None, "confidence": None, "exposed_seconds": None, "bytes_moved": None}
    told(
        "A line of a table counts for all its launches and says that no tensor is known",
        findings(there(1, count=8710, seconds=0.001, **row), back(1, count=4418, seconds=0.0005, **row)),
    )

    conversions = [
        back(1, port="input 0"),
        back(2, port="input 1", tensor="weight"),
        there(1, port="output 0", seconds=9e-4),
    ]
    told("A library that wants contiguous is told by its inputs though the results cost more", findings(*conversions))

    unplaced: dict[str, Any] = {"port": None, "seconds": 2e-4}
    several = [there(1, **unplaced), there(2, **unplaced), back(3, **{**unplaced, "seconds": 9e-4})]
    told(
        "Without ports the most frequent direction says what is wanted and a tie says nothing",
        findings(*several),
        findings(*several[1:]),
    )

    reorder = there(1, kernel="conv_reorder", direction="other", source=None, target=None)
    told("Conversions of a kind that no memory format is ask for the other one", findings(reorder))

    volume = (1, 64, 8, 56, 56)
    calls = [there(n, source=contiguous(volume), target=channels_last(volume)) for n in range(2)]
    told("Five dimensions are channels last 3d", findings(*calls))

    steps = [c for n in range(4) for c in one_call(7, step=f"ProfilerStep#{n}")]
    told("A lone patch embedding is no reason to convert the whole model", findings(*one_call(7)), findings(*steps))

    unplaced = {"module": None, "location": None}
    told(
        "Without modules one convolution is known by how little it converts in a step",
        findings(*one_call(1, **unplaced)),
        findings(*one_call(1, **unplaced), back(2, **unplaced)),
        findings(*[there(n, **unplaced) for n in range(3)]),
        findings(there(1, **unplaced), weight(1, op="aten::other", **unplaced)),
        findings(there(1, count=9, **unplaced)),
    )

    miopen: dict[str, Any] = {"kernel": BATCHED}
    conversions = [
        c
        for n in range(2)
        for c in (*one_call(n, **miopen), to_channels_last(f"buffer {n}", port="output 0", **miopen))
    ]
    told(
        "Buffers that miopen converts before it writes them are told and so is the switch it needs",
        findings(*conversions),
        findings(there(1, **miopen), there(2, port="output 0", **miopen)),
    )

    transposes = [
        there(n, kernel=CNHW, direction="other", source=None, target=None, port=None, tensor="unknown") for n in (1, 2)
    ]
    told("Transposes to cnhw are named as what they are", findings(*transposes))
    told("Blocked layouts are met with channels last", a_log(*[a_reorder(n) for n in range(4)]))
    told("Of a model nothing else of which was measured the other format is to be measured", of_a_model())
    rocm = [there(1, seconds=1e-3, kernel=BATCHED)]
    told(
        "Of a model nothing else of which was measured the other format is to be measured", of_a_model(conversions=rocm)
    )
    undecided = [there(1, seconds=1e-3), there(2, seconds=1e-3, direction="to_contiguous")]
    told(
        "Of a model nothing else of which was measured the other format is to be measured",
        of_a_model(conversions=undecided),
    )

    name = "inductor-channels-last"
    fewer, as_many = (a_trial(name, kernels=on_a_gpu(*own)) for own in ((), one_call(1)))
    told(
        "Where every measured configuration with fewer of them is slower they pay",
        of_a_model(fewer, **against(name, 0.7)),
    )
    told(
        "One that was not measured or has as many says nothing of that",
        of_a_model(fewer),
        of_a_model(as_many, **against(name, 0.7)),
    )
    for called in (("aten::conv2d",), ("aten::conv3d",), ("aten::conv2d", "aten::conv_transpose3d")):
        calls = [there(n, source=None, target=None) for n in range(2)]
        totals = tuple(a_total(name, kind="operation") for name in called)
        told(
            "Where no shapes were recorded the operations say the dimensions",
            findings(*calls, kernels=recorded_kernels(*calls, totals=totals)),
        )


def test_what_it_says(told: Told) -> None:
    name = "inductor-channels-last"
    for median in (1.3, 1.0):
        for left in ((), (there(5),)):
            found = of_a_model(a_trial(name, kernels=on_a_gpu(*left)), **against(name, median))
            told("A measured configuration with fewer of them is the cure", found)
    for seconds, of_convolutions in (
        (0.0005, 1.0),
        (0.00049, 0.0049),
        (0.00049, 0.005),
        (0.0002, 0.002),
        (0.00019, 0.00019),
        (5e-05, 5e-05),
        (4.9e-05, 4.9e-05),
        (0.0005, None),
        (0.00049, None),
        (None, 1.0),
    ):
        conversion = there(1, seconds=seconds)
        recorded = recorded_kernels(conversion, seconds=0.01, convolution_seconds=of_convolutions)
        told(
            "It is a warning from five percent or where convolutions pay a tenth and silent where nobody feels it",
            findings(conversion, kernels=recorded),
        )
    told(
        "What directions and tensors rest on is told",
        findings(there(1), there(2, tensor="unknown", confidence="grid"), there(3, confidence=None)),
    )

    twice = {"source_value": "input of aten::conv2d (7)"}
    conversions = [there(1, **twice), there(2, **twice), weight(1), back(1), there(3)]
    told(
        "Round trips repetitions and weights are named so that nobody adds them up",
        findings(*conversions, redundant_pairs=(a_recorded_pair("out 1", "in 3"),)),
    )

    launched = (a_recorded_kernel(FUSED), a_recorded_kernel("sm80_xmma_fprop_nhwckrsc_nhwc_tilesize128"))
    summary = recorded_kernels(there(1), there(2), kernels=launched)
    told(
        "Convolutions that convert their result themselves explain why there is no conversion back",
        findings(there(1), there(2), kernels=summary),
    )

    totals = (a_total(FUSED, count=6), a_total(FUSED, kind="operation", count=9))
    summary = recorded_kernels(there(1), there(2), kernels=(a_recorded_kernel(FUSED),), totals=totals)
    told(
        "The totals count the launches that a kernel list may have lost", findings(there(1), there(2), kernels=summary)
    )

    launched = (a_recorded_kernel("sm80_xmma_fprop_nchwkcrs_nchw_tilesize128"), a_recorded_kernel("my_nhwckrsc_nchw"))
    told(
        "Kernels that read what they write explain nothing",
        findings(there(1), kernels=recorded_kernels(there(1), kernels=launched)),
    )
    fused = recorded_kernels(back(1), kernels=(a_recorded_kernel(FUSED),))
    told("Kernels that read what they write explain nothing", findings(back(1), kernels=fused))

    conversions = [back(1, port="input 0"), there(1, port="output 0")]
    told("A result that a contiguous library puts back into channels last is no empty buffer", findings(*conversions))
    told(
        "A kernel of nobody known is the librarys",
        findings(there(1, kernel=None)),
        findings(there(1, kernel="somebody's kernel")),
    )

    placed, unplaced = [a_reorder(n) for n in range(4)], a_reorder(9, tensor="unknown")
    told(
        "A log of onednn has a share of the convolution time only where all stand beside convolutions",
        a_log(*placed),
        a_log(unplaced, a_reorder(1, seconds=0.00015)),
    )
    told(
        "A log without convolutions claims none",
        a_log(*[a_reorder(n) for n in range(9)], convolution_count=0, convolution_seconds=0.0),
    )
    told(
        "In the diagnosis of a model on a gpu it is told of what the model has today",
        of_a_model(a_trial("eager", kernels=on_a_gpu(*one_call(1), *one_call(2)))),
    )

    trips = [*one_call(1, seconds=1e-3), *one_call(2, seconds=1e-3)]
    pair = a_pair("out 1", "in 2", evidence="kernels")
    other = a_trial("eager", kernels=on_a_gpu(*trips), redundant_pairs=(a_pair("in 1", "weight 1"), pair))
    told(
        "Only what other rules tell of the same configuration is counted",
        of_a_model(other, conversions=trips, trial={"redundant_pairs": (pair,)}),
    )

    dear = {"seconds": 2e-4, "location": a_location(31), "op": "aten::convolution_backward"}
    conversions = [*one_call(1), *one_call(2, **dear)]
    pair = a_recorded_pair("out 1", "in 2")
    told(
        "All that a library converts is one finding with its sum and what other findings tell of it",
        findings(*conversions, redundant_pairs=(pair,)),
    )


def a_log(*conversions: Conversion, **changes: Any) -> list[Finding]:
    summary = recorded_kernels(*conversions, sources=("oneDNN verbose log",), **changes)
    return findings(*conversions, kernels=summary)


def a_reorder(number: int, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {"kernel": "reorder", "op": None, "module": None, "location": None, "port": None}
    fields |= {"target": blocked(), "direction": "to_blocked", "seconds": 2e-4, "exposed_seconds": None}
    return there(number, **{**fields, **changes})


def on_a_gpu(*conversions: Conversion, **changes: Any) -> KernelSummary:
    """The kernel list of a model that was diagnosed on a GPU."""
    return recorded_kernels(*conversions, sources=("torch.profiler",), **changes)


def of_a_model(*others: Trial, conversions: list[Conversion] | None = None, **changes: Any) -> list[Finding]:
    own = one_call(1, seconds=1e-3) if conversions is None else conversions
    trial = a_trial(kernels=on_a_gpu(*own), **changes.pop("trial", {}))
    return list(LD111.check(a_diagnosis(trial, *others, **changes)))


def against(name: str, median: float) -> dict[str, Any]:
    return {"comparison": a_comparison(a_ratio(name, median))}
