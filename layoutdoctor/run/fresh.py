"""One configuration in a process that does nothing else: compiled as a user compiles it, timed when it is told to."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import random
import time
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.capture.compat import inductor_config
from layoutdoctor.examination.applying import effective_options, global_options
from layoutdoctor.isolation.load import involuntary_switches
from layoutdoctor.isolation.messages import KEEP_MEMORY, PROFILE, Profiled, Ready, Turned
from layoutdoctor.isolation.rounds import page_faults
from layoutdoctor.measure.profiling import record_iterations
from layoutdoctor.measure.timing import choose_timer
from layoutdoctor.run.trial import subject_device
from layoutdoctor.subjects.prepare import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from layoutdoctor.diagnosis.records import Configuration, Mode
    from layoutdoctor.isolation.messages import AnyMessage
    from layoutdoctor.measure.profiling import GeneratedCode
    from layoutdoctor.measure.timing import Timer
    from layoutdoctor.subjects.step import Step
    from layoutdoctor.subjects.subject import LoadedSubject

_WARM_UP_CALLS = 5
_WARM_UP_SECONDS = 0.3
_SETTLE_SECONDS = 0.02
# Below the size from which glibc's allocator first maps memory of its own, so that all of them lie on the heap.
_BLOCK_BYTES = 100_000
_MOST_BLOCKS = 40
# mallopt's M_TRIM_THRESHOLD and M_MMAP_MAX, and what lifts these limits of glibc's allocator.
_KEEPS_MEMORY = ((-1, 2**31 - 1), (-4, 0))


def serve_turns(
    load: Callable[[], LoadedSubject],
    configuration: Configuration,
    mode: Mode,
    orders: Iterable[int],
    tell: Callable[[AnyMessage], None],
    trace_file: Path | None = None,
) -> None:
    """
    Prepares the model once and times it at every order.

    Before, it takes some memory, another amount in every process: what lies on the heap decides whether memory that a
    call frees goes back to the system, and processes that all did the same would all be as lucky.

    Args:
        load: Loads the subject; nobody else holds it, so that the process has one model, as the user's has.
        orders: How many calls to time, or ``PROFILE``, or ``KEEP_MEMORY``, each when it is asked for. Profiled calls
            keep their memory: which operation has pages mapped anew differs from call to call, and least times of some
            calls would have them in one configuration and not in the other.
        tell: Given a ``Ready`` once the model runs, then a ``Turned`` or a ``Profiled`` for each order.
        trace_file: Where to keep the Chrome trace of a profiled iteration.

    Source:
        T. Mytkowicz et al., Producing wrong data without doing anything obviously wrong, ASPLOS 2009: vary what should
        not matter. Of eight amounts (benchmarks/README.md) six make eager code of a Fire module map 6,885 pages a call.
    """
    held = [bytearray(_BLOCK_BYTES) for _ in range(random.SystemRandom().randrange(_MOST_BLOCKS))]
    step, device = _prepared(load, configuration, mode)
    timer = choose_timer(device)
    tell(Ready(call_seconds=_warm_up(step, timer)))
    for calls in orders:
        if calls in (KEEP_MEMORY, PROFILE):
            _keep_memory()
        _settle(step)
        if calls == KEEP_MEMORY:
            tell(Turned(seconds=()))
            continue
        if calls == PROFILE:
            tell(Profiled(iterations=record_iterations(step.ready, device, _generated(configuration), trace_file)))
            step.release()
            continue
        before = page_faults()
        seconds = timer(step, calls)
        after = page_faults()
        faults = None if before is None or after is None else (after - before) / calls
        cpu, switches = time.process_time(), involuntary_switches()
        tell(Turned(seconds=seconds, page_faults_per_call=faults, cpu_seconds=cpu, involuntary_switches=switches))
    held.clear()


def _prepared(load: Callable[[], LoadedSubject], configuration: Configuration, mode: Mode) -> tuple[Step, str]:
    prepared = prepare(load(), configuration, mode, is_alone=True)
    gc.collect()
    step = prepared.step(mode, fresh_inputs=False)
    step.is_alone = True
    frozen: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if configuration.backend == "inductor":
        step.run = torch.compile(step.run, options=effective_options(configuration) or None)
        frozen = inductor_config().patch(global_options(configuration))
    with frozen:
        step.start_alone()
    return step, subject_device(prepared)


def _generated(configuration: Configuration) -> list[GeneratedCode]:
    if configuration.backend != "inductor":
        return []
    from layoutdoctor.capture.graph_cache import loaded_code

    return list(loaded_code())


def _keep_memory() -> None:
    """From now on memory that is freed stays with this process, as far as its allocator is glibc's."""
    with contextlib.suppress(AttributeError, OSError):
        allocator = ctypes.CDLL(None)
        for limit, value in _KEEPS_MEMORY:
            allocator.mallopt(limit, value)


def _settle(step: Step) -> None:
    """Calls that are not timed, for a while: another process's data filled the caches, and threads have slept."""
    end = time.perf_counter() + _SETTLE_SECONDS
    step()
    while time.perf_counter() < end:
        step()


def _warm_up(step: Step, timer: Timer) -> float:
    """What a call takes once caches and heap have settled: a few calls, two where they are long."""
    seconds = [*timer(step, 1)]
    while len(seconds) <= _WARM_UP_CALLS and (len(seconds) < 2 or sum(seconds) < _WARM_UP_SECONDS):
        seconds += timer(step, 1)
    return min(seconds)
