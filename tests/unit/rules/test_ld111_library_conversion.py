from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
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

from layoutdoctor.rules.ld111_library_conversion import check

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Conversion, Finding, KernelSummary, Trial

findings = finder_in_trace(check)

MEASURE = "or diagnose the model itself, which measures: python -m layoutdoctor model.py"
WANTS_CHANNELS_LAST = (
    "the library wants channels_last and is given contiguous tensors: record it again with model = "
    "model.to(memory_format=torch.channels_last) and x = x.to(memory_format=torch.channels_last); " + MEASURE
)
IN_3D = "; where a convolution is 3-D, its format is torch.channels_last_3d"
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


def only(*conversions: Conversion, **changes: Any) -> Finding:
    (found,) = findings(*conversions, **changes)
    return found


def advice(found: Finding) -> str:
    assert found.suggestion is not None
    return found.suggestion


def test_all_that_a_library_converts_is_one_finding_with_its_sum_and_what_other_findings_tell_of_it(told: Told) -> None:
    dear = {"seconds": 2e-4, "location": a_location(31), "op": "aten::convolution_backward"}
    conversions = [*one_call(1), *one_call(2, **dear)]
    pair = a_recorded_pair("out 1", "in 2")
    told(
        "All that a library converts is one finding with its sum and what other findings tell of it",
        findings(*conversions, redundant_pairs=(pair,)),
    )


def test_it_is_a_warning_from_five_percent_or_where_convolutions_pay_a_tenth_and_silent_where_nobody_feels_it(
    told: Told,
) -> None:
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


def test_what_is_no_finding() -> None:
    # Only a trace and only what libraries convert is looked at.
    copy, nothing = an_eager_copy("copy", seconds=1e-3), there(1, direction="none", seconds=1e-3)
    assert findings(copy, nothing) == []
    assert findings(there(1), kernels=None) == []
    assert list(check(a_diagnosis(a_trial(kernels=kernels(there(1, seconds=1e-3)))))) == []

    # On a gpu without conversions there is nothing to tell.
    assert list(check(a_diagnosis(a_trial(kernels=on_a_gpu())))) == []
    assert list(check(a_diagnosis(a_trial(kernels=None)))) == []


def test_what_it_suggests() -> None:
    # A line of a table counts for all its launches and says that no tensor is known.
    row: dict[str, Any] = {"tensor": "unknown", "source": None, "target": None, "location": None, "port": None}
    row |= {"module": None, "confidence": None, "exposed_seconds": None, "bytes_moved": None}
    found = only(there(1, count=8710, seconds=1e-3, **row), back(1, count=4418, seconds=5e-4, **row))
    assert found.message == (
        "13128 layout conversions by cuDNN around convolutions: to channels_last (8710) and to contiguous (4418), "
        "of which tensors was not recorded; 1.50 ms of 15.0 ms kernel time (10 %, 38 % of the convolution time)"
    )
    assert found.suggestion == WANTS_CHANNELS_LAST + IN_3D
    assert (found.location, found.module, found.bytes_moved) == (None, None, None)

    # A library that wants contiguous is told by its inputs though the results cost more.
    conversions = [
        back(1, port="input 0"),
        back(2, port="input 1", tensor="weight"),
        there(1, port="output 0", seconds=9e-4),
    ]
    assert only(*conversions).suggestion == (
        "the library computes contiguous here: record it again with model = "
        "model.to(memory_format=torch.contiguous_format) and x = x.to(memory_format=torch.contiguous_format); "
        + MEASURE
    )

    # Without ports the most frequent direction says what is wanted and a tie says nothing.
    unplaced: dict[str, Any] = {"port": None, "seconds": 2e-4}
    several = [there(1, **unplaced), there(2, **unplaced), back(3, **{**unplaced, "seconds": 9e-4})]
    assert only(*several).suggestion == WANTS_CHANNELS_LAST
    assert advice(only(*several[1:])).startswith(
        "nothing was tried here: record it again with model and input in the other memory format"
    )

    # Conversions of a kind that no memory format is ask for the other one.
    reorder = there(1, kernel="conv_reorder", direction="other", source=None, target=None)
    found = only(reorder)
    assert found.message.startswith("1 layout conversion by oneDNN around convolutions: between other layouts, of ")
    assert advice(found).startswith("nothing was tried here: ")

    # Five dimensions are channels last 3d.
    volume = (1, 64, 8, 56, 56)
    calls = [there(n, source=contiguous(volume), target=channels_last(volume)) for n in range(2)]
    assert only(*calls).suggestion == WANTS_CHANNELS_LAST.replace("torch.channels_last", "torch.channels_last_3d")

    # A lone patch embedding is no reason to convert the whole model.
    steps = [c for n in range(4) for c in one_call(7, step=f"ProfilerStep#{n}")]
    assert only(*one_call(7)).suggestion == ALONE
    assert only(*steps).suggestion == ALONE

    # Without modules one convolution is known by how little it converts in a step.
    unplaced = {"module": None, "location": None}
    assert only(*one_call(1, **unplaced)).suggestion == ALONE
    assert only(*one_call(1, **unplaced), back(2, **unplaced)).suggestion == WANTS_CHANNELS_LAST
    assert only(*[there(n, **unplaced) for n in range(3)]).suggestion == WANTS_CHANNELS_LAST
    assert only(there(1, **unplaced), weight(1, op="aten::other", **unplaced)).suggestion == WANTS_CHANNELS_LAST
    assert only(there(1, count=9, **unplaced)).suggestion == WANTS_CHANNELS_LAST

    # Buffers that miopen converts before it writes them are told and so is the switch it needs.
    miopen: dict[str, Any] = {"kernel": BATCHED}
    conversions = [
        c
        for n in range(2)
        for c in (*one_call(n, **miopen), to_channels_last(f"buffer {n}", port="output 0", **miopen))
    ]
    found = only(*conversions)
    assert found.message.startswith("8 layout conversions by MIOpen around convolutions: to channels_last (6) and to ")
    assert "; 2 of them convert the buffer of a result before it is written" in found.message
    assert found.suggestion == (
        f"{WANTS_CHANNELS_LAST}; before ROCm 7, channels_last takes effect only with PYTORCH_MIOPEN_SUGGEST_NHWC=1 in "
        "the environment"
    )
    assert "; 1 of them converts the buffer of a result" in (
        only(there(1, **miopen), there(2, port="output 0", **miopen)).message
    )

    # Transposes to cnhw are named as what they are.
    transposes = [
        there(n, kernel=CNHW, direction="other", source=None, target=None, port=None, tensor="unknown") for n in (1, 2)
    ]
    found = only(*transposes)
    assert found.message.startswith("2 layout conversions by MIOpen around convolutions: to or from CNHW, of which ")
    assert advice(found).startswith(
        "the library computes 1x1 convolutions of contiguous tensors as matrix products, and channels_last ones "
        "otherwise: record it again with model = model.to(memory_format=torch.channels_last)"
    )

    # Blocked layouts are met with channels last.
    assert a_log(*[a_reorder(n) for n in range(4)]).suggestion == (
        "the library computes in a layout of its own, and takes channels_last without conversions of activations: "
        "record it again with model = model.to(memory_format=torch.channels_last) and "
        f"x = x.to(memory_format=torch.channels_last); {MEASURE}"
    )

    # Of a model nothing else of which was measured the other format is to be measured.
    cuda = "give the model and its input torch.channels_last, and measure that as well: --configurations default"
    assert of_a_model().suggestion == cuda
    rocm = [there(1, seconds=1e-3, kernel=BATCHED)]
    assert of_a_model(conversions=rocm).suggestion.startswith(cuda + "; before ROCm 7")
    undecided = [there(1, seconds=1e-3), there(2, seconds=1e-3, direction="to_contiguous")]
    assert of_a_model(conversions=undecided).suggestion == "measure both memory formats: --configurations default"

    # Where every measured configuration with fewer of them is slower they pay.
    name = "inductor-channels-last"
    found = of_a_model(a_trial(name, kernels=on_a_gpu()), **against(name, 0.7))
    assert (found.severity, found.suggestion) == (
        "note",
        "leave them: every configuration with fewer of them that was measured is slower here",
    )

    # One that was not measured or has as many says nothing of that.
    name = "inductor-channels-last"
    unmeasured = of_a_model(a_trial(name, kernels=on_a_gpu()))
    as_many = of_a_model(a_trial(name, kernels=on_a_gpu(*one_call(1))), **against(name, 0.7))
    for found in (unmeasured, as_many):
        assert found.severity == "warning"
        assert found.suggestion.startswith("give the model and its input torch.channels_last")

    # Where no shapes were recorded the operations say the dimensions.
    for called, wanted in (
        (("aten::conv2d",), WANTS_CHANNELS_LAST),
        (("aten::conv3d",), WANTS_CHANNELS_LAST.replace("torch.channels_last", "torch.channels_last_3d")),
        (("aten::conv2d", "aten::conv_transpose3d"), WANTS_CHANNELS_LAST + IN_3D),
    ):
        calls = [there(n, source=None, target=None) for n in range(2)]
        totals = tuple(a_total(name, kind="operation") for name in called)
        assert only(*calls, kernels=recorded_kernels(*calls, totals=totals)).suggestion == wanted


def test_what_it_says() -> None:
    # What directions and tensors rest on is told.
    found = only(there(1), there(2, tensor="unknown", confidence="grid"), there(3, confidence=None))
    assert (
        "of activations (2) and tensors of unknown kind (1), going by shapes (1), launch grid (1) and kernel name (1); "
    ) in found.message

    # Round trips repetitions and weights are named so that nobody adds them up.
    twice = {"source_value": "input of aten::conv2d (7)"}
    conversions = [there(1, **twice), there(2, **twice), weight(1), back(1), there(3)]
    found = only(*conversions, redundant_pairs=(a_recorded_pair("out 1", "in 3"),))
    assert found.message.endswith(
        "; of these, LD101 counts 2 too (round trips), LD102 counts 2 too (tensors converted more than once) and "
        "LD103 counts 1 too (weights)"
    )

    # Convolutions that convert their result themselves explain why there is no conversion back.
    launched = (a_recorded_kernel(FUSED), a_recorded_kernel("sm80_xmma_fprop_nhwckrsc_nhwc_tilesize128"))
    summary = recorded_kernels(there(1), there(2), kernels=launched)
    assert only(there(1), there(2), kernels=summary).message.endswith(
        "; 1 convolution kernel reads channels_last and writes contiguous itself, so that no conversion back is seen "
        "there"
    )

    # The totals count the launches that a kernel list may have lost.
    totals = (a_total(FUSED, count=6), a_total(FUSED, kind="operation", count=9))
    summary = recorded_kernels(there(1), there(2), kernels=(a_recorded_kernel(FUSED),), totals=totals)
    assert "; 6 convolution kernels read channels_last and write contiguous themselves," in (
        only(there(1), there(2), kernels=summary).message
    )

    # Kernels that read what they write explain nothing.
    launched = (a_recorded_kernel("sm80_xmma_fprop_nchwkcrs_nchw_tilesize128"), a_recorded_kernel("my_nhwckrsc_nchw"))
    assert "themselves" not in only(there(1), kernels=recorded_kernels(there(1), kernels=launched)).message
    assert "itself" not in only(there(1), kernels=recorded_kernels(there(1), kernels=launched)).message
    fused = recorded_kernels(back(1), kernels=(a_recorded_kernel(FUSED),))
    assert "itself" not in only(back(1), kernels=fused).message

    # A result that a contiguous library puts back into channels last is no empty buffer.
    conversions = [back(1, port="input 0"), there(1, port="output 0")]
    assert "buffer" not in only(*conversions).message

    # A kernel of nobody known is the librarys.
    assert only(there(1, kernel=None)).message.startswith("1 layout conversion by the library around convolutions: ")
    assert only(there(1, kernel="somebody's kernel")).message.startswith("1 layout conversion by the library around ")

    # A log of onednn has a share of the convolution time only where all stand beside convolutions.
    placed, unplaced = [a_reorder(n) for n in range(4)], a_reorder(9, tensor="unknown")
    assert "(5.3 %, 20 % of the convolution time)" in a_log(*placed).message
    assert a_log(*placed).severity == "warning"
    found = a_log(unplaced, a_reorder(1, seconds=1.5e-4))
    assert "350 us of 15.0 ms kernel time (2.3 %); " not in found.message
    assert "convolution time" not in found.message
    assert found.severity == "note"  # all of them would be a tenth of the convolution time; what is placed is not
    assert found.message.startswith("2 layout conversions by oneDNN around convolutions: to a blocked layout, of ")

    # A log without convolutions claims none.
    found = a_log(*[a_reorder(n) for n in range(9)], convolution_count=0, convolution_seconds=0.0)
    assert found.message.startswith("9 layout conversions by oneDNN: to a blocked layout")

    # In the diagnosis of a model on a gpu it is told of what the model has today.
    found = of_a_model(a_trial("eager", kernels=on_a_gpu(*one_call(1), *one_call(2))))
    assert (found.severity, found.configuration) == ("warning", "inductor")
    assert found.message.startswith(
        "3 layout conversions by cuDNN around convolutions: to channels_last (2) and to contiguous (1), of activations "
        "(2) and weights (1), going by shapes; 3.00 ms of 15.0 ms kernel time (20 %, 75 % of the convolution time)"
    )
    assert found.evidence == ("in 1", "weight 1", "out 1")
    assert found.seconds == pytest.approx(3e-3)

    # Only what other rules tell of the same configuration is counted.
    trips = [*one_call(1, seconds=1e-3), *one_call(2, seconds=1e-3)]
    pair = a_pair("out 1", "in 2", evidence="kernels")
    other = a_trial("eager", kernels=on_a_gpu(*trips), redundant_pairs=(a_pair("in 1", "weight 1"), pair))
    found = of_a_model(other, conversions=trips, trial={"redundant_pairs": (pair,)})
    assert found.message.endswith("of these, LD101 counts 2 too (round trips) and LD103 counts 2 too (weights)")


ALONE = (
    "one convolution alone pays: convert its weight once, that_module.to(memory_format=torch.channels_last), and give "
    "it an input in that format if you can; its result then comes in that format, so look at what reads it, and record "
    "again; the rest of the model can stay as it is"
)


def a_log(*conversions: Conversion, **changes: Any) -> Finding:
    summary = recorded_kernels(*conversions, sources=("oneDNN verbose log",), **changes)
    return only(*conversions, kernels=summary)


def a_reorder(number: int, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {"kernel": "reorder", "op": None, "module": None, "location": None, "port": None}
    fields |= {"target": blocked(), "direction": "to_blocked", "seconds": 2e-4, "exposed_seconds": None}
    return there(number, **{**fields, **changes})


def on_a_gpu(*conversions: Conversion, **changes: Any) -> KernelSummary:
    """The kernel list of a model that was diagnosed on a GPU."""
    return recorded_kernels(*conversions, sources=("torch.profiler",), **changes)


def of_a_model(*others: Trial, conversions: list[Conversion] | None = None, **changes: Any) -> Finding:
    own = one_call(1, seconds=1e-3) if conversions is None else conversions
    trial = a_trial(kernels=on_a_gpu(*own), **changes.pop("trial", {}))
    (found,) = check(a_diagnosis(trial, *others, **changes))
    return found


def against(name: str, median: float) -> dict[str, Any]:
    return {"comparison": a_comparison(a_ratio(name, median))}


@pytest.mark.parametrize("median", [1.3, 1.0])
def test_a_measured_configuration_with_fewer_of_them_is_the_cure(median: float) -> None:
    name = "inductor-channels-last"
    found = of_a_model(a_trial(name, kernels=on_a_gpu()), **against(name, median))

    assert found.severity == "warning"
    assert found.suggestion.startswith(f"use {name}: it leaves none of them; {name} runs at {median:.2f}x the speed")
    found = of_a_model(a_trial(name, kernels=on_a_gpu(there(5))), **against(name, median))
    assert found.suggestion.startswith(f"use {name}: it leaves 1 of them; ")
