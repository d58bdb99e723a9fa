"""LD211, LD501, LD503, LD504, LD507 and LD508: how the model is written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK, dispatched_format
from layoutdoctor.examination.costs import (
    Place,
    all_conversions_of,
    dearest_of,
    launch_count,
    sum_of_known,
)
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.examination.graphs.products import LEAST_SHARE
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import (
    channels_last_only,
    first_input,
    is_call_out_of_channels_last,
    is_convolution,
    nodes_by_name,
)
from layoutdoctor.rules.wording import shape_of
from layoutdoctor.words import (
    be,
    count_of,
    distinct,
    joined,
    line_words,
    listing,
    shape_words,
    shown,
)

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.conversion import Conversion, TensorKind
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.graph import Convolution, FxNode
    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.trial import GradientLayout, Trial

# ------------------------------------------------------------------------------ LD211: strides that change
# Dynamo's text, torch 2.7 to 2.13 (torch/csrc/dynamo/guards.cpp).
_MISMATCH = re.compile(
    r"tensor '(?P<tensor>.+?)' (?P<what>stride|size) mismatch at index (?P<index>\d+)\. "
    r"expected (?P<expected>[^,\s]+), actual (?P<actual>[^,\s]+?)(?:[.\s]|$)"
)
_HELD_BY_MODULE = re.compile(r"_parameters\[|_buffers\[|\bself\b|\.(?:weight|bias)$")
_CONTAINER = re.compile(r"\.?_(?:modules|parameters|buffers)\['([^']+)'\]")


def stride_recompiles(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: for the first configuration that was compiled again because of strides."""
    for trial, strided in evidence.first_showing(evidence.own_trials(diagnosis), _strided):
        are_parameters = all(_HELD_BY_MODULE.search(mismatch["tensor"]) for mismatch in strided)
        owner = "parameter" if are_parameters else "tensor"
        named = distinct(
            f"{_plain_name(m['tensor'])} (stride of dimension {m['index']}: expected {m['expected']}, "
            f"actual {m['actual']})"
            for m in strided
        )
        yield LD211.finding(
            trial.name,
            f"compiled again because of {owner} strides, though no shape changed: {len(strided)} of "
            f"{count_of(len(trial.recompile_reasons), 'reason')} {be(len(strided))} a stride mismatch, of "
            f"{listing(named)}",
            (
                "update it in place (lerp_, copy_), which keeps its strides, or convert both models to one memory "
                "format before the first call (pytorch #126241)"
                if are_parameters
                else "give the tensor in one layout on every call (pytorch #126241)"
            ),
            severity="warning",
            evidence=[mismatch["tensor"] for mismatch in strided],
        )


def _strided(trial: Trial) -> list[re.Match[str]]:
    """Dynamo's reasons about a stride of a tensor whose sizes did not change."""
    reasons = [match for line in trial.recompile_reasons if (match := _MISMATCH.search(line))]
    resized = {mismatch["tensor"] for mismatch in reasons if mismatch["what"] == "size"}
    return [r for r in reasons if r["what"] == "stride" and r["tensor"] not in resized]


def _plain_name(tensor: str) -> str:
    """``L['self']._modules['a']._parameters['weight']`` as ``a.weight``."""
    name = _CONTAINER.sub(r".\1", tensor)
    for prefix in ("L['self'].", "L['self']", "self.", "fn."):
        name = name.removeprefix(prefix)
    return name.lstrip(".") or tensor


LD211 = Rule("LD211", "parameter-strides-recompile", stride_recompiles)

# ------------------------------------------------------------------------------------ LD503: flat 3-D kernels
FOLDED = (
    "y = torch.nn.functional.conv2d(x[:, :, ::conv.stride[0]].transpose(1, 2).flatten(0, 1), conv.weight.squeeze(2), "
    "conv.bias, conv.stride[1:], conv.padding[1:], conv.dilation[1:], conv.groups)"
    ".unflatten(0, (x.shape[0], -1)).transpose(1, 2)"
)
"""The same of a module ``conv`` with padding by zeros and an input ``x`` ``[N, C, T, H, W]``."""


def flat_convolutions(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: the configurations have the same convolutions."""
    for trial, convolutions in evidence.first_showing(evidence.own_trials(diagnosis), _forward):
        flat = [convolution for convolution in convolutions if _is_flat(convolution)]
        names = [f"{c.module or c.node} ({shape_words((c.weight_shape or ())[2:])})" for c in flat]
        if flat:
            yield LD503.finding(
                trial.name,
                f"{len(flat)} of {count_of(len(convolutions), 'convolution')} {'is a' if len(flat) == 1 else 'are'} "
                "Conv3d with a kernel of 1 in depth, which a Conv2d on each frame computes as well: "
                f"{listing(names, 6)}",
                f"fold the depth into the batch: {FOLDED}",
                evidence=[convolution.node for convolution in flat],
                at=flat[0],
            )


def _forward(trial: Trial) -> list[Convolution]:
    return [c for c in evidence.convolutions_of(evidence.forward_graphs(trial)) if not c.is_backward]


def _is_flat(convolution: Convolution) -> bool:
    """
    Whether depth slices do not mix, and it is no matrix product, pointwise or by patches.

    False if the numbers were not recorded.
    """
    kernel = (convolution.weight_shape or ())[2:]
    if convolution.is_transposed or not convolution.stride or not convolution.padding:
        return False
    is_flat = convolution.rank == 3 and kernel[:1] == (1,) and kernel not in ((1, 1, 1), convolution.stride)
    return is_flat and convolution.padding[0] == 0


LD503 = Rule("LD503", "flat-conv3d", flat_convolutions)


# ------------------------------------------------------------------------------------ LD508: matrix products
def matrix_products(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: the configurations have the same convolutions; none if they take next to no time."""
    for trial, found in evidence.first_showing(evidence.own_trials(diagnosis), evidence.matrix_products):
        names = [
            f"{c.module or c.node} ({shape_words((c.weight_shape or ())[2:])} of {shape_words(image)})"
            for c, image in found
        ]
        nodes = {convolution.node for convolution, _ in found}
        seconds = sum_of_known(kernel.seconds for kernel in evidence.kernels_of(trial) if kernel.node in nodes)
        share = evidence.share_of_kernels(trial, seconds)
        has_patches = any(set(image) != {1} for _, image in found)
        if not has_patches if share is None else share < LEAST_SHARE:
            return
        count = f"{len(found)} of {count_of(len(_forward(trial)), 'convolution')}"
        are = "is a matrix product" if len(found) == 1 else "are matrix products"
        message = f"{count} {are}, because no two patches overlap: {listing(names, 6)}"
        yield LD508.finding(
            trial.name,
            joined((message, wording.cost_words(trial, seconds)), ", "),
            "write torch.nn.functional.linear(patches, conv.weight.flatten(1), conv.bias); the default configurations "
            "try it on modules",
            seconds=seconds,
            evidence=sorted(nodes),
            at=found[0][0],
        )


LD508 = Rule("LD508", "convolution-is-matrix-product", matrix_products)

# ----------------------------------------------------------------------------------- LD504: both formats at once
_NAMED = 3
_OFF = "inductor-layout-opt-off"


def ambiguous_formats(diagnosis: Diagnosis) -> Iterator[Finding]:
    """At most one about gradients and one about inputs of convolutions, each in the first trial that shows it."""
    trials = evidence.own_trials(diagnosis)
    for trial, gradients in evidence.first_showing(trials, _ambiguous_gradients):
        pairs = [f"{g.parameter}: {_strides(g.layout)} and {_strides(g.gradient)}" for g in gradients]
        noun, verb = ("gradient", "has") if len(gradients) == 1 else ("gradients", "have")
        cause = _cause(diagnosis, trial, {g.parameter for g in gradients})
        yield LD504.finding(
            trial.name,
            f"{len(gradients)} {noun} {verb} other strides than the parameter, but the same bytes "
            f"({listing(pairs, _NAMED)}): the warning 'Grad strides do not match bucket view strides' is spurious "
            f"(pytorch #47163){cause}",
            None,
            evidence=[g.parameter for g in gradients],
        )
    for trial, inputs in evidence.first_showing(trials, _ambiguous_inputs):
        shapes = [node.layout.shape for node in inputs if node.layout is not None]
        names = listing([f"{node.name} {shape_of(node.layout)}" for node in inputs], _NAMED)
        subject, verb, them = (f"{len(inputs)} inputs", "satisfy", "them")
        if len(inputs) == 1:
            subject, verb, them = ("an input", "satisfies", "it")
        formats = " or ".join(distinct(CHANNELS_LAST_BY_RANK[len(shape)] for shape in shapes))
        yield LD504.finding(
            trial.name,
            f"{subject} of convolutions {verb} contiguous_format and {formats} at once ({names}): the same bytes, so "
            f"no conversion of {them} can be due",
            None,
            evidence=[node.name for node in inputs],
            at=inputs[0],
        )


def _ambiguous_gradients(trial: Trial) -> list[GradientLayout]:
    return [
        entry
        for entry in trial.gradient_layouts
        if entry.layout.stride != entry.gradient.stride
        and entry.layout.shape == entry.gradient.shape
        and set(entry.layout.memory_formats) & set(entry.gradient.memory_formats)
    ]


def _ambiguous_inputs(trial: Trial) -> list[FxNode]:
    """The activations in both formats that convolutions read, each once."""
    found: dict[str, FxNode] = {}
    # A library may still convert one, into a format of its own or because its weight asks for it.
    converted = {(c.graph, c.node) for c in all_conversions_of(trial) if c.tensor == "activation"}
    for graph in trial.graphs:
        nodes = nodes_by_name(graph)
        for node in graph.nodes:
            source = first_input(node, nodes)
            if source is None or node.backward or not is_convolution(node) or source.tensor == "weight":
                continue
            if (graph.name, node.name) not in converted and _costs_nothing(source.layout, node.layout):
                found[f"{graph.name} {source.name}"] = source
    return list(found.values())


def _costs_nothing(given: Layout | None, returned: Layout | None) -> bool:
    """Whether an input satisfies both formats, and its strides did not make the result channels-last."""
    if given is None or len(given.memory_formats) < 2 or 0 in given.shape:
        return False
    is_dispatched = dispatched_format(given.shape, given.stride) not in (None, "contiguous_format")
    return not is_dispatched or channels_last_only(returned) is None


def _cause(diagnosis: Diagnosis, trial: Trial, parameters: set[str]) -> str:
    """Layout optimization, if it was applied and these gradients have their parameters' strides without it."""
    off = diagnosis.measured_trial(_OFF)
    applied = any(card.applied for card in evidence.cards_of(trial.graphs))
    if not applied or off is None or off.status != "ok" or parameters & {one.parameter for one in off.gradient_layouts}:
        return ""
    return f"; not in {shown(_OFF)}"


def _strides(layout: Layout) -> str:
    return f"({', '.join(str(step) for step in layout.stride or ())})"


LD504 = Rule("LD504", "ambiguous-format", ambiguous_formats)


# -------------------------------------------------------------------------------------- LD507: .view refuses
def refused_views(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most."""
    failures = {
        t.name: t.failure for t in diagnosis.trials if t.failure is not None and t.failure.cause == "refused_view"
    }
    place = next((failure.location for failure in failures.values() if failure.location is not None), None)
    where = f" at {line_words(place)}" if place is not None else ""
    code = f" ({place.code})" if place is not None and place.code else ""
    names = list(failures)
    if failures:
        yield LD507.finding(
            names[0],
            f"{count_of(len(names), 'configuration')} failed because `.view`{where}{code} needs contiguous memory: "
            f"{listing(names, 3)}",
            "write .reshape(...) there, or .flatten(1): the same where nothing has to be moved, one copy where it has",
            severity="warning",
            evidence=names,
            at=Place(None, place),
        )


LD507 = Rule("LD507", "view-refuses-format", refused_views)


# ---------------------------------------------------------------------------------------------------------- LD501
_CALLS = {"contiguous": ".contiguous()", "to": ".to(memory_format=...)", "clone": ".clone(memory_format=...)"}
_COPIES = (*_CALLS, "_to_copy")
_ASSIGNMENT = "copy_"
"""A call of the model's own, or an assignment to a slice."""
_CALL_IN_CODE = re.compile(r"\.(contiguous|to|clone)\(")


def contiguous_calls(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per line of the model, or per module if no line was recorded."""
    main, trials = evidence.main_trial(diagnosis), evidence.own_trials(diagnosis)
    called: dict[tuple[str, int], dict[str, tuple[Trial, list[Conversion]]]] = {}
    for trial in trials:
        for c in _user_conversions(trial):
            line = (c.location.file, c.location.line) if c.location is not None else (c.module or "", 0)
            called.setdefault(line, {}).setdefault(trial.name, (trial, []))[1].append(c)
    counts = {one.name: wording.summed((c.tensor, c.count) for c in all_conversions_of(one)) for one in trials}
    for by_trial in called.values():
        calls = by_trial.values()
        # The baseline if the call is a step of its own there, else the trial in which it costs most.
        of_main = [call for call in calls if call[0] is main and not all(c.fused for c in call[1])]
        trial, conversions = of_main[0] if of_main else max(calls, key=lambda call: _cost_of_call(call[1]))
        seconds = sum_of_known(c.seconds for c in conversions)
        if _leaves_channels_last(conversions) or evidence.takes_at_least(trial, seconds, evidence.NEGLIGIBLE_SHARE):
            part = _part_words(trial, conversions, counts[trial.name])
            yield _finding_about_call(diagnosis, trial, conversions, [other for other, _ in calls], part)


def _user_conversions(trial: Trial) -> list[Conversion]:
    """What the model's own calls convert, other than to channels_last, of tensors that have such a format."""
    return [
        conversion
        for conversion in all_conversions_of(trial)
        if conversion.owner == "user"
        and conversion.direction != "to_channels_last"
        and conversion.source is not None
        and len(conversion.source.shape) in CHANNELS_LAST_BY_RANK
        and (not evidence.is_trace(trial) or is_call_out_of_channels_last(conversion))
    ]


def _cost_of_call(conversions: Sequence[Conversion]) -> tuple[float, int]:
    moved = sum_of_known(c.bytes_moved for c in conversions if not c.fused)
    return (sum_of_known(c.seconds for c in conversions) or 0.0, moved or 0)


def _leaves_channels_last(conversions: Sequence[Conversion]) -> bool:
    return any(channels_last_only(conversion.source) is not None for conversion in conversions)


def _finding_about_call(
    diagnosis: Diagnosis, trial: Trial, conversions: Sequence[Conversion], trials: Sequence[Trial], part: str
) -> Finding:
    first, worst = conversions[0], dearest_of(conversions) or conversions[0]
    # Readers that take no other layout; convolutions take both formats.
    needed_by = distinct(
        name
        for c in conversions
        for name in c.required_by
        if not evidence.is_convolution_named(name, evidence.nodes_of_graph(trial, c.graph))
    )
    place = line_words(first.location) if first.location is not None else first.module or "the model"
    formats = " or ".join(distinct(channels_last_only(c.source) or "strided" for c in conversions))
    call = f"{place} calls {_call_words(trial, first)} on a {formats} tensor ({wording.shape_of(first.source)})"
    is_assignment = _called(trial, first) == _ASSIGNMENT
    if is_assignment:
        call = f"{place} copies a {formats} tensor ({wording.shape_of(first.source)}) into one of another layout"
    cost = joined((part, wording.conversion_cost_words(trial, conversions)), ", ")
    needed = f"{listing(needed_by)} {'takes' if len(needed_by) == 1 else 'take'} no other layout" if needed_by else None
    free = [shown(o.name) for o in evidence.own_trials(diagnosis) if o not in trials and _is_free(o, first)]
    severity = evidence.severity_of_cost(trial, sum_of_known(c.seconds for c in conversions))
    if needed_by:
        suggestion = f"keep it while {listing(needed_by)} {'needs' if len(needed_by) == 1 else 'need'} that layout"
    elif is_assignment:
        suggestion = (
            "give the tensor that is written into the same memory format, or make it by torch.cat or torch.stack"
        )
    elif not _leaves_channels_last(conversions):
        suggestion = "delete the call where the operation behind it takes a strided tensor, and measure again"
    else:
        wanted = wording.channels_last_words([len(worst.source.shape)] if worst.source is not None else ())
        instead = f"{_call_words(trial, worst).partition('(')[0]}(memory_format={wanted})"
        suggestion = f"delete the call, or write {instead}"
        if any(conversion.role == "exit" for conversion in conversions):
            suggestion += "; keep it where the reader of the output needs contiguous"
    return LD501.finding(
        trial.name,
        joined(
            (
                f"{call}: {cost}",
                needed,
                f"it converts nothing in {listing(free, 2)}" if free and not is_assignment else None,
            )
        ),
        suggestion,
        severity="note" if needed_by or not _leaves_channels_last(conversions) else severity,
        conversions=conversions,
        at=worst,
    )


def _part_words(trial: Trial, conversions: Sequence[Conversion], counts: Counter[TensorKind]) -> str:
    """``"1 of the 3 conversions of activations in eager + channels_last (fused)"``."""
    kinds = {conversion.tensor for conversion in conversions}
    noun = f"{min(kinds)}s" if len(kinds) == 1 and "unknown" not in kinds else "tensors"
    own = launch_count(conversions)
    every = sum(counts[kind] for kind in kinds)
    where = "the trace" if evidence.is_trace(trial) else shown(trial.name)
    words = f"{own} of the {count_of(every, 'conversion')} of {noun} in {where}"
    if every == own:
        words = f"the only {'conversion' if every == 1 else f'{every} conversions'} of {noun} in {where}"
    return f"{words} (fused)" if all(c.fused for c in conversions) else words


def _called(trial: Trial, conversion: Conversion) -> str | None:
    node = evidence.nodes_of_graph(trial, conversion.graph).get(conversion.node or "")
    return None if node is None else node.called


def _call_words(trial: Trial, conversion: Conversion) -> str:
    """The call of a line, as a person wrote it."""
    called = _called(trial, conversion) if _called(trial, conversion) in _CALLS else None
    if called is None and conversion.location is not None:
        match = _CALL_IN_CODE.search(conversion.location.code or "")
        called = match[1] if match is not None else None
    return _CALLS[called or "contiguous"]


def _is_free(trial: Trial, conversion: Conversion) -> bool:
    """Whether a trial was recorded whole, and no copy of the same line converts in it."""
    copies = (
        other.location == conversion.location and base_name((other.op or "").replace("aten::", "aten.")) in _COPIES
        for other in all_conversions_of(trial)
    )
    return trial.status == "ok" and evidence.is_recorded(trial) and not any(copies)


LD501 = Rule("LD501", "user-contiguous-call", contiguous_calls)
