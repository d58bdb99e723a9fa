"""A worker's one configuration: prepared, compiled under capture, checked, timed and profiled; nothing is examined."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import random
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from layoutdoctor.capture.compat import compile_settings, missing_cpp_compiler
from layoutdoctor.capture.eager_graph import record_eager_iteration
from layoutdoctor.capture.fx_graph import location_in_stack
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.diagnosis.trial import Failure, GradientLayout, Trial
from layoutdoctor.errors import LayoutDoctorError, first_line, text_of
from layoutdoctor.examination.applying import effective_options, global_options
from layoutdoctor.measure.environment import free_device_bytes, used_device_bytes
from layoutdoctor.measure.equivalence import Reference, check_equivalence
from layoutdoctor.measure.memory import out_of_memory, peak_memory
from layoutdoctor.measure.profiling import record_iterations
from layoutdoctor.measure.timing import choose_timer
from layoutdoctor.rules.decisions import leaves_out_backward
from layoutdoctor.run.static import STAGE, failure_to_lower, lower
from layoutdoctor.subjects.copies import layout_of
from layoutdoctor.subjects.cures import Seen, propose
from layoutdoctor.subjects.prepare import (
    formats_in_effect,
    global_settings,
    options_beside_code,
    prepare,
    same_preparation_key,
)
from layoutdoctor.words import joined
from layoutdoctor.workers.messages import Checked, Compiled, Failed, Profiled, Ready, Turned

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from layoutdoctor.diagnosis.configurations import Target
    from layoutdoctor.diagnosis.graph import Graph
    from layoutdoctor.diagnosis.subject import Configuration, Mode
    from layoutdoctor.recording.recording import Iteration
    from layoutdoctor.subjects.step import Step
    from layoutdoctor.subjects.subject import LoadedSubject
    from layoutdoctor.workers.messages import Proposal

_LOG_LINES = 12
_WARM_UP_CALLS = 5
_WARM_UP_SECONDS = 0.3
_SETTLE_SECONDS = 0.02
# Below the size from which glibc's allocator first maps memory of its own, so that all of them lie on the heap.
_BLOCK_BYTES = 100_000
_MOST_BLOCKS = 40
# mallopt's M_TRIM_THRESHOLD and M_MMAP_MAX, and what lifts these limits of glibc's allocator.
_KEEPS_MEMORY = ((-1, 2**31 - 1), (-4, 0))


class TrialWork:
    """
    A configuration of a subject in a process that does nothing else.

    Attributes:
        stage: What is being done, in the words of ``Failure.kind``.
        step: One iteration; None until the model is prepared.

    Args:
        target: A GPU that is not there, to lower for; None compiles for the device of the model.
    """

    def __init__(
        self, subject: LoadedSubject, configuration: Configuration, mode: Mode, target: Target | None = None
    ) -> None:
        self.stage = "prepare"
        self.step: Step | None = None
        self._subject, self._configuration, self._mode, self._target = subject, configuration, mode, target
        self._capture = CompileCapture()
        self._trial = Trial(configuration=configuration, status="ok")
        self._reported, self._reported_reasons = 0, 0  # graphs, and reasons to recompile, that were sent

    @property
    def device(self) -> str:
        """The device that the prepared model runs on."""
        return self._ready().device

    # ------------------------------------------------------------------------------------------ the worker
    def prepare(self) -> str:
        """
        Applies the configuration to the model, which nobody else uses.

        Returns:
            A key that configurations with the same options and formats in effect share.
        """
        self.step = prepare(self._subject, self._configuration, self._mode)
        return fingerprint(same_preparation_key(self.step, self._configuration))

    def _ready(self) -> Step:
        if self.step is None:
            raise RuntimeError("the model has not been prepared")
        return self.step

    def compile(self) -> Compiled:
        """The first calls, under capture. In training only the forward runs, so that forks can still train."""
        step = self._ready()
        if self._target is not None:
            self.stage = STAGE
            trial = msgspec.structs.replace(self._trial, notes=step.notes, is_static=True)
            trial = lower(trial, step, self._target)
            return Compiled(trial=trial, code=code_key(step, trial) if trial.failure is None else None)
        is_compiled, seconds = self._configuration.backend == "inductor", None
        if is_compiled:
            self.stage = "compile"
            problem = missing_cpp_compiler() if step.device == "cpu" else None
            if problem is not None:
                raise LayoutDoctorError(problem)
            step.run = torch.compile(step.run, options=effective_options(self._configuration) or None)
            with self._captured():
                begin = time.perf_counter()
                self._first_call()
                seconds = time.perf_counter() - begin
                count = len(self._capture.captured)
                self.stage = "run"
                self._first_call(again=True)
        else:
            self.stage = "run"
            self._first_call()
            count = 0
        capture, self._reported = self._capture, len(self._capture.captured)
        self._reported_reasons = len(capture.recompile_reasons)
        notes = [*step.notes, *(f"not recorded: {failure}" for failure in capture.failures)]
        if is_compiled and capture.lowered_count == 0:
            notes.append("torch.compile lowered no graph: the model ran as eager code")
        trial = msgspec.structs.replace(
            self._trial,
            graphs=capture.graphs,
            recompile_count=len(capture.captured) - count,
            graph_break_reasons=capture.graph_break_reasons,
            recompile_reasons=capture.recompile_reasons,
            notes=tuple(notes),
            traced=capture.traced if self._configuration.name == BASELINE else None,
        )
        return Compiled(
            trial=trial,
            code=code_key(step, trial) if is_compiled else None,
            compile_seconds=seconds,
            proposals=self._proposals(trial.graphs),
            leaves_out_backward=leaves_out_backward(trial.graphs),
        )

    def compile_as_a_user_does(self) -> None:
        """The same without capture, for a further start: Inductor's caches answer if they can."""
        step = self._ready()
        if self._configuration.backend == "inductor":
            self.stage = "compile"
            step.run = torch.compile(step.run, options=effective_options(self._configuration) or None)
        with global_settings(self._configuration):
            self._first_call()

    def _first_call(self, *, again: bool = False) -> None:
        step = self._ready()
        if self._mode == "training":
            step.run_forward()
        elif again:
            step()
        else:
            step.results()

    @contextlib.contextmanager
    def _captured(self) -> Iterator[None]:
        with compile_settings(global_options(self._configuration)), self._capture:
            yield

    def failed(self, error: BaseException) -> Failed:
        """Why there is no result, if the model or the compiler raised, and the cures that may help against that."""
        if self._target is not None and self.stage == STAGE:
            # Dynamo's own exception says less than that of the backend which it wraps.
            error = getattr(error, "inner_exception", None) or error
            failure = failure_of(error, STAGE)
            if not isinstance(error, LayoutDoctorError):
                failure = failure_to_lower(failure, self._target)
        else:
            failure = failure_of(error, self.stage)
        return Failed(failure=failure, proposals=self._proposals(self._capture.graphs, failure))

    def _proposals(self, graphs: Sequence[Graph], failure: Failure | None = None) -> tuple[Proposal, ...]:
        """The cures that may help; lines to paste change a module, so that a function has none."""
        module = self.step.module if self.step is not None else None
        if module is None or module is not self._subject.model or self._configuration.cures:
            return ()
        words = None if failure is None else f"{failure.message}\n{failure.log}"
        with contextlib.suppress(Exception):  # the trial is what it is without
            return propose(Seen(module, graphs, self._mode, words))
        return ()

    # ------------------------------------------------------------------------------------------ a start
    def check(self, path: str | None) -> Checked:
        """
        Outputs and gradients of the first call against the reference, and the graphs that come only with it.

        These are what is compiled for the first backward, and in eager the operations of an iteration.

        Args:
            path: File of the reference; None if there is none.
        """
        step = self._ready()
        self.stage = "run"
        with self._captured() if self._configuration.backend == "inductor" else contextlib.nullcontext():
            results = step.results()
            graphs = self._capture.captured[self._reported :]
            if self._mode == "training":
                step()
        recompiled = len(self._capture.captured) - self._reported - len(graphs)
        reasons = self._capture.recompile_reasons[self._reported_reasons :]
        found, notes = (
            tuple(captured.graph for captured in self._capture.captured[self._reported :]),
            [*step.notes_on_run()],
        )
        equivalence = None
        if path is not None:
            self.stage = "compare"
            equivalence = check_equivalence(Reference.load(path), results)
        layouts = _gradient_layouts(step)
        step.forget_results()
        if self._configuration.backend == "eager":
            try:
                found = (_eager_graph(step),)
            except Exception as error:  # the configuration still has its times and outputs
                notes.append(f"the operations were not recorded: {first_line(error)}")
        return Checked(
            equivalence=equivalence,
            gradient_layouts=layouts,
            graphs=found,
            proposals=self._proposals(found) if self._configuration.backend == "eager" else (),
            recompile_count=recompiled,
            recompile_reasons=reasons,
            notes=tuple(notes),
        )

    def warm_up(self) -> Ready:
        """Calls until caches and heap have settled, at least two."""
        step = self._ready()
        self.stage = "measure"
        timer = choose_timer(step.device)
        with global_settings(self._configuration):
            seconds = [*timer(step, 1)]
            while len(seconds) <= _WARM_UP_CALLS and (len(seconds) < 2 or sum(seconds) < _WARM_UP_SECONDS):
                seconds += timer(step, 1)
        used, free = used_device_bytes(step.device), free_device_bytes(step.device)
        return Ready(call_seconds=min(seconds), used_bytes=used, free_bytes=free)

    def turn(self, calls: int, *, settles: bool = True) -> Turned:
        """
        Times calls.

        Args:
            settles: Whether calls before them, for 20 ms, are not timed: another process's data filled the caches, and
                threads have slept.
        """
        step = self._ready()
        self.stage = "measure"
        before = time.process_time()
        with global_settings(self._configuration):
            if step.device == "cpu" and settles:
                end = time.perf_counter() + _SETTLE_SECONDS
                step()
                while time.perf_counter() < end:
                    step()
            seconds = choose_timer(step.device)(step, calls)
        return Turned(seconds=seconds, cpu_seconds=time.process_time() - before)

    def profile(self, trace_file: str | None) -> Profiled:
        """Profiled iterations and the most memory; a failure costs these only."""
        step = self._ready()
        self.stage = "profile"
        notes: list[str] = []
        found: tuple[Iteration, ...] = ()
        with global_settings(self._configuration):
            try:
                generated = [(graph.name, graph.kernel_names, module) for graph, module in self._capture.captured]
                trace = None if trace_file is None else Path(trace_file)
                found = record_iterations(step.ready, step.device, generated, trace)
            except Exception as error:  # the configuration still has its times and outputs
                notes.append(f"the kernel list was not recorded: {first_line(error)}")
            step.release()
            peak = None
            with contextlib.suppress(Exception):
                peak = peak_memory(step, step.device)
        return Profiled(iterations=found, peak_memory_bytes=peak, notes=tuple(notes))


def keep_memory() -> None:
    """From now on memory that is freed stays with this process, as far as its allocator is glibc's."""
    with contextlib.suppress(AttributeError, OSError):
        allocator = ctypes.CDLL(None)
        for limit, value in _KEEPS_MEMORY:
            allocator.mallopt(limit, value)


def take_some_memory() -> list[bytearray]:
    """
    Another amount of memory in every process, to be held while it runs.

    Source:
        T. Mytkowicz et al., Producing wrong data without doing anything obviously wrong, ASPLOS 2009: vary what should
        not matter.
    """
    return [bytearray(_BLOCK_BYTES) for _ in range(random.SystemRandom().randrange(_MOST_BLOCKS))]


def end_worker_threads() -> None:
    """
    Ends OpenMP's threads, so that a fork is safe; the next parallel region starts new ones.

    Source:
        ``omp_pause_resource_all`` (OpenMP 5.0) with ``omp_pause_hard``, in every OpenMP library of this process.
    """
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return
    text = maps.read_text(encoding="utf-8", errors="replace")
    words = ("libgomp", "libomp", "libiomp")
    files = {line.split()[-1] for line in text.splitlines() if any(word in line for word in words)}
    for file in sorted(files):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(file).omp_pause_resource_all(2)


def failure_of(error: BaseException, stage: str) -> Failure:
    """Why there is no result; the stage is as in ``Failure.kind``."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).strip()
    message = str(error) if isinstance(error, LayoutDoctorError) else in_words(error)
    log = "\n".join(text.splitlines()[-_LOG_LINES:])
    return Failure(kind=stage, message=message, log=log, location=location_in_stack(text))


def in_words(error: BaseException) -> str:
    """An exception in one line; dynamo says only further down, behind this word, what happened."""
    shortage = out_of_memory(error)
    if shortage is not None:
        return f"{shortage}; diagnose it on a machine with more memory, or with a smaller input"
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    words = first_line(error)
    if words.endswith(" raised:") and len(lines) > 1:  # as dynamo says of its backends
        words += f" {lines[1]}"
    explanation = next((line for line in lines if line.startswith("Explanation: ")), None)
    half_written = any("file too short" in line or "invalid ELF header" in line for line in lines)
    mend = "a compile that was ended has left this file in Inductor's cache: delete it" if half_written else None
    return joined((words, explanation, mend))


def fingerprint(value: Hashable) -> str:
    """A hash of a value made of tuples, strings, numbers and None, equal in all processes."""
    return hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()


def code_key(step: Step, trial: Trial) -> str | None:
    """
    A key that equal generated code on equal layouts shares; None if not all of the code is known.

    Options that act outside the generated code, such as CUDA graphs, count as well.
    """
    codes = tuple(graph.code_fingerprint for graph in trial.graphs)
    if not codes or None in codes or trial.graph_break_reasons:
        return None
    beside = options_beside_code(trial.configuration)
    return fingerprint((formats_in_effect(step), tuple(step.switches.items()), beside, *codes))


def _gradient_layouts(step: Step) -> tuple[GradientLayout, ...]:
    """Parameters whose gradient came with other strides than their own."""
    gradients = step.results().gradients
    named = step.module.named_parameters() if step.module is not None else ()
    found: list[GradientLayout] = []
    for name, parameter in named:
        gradient = gradients.get(name)
        if gradient is None or gradient.layout != torch.strided or gradient.stride() == parameter.stride():
            continue
        found.append(GradientLayout(parameter=name, layout=layout_of(parameter), gradient=layout_of(gradient)))
    return tuple(found)


def _eager_graph(step: Step) -> Graph:
    kept: list[Any] = []
    run = step.run

    def keeping(*args: Any, **kwargs: Any) -> Any:
        output = run(*args, **kwargs)
        kept.append(output)
        return output

    step.run = keeping
    try:
        return record_eager_iteration(step.ready(), step.module, lambda: (kept, _gradients(step)))
    finally:
        step.run = run
        step.release()


def _gradients(step: Step) -> list[Any]:
    parameters = step.module.parameters() if step.module is not None else ()
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
