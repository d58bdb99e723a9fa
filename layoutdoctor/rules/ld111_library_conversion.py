"""LD111: all conversions that a library makes around its convolutions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from layoutdoctor.diagnosis import Conversion, Diagnosis, Finding, KernelSummary, Severity, Trial
from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.examination.counts import conversions_of, launch_count, of_convolutions, sum_of_known
from layoutdoctor.examination.kernels.names import are_of_an_engine, kernel_class, library_of
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.advice import Times, advised, channels_last_ways, use_instead
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.ld101_round_trip import LD101
from layoutdoctor.rules.ld102_repeated_conversion import LD102
from layoutdoctor.rules.ld103_weight_conversion import LD103
from layoutdoctor.units import format_seconds, format_share
from layoutdoctor.words import (
    DIRECTION_WORDS,
    LIBRARY_NAMES,
    TENSOR_WORDS,
    count_of,
    joined,
    listing,
    op_words,
    phrase,
    plural,
)

_LEAST_SHARE = 0.005  # of the kernel time; conversions that take less are not reported
_LOSS_SHARE = 0.05  # of the kernel time; conversions that take more are a warning
_LOSS_SHARE_OF_CONVOLUTIONS = 0.10  # of the convolution time; from here on, NEGLIGIBLE_SHARE is enough for a warning

# The format to try, by the direction in which the library converts inputs. oneDNN, which converts to blocked layouts,
# takes channels_last without conversions.
_WANTED = {
    "to_channels_last": "torch.channels_last",
    "to_blocked": "torch.channels_last",
    "to_contiguous": "torch.contiguous_format",
}
_RANKS = {"conv2d": 4, "conv_transpose2d": 4, "conv3d": 5, "conv_transpose3d": 5}
_TO_CNHW = ("transpose_NCHW2CNHW", "transpose_CNHW2NCHW")
_READS_LAST_WRITES_CONTIGUOUS = re.compile(r"^sm\d+_xmma_(?!wgrad)\w{0,200}?_nhwckrsc_nchw(?:_|\Z)")
_READ_BY_A_CONVOLUTION = 2  # its input and its weight; besides these it writes one result


def library_conversions(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding, for all conversions by libraries in a trace, or in the baseline on a GPU."""
    trial = evidence.main_trial(diagnosis)
    # On a CPU the kernels of convolutions are not counted; other rules report the single conversions of oneDNN.
    if trial is None or (trial.kernel_summary.convolution_count is None and not evidence.is_trace(trial)):
        return
    conversions, times = _of_library(trial), Times(diagnosis)
    severity = _severity(trial, conversions)
    if severity is not None:
        counted = _counted_twice(diagnosis, trial, conversions)
        message = (_count_words(trial.kernel_summary, conversions, counted), _cost_words(trial, conversions))
        further = (_buffer_words(trial, conversions), _fused_words(trial.kernel_summary, conversions))
        pay = times.is_worth_it(trial, lambda candidate: _has_fewer(candidate, trial))
        yield LD111.finding(
            trial.name,
            joined(message),
            joined((_suggestion(times, trial, conversions, pay=pay), *further)),
            severity="note" if pay else severity,
            conversions=conversions,
        )


def _of_library(trial: Trial) -> list[Conversion]:
    return [conversion for conversion in conversions_of(trial) if conversion.owner == "library"]


def _has_fewer(candidate: Trial, trial: Trial) -> bool:
    """Whether ``candidate`` has at most half as many library conversions as ``trial``."""
    return 2 * launch_count(_of_library(candidate)) <= launch_count(_of_library(trial))


def _severity(trial: Trial, conversions: Sequence[Conversion]) -> Severity | None:
    """Returns the severity; None for conversions that take little time, ``note`` for a model without times."""
    if trial.kernel_seconds is None and conversions and not evidence.is_trace(trial):
        return "note"
    seconds = sum_of_known(c.seconds for c in conversions)
    if not evidence.takes_at_least(trial, seconds, _LEAST_SHARE):
        return None
    kernels = trial.kernel_summary
    own, whole = sum_of_known(c.seconds for c in of_convolutions(kernels, conversions)), kernels.convolution_seconds
    is_large_part = own and whole and own >= _LOSS_SHARE_OF_CONVOLUTIONS * whole
    least = evidence.NEGLIGIBLE_SHARE if is_large_part else _LOSS_SHARE
    return "warning" if evidence.takes_at_least(trial, seconds, least) else "note"


def _count_words(kernels: KernelSummary, conversions: Sequence[Conversion], counted: str) -> str:
    found = {library_of(c.kernel or "") for c in conversions}
    libraries = {"onednn"} if "onednn_log" in kernels.sources else found
    by = listing(sorted(words for name, words in LIBRARY_NAMES.items() if name in libraries)) or "the library"
    ways = wording.named_counts(
        ("to or from CNHW" if _is_to_cnhw(c) else DIRECTION_WORDS[c.direction], c.count) for c in conversions
    )
    if all(c.tensor == "unknown" for c in conversions):
        seconds = [
            (sum_of_known(c.seconds for c in conversions if c.of_batch is is_batch)) for is_batch in (True, False)
        ]
        nouns = ("activations and their gradients", "weights and their gradients")
        sides = [f"{format_seconds(spent)} of {of}" for spent, of in zip(seconds, nouns, strict=True) if spent]
        of = f"by launch grids, {' and '.join(sides)}" if sides else "of tensors that were not recorded"
    else:
        of = f"of {wording.named_counts((plural(TENSOR_WORDS[c.tensor]), c.count) for c in conversions)}"
    count = count_of(launch_count(conversions), "layout conversion")
    return joined((f"{count} by {by}{counted}: {ways}", of, wording.step_words(conversions)), ", ")


def _is_to_cnhw(conversion: Conversion) -> bool:
    return (conversion.kernel or "").startswith(_TO_CNHW)


def _cost_words(trial: Trial, conversions: Sequence[Conversion]) -> str:
    """Describes the cost, with its share of the convolution time if all conversions are part of that time."""
    kernels, share = trial.kernel_summary, ""
    seconds, whole = sum_of_known(c.seconds for c in conversions), kernels.convolution_seconds
    if seconds is not None and whole and len(of_convolutions(kernels, conversions)) == len(conversions):
        share = f"{format_share(seconds / whole)} of convolution time"
    estimated = wording.estimate_words(conversions)
    return wording.cost_words(trial, seconds, share, estimated) or wording.conversion_cost_words(trial, conversions)


def _buffer_words(trial: Trial, conversions: Sequence[Conversion]) -> str | None:
    """Counts conversions of output buffers: MIOpen converts them, although no result is in them yet."""
    count = launch_count(c for c in conversions if c.direction == "to_channels_last" and _is_at(c, "output"))
    if not count or _wanted(trial, conversions) != "torch.channels_last":
        return None
    return f"conversions of output buffers that are still empty: {count}"


def _fused_words(kernels: KernelSummary, conversions: Sequence[Conversion]) -> str | None:
    """Says how many kernels read channels-last and write contiguous, so that nothing is converted back; else None."""
    if not any(c.direction == "to_channels_last" for c in conversions):
        return None
    totals = [(total.name, total.count) for total in kernels.totals if total.kind == "kernel"]
    launched = totals or [(kernel.name, 1) for kernel in kernels.kernels]
    count = sum(n for name, n in launched if _READS_LAST_WRITES_CONTIGUOUS.match(name))
    if not count:
        return None
    return f"no conversion back after {count_of(count, 'convolution kernel')}: results are contiguous"


def _counted_twice(diagnosis: Diagnosis, trial: Trial, conversions: Sequence[Conversion]) -> str:
    """Counts the conversions that other findings count too: ``" (8 in LD101 too)"``."""
    counts, named = {c.id: c.count for c in conversions}, []
    for rule in (LD101, LD102, LD103):
        own = [finding for finding in rule.check(diagnosis) if finding.configuration == trial.name]
        count = sum(counts.get(id, 0) for id in {id for finding in own for id in finding.evidence})
        named += [f"{count} in {rule.code}"] if count else []
    return phrase(" ({} too)", named, listing)


def _suggestion(times: Times, trial: Trial, conversions: Sequence[Conversion], *, pay: bool) -> str:
    """Suggests an advisable configuration with fewer conversions; without one, says what to do or to measure."""
    if are_of_an_engine(conversion.kernel for conversion in conversions):
        return (
            "build the TensorRT engine with inputs and outputs in the formats that its layers want (allowed_formats, "
            "such as HWC8 or CHW32), and record again"
        )
    wanted, ranks = _wanted(trial, conversions), _ranks(trial, conversions)
    if wanted == "torch.channels_last":
        wanted = wording.channels_last_words(ranks)
    if evidence.is_trace(trial):
        return _untried_suggestion(trial, conversions, wanted, ranks)
    other = times.clean_alternative(trial, lambda candidate: _has_fewer(candidate, trial))
    if other is not None:
        return use_instead(times, trial, other, f"leaves {launch_count(_of_library(other)) or 'none'} of them")
    if pay:
        return "keep the conversions: no measured configuration with fewer is faster"
    if wanted is None:
        return "measure both memory formats: --configurations default"
    advice = f"give the model and its input {wanted}, and measure this format too: --configurations default"
    ways = ("eager", BASELINE) if wanted == "torch.contiguous_format" else channels_last_ways(trial)
    return advised(times, trial, ways, advice + wording.miopen_words(conversions))


def _untried_suggestion(trial: Trial, conversions: Sequence[Conversion], wanted: str | None, ranks: set[int]) -> str:
    if wanted is None:
        return f"no other format was measured: {wording.try_words(None)}"
    is_last = wanted != "torch.contiguous_format"
    if _is_one_convolution(conversions):
        advice = (
            "only one convolution is affected: convert its weight and, if you can, its input once, "
            f"that_module.to(memory_format={wanted}); record again"
        )
        if is_last and len(ranks) != 1:
            advice += "; for a 3-D convolution, the format is torch.channels_last_3d"
    else:
        way = "wants channels_last and is given contiguous tensors" if is_last else "computes in contiguous format here"
        if any(c.direction == "to_blocked" for c in conversions):
            way = "computes in a layout of its own, and takes channels_last without conversions of activations"
        elif all(_is_to_cnhw(c) for c in conversions):
            way = "computes 1x1 convolutions as matrix products for contiguous tensors, but not for channels_last"
        advice = f"the library {way}: {wording.try_words(wanted, is_of_one_rank=len(ranks) == 1)}"
        if evidence.has_backward(trial):
            advice += "; the backward follows, since gradients take the layout of the forward's results"
    return advice + wording.miopen_words(conversions)


def _ranks(trial: Trial, conversions: Sequence[Conversion]) -> set[int]:
    """Returns the ranks of the converted tensors, by their shapes, else by the names of the called convolutions."""
    ranks = evidence.ranks_of(trial, conversions)
    if ranks:
        return ranks
    called = {op_words(total.name) for total in trial.kernel_summary.totals if total.kind == "operation"}
    return {rank for name, rank in _RANKS.items() if name in called}


def _wanted(trial: Trial, conversions: Sequence[Conversion]) -> str | None:
    """
    Returns the memory format to try: the one to which most inputs are converted; None if two are equally frequent.

    The number of conversions decides, not their time, because the largest tensor may be a result. If no conversion is
    known to convert an input, the names of the convolution kernels decide. Without such names, conversions to
    contiguous in a trace prove nothing: they may convert results.
    """
    inputs = [c for c in conversions if _is_at(c, "input")]
    if not inputs and (computed := _computed_format(trial)) is not None:
        return computed
    read = inputs or conversions
    counts = wording.summed(
        ("torch.channels_last" if _is_to_cnhw(c) else _WANTED.get(c.direction), c.count) for c in read
    )
    (first, most), *others = counts.most_common(2)
    if others and others[0][1] == most:
        return None
    return None if first == "torch.contiguous_format" and not inputs and evidence.is_trace(trial) else first


_FORMAT_IN_NAME = re.compile(r"n(?:d?hwc|(c)d?hw)", re.IGNORECASE)


def _computed_format(trial: Trial) -> str | None:
    """Returns the memory format in the names of convolution kernels; None if the names differ or have no format."""
    totals = trial.kernel_summary.totals
    names = [total.name for total in totals if total.kind == "kernel" and kernel_class(total.name).is_main]
    found = {match[1] is None for name in names if (match := _FORMAT_IN_NAME.search(name)) is not None}
    if len(found) != 1:
        return None
    return "torch.channels_last" if found.pop() else "torch.contiguous_format"


def _is_at(conversion: Conversion, side: str) -> bool:
    return (conversion.port or "").startswith(side)


def _is_one_convolution(conversions: Sequence[Conversion]) -> bool:
    """Whether all conversions are of one convolution: they have one module, or are few in each step."""
    modules = {c.module for c in conversions}
    if modules != {None}:
        return len(modules) == 1
    ways = wording.summed(((c.step, c.direction), c.count) for c in conversions)
    steps = {c.step for c in conversions}
    return (
        len({c.op for c in conversions}) == 1
        and max(ways.values()) <= _READ_BY_A_CONVOLUTION
        and launch_count(conversions) <= len(steps) * (_READ_BY_A_CONVOLUTION + 1)
    )


LD111 = Rule("LD111", "library-conversion", library_conversions)
