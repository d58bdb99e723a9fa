"""
``examine`` derives facts from a recording of any source: a CPU, a GPU, an absent GPU, a trace, a table or a log.

It finds the conversions of the graphs and joins the kernel list with the graphs. Then it finds the cost, owner and
place of each conversion, the round trips, and the costs of layout breakers. If a step fails, only the facts of this
step are missing. ``diagnosis_of`` combines the facts of all recordings of one diagnosis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis import (
    Conversion,
    Diagnosis,
    Failure,
    Graph,
    KernelSummary,
    Lack,
    Measurement,
    Observed,
    RedundantPair,
    Rounds,
    Trial,
)
from layoutdoctor.diagnosis.record import Record
from layoutdoctor.errors import first_line
from layoutdoctor.examination.account import accounts_of
from layoutdoctor.examination.advice.choice import compare_trials, is_crowded, recommend, shown_seconds
from layoutdoctor.examination.graphs.breakers import with_breaker_costs, without_round_trips
from layoutdoctor.examination.graphs.conversions import (
    with_copies_around,
    with_eager_conversions,
    with_graph_conversions,
)
from layoutdoctor.examination.graphs.costs import with_bandwidth_shares, with_costs
from layoutdoctor.examination.graphs.join import align_eager, join_compiled, join_eager
from layoutdoctor.examination.kernels.attribution import attribute
from layoutdoctor.examination.kernels.conversions import examine_recorded
from layoutdoctor.examination.kernels.device import device_seconds, summarize_device
from layoutdoctor.examination.kernels.host import summarize_host, working_seconds
from layoutdoctor.examination.kernels.iterations import Shares
from layoutdoctor.examination.kernels.logs import summarize_log
from layoutdoctor.examination.kernels.operations import base_seconds, operation_tree
from layoutdoctor.examination.kernels.placing import place_primitives
from layoutdoctor.examination.kernels.tables import summarize_table
from layoutdoctor.examination.kernels.waiting import waiting_in_calls
from layoutdoctor.recording.recording import busy_time

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.units import Seconds


class Examined(Record, frozen=True, kw_only=True):
    """The facts that follow from a recording; the fields are as in ``Trial``."""

    graphs: tuple[Graph, ...] = ()
    kernels: KernelSummary | None
    redundant_pairs: tuple[RedundantPair, ...] = ()
    lacks: tuple[Lack, ...] = ()


def examine(recording: Recording, call_seconds: Seconds | None = None) -> Examined:
    """
    Derives everything that a recording proves about layouts.

    Args:
        call_seconds: Time of a call, to which the times of kernels are scaled; None keeps their recorded times.
    """
    if recording.totals is not None:
        return Examined(kernels=summarize_table(recording.totals))
    if recording.log is not None:
        return Examined(kernels=summarize_log(recording.log))
    if recording.iterations and recording.trial.configuration.backend == "recorded" and not recording.trial.graphs:
        facts = examine_recorded(recording.iterations[0].events, recording.iterations[0].device)
        graph = Graph(name="recorded", direction="inference", decision=None, conversions=facts.conversions)
        graphs = (graph,) if facts.conversions else ()
        return Examined(graphs=graphs, kernels=facts.kernels, redundant_pairs=facts.pairs)
    return _of_graphs(recording, call_seconds)


def _of_graphs(recording: Recording, call_seconds: Seconds | None) -> Examined:
    graphs, kernels = recording.trial.graphs, None
    lacks: list[Lack] = []
    pairs: tuple[RedundantPair, ...] = ()
    is_eager = recording.trial.configuration.backend == "eager"
    try:
        if not is_eager:
            graphs = with_graph_conversions(graphs, len(recording.trial.graph_break_reasons))
    except Exception as error:  # the kernel list can be made without these conversions
        lacks.append(Lack(part="conversions", reason=f"conversions were not looked for: {first_line(error)}"))
    try:
        if recording.iterations:
            graphs, kernels = _ran(recording, graphs, call_seconds, is_eager=is_eager)
    except Exception as error:  # the configuration still has its times and outputs
        lacks.append(Lack(part="kernels", reason=f"the kernel list was not recorded: {first_line(error)}"))
    try:
        if recording.was_profiled:
            graphs, pairs = _proved(graphs, kernels.conversions if kernels is not None else (), is_eager=is_eager)
    except Exception as error:  # graphs and kernel list are kept
        lacks.append(Lack(part="round_trips", reason=f"round trips were not looked for: {first_line(error)}"))
    return Examined(graphs=graphs, kernels=kernels, redundant_pairs=pairs, lacks=tuple(lacks))


def _ran(
    recording: Recording, graphs: tuple[Graph, ...], call_seconds: Seconds | None, *, is_eager: bool
) -> tuple[tuple[Graph, ...], KernelSummary]:
    """The graphs with the conversions that ran, and the kernel list, ordered as in the least busy iteration."""
    iterations = sorted(recording.iterations, key=busy_time)
    iteration, shares = iterations[0], Shares(iterations, call_seconds)
    events, log = shares.of_kernels(), shares.of_primitives()
    tree = operation_tree(events)
    bandwidth = recording.head.environment.copy_bandwidth_bytes_per_second
    lacks = list(iteration.lacks)
    unplaced = place_primitives(tree, log, base_seconds(events)) if log is not None else []
    problem = join_eager(tree, graphs[0]) if is_eager else join_compiled(tree, graphs)
    if problem is not None:
        lacks.append(Lack(part="operations", reason=problem))
    if is_eager:
        graphs = (align_eager(tree, graphs[0]),)
    if iteration.device == "cpu":
        shares.set_times(tree)  # after place_primitives, which needs the recorded times
        seconds = {entry.row: entry.seconds for entry in tree}
        kernels = summarize_host(tree, events, log, unplaced, lacks)
        if shares.between_seconds is not None:
            around = max(0.0, working_seconds(tree) - (kernels.seconds or 0.0))
            kernels = msgspec.structs.replace(kernels, around_seconds=around, between_seconds=shares.between_seconds)
    else:
        attribution = attribute(events)
        kernels = summarize_device(attribution, tree, graphs, lacks)
        seconds = device_seconds(attribution)
    known = with_bandwidth_shares(kernels.conversions, bandwidth)
    kernels = msgspec.structs.replace(kernels, conversions=known)
    if is_eager:
        graph = with_eager_conversions(graphs[0], tree, known, seconds)
        conversions = with_bandwidth_shares(graph.conversions, bandwidth)
        return (msgspec.structs.replace(graph, conversions=conversions),), kernels
    graphs = with_costs(graphs, kernels.kernels, bandwidth)
    return with_copies_around(graphs, tree, seconds), kernels


def _proved(
    graphs: tuple[Graph, ...], library: Sequence[Conversion], *, is_eager: bool
) -> tuple[tuple[Graph, ...], tuple[RedundantPair, ...]]:
    """Finds the round trips, and returns the graphs with the costs of their layout breakers and these round trips."""
    from layoutdoctor.examination.graphs.round_trips import redundant_pairs  # late: a trace needs no networkx

    known = (*library, *(conversion for graph in graphs for conversion in graph.conversions))
    in_order: Sequence[Conversion] = library
    if is_eager and graphs:  # also the copies of ATen, sorted by the operations that ran them
        order = {node.name: position for position, node in enumerate(graphs[0].nodes)}
        in_order = sorted(known, key=lambda conversion: order.get(str(conversion.node), len(order)))
    pairs = redundant_pairs(graphs, in_order)
    return tuple(with_breaker_costs(without_round_trips(graph, pairs), known) for graph in graphs), pairs


def diagnosis_of(recordings: Sequence[Recording]) -> Diagnosis:
    """
    Makes a diagnosis from its recordings, without findings.

    Args:
        recordings: One or more recordings of one diagnosis, each of another configuration. A configuration without a
            recording gets no trial.
    """
    head = recordings[0].head
    by_name = {recording.name: recording for recording in recordings}
    ordered = [by_name[name] for name in head.configurations if name in by_name]
    seen = tuple(recording.trial for recording in ordered)
    crowded = is_crowded(head.subject.device, head.environment, head.other_cores)
    comparison = compare_trials(seen, head.other_cores, crowded=crowded)
    calls = shown_seconds(seen, comparison)
    known = {recording.name: examine(recording, calls.get(recording.name)) for recording in ordered}
    trials = tuple(_trial(trial, known, by_name, calls) for trial in seen)
    diagnosis = Diagnosis(
        layoutdoctor_version=head.layoutdoctor_version,
        created_at=head.created_at,
        environment=head.environment,
        subject=head.subject,
        trials=trials,
        comparison=comparison,
        recommendation=recommend(trials, comparison, {recording.name: recording.how for recording in ordered}),
        interrupted=head.interrupted,
        stage_seconds=head.stage_seconds,
    )
    trials = tuple(_without_sources(trial) for trial in trials)
    try:
        return msgspec.structs.replace(diagnosis, trials=trials, accounts=accounts_of(diagnosis))
    except Exception as error:  # measurements and other facts are kept
        note = f"causes of the difference were not looked for: {first_line(error)}"
        subject = msgspec.structs.replace(diagnosis.subject, notes=(*diagnosis.subject.notes, note))
        return msgspec.structs.replace(diagnosis, trials=trials, subject=subject)


def _without_sources(trial: Trial) -> Trial:
    """Removes the sources of generated kernels from a trial; the recording keeps the sources."""
    graphs = tuple(msgspec.structs.replace(graph, kernel_sources={}) for graph in trial.graphs)
    return msgspec.structs.replace(trial, graphs=graphs)


def _trial(
    seen: Observed, known: Mapping[str, Examined], by_name: Mapping[str, Recording], calls: Mapping[str, Seconds]
) -> Trial:
    facts = known[seen.name]
    graphs, kernels, pairs = facts.graphs, facts.kernels, facts.redundant_pairs
    trial = concluded(seen, calls.get(seen.name))
    if seen.same_as is not None:
        if seen.same_as not in by_name:
            missing = f"the same as {seen.same_as}, whose recording is missing"
            failure = Failure(kind="prepare", message=missing)
            return msgspec.structs.replace(trial, status="skipped", same_as=None, failure=failure, graphs=graphs)
        # The other trial's facts hold for this trial too. The measurement is not copied, and nodes are not saved twice.
        twin = known[seen.same_as]
        kernels, pairs = twin.kernels, twin.redundant_pairs
        graphs = graphs or tuple(msgspec.structs.replace(graph, nodes=(), buffers=()) for graph in twin.graphs)
    if kernels is not None and kernels.waiting is not None and trial.seconds is not None:
        between = max(0.0, trial.seconds - kernels.waiting.busy_seconds)
        waiting = waiting_in_calls(kernels.waiting, trial.seconds)
        kernels = msgspec.structs.replace(kernels, waiting=waiting, between_seconds=between)
    return msgspec.structs.replace(
        trial, graphs=graphs, kernels=kernels, redundant_pairs=pairs, lacks=(*trial.lacks, *facts.lacks)
    )


def concluded(seen: Observed, call_seconds: Seconds | None = None) -> Trial:
    """Makes a trial from everything that was observed. Without the time of a call, the trial has no measurement."""
    facts = {name: getattr(seen, name) for name in Observed.__struct_fields__ if name != "measurement"}
    if seen.measurement is None or call_seconds is None:
        return Trial(**facts)
    rounds = {name: getattr(seen.measurement, name) for name in Rounds.__struct_fields__}
    return Trial(**facts, measurement=Measurement(**rounds, median_seconds=call_seconds))


def by_diagnosis(recordings: Iterable[Recording]) -> Iterator[list[Recording]]:
    """Groups recordings by diagnosis, in order; if a configuration was recorded twice, the later recording counts."""
    found: dict[bytes, dict[str, Recording]] = {}
    for recording in recordings:
        found.setdefault(msgspec.msgpack.encode(recording.head), {})[recording.name] = recording
    for group in found.values():
        yield list(group.values())
