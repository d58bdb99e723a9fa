"""
``examine``: what follows from a recording, the same for a live CPU, a live GPU, a GPU that is not there, a trace, a
table and a log.

The graphs' own conversions, then the kernel list joined with them, what each conversion cost, whose it is and where,
the round trips, and what layout breakers cost. A failure costs its own facts only: what was recorded stays.
``diagnosis_of`` puts together what recordings of one diagnosis prove.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.records import Diagnosis, Failure, Graph, KernelSummary, Record, RedundantPair
from layoutdoctor.errors import first_line
from layoutdoctor.examination.account import accounts_of
from layoutdoctor.examination.costs import with_bandwidth_share, with_bandwidth_shares, with_costs_of_all
from layoutdoctor.examination.graphs.breakers import with_breaker_costs, without_round_trips
from layoutdoctor.examination.graphs.conversions import (
    with_copies_around,
    with_eager_conversions,
    with_graph_conversions,
)
from layoutdoctor.examination.graphs.join import align_eager, join_compiled, join_eager
from layoutdoctor.examination.kernels.attribution import attribute
from layoutdoctor.examination.kernels.conversions import examine_recorded
from layoutdoctor.examination.kernels.device import device_seconds, summarize_device
from layoutdoctor.examination.kernels.host import place_primitives, summarize_host
from layoutdoctor.examination.kernels.least import least_times
from layoutdoctor.examination.kernels.summaries import summarize_log, summarize_table
from layoutdoctor.examination.trust import (
    WITHOUT_SECONDS,
    doubt_by_bandwidth,
    doubt_by_rounds,
    graphs_without_seconds,
    kernels_without_seconds,
    pairs_without_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Trial
    from layoutdoctor.recording.recording import Head, Iteration, Recording


class Examined(Record, frozen=True, kw_only=True):
    """
    What follows from a recording; the fields are those of ``Trial``.

    Attributes:
        graphs: As recorded, with their conversions and breakers.
        kernels: The kernel list; None where nothing was profiled.
        redundant_pairs: Round trips that are proved.
        notes: What could not be looked at, and why.
    """

    graphs: tuple[Graph, ...] = ()
    kernels: KernelSummary | None = None
    redundant_pairs: tuple[RedundantPair, ...] = ()
    notes: tuple[str, ...] = ()


def examine(recording: Recording) -> Examined:
    """Everything that a recording proves about layouts."""
    if recording.totals is not None:
        return Examined(kernels=summarize_table(recording.totals))
    if recording.log is not None:
        return Examined(kernels=summarize_log(recording.log))
    if recording.source == "trace":
        return _of_events_alone(recording.iterations[0])
    return _of_graphs(recording)


def _of_events_alone(iteration: Iteration) -> Examined:
    """Of a run whose graphs nobody recorded."""
    facts = examine_recorded(iteration.events, iteration.device)
    graph = Graph(name="recorded", direction="inference", decision=None, conversions=facts.conversions)
    return Examined(graphs=(graph,) if facts.conversions else (), kernels=facts.kernels, redundant_pairs=facts.pairs)


def _of_graphs(recording: Recording) -> Examined:
    graphs, kernels, notes = recording.trial.graphs, None, []
    doubt: str | None = None
    pairs: tuple[RedundantPair, ...] = ()
    is_eager = recording.trial.configuration.backend == "eager"
    try:
        if not is_eager:
            graphs = with_graph_conversions(graphs, len(recording.trial.graph_break_reasons))
    except Exception as error:  # the kernel list can do without
        notes.append(f"conversions were not looked for: {first_line(error)}")
    try:
        if recording.iterations:
            graphs, kernels, doubt = _ran(recording, graphs, is_eager=is_eager)
    except Exception as error:  # the configuration still has its times and outputs
        notes.append(f"the kernel list was not recorded: {first_line(error)}")
    try:
        if recording.was_profiled:
            graphs, pairs = _proved(graphs, kernels.conversions if kernels is not None else (), is_eager=is_eager)
    except Exception as error:  # what was recorded stays
        notes.append(f"round trips were not looked for: {first_line(error)}")
    facts = Examined(graphs=graphs, kernels=kernels, redundant_pairs=pairs, notes=tuple(notes))
    return facts if doubt is None else _without_seconds(facts, doubt)


def _without_seconds(facts: Examined, doubt: str) -> Examined:
    return Examined(
        graphs=graphs_without_seconds(facts.graphs),
        kernels=None if facts.kernels is None else kernels_without_seconds(facts.kernels),
        redundant_pairs=pairs_without_seconds(facts.redundant_pairs),
        notes=(*facts.notes, f"{doubt}: {WITHOUT_SECONDS}"),
    )


def _ran(
    recording: Recording, graphs: tuple[Graph, ...], *, is_eager: bool
) -> tuple[tuple[Graph, ...], KernelSummary, str | None]:
    """The kernel list with the least times of all iterations, the graphs with what ran, and a doubt of the times."""
    least = least_times(recording.iterations)
    bandwidth = recording.head.environment.copy_bandwidth_bytes_per_second
    iteration, profile, tree, log = least.iteration, least.profile, least.tree, least.iteration.log
    lacks = list(iteration.lacks)
    homeless = place_primitives(tree, log, profile.base_seconds) if log is not None else []
    problem = join_eager(tree, graphs[0]) if is_eager else join_compiled(tree, graphs)
    if problem is not None:
        lacks.append(problem)
    if is_eager:
        graphs = (align_eager(tree, graphs[0]),)
    seconds: dict[int, float] | None = None
    if iteration.device == "cpu":
        kernels = summarize_host(profile, log, tree, homeless, lacks)
    else:
        attribution = attribute(iteration.events)
        kernels = summarize_device(attribution, tree, graphs, lacks)
        seconds = device_seconds(attribution)
    kernels = with_bandwidth_shares(kernels, bandwidth)
    if is_eager:
        graph = with_eager_conversions(graphs[0], tree, kernels.conversions, seconds)
        conversions = tuple(with_bandwidth_share(conversion, bandwidth) for conversion in graph.conversions)
        graphs = (msgspec.structs.replace(graph, conversions=conversions),)
    else:
        graphs = with_costs_of_all(graphs, kernels.kernels, bandwidth)
        graphs = with_copies_around(graphs, tree, seconds)
    converted = (*kernels.conversions, *(conversion for graph in graphs for conversion in graph.conversions))
    return graphs, kernels, least.doubt or doubt_by_bandwidth(converted, bandwidth, iteration.device)


def _proved(
    graphs: tuple[Graph, ...], library: Sequence[Conversion], *, is_eager: bool
) -> tuple[tuple[Graph, ...], tuple[RedundantPair, ...]]:
    """Round trips, and the graphs with what their breakers cost."""
    from layoutdoctor.examination.graphs.round_trips import redundant_pairs  # late: no trace needs its networkx

    in_graphs = tuple(conversion for graph in graphs for conversion in graph.conversions)
    known = (*library, *in_graphs)
    pairs = redundant_pairs(graphs, _in_order(graphs[0], known) if is_eager and graphs else library)
    return tuple(with_breaker_costs(without_round_trips(graph, pairs), known) for graph in graphs), pairs


def _in_order(graph: Graph, conversions: Sequence[Conversion]) -> list[Conversion]:
    """Conversions of two lists in the order of the operations that ran them."""
    order = {node.name: position for position, node in enumerate(graph.nodes)}
    return sorted(conversions, key=lambda conversion: order.get(str(conversion.node), len(order)))


def diagnosis_of(recordings: Sequence[Recording], known: MutableMapping[str, Examined] | None = None) -> Diagnosis:
    """
    The diagnosis that recordings are of, without findings.

    Args:
        recordings: Of one diagnosis, at least one, each configuration once. Where some are missing, so are their
            trials and what was concluded from all of them, and a note says so.
        known: What was examined before, by configuration; what is examined now is added.
    """
    known = {} if known is None else known
    head = recordings[0].head
    by_name = {recording.name: recording for recording in recordings}
    ordered = [by_name[name] for name in head.configurations if name in by_name]
    for recording in ordered:
        if recording.name not in known:
            known[recording.name] = examine(recording)
    trials = tuple(_trial(recording, known, by_name) for recording in ordered)
    missing = [name for name in head.configurations if name not in by_name]
    if missing:
        head = _without_conclusions(head, missing)
    diagnosis = Diagnosis(
        layoutdoctor_version=head.layoutdoctor_version,
        created_at=head.created_at,
        environment=head.environment,
        subject=head.subject,
        trials=trials,
        comparison=head.comparison,
        recommendation=head.recommendation,
        interrupted=head.interrupted,
        stage_seconds=head.stage_seconds,
    )
    trials = tuple(_without_sources(trial) for trial in trials)
    try:
        return msgspec.structs.replace(diagnosis, trials=trials, accounts=accounts_of(diagnosis))
    except Exception as error:  # what was measured and proved stays
        note = f"where the difference goes was not looked for: {first_line(error)}"
        subject = msgspec.structs.replace(diagnosis.subject, notes=(*diagnosis.subject.notes, note))
        return msgspec.structs.replace(diagnosis, trials=trials, subject=subject)


def _without_sources(trial: Trial) -> Trial:
    """What recordings hold of generated kernels need not stand in every diagnosis."""
    graphs = tuple(msgspec.structs.replace(graph, kernel_sources={}) for graph in trial.graphs)
    return msgspec.structs.replace(trial, graphs=graphs)


def _without_conclusions(head: Head, missing: Sequence[str]) -> Head:
    """They rest on all trials, and name them."""
    note = f"no recordings of {', '.join(missing)} were given, so that nothing is compared"
    subject = msgspec.structs.replace(head.subject, notes=(*head.subject.notes, note))
    return msgspec.structs.replace(head, subject=subject, comparison=None, recommendation=None)


def _trial(recording: Recording, known: Mapping[str, Examined], by_name: Mapping[str, Recording]) -> Trial:
    trial, facts = recording.trial, _believed(recording, known)
    graphs, kernels, pairs = facts.graphs, facts.kernels, facts.redundant_pairs
    if trial.same_as is not None:
        if trial.same_as not in by_name:
            missing = f"the same as {trial.same_as}, of which no recording was given"
            failure = Failure(kind="prepare", message=missing)
            return msgspec.structs.replace(trial, status="skipped", same_as=None, failure=failure, graphs=graphs)
        # What was recorded there holds here, the times stay there; the nodes need not be saved twice.
        twin = _believed(by_name[trial.same_as], known)
        kernels, pairs = twin.kernels, twin.redundant_pairs
        graphs = graphs or tuple(msgspec.structs.replace(graph, nodes=(), buffers=()) for graph in twin.graphs)
    return msgspec.structs.replace(
        trial, graphs=graphs, kernels=kernels, redundant_pairs=pairs, notes=(*trial.notes, *facts.notes)
    )


def _believed(recording: Recording, known: Mapping[str, Examined]) -> Examined:
    """What was examined, without times that the rounds, which may have come later, contradict."""
    facts = known[recording.name]
    if recording.source != "live" or recording.trial.same_as is not None:
        return facts
    doubt = doubt_by_rounds(facts.kernels, recording.trial.measurement)
    return facts if doubt is None else _without_seconds(facts, doubt)


def by_diagnosis(recordings: Iterable[Recording]) -> Iterator[list[Recording]]:
    """Recordings of one diagnosis together, in order; where one of a configuration comes again, the later counts."""
    found: dict[bytes, dict[str, Recording]] = {}
    for recording in recordings:
        found.setdefault(msgspec.msgpack.encode(recording.head), {})[recording.name] = recording
    for group in found.values():
        yield list(group.values())
