"""
Configurations timed in processes of their own: all of them once, in turns, then what may be the fastest several times.

What holds in one warm process, whose heap all configurations share, need not hold in the user's. Here each process
starts from nothing, runs one configuration and nothing else, compiled as a user compiles it, and sleeps while another
one is timed. Copies of one process would be there sooner, but share its heap, and with it one piece of luck.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor.diagnosis.records import Failure
from layoutdoctor.errors import LayoutDoctorError, SubjectError
from layoutdoctor.examination.account import differences
from layoutdoctor.examination.choice import contenders, kept_memory_of, memory_kept, with_fresh_processes
from layoutdoctor.examination.ratios import MOST_STARTS
from layoutdoctor.isolation.judged import time_in_turns
from layoutdoctor.isolation.load import LoadMeter, Reading, core_count, read_load
from layoutdoctor.isolation.messages import SHORTEST_START_SECONDS, Progress
from layoutdoctor.isolation.rounds import telling
from layoutdoctor.isolation.starts import least_kept, memory_share, profile_of, time_in_fresh_processes
from layoutdoctor.isolation.timed_process import LONGEST_SECONDS, TimedProcess, started
from layoutdoctor.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from layoutdoctor.diagnosis.records import Comparison
    from layoutdoctor.isolation.judged import Judged
    from layoutdoctor.isolation.messages import Kept, Request
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.units import Seconds

LEAST_LIMIT_SECONDS = 10.0
"""A budget that leaves no more than this is for the rounds alone."""

# Of a turn's calls: with fewer calls there are more rounds, which tell more (benchmarks/README.md).
_TURN_SECONDS = 0.03


def wants_timing(kept: Kept) -> bool:
    """Whether the process that ran the configurations has left the timing to others."""
    head = kept.head
    return (
        head is not None
        and head.subject.target is None
        and head.subject.device == "cpu"
        and (head.recommendation is None or (head.comparison is not None and head.comparison.own_processes))
        and any(recording.trial.status == "ok" for recording in kept.recordings)
    )


def timed(
    kept: Kept,
    request: Request,
    progress: Callable[[Progress], None],
    earlier: Comparison | None = None,
    limit_seconds: Seconds | None = None,
) -> tuple[Recording, ...]:
    """
    The recordings of a diagnosis with the times of all that ran, each in a process of its own.

    Args:
        request: By which the subject is loaded.
        progress: Told what is done.
        earlier: What a run that goes on here had concluded; its rounds come first.
        limit_seconds: For a configuration to get ready, and for a turn; None for a long time.

    Raises:
        SubjectError: There is too little memory, or no process can be timed.
        TransportError: A process cannot be started.
    """
    head = kept.head
    assert head is not None
    limit = LONGEST_SECONDS if limit_seconds is None else limit_seconds
    trials = {recording.name: recording.trial for recording in kept.recordings}
    chosen = [trial.configuration for trial in trials.values() if trial.status == "ok"]

    def tell(stage: str) -> None:
        progress(Progress(stage, 0, MOST_STARTS + 1))

    def fail(process: TimedProcess) -> None:
        failure = Failure(kind="measure", message=str(process.failure))
        trials[process.name] = msgspec.structs.replace(trials[process.name], status=process.status, failure=failure)

    tell(f"starting {len(chosen)} processes, one for each configuration")
    with started(request, chosen, fail, SHORTEST_START_SECONDS + limit) as processes:
        if not processes:
            raise SubjectError("no configuration can be timed in a process of its own")
        tell("timing all configurations in turns")
        threads = head.environment.thread_count or core_count()
        judged = time_in_turns(
            list(trials.values()),
            kept.memos,
            processes,
            lambda process, calls: process.turn(calls, limit),
            earlier=earlier,
            budget_seconds=request.budget_seconds,
            meter=LoadMeter(threads, core_count(), lambda: _load_of(processes.values())),
            own_processes=True,
            faults=lambda process: process.page_faults,
            block_seconds=_TURN_SECONDS,
            failing=SubjectError,
            on_round=telling(tell),
        )
        trials = {trial.name: trial for trial in judged.trials}
        for process in processes.values():
            if process.failure is not None:
                fail(process)
        head = msgspec.structs.replace(
            head, comparison=judged.comparison, recommendation=judged.recommendation, interrupted=None
        )
        found = [msgspec.structs.replace(one, head=head, trial=trials[one.name]) for one in kept.recordings]
        tell("memory kept")
        shares = {one.name: _memory_share(one, processes, limit) for one in found}
        found = [_with_memory(one, shares[one.name]) for one in found]
        asked_about = _asked_about(judged) & processes.keys()
        for number, recording in enumerate(found):
            measurement = recording.trial.measurement
            if measurement is not None and recording.name in asked_about:
                tell(f"{recording.name}: profiling")
                least = least_kept(min(measurement.round_seconds), shares[recording.name])
                found[number] = profile_of(recording, processes[recording.name], least, limit).of(recording)
        return tuple(found)


def _memory_share(recording: Recording, processes: Mapping[str, TimedProcess], limit: Seconds) -> float | None:
    measurement = recording.trial.measurement
    if measurement is None or recording.name not in processes:
        return None
    calls, usual = measurement.calls_per_round, measurement.median_seconds
    return memory_share(processes[recording.name], calls, usual, measurement.page_faults_per_call, limit)


def _with_memory(recording: Recording, share: float | None) -> Recording:
    measurement = recording.trial.measurement
    if measurement is None:
        return recording
    saved = None if share is None else share * measurement.median_seconds
    trial = msgspec.structs.replace(
        recording.trial, measurement=msgspec.structs.replace(measurement, memory_seconds=saved)
    )
    return msgspec.structs.replace(recording, trial=trial)


def _asked_about(judged: Judged) -> set[str]:
    """What is explained: the default, what may be recommended, and eager code that is faster."""
    if judged.comparison is None:
        return set()
    pairs = differences(judged.comparison, judged.recommendation, judged.trials)
    return {judged.comparison.baseline, *contenders(judged.comparison, judged.trials), *(pair[1] for pair in pairs)}


def _load_of(processes: Iterable[TimedProcess]) -> Reading:
    """What the system says, with what these processes used counted as our own."""
    here, own = read_load(), list(processes)
    return here._replace(
        own_seconds=here.own_seconds + sum(process.cpu_seconds for process in own),
        involuntary_switches=sum(process.involuntary_switches for process in own),
    )


def verified(
    recordings: tuple[Recording, ...],
    request: Request,
    progress: Callable[[Progress], None],
    how: Mapping[str, str],
) -> tuple[Recording, ...]:
    """
    The recordings of a timed diagnosis with what further starts make of what may be the fastest.

    Args:
        request: By which the subject is loaded.
        progress: Told what is done.
        how: Lines to paste, by configuration.
    """
    head = recordings[0].head
    advice, comparison = head.recommendation, head.comparison
    if advice is None or comparison is None or request.lower_for is not None:
        return recordings
    by_name = {recording.name: recording for recording in recordings}
    trials = [recording.trial for recording in recordings]
    names = contenders(comparison, trials)
    budget = request.budget_seconds
    kept = None
    if names and budget is not None and budget < LEAST_LIMIT_SECONDS:
        reason = f"a budget of {format_seconds(budget)} has no time for further starts of fresh processes"
        advice = msgspec.structs.replace(advice, reason=reason)
    elif names:
        again = [by_name[name] for name in (comparison.baseline, *names)]
        try:
            starts = time_in_fresh_processes(request, again, progress, comparison if comparison.own_processes else None)
            advice, comparison = with_fresh_processes(advice, comparison, trials, starts.seen, how)
            by_name |= starts.instead
            kept = kept_memory_of(advice, comparison.baseline, starts.kept)
        except LayoutDoctorError as error:
            advice = msgspec.structs.replace(advice, reason=f"fresh processes could not time it: {error}")
    elif comparison.own_processes and not comparison.is_too_busy:
        kept = memory_kept(by_name[comparison.baseline].trial)
    advice = msgspec.structs.replace(advice, kept_memory=kept)
    return with_head(tuple(by_name.values()), recommendation=advice, comparison=comparison)


def with_head(recordings: Sequence[Recording], **changes: Any) -> tuple[Recording, ...]:
    """
    The recordings of a diagnosis with something else in what they share.

    Args:
        changes: Fields of ``Head``.
    """
    head = msgspec.structs.replace(recordings[0].head, **changes)
    return tuple(msgspec.structs.replace(recording, head=head) for recording in recordings)
