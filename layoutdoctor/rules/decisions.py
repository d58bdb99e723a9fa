"""LD201, LD202, LD206, LD207, LD208 and LD210: what Inductor decided about layouts, and what came of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.answer import EQUAL, INCONCLUSIVE, SLOWER
from layoutdoctor.diagnosis.configurations import FORCED
from layoutdoctor.examination.costs import (
    all_conversions_of,
    dearest_of,
    sum_of_known,
)
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.advice import (
    OFF,
    SWITCH_OFF,
    Times,
    advised,
    channels_last_ways,
    is_words,
    is_worth_trying,
    other_cure,
    refusal,
    severity_of_gain,
    speed_words,
)
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import CHANNELS_LAST_CONFIGURATIONS
from layoutdoctor.units import format_bytes, format_seconds
from layoutdoctor.words import be, count_of, distinct, joined, line_words, listing, shape_words, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from layoutdoctor.diagnosis.answer import Finding, Ratio
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.graph import Convolution, Decision, FxNode, Graph
    from layoutdoctor.diagnosis.layout import Size
    from layoutdoctor.diagnosis.trial import Trial

_WAYS_AROUND = (FORCED, "inductor-channels-last")
_UNCOUNTED = "only-backward-convolutions"  # a backward is left out, whatever the forward was, until torch 2.15


def leaves_out_backward(graphs: Sequence[Graph]) -> bool:
    """Whether layout optimization is on in a forward, and the convolutions of its backward were not counted."""
    is_uncounted = any(card.rule == _UNCOUNTED for card in evidence.cards_of(graphs))
    return is_uncounted and _is_applied_in_forward(graphs)


def _is_applied_in_forward(graphs: Sequence[Graph]) -> bool:
    cards = evidence.cards_of(graph for graph in graphs if graph.direction == "forward")
    return any(card.applied and card.convolution_count for card in cards)


def convolution_words(convolution: Convolution) -> str:
    """A convolution by name, with its known facts: ``"d2.0 (192 -> 64, 3x3; model.py:9, weight 64x192x3x3)"``."""
    shape, groups = convolution.weight_shape, convolution.groups or 1
    facts = [line_words(convolution.location)] if convolution.location is not None else []
    channels = None
    if shape is not None:
        facts.append(f"weight {shape_words(shape)}")
        if len(shape) > 2 and convolution.is_transposed is not None and isinstance(shape[1], int):
            second = shape[1] * groups
            given, made = (shape[0], second) if convolution.is_transposed else (second, shape[0])
            channels = f"{given} -> {made}, {shape_words(shape[2:])}"
    if groups != 1:
        facts.append(f"{groups} groups")
    known = joined((channels, ", ".join(facts)))
    name = convolution.module or convolution.node
    return f"{name} ({known})" if known else name


def _is_one_dimensional(decision: Decision) -> bool:
    """Whether all convolutions of a graph are 1-D, as far as was recorded, and there is one."""
    return bool(decision.convolutions) and all(convolution.rank == 1 for convolution in decision.convolutions)


def _leaves_layouts_to_inductor(trial: Trial) -> bool:
    """Whether a configuration keeps the caller's model format and lets Inductor decide about layouts."""
    own = trial.configuration
    is_free = own.layout_optimization in ("default", "on", "forced")
    return is_free and own.model_format == "preserve" and not own.freezes


# -------------------------------------------------------------------------------- LD202, LD207 and LD208: the vetoes
_REASONS = {
    "grouped-convolution": "grouped, with more than one channel per group",
    "smaller-out-channels": "the weight's first size is at most half its second, with a kernel larger than 1",
}


def vetoes_as_a_whole(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per rule of Inductor that looks at all convolutions of a graph."""
    rules = ("few-convolutions", "small-channels", "weighted-flops", "not-said")
    for trial, graph, decision in _vetoed_graphs(diagnosis, rules):
        where = {"inference": "", "forward": " in the forward", "backward": " in the backward"}[graph.direction]
        names = [convolution_words(convolution) for convolution in _deciding(decision)]
        message = f"layout optimization vetoed{where} by {decision.rule}: {decision.explanation}"
        message += f"; decided by {listing(names, 6)}" if names else ""
        yield _veto_finding(LD202, diagnosis, trial, decision, message)


def vetoes_by_some(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per rule of Inductor by which a single convolution decides for all."""
    for trial, graph, decision in _vetoed_graphs(diagnosis, _REASONS):
        where = "" if graph.direction == "inference" else " in training"
        deciding = _deciding(decision)
        message = f"layout optimization vetoed{where} by {decision.rule}: {decision.explanation}"
        if deciding:
            names = listing([convolution_words(c) for c in deciding])
            others = decision.convolution_count - len(deciding)
            rest = (
                f"{count_of(others, 'other convolution')} {be(others)} not made channels-last because of "
                f"{'it' if len(deciding) == 1 else 'them'}"
            )
            message = f"layout optimization vetoed{where} by {names}: {_REASONS[decision.rule]}"
            message += f"; {rest if others > 0 else 'there is no other convolution'}"
        yield _veto_finding(LD207, diagnosis, trial, decision, message)


def vetoes_by_symbolic_sizes(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most."""
    for trial, graph, decision in _vetoed_graphs(diagnosis, ("dynamic-shape",)):
        count = count_of(decision.convolution_count, "convolution")
        symbolic = [
            f"dimension {dimension} of {_input_name(diagnosis, node, node.layout.shape)} is {size}"
            for node in graph.nodes
            if node.op == "placeholder" and node.tensor != "weight" and node.layout is not None
            for dimension, size in enumerate(node.layout.shape)
            if isinstance(size, str)
        ]
        because = f"{listing(symbolic)} (pytorch #102670)" if symbolic else decision.explanation
        message = f"layout optimization skipped for {count} because of dynamic shapes: {because}"
        advice = "where the sizes do not change, compile with dynamic=False, or call torch._dynamo.mark_static(x)"
        suggestion = joined((advice, _measured_words(Times(diagnosis), trial)))
        yield _veto_finding(LD208, diagnosis, trial, decision, message, suggestion)


def _input_name(diagnosis: Diagnosis, placeholder: FxNode, shape: tuple[Size, ...]) -> str:
    """The caller's name of an input if only one of the example's inputs fits, else the graph's name."""
    fitting = [
        tensor
        for tensor in diagnosis.subject.inputs
        if len(tensor.shape) == len(shape)
        and all(isinstance(there, str) or here == there for here, there in zip(tensor.shape, shape, strict=True))
    ]
    return fitting[0].name or "the input" if len(fitting) == 1 else placeholder.name


def _vetoed_graphs(diagnosis: Diagnosis, rules: Collection[str]) -> Iterator[tuple[Trial, Graph, Decision]]:
    """
    Graphs that Inductor was free to lay out and did not, by one of some of its rules; each of these rules once.

    Left out are graphs without a 2-D convolution, whose code is the same either way, and a backward that differs from
    its forward (LD206).
    """
    seen = set[str]()
    for trial in evidence.own_trials(diagnosis):
        if trial.configuration.layout_optimization not in ("default", "on"):
            continue
        for graph in trial.graphs:
            decision = graph.decision
            if decision is None or decision.applied is not False or decision.rule not in {*rules} - seen:
                continue
            is_repeated = graph.direction == "backward" and _is_applied_in_forward(trial.graphs)
            if not is_repeated and not evidence.is_of_other_ranks(decision):
                seen.add(decision.rule)
                yield trial, graph, decision


def _deciding(decision: Decision) -> list[Convolution]:
    return [convolution for convolution in decision.convolutions if convolution.node in decision.deciding_nodes]


def _measured_words(times: Times, trial: Trial) -> str:
    """The measured ratio of the ways around a veto; empty if none was measured."""
    gain, forced = times.fastest(_WAYS_AROUND), times.ratio(FORCED)
    if gain is not None:
        return speed_words(gain)
    known = {
        SLOWER: "the veto is right here",
        EQUAL: "the veto costs nothing here",
        INCONCLUSIVE: "whether the veto costs anything is not certain",
    }
    if forced is None or forced.verdict not in known:
        return "" if forced is None else refusal(times, trial, (FORCED,))
    return f"{known[forced.verdict]}: {speed_words(forced)}"


def _veto_finding(
    rule: Rule, diagnosis: Diagnosis, trial: Trial, decision: Decision, message: str, suggestion: str | None = None
) -> Finding:
    """A finding at the first convolution that decided; it suggests to measure if nobody did."""
    times, deciding = Times(diagnosis), _deciding(decision)
    gain = times.fastest(_WAYS_AROUND)
    against = other_cure(times, trial.name, lambda cure: cure.name in _WAYS_AROUND) if gain is not None else None
    how = f"--configurations all measures what the veto costs ({FORCED})"
    return rule.finding(
        trial.name,
        message,
        against
        or suggestion
        or _measured_words(times, trial)
        or (f"on the device itself, {how}" if trial.is_static else how),
        severity=severity_of_gain(gain),
        at=deciding[0] if deciding else None,
        evidence=decision.deciding_nodes,
    )


LD202 = Rule("LD202", "layout-optimization-vetoed", vetoes_as_a_whole)
LD207 = Rule("LD207", "vetoed-by-one-convolution", vetoes_by_some)
LD208 = Rule("LD208", "vetoed-by-dynamic-shapes", vetoes_by_symbolic_sizes)


# ----------------------------------------------------------------------------- LD201: applied, and nothing came of it
def without_effect(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: for the first configuration that leaves the layouts to Inductor."""
    for trial in evidence.own_trials(diagnosis):
        idle = [card for card in evidence.cards_of(trial.graphs) if _is_idle(card)]
        if not idle or not _leaves_layouts_to_inductor(trial):
            continue
        convolutions = [convolution for decision in idle for convolution in decision.convolutions]
        if _are_products(diagnosis, trial, convolutions) and not _returned_of(diagnosis, trial)[1]:
            return
        count = sum(decision.convolution_count for decision in idle)
        message = f"layout optimization made 0 of {count_of(count, 'convolution')} channels-last"
        ways = OFF if _cure_by_off(diagnosis, trial) is not None else CHANNELS_LAST_CONFIGURATIONS
        yield LD201.finding(
            trial.name,
            message + _rank_words(convolutions) + _returned_words(diagnosis, trial),
            _by_hand(diagnosis, trial, {convolution.rank for convolution in convolutions}),
            severity=severity_of_gain(Times(diagnosis).fastest(ways)),
            evidence=[convolution.node for convolution in convolutions],
            at=convolutions[0] if convolutions else None,
        )
        return


def _is_idle(decision: Decision) -> bool:
    """Whether an applied optimization made no convolution channels-last."""
    is_applied = bool(decision.applied and decision.convolution_count)
    return is_applied and not decision.channels_last_convolution_count and not _is_one_dimensional(decision)


def _are_products(diagnosis: Diagnosis, trial: Trial, convolutions: Sequence[Convolution]) -> bool:
    """Whether the finding LD508 advises better: all are matrix products, and channels-last did not make them faster."""
    products = [convolution for convolution, _ in evidence.matrix_products(trial)]
    is_every = bool(convolutions) and all(convolution in products for convolution in convolutions)
    return is_every and Times(diagnosis).fastest(CHANNELS_LAST_CONFIGURATIONS) is None


def _rank_words(convolutions: Sequence[Convolution]) -> str:
    """That Inductor's rule covers 2-D only; empty if some are 2-D, or a rank was not recorded."""
    ranks = {convolution.rank or 0 for convolution in convolutions}
    if not ranks or ranks & {0, 2}:
        return ""
    return f": it knows 2-D only, and all are {' or '.join(f'{n}-D' for n in sorted(ranks))}"


def _returned_words(diagnosis: Diagnosis, trial: Trial) -> str:
    """What the compiler brings back from channels_last_3d, with the caller's layouts or with channels_last input."""
    where, conversions = _returned_of(diagnosis, trial)
    if not conversions:
        return ""
    outputs = [conversion for conversion in conversions if conversion.role == "exit"]
    back = [conversion for conversion in conversions if conversion.role != "exit"]
    brings = f"brings {count_of(len(back), 'tensor')} back from channels_last_3d{_cost_words(back)}"
    copies = f"copies {count_of(len(outputs), 'output')} to channels_last_3d{_cost_words(outputs)}"
    words = listing([*([brings] if back else []), *([copies] if outputs else [])])
    breakers = [breaker for graph in where.graphs for breaker in graph.breakers]
    ends = distinct(f"{b.op} ({line_words(b.location)})" for b in breakers if b.location is not None)
    words += f"; the format ends at {listing(ends, 3)}" if ends else ""
    return f"; under {shown(where.name)} the compiler {words}{_without_words(Times(diagnosis), where)}"


def _cost_words(conversions: Sequence[Conversion]) -> str:
    moved = sum_of_known(c.bytes_moved for c in conversions)
    seconds = sum_of_known(c.seconds for c in conversions if not c.fused)
    known = None if moved is None else format_bytes(moved)
    words = known if seconds is None else format_seconds(seconds)
    return f" ({words})" if words else ""


def _without_words(times: Times, trial: Trial) -> str:
    """What is converted with layout optimization off, and how fast a call is then; empty if the compiler saves none."""
    off = _cure_by_off(times.diagnosis, trial)
    if off is None:
        return ""
    left, gain = len(_compiled_conversions(off)), times.over(off.name, trial.name)
    words = f"it converts {f'{left} of {len(_compiled_conversions(trial))}' if left else 'none'}"
    if gain is not None:
        words += f" and {is_words(gain)}"
    return f"; under {shown(off.name)} {words}"


def _compiled_conversions(trial: Trial) -> list[Conversion]:
    """Conversions that the compiler makes of its own accord in each call."""
    found = [c for graph in trial.graphs for c in graph.conversions]
    return [c for c in found if c.owner == "compiler" and c.direction != "none"]


def _without(diagnosis: Diagnosis, trial: Trial) -> Trial | None:
    """The trial with as many graphs that differs from another one in layout optimization alone, which is off."""
    wanted = msgspec.structs.replace(trial.configuration, layout_optimization="off")
    same = (o for o in diagnosis.trials if msgspec.structs.replace(o.configuration, name=wanted.name) == wanted)
    found = [off for one in same if (off := diagnosis.measured_trial(one.name)) is not None and off.status == "ok"]
    return next((off for off in found if len(off.graphs) == len(trial.graphs)), None)


def _cure_by_off(diagnosis: Diagnosis, trial: Trial) -> Trial | None:
    """The trial without layout optimization if the compiler converts fewer tensors in it."""
    off = _without(diagnosis, trial)
    is_cure = off is not None and len(_compiled_conversions(off)) < len(_compiled_conversions(trial))
    return off if is_cure else None


def _returned_of(diagnosis: Diagnosis, trial: Trial) -> tuple[Trial, list[Conversion]]:
    """The first trial in which tensors come back from channels_last_3d, and their conversions."""
    others = (diagnosis.measured_trial(name) for name in CHANNELS_LAST_CONFIGURATIONS)
    candidates = [one for one in (trial, *others) if one is not None]
    found = evidence.first_showing(candidates, lambda one: [c for c in _compiled_conversions(one) if _is_returned(c)])
    return next(found, (trial, []))


def _is_returned(conversion: Conversion) -> bool:
    """Whether the compiler leaves channels_last_3d, or comes back to it for an output."""
    source, target = (layout.memory_formats if layout else () for layout in (conversion.source, conversion.target))
    if conversion.role == "exit":
        source, target = target, source
    return source == ("channels_last_3d",) and "contiguous_format" in target


def _by_hand(diagnosis: Diagnosis, trial: Trial, ranks: set[int | None]) -> str | None:
    """To switch the optimization off if that saves conversions; else to convert the model by hand."""
    times = Times(diagnosis)
    if _cure_by_off(diagnosis, trial) is not None:
        return advised(times, trial, OFF, SWITCH_OFF)
    wanted = "channels_last_3d" if ranks == {3} else "channels_last"
    if diagnosis.subject.parameter_formats.keys() == {wanted}:
        if not _returned_of(diagnosis, trial)[1]:
            return None  # the model has already what the flag cannot do
        return "compare with eager, where no compiler brings tensors back to contiguous (pytorch #177277)"
    advice = f"convert the parameters and the input to torch.{wanted} by hand"
    gain = times.fastest(CHANNELS_LAST_CONFIGURATIONS)
    last = diagnosis.measured_trial(CHANNELS_LAST_CONFIGURATIONS[0])
    why = ": the flag will not do it"
    if last is not None and (gain is None or gain.name != last.name) and _cure_by_off(diagnosis, last) is not None:
        advice, why = f'{advice}, compile with options={{"layout_optimization": False}}', ""
    if gain is None:
        return advised(times, trial, CHANNELS_LAST_CONFIGURATIONS, f"{advice}, and measure{why}")
    against = other_cure(times, trial.name, lambda cure: cure.input_format == "channels_last")
    return against or f"{advice}: {speed_words(gain)}"


LD201 = Rule("LD201", "layout-optimization-without-effect", without_effect)


# ------------------------------------------------------------------------------ LD206: one half of a training step
# A library's conversion of a weight's or bias's gradient: the parameter's strides ask for it, not the decision. The one
# of a transposed convolution comes with its first dimensions exchanged, and nothing shows which tensor it is.
_PARAMETER_GRADIENTS = ("output 1", "output 2")


def mismatches(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: for the first configuration with a mismatch that shows."""
    for trial in evidence.own_trials(diagnosis):
        formats = trial.configuration.input_format
        graphs = _mismatched(trial)
        if trial.configuration.layout_optimization not in ("default", "on") or not graphs:
            continue
        kept = set() if formats == "channels_last" else _kept(diagnosis)
        found = [conversion for graph in graphs for conversion in _conversions_for_backward(trial, *graph)]
        conversions = [conversion for conversion in found if _change(conversion) not in kept]
        is_given = formats == "preserve" and not evidence.inputs_not_channels_last(diagnosis)
        if not conversions and (is_given or formats == "channels_last"):
            continue
        seconds = sum_of_known(conversion.seconds for conversion in conversions if not conversion.fused)
        times = Times(diagnosis)
        gain = times.fastest((*_WAYS_AROUND, *OFF))
        yield LD206.finding(
            trial.name,
            f"{_mismatch_words([card for _, card in graphs])}; {_mismatch_cost_words(trial, conversions, seconds)}",
            _mismatch_suggestion(times, trial, gain),
            severity=evidence.severity_of_cost(trial, seconds) if gain is None else severity_of_gain(gain),
            evidence=[conversion.id for conversion in conversions] or [graph.name for graph, _ in graphs],
            at=dearest_of(conversions),
            seconds=seconds,
            bytes_moved=sum_of_known(conversion.bytes_moved for conversion in conversions),
        )
        return


def _change(conversion: Conversion) -> tuple[object, ...]:
    return (conversion.node, conversion.port, conversion.source, conversion.target)


def _kept(diagnosis: Diagnosis) -> set[tuple[object, ...]]:
    """Conversions of the backward with channels_last input as well, which the mismatch does not cause."""
    other = diagnosis.measured_trial("inductor-channels-last")
    if other is None:
        return set()
    backward = [graph for graph in other.graphs if graph.direction == "backward"]
    names, ids = {graph.name for graph in backward}, {c.id for graph in backward for c in graph.conversions}
    return {_change(c) for c in all_conversions_of(other) if c.id in ids or c.graph in names}


def _mismatched(trial: Trial) -> list[tuple[Graph, Decision]]:
    """The backward graphs without layout optimization, if it is on in the forward."""
    backward = [(g, g.decision) for g in trial.graphs if g.direction == "backward" and g.decision is not None]
    off = [(graph, card) for graph, card in backward if card.convolution_count and card.applied is False]
    return [one for one in off if _is_applied_in_forward(trial.graphs) and not evidence.is_of_other_ranks(one[1])]


def _conversions_for_backward(trial: Trial, graph: Graph, decision: Decision) -> list[Conversion]:
    """Of values that a backward convolution reads, as far as was recorded; without the gradients of parameters."""
    own, names = {conversion.id for conversion in graph.conversions}, {c.node for c in decision.convolutions}
    return [
        conversion
        for conversion in sorted(all_conversions_of(trial), key=lambda c: c.id not in own)
        if (conversion.id in own or conversion.graph == graph.name)
        and conversion.role not in ("entry", "exit")
        and conversion.tensor in ("activation", "gradient")
        and conversion.port not in _PARAMETER_GRADIENTS
        and (conversion.node, conversion.owner) != (None, "framework")  # autograd copies it outside of all graphs
        and (not conversion.required_by or not names.isdisjoint(conversion.required_by))
    ]


def _mismatch_words(cards: Sequence[Decision]) -> str:
    start = "layout optimization is on in the forward and off in the backward"
    count = sum(card.convolution_count for card in cards if card.rule == _UNCOUNTED)
    if not count:
        return f"{start}, by {cards[0].rule}: {cards[0].explanation}"
    return f"{start} (pytorch #189239): Inductor does not count its {count} convolution_backward"


def _mismatch_cost_words(trial: Trial, conversions: Sequence[Conversion], seconds: float | None) -> str:
    if not conversions:
        return "no conversion of an activation or gradient was seen to follow from it"
    written = {(c.graph, c.value or c.id): c for c in conversions}.values()
    owners, fused = Counter(conversion.owner for conversion in written), sum(c.fused for c in written)
    by = listing([f"{count} by the {owner}" for owner, count in sorted(owners.items())])
    by += f", {fused} of them in kernels that compute as well" if fused else ""
    moved = sum_of_known(conversion.bytes_moved for conversion in conversions)
    cost = wording.cost_words(trial, seconds, wording.estimate_words(c for c in conversions if not c.fused))
    words = f"{count_of(len(written), 'tensor')} {be(len(conversions))} converted for them ({by})"
    return joined((words, None if moved is None else format_bytes(moved), cost), ", ")


def _mismatch_suggestion(times: Times, trial: Trial, gain: Ratio | None) -> str:
    """The fastest way around it; else the ways that were not tried or may help."""
    counted = "torch 2.15 counts backward convolutions"
    ways = {
        "give the model and its input channels_last, which the backward keeps": channels_last_ways(trial),
        'compile with options={"layout_optimization": False}': OFF,
        'force it in both with options={"layout_optimization": True, "force_layout_optimization": True}': (FORCED,),
    }
    every = [name for names in ways.values() for name in names]
    against = other_cure(times, trial.name, lambda cure: cure.name in every)
    if against is not None:
        return f"{against}; {counted}"
    if gain is not None:
        best = [words for words, names in ways.items() if gain.name in names]
        return joined((*best, speed_words(gain), counted))
    left = [words for words, names in ways.items() if is_worth_trying(times, trial, names)]
    return joined((", or ".join(left) or refusal(times, trial, every), counted))


LD206 = Rule("LD206", "forward-backward-mismatch", mismatches)


# --------------------------------------------------------------------------------------- LD210: 1-D convolutions only
def one_dimensional(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: for the first configuration that leaves the layouts to Inductor."""
    trials = (trial for trial in evidence.own_trials(diagnosis) if _leaves_layouts_to_inductor(trial))
    for trial, cards in evidence.first_showing(trials, _one_dimensional_cards):
        found = [convolution for card in cards for convolution in card.convolutions]
        if _are_products(diagnosis, trial, found):
            return
        every = sum(card.convolution_count for card in evidence.cards_of(evidence.forward_graphs(trial)))
        copied = _copied_in_both(diagnosis, trial, found)
        places = listing(distinct(conversion.module or conversion.id for conversion in copied))
        copies, verb, them = ("the copy", "is", "it") if len(copied) == 1 else ("copies", "are", "them")
        message = (
            f"{len(found)} of {count_of(every, 'convolution')} {be(len(found))} 1-D: layout "
            "optimization cannot apply (3-D tensors have no channels-last format)"
        )
        if copied:
            message += f"; {copies} in front of {places} {verb} needed by the kernel, and eager makes {them} too: "
            message += "not redundant"
        yield LD210.finding(
            trial.name,
            message,
            "a Conv2d with a height of 1, in channels_last, computes what a Conv1d does: measure it",
            evidence=(*(convolution.node for convolution in found), *(conversion.id for conversion in copied)),
            at=found[0],
        )


def _one_dimensional_cards(trial: Trial) -> list[Decision]:
    return [card for card in evidence.cards_of(evidence.forward_graphs(trial)) if _is_one_dimensional(card)]


def _copied_in_both(diagnosis: Diagnosis, trial: Trial, convolutions: Sequence[Convolution]) -> list[Conversion]:
    """Conversions of activations in front of 1-D convolutions, if eager converts in front of one as well."""
    eager = diagnosis.measured_trial("eager")
    modules = {convolution.module for convolution in convolutions if convolution.module is not None}
    nodes = [node for graph in (eager.graphs if eager is not None else ()) for node in graph.nodes]
    called = {n.name for n in nodes if "conv" in n.target and n.layout is not None and len(n.layout.shape) == 3}
    if eager is None or not _in_front_of(eager, modules, called):
        return []
    return _in_front_of(trial, modules, {convolution.node for convolution in convolutions})


def _in_front_of(trial: Trial, modules: Collection[str], nodes: Collection[str]) -> list[Conversion]:
    """Conversions in front of convolutions; those to and from a library's blocked format are no copies there."""
    return [
        conversion
        for conversion in all_conversions_of(trial)
        if not {conversion.node, *conversion.required_by}.isdisjoint(nodes) or conversion.module in modules
        if conversion.tensor != "weight"
        and conversion.port != "output 0"
        and not any(layout is not None and layout.is_blocked for layout in (conversion.source, conversion.target))
    ]


LD210 = Rule("LD210", "conv1d-cannot", one_dimensional)
