"""
The choice timed again in fresh processes: each configuration started anew several times, in turns with the others.

What holds in one warm process, whose heap all configurations share, need not hold in the user's. Here each process
runs one configuration and nothing else, compiled as a user compiles it, and sleeps while another one is timed.
"""

from __future__ import annotations

import contextlib
import os
import select
import statistics
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.records import FreshProcesses
from layoutdoctor.errors import SubjectError
from layoutdoctor.examination.choice import with_fresh_processes
from layoutdoctor.examination.ratios import interval_over_starts, median_ratio
from layoutdoctor.isolation.messages import (
    LENGTH_BYTES,
    Kept,
    MessageReader,
    Progress,
    Ready,
    Refused,
    TurnBoard,
    Turned,
    encode,
)
from layoutdoctor.isolation.processes import (
    available_bytes,
    how_it_ended,
    kill_with_all_it_started,
    remove_scratch,
    start_child,
)
from layoutdoctor.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutdoctor.diagnosis.records import Configuration, Recommendation
    from layoutdoctor.isolation.messages import AnyMessage, Request
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.units import Bytes, Seconds

FEWEST_STARTS = 3
MOST_STARTS = 6
LIMIT_SECONDS = 180.0
"""No start is begun that would end later than this."""

_FIRST_LIMIT_SECONDS = 900.0  # a start that takes longer is given up: nobody waits for three of them
_NARROW = 0.02  # relative width of an interval over starts that needs no further start
_TURN_SECONDS = 0.1
_START_SECONDS = 10.0  # of turns in one start, at the most where a call is long
_ROUNDS = 9
_FEWEST_ROUNDS = 3
_MOST_CALLS = 64
_READ_BYTES = 2**16
_MEMORY_SHARE = 0.9


@dataclass(frozen=True)
class _Start:
    """
    One start of every configuration.

    Attributes:
        seconds: Of each configuration the rounds, in order, the baseline first.
        page_faults: Of each configuration in one call; None where the system does not say.
    """

    seconds: tuple[tuple[Seconds, ...], ...]
    page_faults: tuple[float | None, ...]


def verified(
    recordings: tuple[Recording, ...],
    request: Request,
    progress: Callable[[Progress], None],
    peak_bytes: Bytes | None = None,
) -> tuple[Recording, ...]:
    """
    The recordings of a finished diagnosis with what fresh processes make of its recommendation.

    Args:
        request: By which another process loads the model: a target, or a directory where it was saved.
        progress: Told what is done.
        peak_bytes: Most memory that the diagnosis's own process has had; None where not known.
    """
    head = recordings[0].head
    advice, comparison = head.recommendation, head.comparison
    if advice is None or comparison is None or advice.configuration is None or request.lower_for is not None:
        return recordings
    names = [comparison.baseline, advice.configuration]
    if advice.without_freezing is not None:
        names.append(advice.without_freezing.configuration)
    by_name = {recording.name: recording.trial for recording in recordings}
    chosen = [by_name[name].configuration for name in dict.fromkeys(names)]
    try:
        _check_memory(peak_bytes, len(chosen))
        fresh = time_in_fresh_processes(request, chosen, progress)
        advice = with_fresh_processes(advice, comparison, list(by_name.values()), fresh)
    except SubjectError as error:
        advice = msgspec.structs.replace(advice, reason=f"fresh processes could not time it: {error}")
    return with_advice(recordings, advice)


def with_advice(recordings: Sequence[Recording], advice: Recommendation) -> tuple[Recording, ...]:
    """The recordings of a diagnosis with another recommendation."""
    head = msgspec.structs.replace(recordings[0].head, recommendation=advice)
    return tuple(msgspec.structs.replace(recording, head=head) for recording in recordings)


def time_in_fresh_processes(
    request: Request, configurations: Sequence[Configuration], progress: Callable[[Progress], None] = lambda step: None
) -> dict[str, FreshProcesses]:
    """
    Starts every configuration anew, several times, and lets them take turns.

    Args:
        configurations: The baseline first.

    Returns:
        Of each of the others how it compares with the baseline.

    Raises:
        SubjectError: A process could not be started, died, or took too long.
    """
    starts: list[_Start] = []
    found: dict[str, FreshProcesses] = {}
    begin = time.monotonic()
    longest = 0.0
    while len(starts) < MOST_STARTS:
        now = time.monotonic()
        if starts and now - begin + longest > LIMIT_SECONDS:
            break
        progress(Progress(f"fresh processes: start {len(starts) + 1}", len(starts), MOST_STARTS))
        starts.append(_run_start(request, configurations, backwards=len(starts) % 2 == 1))
        longest = max(longest, time.monotonic() - now)
        if len(starts) < FEWEST_STARTS:
            continue
        found = _summary(configurations, starts)
        if all(seen.high / seen.low - 1 <= _NARROW for seen in found.values()):
            break
    if len(starts) < FEWEST_STARTS:
        raise SubjectError(
            f"one start takes {format_seconds(longest)}, and {FEWEST_STARTS} are needed within "
            f"{format_seconds(LIMIT_SECONDS)}"
        )
    return found


def _summary(configurations: Sequence[Configuration], starts: Sequence[_Start]) -> dict[str, FreshProcesses]:
    found = {}
    for position, configuration in enumerate(configurations[1:], 1):
        ratios = tuple(median_ratio(start.seconds[0], start.seconds[position]) for start in starts)
        low, middle, high = interval_over_starts(ratios)
        found[configuration.name] = FreshProcesses(
            starts=len(starts),
            low=low,
            median=middle,
            high=high,
            start_ratios=ratios,
            page_faults_per_call=_middle([start.page_faults[position] for start in starts]),
            baseline_page_faults_per_call=_middle([start.page_faults[0] for start in starts]),
        )
    return found


def _middle(counts: Sequence[float | None]) -> float | None:
    known = [count for count in counts if count is not None]
    return statistics.median(known) if known else None


def _run_start(request: Request, configurations: Sequence[Configuration], *, backwards: bool) -> _Start:
    """Each configuration in a process of its own: loaded and compiled beside each other, then timed in turns."""
    order = list(range(len(configurations)))[:: -1 if backwards else 1]
    with contextlib.ExitStack() as stack:
        processes: dict[int, _Process] = {}
        for position in order:
            timed = msgspec.structs.replace(request, timed=configurations[position], kept=Kept(), lost={})
            processes[position] = stack.enter_context(_Process(timed))
        ready = {position: processes[position].ready(_FIRST_LIMIT_SECONDS) for position in order}
        calls = max(1, min(round(_TURN_SECONDS / min(ready.values())), _MOST_CALLS))
        rounds = int(min(max(_START_SECONDS / (2 * calls * sum(ready.values())), _FEWEST_ROUNDS), _ROUNDS))
        seconds: dict[int, list[Seconds]] = {position: [] for position in order}
        faults: dict[int, list[float | None]] = {position: [] for position in order}
        for number in range(rounds):
            for position in order[:: -1 if number % 2 else 1]:
                turn = processes[position].turn(calls, _FIRST_LIMIT_SECONDS)
                seconds[position].append(min(turn.seconds))
                faults[position].append(turn.page_faults_per_call)
    return _Start(
        seconds=tuple(tuple(seconds[position]) for position in sorted(seconds)),
        page_faults=tuple(_middle(faults[position]) for position in sorted(faults)),
    )


class _Process:
    """A process that runs one configuration whenever it is told to, and sleeps in between."""

    def __init__(self, request: Request) -> None:
        self._name = request.timed.name if request.timed is not None else "?"
        self._reader = MessageReader()
        self._waiting: list[AnyMessage] = []
        # Every child is given a board; what it prints is the model's own, and nobody reads it.
        self._process, self._orders, self._messages = start_child(TurnBoard.make(), subprocess.DEVNULL)
        self._order(encode(request))

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in (self._messages, self._orders):
            os.close(descriptor)
        kill_with_all_it_started(self._process.pid)
        self._process.wait()
        remove_scratch(self._process.pid)

    def _order(self, data: bytes) -> None:
        rest = memoryview(data)
        with contextlib.suppress(BrokenPipeError):  # how it ended is said where its answer is missing
            while rest:
                rest = rest[os.write(self._orders, rest) :]

    def ready(self, limit_seconds: Seconds) -> Seconds:
        """Waits until it can be timed; what a call takes, about."""
        message = self._hear(limit_seconds)
        if not isinstance(message, Ready):
            raise SubjectError(f"{self._name}: the process said what was not asked for")
        return message.call_seconds

    def turn(self, calls: int, limit_seconds: Seconds) -> Turned:
        """So many calls, now."""
        self._order(calls.to_bytes(LENGTH_BYTES, "big"))
        message = self._hear(limit_seconds)
        if not isinstance(message, Turned) or len(message.seconds) != calls:
            raise SubjectError(f"{self._name}: the process said what was not asked for")
        return message

    def _hear(self, limit_seconds: Seconds) -> AnyMessage:
        end = time.monotonic() + limit_seconds
        while not self._waiting:
            readable = select.select([self._messages], [], [], max(end - time.monotonic(), 0.0))[0]
            if not readable:
                raise SubjectError(f"{self._name} took longer than {format_seconds(limit_seconds)}")
            data = os.read(self._messages, _READ_BYTES)
            if not data:
                raise SubjectError(f"{self._name}: {how_it_ended(self._process.wait())}")
            try:
                self._waiting += self._reader.feed(data)
            except ValueError as error:
                raise SubjectError(f"{self._name}: the process sent what is no message ({error})") from error
        message = self._waiting.pop(0)
        if isinstance(message, Refused):
            raise SubjectError(message.message)
        return message


def _check_memory(peak_bytes: Bytes | None, count: int) -> None:
    available = available_bytes()
    if peak_bytes is None or available is None or count * peak_bytes <= _MEMORY_SHARE * available:
        return
    raise SubjectError(
        f"{count} processes may need {format_bytes(count * peak_bytes)} of memory together, and "
        f"{format_bytes(available)} are free"
    )
