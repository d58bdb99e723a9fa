"""
A library converts layouts around the convolutions, so that its faster kernels can run.

What it finds:
    In a recorded trace, and in the diagnosis of a model on a GPU in the configuration that the model has today: all
    conversions that a library (cuDNN, MIOpen; in a log oneDNN) makes around its convolutions, whether or not two of
    them are a proven round trip. How many go which way, of which tensors, what they cost, summed and while nothing else
    ran, and which operations and modules pay most. It is the sum: the round trips (LD101), repeated conversions (LD102)
    and weights (LD103) in it are counted there once more, and the finding says how many they are.

    A kernel that reads channels_last and writes contiguous (``nhwckrsc_nchw`` in cuDNN's names) converts its result on
    the way, so that there are conversions of inputs and none back. MIOpen's transposes between NCHW and CNHW are
    neither memory format: it computes 1x1 convolutions with a stride as one matrix product over all images, in
    contiguous models only.

Why it costs:
    The library wants another layout than it is given, and converts input, weight and result around every call. Each of
    these reads and writes the whole tensor and computes nothing.

Example:
    A video VAE of Conv3d in its default, contiguous layout and bfloat16, on an H100: 13,128 of 18,051 convolution
    kernels only convert, and take 26.6 % of the convolution time.

What to do:
    Where most of them go to channels_last, give model and input channels_last (channels_last_3d for Conv3d): then the
    library finds what it wants. The backward follows, since gradients take the layout of the forward's results. Where
    most go to contiguous, leave channels_last away for these modules. Where one convolution alone is converted, such as
    the patch embedding of a vision transformer, convert that module only: with a channels_last weight its result is
    channels_last, which is what ``flatten(2).transpose(1, 2)`` behind it wants. On an AMD GPU before ROCm 7 set
    ``PYTORCH_MIOPEN_SUGGEST_NHWC=1`` as well. In a trace nothing was tried: record again and compare. The diagnosis of
    a model names the configuration with fewer of them that it measured. A TensorRT engine gets its layouts when it is
    built: allow the formats that its first and last layers want (``ITensor.allowed_formats``).

When it is fine:
    The library chose a converted path because it is the fastest it has for contiguous tensors; forbidding it costs more
    than it saves. It is a warning from 5 % of the recorded time on, or from 10 % of the convolution time where that is
    2 % of the recorded time or more; else a note, and below 0.5 % nothing. Where every measured configuration with
    fewer of them is slower it is a note. What overlapped with other kernels saves less than its sum.

Source:
    Wan 2.1 recorded on an H100, among the test files of AMD-AGI/TraceLens; NVIDIA, "Convolutional Layers User's Guide":
    tensor layouts; MIOpen, ``src/solver/conv/gemm.cpp`` (1x1 with stride 2, default layout only);
    ``miopen_conv_use_channels_last`` in aten/src/ATen/native/ConvUtils.h.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.examination.costs import conversion_places, conversions_of, launch_count, sum_known
from layoutdoctor.examination.kernels.names import are_of_an_engine, library_of
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import advised, channels_last_ways, use_instead
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.ld101_round_trip_conversion import check as check_round_trips
from layoutdoctor.rules.ld102_repeated_conversion import check as check_repeated
from layoutdoctor.rules.ld103_weight_converted_every_call import check as check_weights
from layoutdoctor.rules.times import Times
from layoutdoctor.units import format_seconds
from layoutdoctor.words import (
    CONFIDENCE_WORDS,
    DIRECTION_WORDS,
    LIBRARY_NAMES,
    ONEDNN_LOG,
    TENSOR_WORDS,
    count_of,
    joined,
    listing,
    op_words,
    plural,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import (
        Conversion,
        ConversionDirection,
        Diagnosis,
        Finding,
        KernelSummary,
        Severity,
        Trial,
    )

# Below this share of the recorded time nobody sees it in the run; what is proved of it is told by other rules.
_LEAST_SHARE = 0.005
# A warning from here on; or from the second on where the third, of the convolution time, is reached.
_LOSS_SHARE = 0.05
_FELT_SHARE = evidence.NEGLIGIBLE_SHARE
_LOSS_SHARE_OF_CONVOLUTIONS = 0.10

_OPERATIONS_NAMED = 3
_PLACES_NAMED = 3

# What the library wants where it makes its inputs so; oneDNN takes channels_last instead of its blocked layouts.
_WANTED: dict[ConversionDirection, str] = {
    "to_channels_last": "torch.channels_last",
    "to_blocked": "torch.channels_last",
    "to_contiguous": "torch.contiguous_format",
}
_RANKS = {"conv2d": 4, "conv_transpose2d": 4, "conv3d": 5, "conv_transpose3d": 5}
_TO_CNHW = ("transpose_NCHW2CNHW", "transpose_CNHW2NCHW")
_READS_LAST_WRITES_CONTIGUOUS = re.compile(r"^sm\d+_xmma_(?!wgrad)\w{0,200}?_nhwckrsc_nchw(?:_|\Z)")
# Its input and its weight; besides these it writes one result.
_READ_BY_A_CONVOLUTION = 2


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most, for all conversions by libraries in a trace, or in what the model has today on a GPU."""
    trial = evidence.main_trial(diagnosis)
    if trial is None or trial.kernels is None:
        return
    # On a CPU nobody counts the kernels of convolutions: what oneDNN converts is told by the rules on single ones.
    if trial.kernels.convolution_count is None and not evidence.is_trace(trial):
        return
    conversions = _library_conversions(trial)
    severity = _severity(trial, trial.kernels, conversions)
    if severity is not None:
        yield RULE.finding(
            trial.name,
            _message(diagnosis, trial, trial.kernels, conversions),
            _suggestion(diagnosis, trial, conversions),
            severity="note" if _are_worth_it(diagnosis, trial) else severity,
            conversions=conversions,
        )


def _library_conversions(trial: Trial) -> list[Conversion]:
    return [conversion for conversion in conversions_of(trial) if conversion.owner == "library"]


def _has_fewer(candidate: Trial, trial: Trial) -> bool:
    """Half as many at most."""
    return 2 * len(_library_conversions(candidate)) <= len(_library_conversions(trial))


def _are_worth_it(diagnosis: Diagnosis, trial: Trial) -> bool:
    return Times(diagnosis).is_worth_it(trial, lambda candidate: _has_fewer(candidate, trial))


def _severity(trial: Trial, kernels: KernelSummary, conversions: Sequence[Conversion]) -> Severity | None:
    """None where they are too little to tell, or took no time that was recorded; a note where times cannot be told."""
    if kernels.seconds is None and conversions and not evidence.is_trace(trial):
        return "note"
    share = evidence.share_of_kernels(trial, sum_known(c.seconds for c in conversions))
    if share is None or share < _LEAST_SHARE:
        return None
    own = sum_known(c.seconds for c in _of_convolutions(kernels, conversions))
    whole = kernels.convolution_seconds
    of_convolutions = own / whole if own is not None and whole else 0.0
    is_loss = share >= _LOSS_SHARE or (share >= _FELT_SHARE and of_convolutions >= _LOSS_SHARE_OF_CONVOLUTIONS)
    return "warning" if is_loss else "note"


def _of_convolutions(kernels: KernelSummary, conversions: Sequence[Conversion]) -> Sequence[Conversion]:
    """Those whose time is a part of the convolution time: in a log, what stands beside a convolution and fits it."""
    if not kernels.convolution_count:
        return ()
    return [c for c in conversions if c.tensor != "unknown"] if ONEDNN_LOG in kernels.sources else conversions


def _message(diagnosis: Diagnosis, trial: Trial, kernels: KernelSummary, conversions: Sequence[Conversion]) -> str:
    parts = (
        _count_words(kernels, conversions),
        _cost_words(trial, kernels, conversions),
        _operation_words(conversions),
        _place_words(conversions),
        _buffer_words(conversions),
        _fused_words(kernels, conversions),
        _told_words(diagnosis, trial, conversions),
    )
    return joined(parts)


def _count_words(kernels: KernelSummary, conversions: Sequence[Conversion]) -> str:
    count = launch_count(conversions)
    places = " around convolutions" if kernels.convolution_count else ""
    facts = (
        f"{count_of(count, 'layout conversion')} by {_library_words(kernels, conversions)}{places}: "
        f"{evidence.named_counts((_direction_words(c), c.count) for c in conversions)}",
        _tensor_words(conversions),
        evidence.step_words(conversions),
    )
    return joined(facts, ", ")


def _tensor_words(conversions: Sequence[Conversion]) -> str:
    """Of which tensors, and what says so."""
    if all(c.tensor == "unknown" for c in conversions):
        return "of which tensors was not recorded"
    tensors = evidence.named_counts((plural(TENSOR_WORDS[c.tensor]), c.count) for c in conversions)
    known_by = evidence.named_counts((CONFIDENCE_WORDS[c.confidence], c.count) for c in conversions)
    return f"of {tensors}, going by {known_by}"


def _library_words(kernels: KernelSummary, conversions: Sequence[Conversion]) -> str:
    if ONEDNN_LOG in kernels.sources:
        return LIBRARY_NAMES["onednn"]
    libraries = {library_of(c.kernel) for c in conversions if c.kernel is not None}
    return listing(sorted(LIBRARY_NAMES[name] for name in libraries if name in LIBRARY_NAMES)) or "the library"


def _direction_words(conversion: Conversion) -> str:
    return "to or from CNHW" if _is_to_cnhw(conversion) else DIRECTION_WORDS[conversion.direction]


def _is_to_cnhw(conversion: Conversion) -> bool:
    return conversion.kernel is not None and conversion.kernel.startswith(_TO_CNHW)


def _cost_words(trial: Trial, kernels: KernelSummary, conversions: Sequence[Conversion]) -> str | None:
    """With the share of the convolution time only where all of them are a part of it."""
    if len(_of_convolutions(kernels, conversions)) == len(conversions):
        return evidence.conversion_cost_words(trial, conversions)
    exposed = sum_known(c.exposed_seconds for c in conversions)
    return evidence.cost_words(trial, sum_known(c.seconds for c in conversions), exposed_seconds=exposed)


def _operation_words(conversions: Sequence[Conversion]) -> str | None:
    """The operations that pay most; None where none was recorded, or all are of one."""
    seconds: dict[str, float] = {}
    for conversion in conversions:
        name = op_words(conversion.op) if conversion.op is not None else "operations not known"
        seconds[name] = seconds.get(name, 0.0) + (conversion.seconds or 0.0)
    if len(seconds) < 2:
        return None
    dearest = sorted(seconds.items(), key=lambda item: -item[1])
    return listing([f"{format_seconds(spent)} in {name}" for name, spent in dearest], _OPERATIONS_NAMED)


def _place_words(conversions: Sequence[Conversion]) -> str | None:
    """The places that pay most; None of one alone, which the finding names as its own."""
    found = conversion_places(conversions)
    if len(found) < 2:
        return None
    named = [
        evidence.place_words(place) + (f" with {format_seconds(place.seconds)}" if place.seconds is not None else "")
        for place in found[:_PLACES_NAMED]
    ]
    return f"most {listing(named)}"


def _buffer_words(conversions: Sequence[Conversion]) -> str | None:
    """MIOpen converts what the result is to be written to as well, although nothing is in it yet."""
    count = launch_count(c for c in conversions if c.direction == "to_channels_last" and _is_at(c, "output"))
    if not count or _wanted(conversions) != "torch.channels_last":
        return None
    return f"{count} of them {'converts' if count == 1 else 'convert'} the buffer of a result before it is written"


def _fused_words(kernels: KernelSummary, conversions: Sequence[Conversion]) -> str | None:
    """Why conversions of inputs have no counterpart; None where all have theirs, as far as names tell."""
    if not any(c.direction == "to_channels_last" for c in conversions):
        return None
    totals = [(total.name, total.count) for total in kernels.totals if total.kind == "kernel"]
    launched = totals or [(kernel.name, 1) for kernel in kernels.kernels]
    count = sum(launches for name, launches in launched if _READS_LAST_WRITES_CONTIGUOUS.match(name))
    if not count:
        return None
    reads = "convolution kernel reads" if count == 1 else "convolution kernels read"
    own = "writes contiguous itself" if count == 1 else "write contiguous themselves"
    return f"{count} {reads} channels_last and {own}, so that no conversion back is seen there"


def _told_words(diagnosis: Diagnosis, trial: Trial, conversions: Sequence[Conversion]) -> str | None:
    """How many of them other findings tell as well, so that nobody adds their costs up."""
    counts = {c.id: c.count for c in conversions}
    named = []
    for code, check_other, words in (
        ("LD101", check_round_trips, "round trips"),
        ("LD102", check_repeated, "tensors converted more than once"),
        ("LD103", check_weights, "weights"),
    ):
        own = [finding for finding in check_other(diagnosis) if finding.configuration == trial.name]
        ids = {id for finding in own for id in finding.evidence}
        told = sum(counts[id] for id in ids if id in counts)
        if told:
            named.append(f"{code} counts {told} too ({words})")
    return f"of these, {listing(named)}" if named else None


def _suggestion(diagnosis: Diagnosis, trial: Trial, conversions: Sequence[Conversion]) -> str:
    """The configuration that was measured to have fewer of them; what to try where none was, or none is faster."""
    if are_of_an_engine(conversion.kernel for conversion in conversions):
        return (
            "build the TensorRT engine with the formats that its layers want at its borders (allowed_formats of its "
            "inputs and outputs, such as HWC8 or CHW32), and record again"
        )
    wanted = _wanted(conversions)
    if wanted == "torch.channels_last":
        wanted = evidence.channels_last_words(_ranks(trial, conversions))
    if evidence.is_trace(trial):
        return _untried_suggestion(trial, conversions, wanted)
    times = Times(diagnosis)
    other = times.clean_alternative(trial, lambda candidate: _has_fewer(candidate, trial))
    if other is not None:
        left = len(_library_conversions(other)) or "none"
        return use_instead(times, trial, other, f"leaves {left} of them")
    if _are_worth_it(diagnosis, trial):
        return "leave them: no configuration with fewer of them that was measured is faster here"
    if wanted is None:
        return "measure both memory formats: --configurations default"
    advice = f"give the model and its input {wanted}, and measure that as well: --configurations default"
    ways = ("eager", BASELINE) if wanted == "torch.contiguous_format" else channels_last_ways(trial)
    return advised(times, trial, ways, advice + evidence.miopen_words(conversions))


def _untried_suggestion(trial: Trial, conversions: Sequence[Conversion], wanted: str | None) -> str:
    if wanted is None:
        return f"nothing was tried here: {evidence.try_words(None)}"
    is_one = _is_one_convolution(conversions)
    advice = _advice_for_one(wanted) if is_one else _advice_for_all(trial, conversions, wanted)
    if wanted != "torch.contiguous_format" and len(_ranks(trial, conversions)) != 1:
        advice += "; where a convolution is 3-D, its format is torch.channels_last_3d"
    return advice + evidence.miopen_words(conversions)


def _ranks(trial: Trial, conversions: Sequence[Conversion]) -> set[int]:
    """Dimensions of what is converted, by its shapes, else by the names of the convolutions that were called."""
    ranks = {len(c.source.shape) for c in conversions if c.source is not None}
    if ranks or trial.kernels is None:
        return ranks
    called = {op_words(total.name) for total in trial.kernels.totals if total.kind == "operation"}
    return {rank for name, rank in _RANKS.items() if name in called}


def _wanted(conversions: Sequence[Conversion]) -> str | None:
    """
    The memory format to try, by what most conversions of inputs make; None where that is no answer.

    By number and not by time: each call converts an input and a weight, and one result back, which may be the largest.
    """
    read = [c for c in conversions if _is_at(c, "input")] or conversions
    counts = evidence.summed(
        ("torch.channels_last" if _is_to_cnhw(c) else _WANTED.get(c.direction), c.count) for c in read
    )
    (first, most), *others = counts.most_common(2)
    return None if others and others[0][1] == most else first


def _is_at(conversion: Conversion, side: str) -> bool:
    return conversion.port is not None and conversion.port.startswith(side)


def _is_one_convolution(conversions: Sequence[Conversion]) -> bool:
    """Whether one convolution of the model has them all: by its module, else by how few there are in each step."""
    modules = {c.module for c in conversions}
    if modules != {None}:
        return len(modules) == 1
    ways = evidence.summed(((c.step, c.direction), c.count) for c in conversions)
    steps = {c.step for c in conversions}
    return (
        len({c.op for c in conversions}) == 1
        and max(ways.values()) <= _READ_BY_A_CONVOLUTION
        and launch_count(conversions) <= len(steps) * (_READ_BY_A_CONVOLUTION + 1)
    )


def _advice_for_one(memory_format: str) -> str:
    return (
        f"one convolution alone pays: convert its weight once, that_module.to(memory_format={memory_format}), and give "
        "it an input in that format if you can; its result then comes in that format, so look at what reads it, and "
        "record again; the rest of the model can stay as it is"
    )


def _advice_for_all(trial: Trial, conversions: Sequence[Conversion], memory_format: str) -> str:
    is_last = memory_format != "torch.contiguous_format"
    way = "wants channels_last and is given contiguous tensors" if is_last else "computes contiguous here"
    if any(c.direction == "to_blocked" for c in conversions):
        way = "computes in a layout of its own, and takes channels_last without conversions of activations"
    elif all(_is_to_cnhw(c) for c in conversions):
        way = "computes 1x1 convolutions of contiguous tensors as matrix products, and channels_last ones otherwise"
    backward = ""
    if evidence.has_backward(trial):
        backward = "; the backward follows, since gradients take the layout of the forward's results"
    return f"the library {way}: {evidence.try_words(memory_format)}{backward}"


RULE = document_rule("LD111", "library-conversion", check, __doc__)
