"""
Configurations timed in processes of their own: all of them once, in turns, then what may be the fastest several times.

What holds in one warm process, whose heap all configurations share, need not hold in the user's. Here each process
starts from nothing, runs one configuration and nothing else, compiled as a user compiles it, and sleeps while another
one is timed. Copies of one process would be there sooner, but share its heap, and with it one piece of luck.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor.diagnosis.records import Failure, FreshProcesses, KeptMemory
from layoutdoctor.errors import LayoutDoctorError, SubjectError
from layoutdoctor.examination.account import differences
from layoutdoctor.examination.choice import KEEPS_MEMORY, contenders, page_faults_of, with_fresh_processes
from layoutdoctor.examination.kernels.host import GENERATED_PREFIX
from layoutdoctor.examination.kernels.least import ran_the_same
from layoutdoctor.examination.ratios import interval_over_starts, median_ratio
from layoutdoctor.isolation.judged import time_in_turns
from layoutdoctor.isolation.load import LoadMeter, Reading, core_count, read_load
from layoutdoctor.isolation.messages import SHORTEST_START_SECONDS, Progress
from layoutdoctor.isolation.rounds import MAXIMUM_ROUNDS, MOST_CALLS, telling
from layoutdoctor.isolation.timed_process import LONGEST_SECONDS, TimedProcess, started
from layoutdoctor.recording.recording import busy_nanoseconds, unrest
from layoutdoctor.units import format_seconds
from layoutdoctor.words import distinct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from layoutdoctor.diagnosis.records import Comparison, Configuration, Trial
    from layoutdoctor.isolation.judged import Judged
    from layoutdoctor.isolation.messages import Kept, Request
    from layoutdoctor.recording.recording import Iteration, Recording
    from layoutdoctor.units import Seconds

FEWEST_STARTS = 3
MOST_STARTS = 5
"""Of those that met the machine as it is at its best."""
LIMIT_SECONDS = 240.0
"""No start is begun that would end later than this; beyond the fewest, none that would overrun the budget."""
LEAST_LIMIT_SECONDS = 10.0
"""A budget that leaves no more than this is for the rounds alone."""

_MOST_IN_ALL = 8
_NARROW = 0.05  # relative width of an interval over starts that needs no further start
# Of a turn's calls in the rounds: with fewer calls there are more rounds, which tell more (benchmarks/README.md).
_TURN_SECONDS = 0.03
_START_TURN_SECONDS = 0.1
_START_SECONDS = 10.0  # of turns in one start, at the most where a call is long
_ROUNDS = 9  # one start is not like the next: what is gained beyond is lost among starts
_FEWEST_ROUNDS = 3
# A round in which every configuration took this many times the least that is known of it: what lies where on the heap
# is one process's luck, this is the machine's. A start goes on so long until it has met enough other rounds.
_SLOW = 1.1
_LONGEST_SECONDS = 20.0
_PROFILING_SECONDS = 3.0  # of a configuration whose profiled iterations take longer than its rounds did


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
        asked_about = _asked_about(judged)
        for number, recording in enumerate(found):
            if recording.name in asked_about and recording.name in processes:
                tell(f"{recording.name}: profiling")
                found[number] = _profiled(recording, processes[recording.name], limit)
        return tuple(found)


def _asked_about(judged: Judged) -> set[str]:
    """What is explained: the default, what may be recommended, and eager code that is faster."""
    if judged.comparison is None:
        return set()
    pairs = differences(judged.comparison, judged.recommendation, judged.trials)
    return {judged.comparison.baseline, *contenders(judged.comparison, judged.trials), *(pair[1] for pair in pairs)}


def _profiled(recording: Recording, process: TimedProcess, limit: Seconds) -> Recording:
    """
    The recording with iterations of the process that was timed, whose memory is what its times are of.

    Where these ran anything else than what is recorded, or met the machine's slower state again and again and the
    recorded ones did not, it stays as it is.
    """
    names = {graph.code_fingerprint: graph.name for graph in recording.trial.graphs}
    measured = recording.trial.measurement
    if process.failure is not None or not recording.iterations or len(names) < len(recording.trial.graphs):
        return recording
    enough = _SLOW * min(measured.round_seconds) if measured is not None else math.inf
    iterations: list[Iteration] = []
    end = time.monotonic() + _PROFILING_SECONDS
    with contextlib.suppress(SubjectError):
        while more := process.profile(limit):
            call_graphs_by_name(more, names)
            iterations = sorted((*iterations, *more), key=unrest)[: len(more)]
            if _seconds_of(iterations) <= enough or time.monotonic() > end:
                break
    if not iterations:
        return recording
    is_slow = _seconds_of(iterations) > max(enough, _SLOW * _seconds_of(recording.iterations))
    if is_slow or not ran_the_same(recording.iterations, iterations):
        return recording
    return msgspec.structs.replace(recording, iterations=tuple(iterations))


def _seconds_of(iterations: Iterable[Iteration]) -> Seconds:
    """Of the quietest one."""
    return min(busy_nanoseconds(iteration.events) for iteration in iterations) / 1e9


def call_graphs_by_name(iterations: Iterable[Iteration], graphs: Mapping[str | None, str]) -> None:
    """
    Renames the ranges of generated kernels, whose graphs a timed process knows by their code only.

    Args:
        graphs: What a graph is called, by its code's fingerprint.
    """
    for iteration in iterations:
        names = iteration.events.names
        for number, name in enumerate(names):
            if name.startswith(GENERATED_PREFIX):
                code, kernel = name.removeprefix(GENERATED_PREFIX).split("::", 1)
                names[number] = f"{GENERATED_PREFIX}{graphs.get(code, code)}::{kernel}"


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
    by_name = {recording.name: recording.trial for recording in recordings}
    names = contenders(comparison, list(by_name.values()))
    budget = request.budget_seconds
    if budget is not None and budget < LEAST_LIMIT_SECONDS:
        reason = f"a budget of {format_seconds(budget)} has no time for further starts of fresh processes"
        return (
            with_head(recordings, recommendation=msgspec.structs.replace(advice, reason=reason))
            if names
            else recordings
        )
    if names:
        chosen = [by_name[name].configuration for name in (comparison.baseline, *names)]
        try:
            known = _least_seconds(by_name.values()) if comparison.own_processes else {}
            fresh = time_in_fresh_processes(request, chosen, progress, known)
            advice, comparison = with_fresh_processes(advice, comparison, list(by_name.values()), fresh, how)
        except LayoutDoctorError as error:
            advice = msgspec.structs.replace(advice, reason=f"fresh processes could not time it: {error}")
    pair = [by_name[name] for name in distinct((comparison.baseline, advice.configuration))]
    is_quiet = comparison.load is None or not comparison.load.is_too_busy
    if comparison.own_processes and is_quiet and any(map(page_faults_of, pair)):
        kept = _with_memory_kept(request, [trial.configuration for trial in pair], progress)
        advice = msgspec.structs.replace(advice, kept_memory=kept)
    return with_head(recordings, recommendation=advice, comparison=comparison)


def _with_memory_kept(
    request: Request, configurations: Sequence[Configuration], progress: Callable[[Progress], None]
) -> KeptMemory | None:
    """
    One start of the baseline as it is, and of what is given with an allocator that keeps the memory that a call frees.

    Whether that memory goes back to the system and is mapped anew in each call depends on what else lies on the heap,
    so that it may be otherwise in a user's process.

    Args:
        configurations: The baseline first, then what is recommended, if that is another one.
    """
    kept = [msgspec.structs.replace(one, name=f"{one.name}, memory kept") for one in configurations]

    def tell(doing: str) -> None:
        progress(Progress(f"fresh processes, memory kept: {doing}", MOST_STARTS, MOST_STARTS + 1))

    environments = {one.name: KEEPS_MEMORY for one in kept}
    chosen = [configurations[0], *kept]
    try:
        start = _run_start(request, chosen, [math.inf] * len(chosen), tell, environments=environments)
    except LayoutDoctorError:
        return None
    seconds = start.seconds
    return KeptMemory(
        baseline_ratio=median_ratio(seconds[0], seconds[1]),
        ratio=median_ratio(seconds[1], seconds[2]) if len(seconds) > 2 else None,
    )


def _least_seconds(trials: Iterable[Trial]) -> dict[str, Seconds]:
    return {trial.name: min(trial.measurement.round_seconds) for trial in trials if trial.measurement is not None}


def with_head(recordings: Sequence[Recording], **changes: Any) -> tuple[Recording, ...]:
    """
    The recordings of a diagnosis with something else in what they share.

    Args:
        changes: Fields of ``Head``.
    """
    head = msgspec.structs.replace(recordings[0].head, **changes)
    return tuple(msgspec.structs.replace(recording, head=head) for recording in recordings)


class _Start(msgspec.Struct, frozen=True):
    """
    One start of every configuration.

    Attributes:
        seconds: Of each configuration the rounds, in order, the baseline first.
        page_faults: Of each configuration in one call; None where the system does not say.
    """

    seconds: tuple[tuple[float, ...], ...]
    page_faults: tuple[float | None, ...]

    @property
    def round_count(self) -> int:
        """Rounds there are."""
        return len(self.seconds[0]) if self.seconds else 0


def time_in_fresh_processes(
    request: Request,
    configurations: Sequence[Configuration],
    progress: Callable[[Progress], None] = lambda step: None,
    known: Mapping[str, Seconds] | None = None,
) -> dict[str, FreshProcesses]:
    """
    Starts every configuration anew, several times, and lets them take turns.

    Args:
        configurations: The baseline first.
        known: The least that a call took before, by configuration.

    Returns:
        Of each of the others how it compares with the baseline.

    Raises:
        SubjectError: A process died, or took too long.
        TransportError: A process could not be started.
    """
    starts: list[_Start] = []
    found: dict[str, FreshProcesses] = {}
    least = [(known or {}).get(configuration.name, math.inf) for configuration in configurations]
    limit = min(LIMIT_SECONDS, request.budget_seconds or LIMIT_SECONDS)
    begin = time.monotonic()
    longest = 0.0
    while len(_usable(starts, least)) < MOST_STARTS and len(starts) < _MOST_IN_ALL:
        now = time.monotonic()
        if starts and now - begin + longest > (LIMIT_SECONDS if len(starts) < FEWEST_STARTS else limit):
            break
        number = len(starts) + 1

        def tell(doing: str, number: int = number) -> None:
            step = min(number, MOST_STARTS)
            progress(Progress(f"fresh processes, start {number}: {doing}", step, MOST_STARTS + 1))

        starts.append(_run_start(request, configurations, least, tell, backwards=len(starts) % 2 == 1))
        least = [min(before, *seconds) for before, seconds in zip(least, starts[-1].seconds, strict=True)]
        longest = max(longest, time.monotonic() - now)
        if len(starts) < FEWEST_STARTS:
            continue
        found = _summary(configurations, starts, least)
        if all(seen.high / seen.low - 1 <= _NARROW for seen in found.values()):
            break
    if len(starts) < FEWEST_STARTS:
        needed = f"{FEWEST_STARTS} are needed within {format_seconds(LIMIT_SECONDS)}"
        raise SubjectError(f"one start takes {format_seconds(longest)}, and {needed}")
    return found


def _usable(starts: Sequence[_Start], least: Sequence[Seconds]) -> Sequence[_Start]:
    """Those with enough rounds in which the machine was not slower for all, and of these only such; else all."""
    quiet = [start for start in (_quiet(one, least) for one in starts) if start.round_count >= _FEWEST_ROUNDS]
    return quiet if len(quiet) >= FEWEST_STARTS else starts


def _quiet(start: _Start, least: Sequence[Seconds]) -> _Start:
    """The start with those rounds alone in which the machine was not slower for all."""
    rounds = [times for times in zip(*start.seconds, strict=True) if not _is_slow(times, least)]
    return msgspec.structs.replace(start, seconds=tuple(zip(*rounds, strict=True)))


def _is_slow(times: Sequence[Seconds], least: Sequence[Seconds]) -> bool:
    return all(seconds > _SLOW * best for seconds, best in zip(times, least, strict=True))


def _summary(
    configurations: Sequence[Configuration], all_starts: Sequence[_Start], least: Sequence[Seconds]
) -> dict[str, FreshProcesses]:
    found = {}
    starts = _usable(all_starts, least)
    for position, configuration in enumerate(configurations[1:], 1):
        ratios = tuple(median_ratio(start.seconds[0], start.seconds[position]) for start in starts)
        low, middle, high = interval_over_starts(ratios)
        found[configuration.name] = FreshProcesses(
            starts=len(ratios),
            low=low,
            median=middle,
            high=high,
            start_ratios=ratios,
            page_faults_per_call=_middle(_known([start.page_faults[position] for start in starts])),
            baseline_page_faults_per_call=_middle(_known([start.page_faults[0] for start in starts])),
            start_page_faults=_known([start.page_faults[position] for start in starts]),
            baseline_start_page_faults=_known([start.page_faults[0] for start in starts]),
            slow_starts=len(all_starts) - len(starts),
        )
    return found


def _known(counts: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(count for count in counts if count is not None)


def _middle(counts: Sequence[float]) -> float | None:
    return statistics.median(counts) if counts else None


def _run_start(
    request: Request,
    configurations: Sequence[Configuration],
    least: Sequence[Seconds],
    tell: Callable[[str], None],
    *,
    backwards: bool = False,
    environments: Mapping[str, Mapping[str, str]] | None = None,
) -> _Start:
    """Each configuration in a process of its own: loaded and compiled beside each other, then timed in turns."""
    names = [configuration.name for configuration in configurations]
    tell("compiling")
    with started(request, configurations[:: -1 if backwards else 1], environments=environments) as processes:
        ready = list(processes.values())
        calls = max(1, min(round(_START_TURN_SECONDS / min(process.call_seconds for process in ready)), MOST_CALLS))
        rounds: list[dict[str, float]] = []
        quiet, begin = 0, time.monotonic()
        while quiet < _ROUNDS and len(rounds) < MAXIMUM_ROUNDS:
            longest = _START_SECONDS if quiet >= _FEWEST_ROUNDS else _LONGEST_SECONDS
            if len(rounds) >= _FEWEST_ROUNDS and time.monotonic() - begin > longest:
                break
            number = len(rounds) + 1
            tell(f"round {number}{f' of up to {_ROUNDS}' if number <= _ROUNDS else ', as the machine is slower now'}")
            order = ready[:: -1 if len(rounds) % 2 else 1]
            rounds.append({process.name: min(process.turn(calls)) for process in order})
            quiet += not _is_slow([rounds[-1][name] for name in names], least)
        faults = [processes[name].page_faults for name in names]
        return _Start(
            seconds=tuple(tuple(times[name] for times in rounds) for name in names),
            page_faults=tuple(None if count is None else count / (len(rounds) * calls) for count in faults),
        )
