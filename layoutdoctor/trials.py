"""
One trial, live: a configuration prepared, compiled under capture, run, profiled and checked, up to the timing rounds.

Faces doctor; brings subjects, capture and measure together.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from layoutdoctor.analysis.alignment import align_eager
from layoutdoctor.analysis.breakers import with_breaker_costs, without_round_trips
from layoutdoctor.analysis.conversion_costs import with_bandwidth_share, with_bandwidth_shares, with_costs_of_all
from layoutdoctor.analysis.dataflow import redundant_pairs
from layoutdoctor.analysis.device_kernels import device_seconds, summarize_device
from layoutdoctor.analysis.eager_conversions import with_copies_in_calls, with_eager_conversions
from layoutdoctor.analysis.graph_conversions import with_graph_conversions
from layoutdoctor.analysis.join import join_compiled, join_eager
from layoutdoctor.analysis.kernel_list import operation_tree, place_primitives, summarize_host
from layoutdoctor.analysis.trace_attribution import attribute
from layoutdoctor.capture.compat import compile_settings, distinct_options, missing_cpp_compiler
from layoutdoctor.capture.eager_graph import record_eager_iteration
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.errors import LayoutDoctorError, first_line
from layoutdoctor.live_trial import LiveTrial, fingerprint, tell_nobody
from layoutdoctor.measure.equivalence import check_equivalence
from layoutdoctor.measure.memory import peak_memory
from layoutdoctor.measure.profiling import record_quietest
from layoutdoctor.records import GradientLayout, Graph, KernelSummary
from layoutdoctor.subjects.copies import layout_of
from layoutdoctor.subjects.prepare import (
    effective_options,
    formats_in_effect,
    global_options,
    prepare,
    same_preparation_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from layoutdoctor.capture.session import CapturedGraph
    from layoutdoctor.measure.equivalence import Reference
    from layoutdoctor.measure.profiling import Recording
    from layoutdoctor.records import Configuration, Conversion, Mode
    from layoutdoctor.run.rehearsal import Rehearsal
    from layoutdoctor.subjects.prepare import PreparedModel
    from layoutdoctor.subjects.step import Step
    from layoutdoctor.subjects.subject import LoadedSubject


def run_trial(
    subject: LoadedSubject,
    configuration: Configuration,
    mode: Mode,
    reference: Reference,
    earlier: Sequence[LiveTrial],
    rehearsal: Rehearsal,
    trace_file: Path | None = None,
    bandwidth: float | None = None,
    announce: Callable[[str], None] = tell_nobody,
) -> LiveTrial:
    """
    Everything of a trial but its timing; a failure is a result.

    Args:
        subject: What was loaded.
        configuration: What to vary.
        mode: ``inference`` or ``training``.
        reference: What the outputs are compared with.
        earlier: Trials already run, which this one may turn out to be the same as.
        rehearsal: What the eager call on a copy showed.
        trace_file: Where to keep the profiler's trace.
        bandwidth: The device's copy bandwidth, in bytes read plus written per second; None where not measured.
        announce: Told each stage as it begins.
    """
    trial = LiveTrial(configuration, announce=announce)
    try:
        prepared = prepare(subject, configuration, mode, rehearsal.shared)
        trial.notes += prepared.notes
        trial.key = fingerprint(same_preparation_key(prepared, configuration))
        if trial.is_same_as_one_of(earlier):
            return trial
        _run(trial, prepared, mode, reference, earlier, rehearsal, trace_file, bandwidth)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # the user's model may raise anything
        trial.fail(error)
    return trial


def warm_up(trial: LiveTrial, subject: LoadedSubject, mode: Mode, rehearsal: Rehearsal) -> None:
    """
    Prepares, and where needed compiles, a restored trial again, so that it can be timed here; a failure is a result.

    Args:
        trial: One that ran in an earlier process.
        subject: What was loaded.
        mode: ``inference`` or ``training``.
        rehearsal: What the eager call on a copy showed.
    """
    try:
        trial.enter("prepare")
        prepared = prepare(subject, trial.configuration, mode, rehearsal.shared)
        step = prepared.step(mode, fresh_inputs=rehearsal.changes_inputs)
        with contextlib.ExitStack() as stack:
            if trial.configuration.backend == "inductor":
                trial.enter("compile")
                step.run = compiled(step.run, trial.configuration)
                stack.enter_context(compile_settings(global_options(trial.configuration)))
            step()
            trial.enter("run")
            step()
        step.forget_results()
        trial.step = step
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # the user's model may raise anything, also the second time
        trial.fail(error)


def compiled(run: Callable[..., Any], configuration: Configuration) -> Callable[..., Any]:
    """
    The model compiled as a configuration says, at its first call.

    Args:
        run: What to call.
        configuration: Of backend ``inductor``.
    """
    options = {**effective_options(configuration), **distinct_options(configuration.name)}
    compiled_run: Callable[..., Any] = torch.compile(own_frame(run, configuration.name), options=options)
    return compiled_run


def _run(
    trial: LiveTrial,
    prepared: PreparedModel,
    mode: Mode,
    reference: Reference,
    earlier: Sequence[LiveTrial],
    rehearsal: Rehearsal,
    trace_file: Path | None,
    bandwidth: float | None,
) -> None:
    device = subject_device(prepared)
    captured: list[CapturedGraph] = []
    step = prepared.step(mode, fresh_inputs=rehearsal.changes_inputs)
    if trial.configuration.backend == "inductor":
        captured = _compile(trial, step, device)
        trial.code = code_key(prepared, trial)
        if trial.is_same_as_one_of(earlier):
            return
    else:
        trial.enter("run")
        step()
    trial.equivalence = check_equivalence(reference, step.results())
    trial.gradient_layouts = _gradient_layouts(prepared, step)
    step.forget_results()
    trial.notes += step.notes
    _profile(trial, step, prepared, captured, device, trace_file, bandwidth)
    trial.enter("measure")
    step.release()  # the gradients of what was profiled
    trial.peak_memory_bytes = peak_memory(step, device)
    trial.step = step
    trial.ran = True


def subject_device(prepared: PreparedModel) -> str:
    """
    Type of the device a prepared model runs on.

    Args:
        prepared: A prepared model.
    """
    tensors = list(prepared.module.parameters()) if prepared.module is not None else []
    tensors += torch.utils._pytree.tree_leaves((prepared.args, prepared.kwargs))
    return next((leaf.device.type for leaf in tensors if isinstance(leaf, torch.Tensor)), "cpu")


def _gradient_layouts(prepared: PreparedModel, step: Step) -> tuple[GradientLayout, ...]:
    """Parameters whose gradient came with other strides than their own."""
    gradients = step.results().gradients
    named = prepared.module.named_parameters() if prepared.module is not None else ()
    found: list[GradientLayout] = []
    for name, parameter in named:
        gradient = gradients.get(name)
        if gradient is None or gradient.layout != torch.strided or gradient.stride() == parameter.stride():
            continue
        found.append(GradientLayout(parameter=name, layout=layout_of(parameter), gradient=layout_of(gradient)))
    return tuple(found)


def code_key(prepared: PreparedModel, trial: LiveTrial) -> str | None:
    """
    What equal generated code on equal layouts has in common; None where not all of the code is known.

    Args:
        prepared: What was compiled.
        trial: With its graphs.
    """
    codes = tuple(graph.code_fingerprint for graph in trial.graphs)
    if not codes or None in codes or trial.graph_break_reasons:
        return None
    return fingerprint((formats_in_effect(prepared), *codes))


def _compile(trial: LiveTrial, step: Step, device: str) -> list[CapturedGraph]:
    """Compiles the step's model at its first call, under capture."""
    trial.enter("compile")
    problem = missing_cpp_compiler() if device == "cpu" else None
    if problem is not None:
        raise LayoutDoctorError(problem)
    step.run = compiled(step.run, trial.configuration)
    with compile_settings(global_options(trial.configuration)), CompileCapture() as capture:
        start = time.perf_counter()
        step()
        trial.compile_seconds = time.perf_counter() - start
        compiled_count = len(capture.captured)
        trial.enter("run")
        step()
    trial.recompile_count = len(capture.captured) - compiled_count
    trial.graph_break_reasons = capture.graph_break_reasons
    trial.recompile_reasons = capture.recompile_reasons
    trial.graphs = with_graph_conversions(capture.graphs, len(capture.graph_break_reasons))
    trial.notes += [f"not recorded: {failure}" for failure in capture.failures]
    if capture.lowered_count == 0:
        trial.notes.append("torch.compile lowered no graph: the model ran as eager code")
    return capture.captured


def own_frame(run: Callable[..., Any], name: str) -> Callable[..., Any]:
    """
    A function around the model with a code object of its own.

    Dynamo keeps compiled code by code object: with one for each configuration no configuration meets another one's
    entries, the caller's own compiled functions are left alone, and all of it goes when the function goes.

    Args:
        run: What to call.
        name: The configuration's name.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=f"layoutdoctor_{name.replace('-', '_')}")
    return call


def _profile(
    trial: LiveTrial,
    step: Step,
    prepared: PreparedModel,
    captured: Sequence[CapturedGraph],
    device: str,
    trace_file: Path | None,
    bandwidth: float | None,
) -> None:
    """Kernel list and redundant pairs; a failure here costs these, not the trial."""
    trial.enter("profile")
    try:
        recording = record_quietest(step.ready, device, captured, trace_file)
        if trial.configuration.backend == "eager":
            trial.graphs = (_eager_graph(step, prepared),)
        trial.kernels = _kernel_summary(trial, recording, bandwidth)
        if recording.log is not None:
            trial.onednn = (recording.log.version, recording.log.isa)
    except Exception as error:  # the configuration still has its times and outputs
        trial.notes.append(f"the kernel list was not recorded: {first_line(error)}")
    prove(trial)


def prove(trial: LiveTrial) -> None:
    """
    Redundant pairs, and what layout breakers cost; a failure here costs only these.

    Args:
        trial: With its graphs; without a kernel list, what the graphs alone prove.
    """
    library = trial.kernels.conversions if trial.kernels is not None else ()
    try:
        in_graphs = tuple(conversion for graph in trial.graphs for conversion in graph.conversions)
        known = (*library, *in_graphs)
        trial.pairs = redundant_pairs(trial.graphs, _in_order(trial.graphs[0], known) if _is_eager(trial) else library)
        trial.graphs = tuple(
            with_breaker_costs(without_round_trips(graph, trial.pairs), known) for graph in trial.graphs
        )
    except Exception as error:  # what was recorded stays
        trial.notes.append(f"round trips were not looked for: {first_line(error)}")


def _is_eager(trial: LiveTrial) -> bool:
    return trial.configuration.backend == "eager" and bool(trial.graphs)


def _in_order(graph: Graph, conversions: Sequence[Conversion]) -> list[Conversion]:
    """Conversions of two lists in the order of the operations that ran them."""
    order = {node.name: position for position, node in enumerate(graph.nodes)}
    return sorted(conversions, key=lambda conversion: order.get(str(conversion.node), len(order)))


def _eager_graph(step: Step, prepared: PreparedModel) -> Graph:
    kept: list[Any] = []
    run = step.run

    def keeping(*args: Any, **kwargs: Any) -> Any:
        output = run(*args, **kwargs)
        kept.append(output)
        return output

    step.run = keeping
    try:
        return record_eager_iteration(step.ready(), prepared.module, lambda: (kept, _gradients(prepared)))
    finally:
        step.run = run


def _gradients(prepared: PreparedModel) -> list[Any]:
    parameters = prepared.module.parameters() if prepared.module is not None else ()
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _kernel_summary(trial: LiveTrial, recording: Recording, bandwidth: float | None) -> KernelSummary:
    profile, log = recording.profile, recording.log
    tree = operation_tree(profile)
    lacks = list(recording.lacks)
    homeless = place_primitives(tree, log, profile.base_seconds) if log is not None else []
    eager = trial.configuration.backend == "eager"
    problem = join_eager(tree, trial.graphs[0]) if eager else join_compiled(tree, trial.graphs)
    if problem is not None:
        lacks.append(problem)
    if eager:
        trial.graphs = (align_eager(tree, trial.graphs[0]),)
    seconds: dict[int, float] | None = None
    if recording.trace is not None:
        attribution = attribute(recording.trace)
        summary = summarize_device(recording.trace, attribution, tree, trial.graphs, lacks)
        seconds = device_seconds(recording.trace, attribution)
    else:
        summary = summarize_host(profile, log, tree, homeless, lacks)
    summary = with_bandwidth_shares(summary, bandwidth)
    if eager:
        graph = with_eager_conversions(trial.graphs[0], tree, summary.conversions, seconds)
        conversions = tuple(with_bandwidth_share(conversion, bandwidth) for conversion in graph.conversions)
        trial.graphs = (msgspec.structs.replace(graph, conversions=conversions),)
    else:
        graphs = with_costs_of_all(trial.graphs, summary.kernels, bandwidth)
        if seconds is not None:
            graphs = tuple(with_copies_in_calls(graph, tree, seconds) for graph in graphs)
        trial.graphs = graphs
    return summary
