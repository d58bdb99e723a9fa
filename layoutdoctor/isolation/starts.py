"""
Further starts of what may be the fastest: processes from nothing, several times, in turns.

One process is not like the next: what lies where on the heap decides how much memory goes back to the system after
each call. So one start tells which may be the fastest, and only several how fast that is.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from layoutdoctor.diagnosis.records import FreshProcesses, KeptMemory, Speedup
from layoutdoctor.errors import LayoutDoctorError, SubjectError
from layoutdoctor.examination.choice import AGREEMENT, TELLING_SHARE, telling_faults
from layoutdoctor.examination.kernels.host import GENERATED_PREFIX
from layoutdoctor.examination.kernels.least import ran_the_same
from layoutdoctor.examination.ratios import FEWEST_STARTS, MOST_STARTS, interval_over_starts, median_ratio
from layoutdoctor.isolation.messages import Progress
from layoutdoctor.isolation.rounds import MAXIMUM_ROUNDS, MOST_CALLS
from layoutdoctor.isolation.timed_process import LONGEST_SECONDS, TimedProcess, started
from layoutdoctor.recording.recording import Iteration, Recording, busy_nanoseconds, unrest
from layoutdoctor.units import NANOSECONDS_PER_SECOND, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from layoutdoctor.diagnosis.records import Comparison, Configuration
    from layoutdoctor.isolation.messages import Request
    from layoutdoctor.units import Seconds

LIMIT_SECONDS = 240.0
"""No start is begun that would end later than this; beyond the fewest, none that would overrun the budget."""

_MOST_IN_ALL = 8
_NARROW = 0.05  # relative width of an interval over starts that needs no further start
_TURN_SECONDS = 0.1
_START_SECONDS = 10.0  # of turns in one start, at the most where a call is long
_ROUNDS = 9  # one start is not like the next: what is gained beyond is lost among starts
_FEWEST_ROUNDS = 3
# A round in which every configuration took this many times the least that is known of it where pages are mapped as
# here: those are one process's luck, this is the machine's. A start goes on until it has met enough other rounds.
_SLOW = 1.1
_LONGEST_SECONDS = 20.0
_KEPT_TURNS = 3  # before and after memory is kept, right after one another: the machine's states last longer
_KEPT_CALL_SECONDS = 1.0  # of a longer call that would take too long
_FEW_FAULTS = 0.2  # of those that tell: with fewer there is nothing to be measured
_PROFILING_SECONDS = 3.0  # of a configuration whose profiled iterations were disturbed
_DISTURBED = 1.25  # times the least call, what the profiler itself costs included
_CALM_PROFILES = 2  # while calls take what they took: after so many, it is the profiler that costs more


class Profile(NamedTuple):
    """
    The profiled iterations of a configuration.

    Attributes:
        call_seconds: Least of the calls right after them, their memory kept; of all calls, where these iterations are
            of another process, whose least times meet the machine at its quickest as well.
    """

    iterations: tuple[Iteration, ...]
    call_seconds: Seconds

    def of(self, recording: Recording) -> Recording:
        """The recording with these iterations, where it has times."""
        measurement = recording.trial.measurement
        if measurement is None:
            return recording
        measurement = msgspec.structs.replace(measurement, profiled_call_seconds=self.call_seconds)
        trial = msgspec.structs.replace(recording.trial, measurement=measurement)
        return msgspec.structs.replace(recording, trial=trial, iterations=self.iterations)


class _Start(msgspec.Struct, frozen=True):
    """
    One start of every configuration.

    Attributes:
        seconds: Of each configuration the rounds, in order, the baseline first.
        page_faults: Of each configuration in one call; None where the system does not say.
        memory: Of each configuration which share of a call goes with its memory kept; None where not measured.
        profiles: Of each configuration, where it was profiled.
    """

    seconds: tuple[tuple[float, ...], ...]
    page_faults: tuple[float | None, ...]
    memory: tuple[float | None, ...]
    profiles: tuple[Profile, ...] = ()

    @property
    def round_count(self) -> int:
        """Rounds there are."""
        return len(self.seconds[0]) if self.seconds else 0

    def ratios(self) -> list[float]:
        """Of each but the baseline how many times faster than that it was."""
        return [median_ratio(self.seconds[0], seconds) for seconds in self.seconds[1:]]

    def kept_shares(self) -> list[float] | None:
        """Of each what a call takes with its memory kept, as a share of what it takes as it is; None if not known."""
        shares = [1 - share for share in self.memory if share is not None]
        return shares if len(shares) == len(self.memory) else None

    def memory_seconds(self, number: int) -> Seconds | None:
        """What a call of a configuration takes less with its memory kept; None where not measured."""
        share = self.memory[number]
        return None if share is None else share * statistics.median(self.seconds[number])


class Starts(NamedTuple):
    """
    What further starts showed.

    Attributes:
        seen: Of each configuration but the baseline how it compares with that.
        instead: Recordings with times and iterations of the start that is nearest to the middle of all, where the
            processes of the rounds were another case; by configuration.
        kept: What becomes of each, the baseline too, where memory is kept; empty where that told nothing.
    """

    seen: dict[str, FreshProcesses]
    instead: dict[str, Recording]
    kept: dict[str, KeptMemory]


def time_in_fresh_processes(
    request: Request,
    recordings: Sequence[Recording],
    progress: Callable[[Progress], None] = lambda step: None,
    rounds: Comparison | None = None,
) -> Starts:
    """
    Starts every configuration anew, several times, and lets them take turns.

    Args:
        recordings: The baseline's first.
        rounds: What processes like these have shown before, once; None where there were none.

    Raises:
        SubjectError: A process died, or took too long, before there were enough starts.
        TransportError: A process could not be started, likewise.
    """
    starting = _Starting(request, recordings, progress, rounds)
    limit = min(LIMIT_SECONDS, request.budget_seconds or LIMIT_SECONDS)
    begin = time.monotonic()
    longest, found = 0.0, list[FreshProcesses]()
    while starting.goes_on:
        now, count = time.monotonic(), starting.count
        if count and now - begin + longest > (LIMIT_SECONDS if count < FEWEST_STARTS else limit):
            break
        try:
            starting.start()
        except LayoutDoctorError:
            if not found:
                raise
            break  # those before it have told enough
        longest = max(longest, time.monotonic() - now)
        if starting.count >= FEWEST_STARTS:
            found = starting.seen()
            if all(seen.high / seen.low - 1 <= _NARROW for seen in found) and starting.bears_out_rounds(found):
                break
    if not found:
        needed = f"{FEWEST_STARTS} are needed within {format_seconds(LIMIT_SECONDS)}"
        raise SubjectError(f"one start takes {format_seconds(longest)}, and {needed}")
    names = [recording.name for recording in recordings[1:]]
    instead = {} if starting.bears_out_rounds(found) else starting.recordings_of_the_nearest(found)
    return Starts(dict(zip(names, found, strict=True)), instead, starting.memory_kept())


class _Starting:
    """
    Some configurations, started again and again, each time all of them.

    Args:
        recordings: The baseline's first.
        rounds: As in ``time_in_fresh_processes``.
    """

    def __init__(
        self,
        request: Request,
        recordings: Sequence[Recording],
        progress: Callable[[Progress], None],
        rounds: Comparison | None,
    ) -> None:
        medians = {} if rounds is None else {ratio.name: ratio.median for ratio in rounds.ratios}
        self._request, self._recordings, self._progress = request, recordings, progress
        self._expected = [medians.get(recording.name) for recording in recordings[1:]]
        self._known = _KnownTimes(len(recordings))
        for position, recording in enumerate(recordings):
            measured = recording.trial.measurement if rounds is not None else None
            if measured is not None:
                self._known.add(position, min(measured.round_seconds), measured.page_faults_per_call)
        self._starts: list[_Start] = []

    @property
    def count(self) -> int:
        """Starts there were, those included in which the machine was slower for all."""
        return len(self._starts)

    @property
    def goes_on(self) -> bool:
        """Whether a further one may tell more."""
        most = FEWEST_STARTS if self._request.is_quick else MOST_STARTS
        return len(self._usable()) < most and len(self._starts) < _MOST_IN_ALL

    def start(self) -> None:
        """
        One more of all; where they are another case than those of the rounds were, they are profiled.

        Raises:
            SubjectError: A process died, or took too long.
            TransportError: A process could not be started.
        """
        number = len(self._starts) + 1

        def tell(doing: str) -> None:
            step = min(number, MOST_STARTS)
            self._progress(Progress(f"fresh processes, start {number}: {doing}", step, MOST_STARTS + 1))

        def profiled(start: _Start, processes: Mapping[str, TimedProcess]) -> _Start:
            if _agree(start.ratios(), self._expected):
                return start
            tell("profiling")
            each = zip(self._recordings, start.seconds, start.memory, strict=True)
            profiles = tuple(
                profile_of(one, processes[one.name], least_kept(min(seconds), share)) for one, seconds, share in each
            )
            return msgspec.structs.replace(start, profiles=profiles)

        configurations = [recording.trial.configuration for recording in self._recordings]
        found = _run_start(self._request, configurations, self._known, tell, profiled, backwards=number % 2 == 0)
        self._starts.append(found)
        for position, (seconds, faults) in enumerate(zip(found.seconds, found.page_faults, strict=True)):
            self._known.add(position, min(seconds), faults)

    def _usable(self) -> Sequence[_Start]:
        """Those with enough rounds in which the machine was not slower for all, and of these only such; else all."""
        quiet = [self._quiet(start) for start in self._starts]
        enough = [start for start in quiet if start.round_count >= _FEWEST_ROUNDS]
        return enough if len(enough) >= FEWEST_STARTS else self._starts

    def _quiet(self, start: _Start) -> _Start:
        """The start with those rounds alone in which the machine was not slower for all."""
        each = list(zip(*start.seconds, strict=True))
        rounds = [times for times in each if not self._known.is_slow(times, start.page_faults)]
        return msgspec.structs.replace(start, seconds=tuple(zip(*rounds, strict=True)))

    def seen(self) -> list[FreshProcesses]:
        """Of each configuration but the baseline how it compares with that, over at least two starts."""
        found = []
        starts = self._usable()
        counted = zip(*(start.page_faults for start in starts), strict=True)
        faults = [tuple(count for count in counts if count is not None) for counts in counted]
        for position, ratios in enumerate(zip(*(start.ratios() for start in starts), strict=True), 1):
            low, middle, high = interval_over_starts(ratios)
            seen = FreshProcesses(
                starts=len(ratios),
                low=low,
                median=middle,
                high=high,
                start_ratios=ratios,
                page_faults_per_call=_middle(faults[position]),
                baseline_page_faults_per_call=_middle(faults[0]),
                start_page_faults=faults[position],
                baseline_start_page_faults=faults[0],
                slow_starts=len(self._starts) - len(starts),
            )
            found.append(seen)
        return found

    def memory_kept(self) -> dict[str, KeptMemory]:
        """What becomes of each where memory is kept, in the middle of the starts; of those where that tells in any."""
        starts = [(one, shares) for one in self._usable() if (shares := one.kept_shares()) is not None]
        if len(starts) < FEWEST_STARTS:
            return {}
        base = statistics.median(shares[0] for _, shares in starts)
        made = {self._recordings[0].name: KeptMemory(baseline_ratio=1 / base)} if 1 - base >= TELLING_SHARE else {}
        for position, recording in enumerate(self._recordings[1:]):
            least = min(min(shares[0], shares[position + 1]) for _, shares in starts)
            if 1 - least >= TELLING_SHARE:
                ratios = [one.ratios()[position] * shares[0] / shares[position + 1] for one, shares in starts]
                low, middle, high = interval_over_starts(ratios)
                speedup = Speedup(low=low, median=middle, high=high)
                made[recording.name] = KeptMemory(baseline_ratio=1 / base, speedup=speedup)
        return made

    def bears_out_rounds(self, found: Iterable[FreshProcesses]) -> bool:
        """Whether the starts have shown about what the rounds had, as far as there were any."""
        return _agree([seen.median for seen in found], self._expected)

    def recordings_of_the_nearest(self, found: Iterable[FreshProcesses]) -> dict[str, Recording]:
        """Those with times and iterations of the profiled start whose ratios are nearest to the middle of all."""
        usual = [seen.median for seen in found]

        def distance(start: _Start) -> float:
            return sum(abs(math.log(one / other)) for one, other in zip(start.ratios(), usual, strict=True))

        nearest = min((start for start in self._usable() if start.profiles), key=distance, default=None)
        if nearest is None:
            return {}
        made = {}
        for number, recording in enumerate(self._recordings):
            measurement = recording.trial.measurement
            if measurement is not None:
                measurement = msgspec.structs.replace(
                    measurement,
                    start_seconds=statistics.median(nearest.seconds[number]),
                    start_page_faults_per_call=nearest.page_faults[number],
                    memory_seconds=nearest.memory_seconds(number),
                )
            trial = msgspec.structs.replace(recording.trial, measurement=measurement)
            made[recording.name] = nearest.profiles[number].of(msgspec.structs.replace(recording, trial=trial))
        return made


def _agree(ratios: Sequence[float], expected: Sequence[float | None]) -> bool:
    pairs = [(one, other) for one, other in zip(ratios, expected, strict=True) if other is not None]
    return all(max(one / other, other / one) <= 1 + AGREEMENT for one, other in pairs)


class _KnownTimes:
    """
    The least that a call of each configuration took in each process, with the pages that it mapped anew.

    A process that maps more than another one takes longer by its own luck, so that it says nothing of the machine.
    """

    def __init__(self, count: int) -> None:
        self._seen: list[list[tuple[Seconds, float | None]]] = [[] for _ in range(count)]

    def add(self, position: int, seconds: Seconds, faults: float | None) -> None:
        """What one process showed of a configuration."""
        self._seen[position].append((seconds, faults))

    def is_slow(self, times: Iterable[Seconds], faults: Iterable[float | None]) -> bool:
        """Whether every configuration takes longer now than it did in a process that mapped about as many or more."""
        return all(self._is_slow(*entry) for entry in zip(self._seen, times, faults, strict=True))

    def _is_slow(self, seen: Iterable[tuple[Seconds, float | None]], seconds: Seconds, faults: float | None) -> bool:
        fewest = None if faults is None else faults - telling_faults(seconds)
        alike = (least for least, count in seen if count is None or fewest is None or count >= fewest)
        return seconds > _SLOW * min(alike, default=math.inf)


def _middle(counts: Sequence[float]) -> float | None:
    return statistics.median(counts) if counts else None


def _run_start(
    request: Request,
    configurations: Sequence[Configuration],
    known: _KnownTimes,
    tell: Callable[[str], None],
    finish: Callable[[_Start, Mapping[str, TimedProcess]], _Start],
    *,
    backwards: bool = False,
) -> _Start:
    """Each configuration in a process of its own: loaded and compiled beside each other, then timed in turns."""
    names = [configuration.name for configuration in configurations]
    tell("compiling")
    with started(request, configurations[:: -1 if backwards else 1]) as processes:
        ready = list(processes.values())
        calls = max(1, min(round(_TURN_SECONDS / min(process.call_seconds for process in ready)), MOST_CALLS))
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
            counts = [processes[name].page_faults for name in names]
            faults = tuple(None if count is None else count / (len(rounds) * calls) for count in counts)
            quiet += not known.is_slow([rounds[-1][name] for name in names], faults)
        seconds = tuple(tuple(times[name] for times in rounds) for name in names)
        tell("memory kept")
        each = zip(names, map(min, seconds), faults, strict=True)
        memory = tuple(memory_share(processes[name], calls, own, count) for name, own, count in each)
        return finish(_Start(seconds=seconds, page_faults=faults, memory=memory), processes)


def memory_share(
    process: TimedProcess, calls: int, seconds: Seconds, faults: float | None, limit: Seconds = LONGEST_SECONDS
) -> float | None:
    """
    Which share of a call goes once the process keeps the memory that a call frees, which it does from then on.

    Whether that memory goes back to the system and is mapped anew in each call depends on what else lies on the heap,
    so that it may be otherwise in a user's process.

    Args:
        calls: Of one turn.
        seconds: What a call takes.
        faults: Page faults of a call; None where the system does not say.
        limit: For one turn.

    Returns:
        0 to below 1; None where that is not known, calls are long, or its allocator, another one, keeps no memory.
    """
    if faults is None or seconds > _KEPT_CALL_SECONDS or process.failure is not None:
        return None
    if faults < _FEW_FAULTS * telling_faults(seconds):
        return 0.0
    try:
        as_it_is = [min(process.turn(calls, limit)) for _ in range(_KEPT_TURNS)]
        process.keep_memory(limit)
        before = process.page_faults or 0.0
        kept = [min(process.turn(calls, limit)) for _ in range(_KEPT_TURNS)]
    except SubjectError:
        return None
    if process.page_faults is None or process.page_faults - before > len(kept) * calls * faults / 2:
        return None
    return max(0.0, 1 - statistics.median(kept) / statistics.median(as_it_is))


def least_kept(seconds: Seconds, share: float | None) -> Seconds:
    """
    The least that a call takes with its memory kept.

    Args:
        seconds: The same as it is.
        share: What ``memory_share`` found.
    """
    return seconds * (1 - (share or 0.0))


def profile_of(
    recording: Recording, process: TimedProcess, least: Seconds, limit: Seconds = LONGEST_SECONDS
) -> Profile:
    """
    The profile of the process that was timed.

    They are taken again while calls right after them take longer than they did, as the machine is slower then: such
    ones count where there are no others and the recorded ones are no quieter. Where they ran anything else than what is
    recorded, those that are.

    Args:
        least: The least that a call took in this process, its memory kept.
    """
    names = {graph.code_fingerprint: graph.name for graph in recording.trial.graphs}
    known = recording.iterations
    if process.failure is not None or not known or len(names) < len(recording.trial.graphs):
        return Profile(known, least)
    profiles: list[tuple[Seconds, tuple[Iteration, ...]]] = []  # with what a call took right after
    end, calm = time.monotonic() + _PROFILING_SECONDS, 0
    with contextlib.suppress(SubjectError):
        while calm < _CALM_PROFILES and time.monotonic() < end and (more := process.profile(limit)):
            call_graphs_by_name(more, names)
            profiles.append((min(process.turn(len(more), limit)), more))
            calm += profiles[-1][0] <= _SLOW * least
            if calm and _seconds_of(_quietest(profiles)) <= _DISTURBED * least:
                break
    iterations = _quietest(profiles)
    if not iterations or not ran_the_same(known, iterations):
        return Profile(known, least)
    is_worse = _seconds_of(known) <= _seconds_of(iterations)
    if calm:
        is_worse = _seconds_of(iterations) > _DISTURBED * max(least, _seconds_of(known))
    return Profile(known, least) if is_worse else Profile(iterations, min(seconds for seconds, _ in profiles))


def _quietest(profiles: Sequence[tuple[Seconds, tuple[Iteration, ...]]]) -> tuple[Iteration, ...]:
    """Of the profiles beside which calls took least, as many iterations as one has."""
    least = min((seconds for seconds, _ in profiles), default=0.0)
    near = [iterations for seconds, iterations in profiles if seconds <= _SLOW * least]
    return tuple(sorted(itertools.chain(*near), key=unrest)[: max(map(len, near), default=0)])


def _seconds_of(iterations: Iterable[Iteration]) -> Seconds:
    """Of the quietest one."""
    return min(busy_nanoseconds(iteration.events) for iteration in iterations) / NANOSECONDS_PER_SECOND


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
