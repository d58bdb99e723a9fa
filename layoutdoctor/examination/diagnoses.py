"""A diagnosis from its recordings: each is examined, and what one has for another one is put in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.records import Diagnosis, Failure
from layoutdoctor.examination.examine import Examined, examine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence

    from layoutdoctor.diagnosis.records import Trial
    from layoutdoctor.recording.recording import Head, Recording


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
        return _of(_without_conclusions(head, missing), trials)
    return _of(head, trials)


def _of(head: Head, trials: tuple[Trial, ...]) -> Diagnosis:
    return Diagnosis(
        layoutdoctor_version=head.layoutdoctor_version,
        created_at=head.created_at,
        environment=head.environment,
        subject=head.subject,
        trials=trials,
        comparison=head.comparison,
        recommendation=head.recommendation,
        interrupted=head.interrupted,
    )


def _without_conclusions(head: Head, missing: Sequence[str]) -> Head:
    """They rest on all trials, and name them."""
    note = f"no recordings of {', '.join(missing)} were given, so that nothing is compared"
    subject = msgspec.structs.replace(head.subject, notes=(*head.subject.notes, note))
    return msgspec.structs.replace(head, subject=subject, comparison=None, recommendation=None)


def _trial(recording: Recording, known: Mapping[str, Examined], by_name: Mapping[str, Recording]) -> Trial:
    trial, facts = recording.trial, known[recording.name]
    graphs, kernels, pairs = facts.graphs, facts.kernels, facts.redundant_pairs
    if trial.same_as is not None:
        if trial.same_as not in by_name:
            missing = f"the same as {trial.same_as}, of which no recording was given"
            failure = Failure(kind="prepare", message=missing)
            return msgspec.structs.replace(trial, status="skipped", same_as=None, failure=failure, graphs=graphs)
        # What was recorded there holds here, the times stay there; the nodes need not be saved twice.
        twin = known[trial.same_as]
        kernels, pairs = twin.kernels, twin.redundant_pairs
        graphs = graphs or tuple(msgspec.structs.replace(graph, nodes=(), buffers=()) for graph in twin.graphs)
    return msgspec.structs.replace(
        trial, graphs=graphs, kernels=kernels, redundant_pairs=pairs, notes=(*trial.notes, *facts.notes)
    )


def by_diagnosis(recordings: Iterable[Recording]) -> Iterator[list[Recording]]:
    """
    Recordings of one diagnosis together, in the order in which the diagnoses come up.

    Args:
        recordings: Of any diagnoses; where a configuration of one comes up again, the later recording counts.
    """
    found: dict[bytes, dict[str, Recording]] = {}
    for recording in recordings:
        found.setdefault(msgspec.msgpack.encode(recording.head), {})[recording.name] = recording
    for group in found.values():
        yield list(group.values())
