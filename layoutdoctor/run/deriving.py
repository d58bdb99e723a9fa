"""Derives further configurations from timed ones: forced layout optimization, cures, cuDNN's benchmark mode."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis import Configuration, Environment, InputTensor
from layoutdoctor.diagnosis.compile_arguments import compiled_with
from layoutdoctor.diagnosis.configurations import (
    BASELINE,
    BY_NAME,
    CUDNN_BENCHMARK,
    DEFAULT_CONFIGURATIONS,
    FORCED,
    STATIC_SIZES,
    SYMBOLIC_SIZES,
    name_without_cures,
)
from layoutdoctor.diagnosis.subject import Cure, FormatChoice
from layoutdoctor.examination.advice.choice import eligible_names
from layoutdoctor.examination.cure_gains import can_pay
from layoutdoctor.recording.recording import busy_nanoseconds
from layoutdoctor.rules.decisions import leaves_out_backward
from layoutdoctor.units import NANOSECONDS_PER_SECOND
from layoutdoctor.workers.turns import take_profiles

if TYPE_CHECKING:
    from layoutdoctor.workers.worker import Worker

MOST_CURES = 3
"""Largest number of cures to try on the fastest configuration; cures of the largest conversions come first."""
SWITCHED_COUNT = 2
"""Number of configurations, the fastest first, that are tried with ``torch.backends.cudnn.benchmark``."""

MATRIX_PRODUCT_RULE = "LD508"
"""Rule for convolutions that are matrix products. A quick diagnosis tries its cure too, because it gains so much."""
_LAYOUT_BREAKER = "LD104"
_LAUNCH_BOUND = 0.8
"""A call is launch-bound if its kernels take less than this share of its time."""


def with_cures(base: Configuration, cures: Sequence[Cure]) -> Configuration:
    """Returns a copy of ``base`` with these cures, named ``BASE+CURE+CURE``."""
    name = "+".join((base.name, *(cure.name for cure in cures)))
    return msgspec.structs.replace(base, name=name, cures=tuple(cures))


def with_switch(base: Configuration) -> Configuration:
    """Returns a copy of ``base`` with ``torch.backends.cudnn.benchmark`` on: cuDNN times its algorithms."""
    switches = {**base.library_switches, CUDNN_BENCHMARK: True}
    return msgspec.structs.replace(base, name=f"{base.name}+cudnn-benchmark", library_switches=switches)


def _with_option(worker: Worker, name: str, option: str) -> Configuration:
    base = worker.configuration
    options = {**base.inductor_options, option: True}
    return msgspec.structs.replace(base, name=f"{base.name}+{name}", inductor_options=options)


def in_both_directions(workers: Sequence[Worker]) -> tuple[Configuration, ...]:
    """Returns the configuration ``FORCED`` if the default optimized layouts in the forward graph only; else nothing."""
    by_name = {worker.name: worker for worker in workers}
    if FORCED in by_name or BASELINE not in by_name or not leaves_out_backward(by_name[BASELINE].trial.graphs):
        return ()
    base = by_name[BASELINE].configuration
    given = {**base.compile_arguments, "options": base.inductor_options}
    return (compiled_with(BY_NAME[FORCED], given),)


def in_eager_mode(workers: Sequence[Worker]) -> tuple[Configuration, ...]:
    """
    Returns eager configurations that have not been tried.

    Each has the memory formats of a configuration that ran as eager code, because torch.compile compiled nothing.
    """
    tried = {_formats(worker.configuration) for worker in workers if worker.configuration.backend == "eager"}
    ran = {_formats(worker.configuration) for worker in workers if worker.is_ok and worker.trial.ran_as_eager}
    known = (one for one in DEFAULT_CONFIGURATIONS if one.backend == "eager")
    return tuple(one for one in known if _formats(one) in ran - tried)


def in_other_sizes(workers: Sequence[Worker], inputs: Sequence[InputTensor]) -> tuple[Configuration, ...]:
    """
    Returns the default configuration with numbers instead of symbols for sizes, or with symbols instead of numbers.

    If the default's graphs have symbols for the inputs' symbolic sizes, the new configuration has numbers; otherwise it
    has symbols. Without symbolic sizes, nothing is returned.
    """
    base = next((worker for worker in workers if worker.name == BASELINE and worker.trial.graphs), None)
    if base is None or not any(tensor.symbolic for tensor in inputs):
        return ()
    layouts = (node.layout for graph in base.trial.graphs for node in graph.nodes if node.op == "placeholder")
    has_symbols = any(isinstance(size, str) for layout in layouts if layout is not None for size in layout.shape)
    name = STATIC_SIZES if has_symbols else SYMBOLIC_SIZES
    return (msgspec.structs.replace(base.configuration, name=name, dynamic=not has_symbols),)


def _formats(configuration: Configuration) -> tuple[FormatChoice | None, FormatChoice | None]:
    return configuration.model_format, configuration.input_format


def single_cures(
    workers: Sequence[Worker],
    medians: Mapping[str, float],
    bandwidth: float | None = None,
    answers: Collection[str] | None = None,
) -> tuple[Configuration, ...]:
    """
    Returns configurations with one cure each.

    The fastest configuration is combined with each cure that may help it, and then a failed configuration with each of
    its own cures: ``MOST_CURES`` combinations in all. Up to two more configurations get only the first of their cures.
    One is the fastest that loses channels-last to an operation, unless the fastest of all loses it. The other is the
    fastest without frozen weights, if the fastest of all has frozen weights.

    Args:
        medians: Median ratio of each configuration by name: 1 for the baseline, above 1 for a faster configuration.
        bandwidth: The device's copy bandwidth in bytes per second, which limits the gain of a cure; None if unknown.
        answers: Codes of the rules whose cures are tried; None for all rules.
    """
    cures_of = partial(_cures_of, bandwidth=bandwidth, answers=answers)
    found: list[Configuration] = []
    for best in _by_speed(workers, medians)[:1]:
        for base in (best, *_failed_like(best, workers)):
            found += [with_cures(base.configuration, (cure,)) for cure in cures_of(base)[:MOST_CURES]]
        losing = [] if _loses_its_format(best) else filter(_loses_its_format, _by_speed(workers, medians))
        free = [one for one in _by_speed(workers, medians) if best.configuration.freezes > one.configuration.freezes]
        more = [one for one in (*[*losing][:1], *free[:1]) if cures_of(one)]
        found = found[:MOST_CURES] + [with_cures(one.configuration, cures_of(one)[:1]) for one in more]
    return tuple({one.name: one for one in found}.values())


def _cures_of(worker: Worker, bandwidth: float | None, answers: Collection[str] | None) -> list[Cure]:
    """Returns the cures whose gain may be worth a compile; the cures of the largest conversions come first."""
    seconds = worker.start.call_seconds if worker.start is not None else 0.0
    return [
        proposal.cure
        for proposal in sorted(worker.proposals, key=lambda proposal: -proposal.bytes_moved)
        if (answers is None or proposal.cure.answers in answers)
        and can_pay(proposal.cure.name, proposal.bytes_moved, seconds, bandwidth)
    ]


def _loses_its_format(worker: Worker) -> bool:
    """Whether a cure was proposed against an operation that undoes channels-last."""
    return any(proposal.cure.answers == _LAYOUT_BREAKER for proposal in worker.proposals)


def cures_together(workers: Sequence[Worker], medians: Mapping[str, float]) -> tuple[Configuration, ...]:
    """
    Returns one configuration with all cures that helped; nothing if fewer than two cures helped.

    The base is the fastest configuration that was tried both without cures and with one. A cure helped if a
    configuration with this cure was faster than the base. All cures that helped are added to the base.
    """
    cured = [worker for worker in _by_speed(workers, medians) if worker.configuration.cures]
    bases = {name_without_cures(worker.configuration) for worker in cured}
    base = next((worker for worker in _by_speed(workers, medians) if worker.name in bases), None)
    if base is None:
        return ()
    helping = [worker.configuration.cures[0] for worker in cured if medians[worker.name] > medians[base.name]]
    once = {cure.name: cure for cure in helping}
    return (with_cures(base.configuration, tuple(once.values())),) if len(once) > 1 else ()


def on_a_gpu(
    workers: Sequence[Worker], medians: Mapping[str, float], environment: Environment, *, tries_all: bool
) -> tuple[Configuration, ...]:
    """
    Returns the configurations that are tried on a GPU only.

    The two fastest configurations are tried with ``torch.backends.cudnn.benchmark``, unless it is on already. The
    fastest compiled configuration is tried with CUDA graphs if it is launch-bound.

    Args:
        tries_all: Whether the fastest compiled configuration is also tried with Inductor's max-autotune.
    """
    ready = _by_speed(workers, medians)
    found: list[Configuration] = []
    if environment.cudnn is not None and environment.settings.get(f"torch.backends.{CUDNN_BENCHMARK}") != "True":
        found += [with_switch(worker.configuration) for worker in ready[:SWITCHED_COUNT]]
    for compiled in [worker for worker in ready if worker.configuration.backend == "inductor"][:1]:
        if _is_launch_bound(compiled):
            found.append(_with_option(compiled, "cudagraphs", "triton.cudagraphs"))
        if tries_all:
            found.append(_with_option(compiled, "max-autotune", "max_autotune"))
    return tuple(found)


def _is_launch_bound(worker: Worker) -> bool:
    take_profiles([worker])
    busy = [busy_nanoseconds(iteration.events) for iteration in worker.iterations if len(iteration.events.kernels)]
    seconds = min(busy, default=math.inf) / NANOSECONDS_PER_SECOND
    return worker.start is not None and seconds < _LAUNCH_BOUND * worker.start.call_seconds


def _failed_like(best: Worker, workers: Sequence[Worker]) -> list[Worker]:
    """Returns a failed worker with proposed cures, if any; preferably with the options or the backend of ``best``."""
    found = [worker for worker in workers if worker.trial.failure is not None and worker.proposals]
    like = [worker for worker in found if worker.configuration.backend == best.configuration.backend]
    same = [one for one in like if one.configuration.inductor_options == best.configuration.inductor_options]
    return (same or like or found)[:1]


def _by_speed(workers: Sequence[Worker], medians: Mapping[str, float]) -> list[Worker]:
    """Returns the workers that were timed and may be recommended, the fastest first."""
    eligible = eligible_names(worker.trial for worker in workers)
    known = [worker for worker in workers if worker.name in medians and worker.name in eligible]
    return sorted(known, key=lambda worker: -medians[worker.name])
