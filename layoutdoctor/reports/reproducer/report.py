"""
The reproducer: a short script, with torch alone, that shows the worst finding.

It is made from the record alone, of which only numbers, names of torch's own operators and of built-in configurations
reach the text: no name of a module, a file or a person, and nothing that could run. Faces the table of formats and the
Markdown report.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.analysis.costs import counted_conversions
from layoutdoctor.configurations import BASELINE, BUILTIN_CONFIGURATIONS
from layoutdoctor.records import FASTER, NO_DIFFERENCE, SLOWER
from layoutdoctor.reports.reproducer.code import model_code
from layoutdoctor.reports.reproducer.layers import free_placeholders
from layoutdoctor.reports.reproducer.program import CannotWriteError, aligned, read_program, simplified
from layoutdoctor.reports.reproducer.region import cut, region_of
from layoutdoctor.reports.reproducer.script import (
    GPU_CONVERSIONS,
    LONG_SECONDS,
    Script,
    Side,
    code_line_count,
    recorded_verdict,
    script_text,
)
from layoutdoctor.reports.sections.wording import count_of
from layoutdoctor.units import format_seconds

if TYPE_CHECKING:
    from layoutdoctor.records import Diagnosis, Finding, Graph, RatioInterval, Trial
    from layoutdoctor.reports.reproducer.program import Program

MOST_CODE_LINES = 45
"""Lines of code that a reproducer may have, its header, imports and blank lines apart."""

_CODE = re.compile(r"LD[0-35-9][0-9]{2}", re.ASCII)
"""Codes of findings that a script can show; LD4xx are about the measurement."""
_RULE = re.compile(r"[a-z0-9]+(-[a-z0-9]+){0,8}", re.ASCII)
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+]{0,40}", re.ASCII)
_BUILTIN = {configuration.name: configuration for configuration in BUILTIN_CONFIGURATIONS}


@dataclass(frozen=True, slots=True)
class Reproducer:
    """
    A script, and how to speak of it.

    Attributes:
        script: Python source; where there is nothing to run, it only says why.
        is_runnable: Whether it shows the finding, rather than saying why it cannot.
        title: What it shows, in one line.
        reason: Why there is nothing to run; None where there is.
    """

    script: str
    is_runnable: bool
    title: str
    reason: str | None = None


def build_reproducer(diagnosis: Diagnosis) -> Reproducer:
    """
    The reproducer of a diagnosis.

    Args:
        diagnosis: Any diagnosis.
    """
    try:
        return _reproducer(diagnosis)
    except CannotWriteError as error:
        reason = f"no reproducer: {error}"
    except (LookupError, TypeError, ValueError, RecursionError):  # a record that was edited by hand
        reason = "no reproducer: what the record says of the model's operations contradicts itself"
    return Reproducer(f'raise SystemExit("{reason}")\n', False, "No reproducer", reason)


def render_reproducer(diagnosis: Diagnosis) -> str:
    """
    The reproducer as Python source.

    Args:
        diagnosis: Any diagnosis.
    """
    return build_reproducer(diagnosis).script


def _reproducer(diagnosis: Diagnosis) -> Reproducer:
    subject = diagnosis.subject
    if subject.mode == "trace":
        raise CannotWriteError("a recorded trace does not hold the operations of the model")
    if subject.target is not None:
        raise CannotWriteError("the graphs were lowered for a GPU that was not there, so nothing ran")
    if subject.device not in ("cpu", "cuda"):
        raise CannotWriteError("the model ran on neither a CPU nor a GPU")
    base, other = _choose(diagnosis)
    finding = _finding_of(diagnosis, base, other)
    program = _program(diagnosis)
    inputs = _inputs_of(diagnosis, program)
    names = _names(base, other)
    title = f"{names[1]} against {names[0]}"
    if finding is not None:
        title = f"{finding.code} {finding.rule}: {title}"
    text = _script(diagnosis, (base, other), title, program, inputs, None)
    if code_line_count(text) > MOST_CODE_LINES:
        first, last = region_of(program, finding)
        part, new = cut(program, first, last)
        inputs = tuple(name for name in part.placeholders if name in inputs or name in new)
        text = _script(diagnosis, (base, other), title, part, inputs, (first, last, len(program.operations)))
    if code_line_count(text) > MOST_CODE_LINES:
        raise CannotWriteError("the part of the model around the worst finding is too long")
    return Reproducer(text, True, title)


def _script(
    diagnosis: Diagnosis,
    trials: tuple[Trial, Trial],
    title: str,
    program: Program,
    inputs: tuple[str, ...],
    region: tuple[int, int, int] | None,
) -> str:
    """The script of a program: the whole model, or the part between two of so many operations."""
    subject, threads = diagnosis.subject, diagnosis.environment.thread_count
    is_training, device = subject.mode == "training", subject.device or "cpu"
    what = f"The whole model ({count_of(len(program.operations), 'operation')})"
    if region is not None:
        what = f"Operations {region[0] + 1} to {region[1] + 1} of the model's {region[2]}"
    sides = [
        Side(name, trial.configuration, _counts(trial, device))
        for trial, name in zip(trials, _names(*trials), strict=True)
    ]
    return script_text(
        Script(
            header=_header(diagnosis, title, what, trials),
            model=model_code(program, inputs, is_training=is_training, device=device),
            sides=(sides[0], sides[1]),
            ratio=_recorded_ratio(diagnosis, *trials),
            device=device,
            thread_count=threads if threads is not None and 0 < threads < 10_000 else None,
            is_training=is_training,
            is_cut=region is not None,
            is_long=any(_seconds(trial) > LONG_SECONDS for trial in trials),
        )
    )


def _seconds(trial: Trial) -> float:
    return trial.measurement.median_seconds if trial.measurement is not None else 0.0


def _choose(diagnosis: Diagnosis) -> tuple[Trial, Trial]:
    """
    The baseline, and what to compare it with.

    That is what is recommended; else what runs without the baseline's redundant pairs, the fewest conversions first;
    else the worst finding's configuration; else the next best.
    """
    usable = {trial.name: trial for trial in diagnosis.trials if trial.status == "ok" and not trial.is_static}
    usable = {name: trial for name, trial in usable.items() if trial.configuration.backend in ("eager", "inductor")}
    if len(usable) < 2:
        raise CannotWriteError("fewer than two configurations ran")
    baseline = diagnosis.comparison.baseline if diagnosis.comparison is not None else BASELINE
    base = usable.get(baseline) or next(iter(usable.values()))
    ratios = diagnosis.comparison.ratios if diagnosis.comparison is not None else ()
    wanted = [diagnosis.fastest.name] if diagnosis.fastest is not None else []
    if base.redundant_pairs:  # what runs without them shows what they are
        without = [trial for trial in usable.values() if not trial.redundant_pairs and trial.kernels is not None]
        wanted += [trial.name for trial in sorted(without, key=lambda trial: len(counted_conversions(trial)))]
    wanted += [f.configuration for f in diagnosis.findings if f.configuration is not None and _CODE.fullmatch(f.code)]
    wanted += [ratio.name for ratio in sorted(ratios, key=lambda ratio: -ratio.median)]
    for name in [*wanted, *usable]:
        trial = diagnosis.measured_trial(name)
        if trial is not None and trial.name in usable and trial.name != base.name:
            return base, usable[trial.name]
    raise CannotWriteError("fewer than two configurations ran")


def _names(base: Trial, other: Trial) -> tuple[str, str]:
    """Names of configurations as the script calls them; one that a user named is not passed on."""
    first = base.name if _BUILTIN.get(base.name) == base.configuration else "first configuration"
    return first, other.name if _BUILTIN.get(other.name) == other.configuration else "second configuration"


def _finding_of(diagnosis: Diagnosis, base: Trial, other: Trial) -> Finding | None:
    """The worst finding that one of the two configurations shows."""
    for finding in diagnosis.findings:
        if not (_CODE.fullmatch(finding.code) and _RULE.fullmatch(finding.rule)):
            continue
        trial = diagnosis.measured_trial(finding.configuration) if finding.configuration is not None else base
        if trial is not None and trial.name in (base.name, other.name):
            return finding
    return None


def _program(diagnosis: Diagnosis) -> Program:
    eager = _eager_graph(diagnosis, "eager")
    trial = diagnosis.trial("eager")
    if eager is None or trial is None or trial.equivalence is None:
        raise CannotWriteError("the configuration 'eager' was not recorded, which holds the operations of the model")
    count = len(trial.equivalence.output_layouts)
    program = simplified(read_program(eager, count))
    other = _eager_graph(diagnosis, "eager-channels-last")
    return program if other is None else aligned(program, simplified(read_program(other, count)))


def _eager_graph(diagnosis: Diagnosis, name: str) -> Graph | None:
    trial = diagnosis.trial(name)
    if trial is None or trial.configuration != _BUILTIN[name] or not trial.graphs or not trial.graphs[0].nodes:
        return None
    return trial.graphs[0]


def _inputs_of(diagnosis: Diagnosis, program: Program) -> tuple[str, ...]:
    """The placeholders that are the model's inputs: of the shape and dtype of each, in order."""
    free = free_placeholders(program)
    found: list[str] = []
    for given in diagnosis.subject.inputs:
        same = [n for n in free if n.layout is not None and (n.layout.shape, n.dtype) == (given.shape, given.dtype)]
        same.sort(key=lambda node: node.layout is None or node.layout.stride != given.stride)
        if same:
            found.append(same[0].name)
            free.remove(same[0])
    if not found:
        raise CannotWriteError("the record does not say which tensor is the model's input")
    return tuple(found)


def _counts(trial: Trial, device: str | None) -> tuple[int, ...] | None:
    """The conversions that the script counts, as they were recorded."""
    kernels = trial.kernels
    if kernels is None or kernels.count != len(kernels.kernels):
        return None
    if device != "cpu":
        return (sum(re.search(GPU_CONVERSIONS, kernel.name) is not None for kernel in kernels.kernels),)
    if "oneDNN verbose log" not in kernels.sources:
        return None
    names = [kernel.name for kernel in kernels.kernels]
    return names.count("reorder"), names.count("aten::copy_")


def _recorded_ratio(diagnosis: Diagnosis, base: Trial, other: Trial) -> RatioInterval | None:
    comparison = diagnosis.comparison
    if comparison is None or comparison.baseline != base.name:
        return None
    ratio = next((ratio for ratio in comparison.ratios if ratio.name == other.name), None)
    is_sound = ratio is not None and all(math.isfinite(end) for end in (ratio.low, ratio.median, ratio.high))
    return ratio if is_sound and ratio is not None and ratio.verdict in (FASTER, SLOWER, NO_DIFFERENCE) else None


def _header(diagnosis: Diagnosis, title: str, what: str, trials: tuple[Trial, Trial]) -> tuple[str, ...]:
    torch, ours = _version(diagnosis.environment.torch), _version(diagnosis.layoutdoctor_version)
    device = "a CPU" if diagnosis.subject.device == "cpu" else "a GPU"
    step = "forward and backward" if diagnosis.subject.mode == "training" else "inference"
    times = [
        f"{name} {format_seconds(float(_seconds(trial)))}"
        for trial, name in zip(trials, _names(*trials), strict=True)
        if trial.measurement is not None
    ]
    return (
        f"{title}.",
        "",
        f"{what}, with random weights; {step} on {device}.",
        f"Recorded by layoutdoctor {ours} with torch {torch}: {', '.join(times) or 'no times'};",
        f"{_names(*trials)[1]} is: {recorded_verdict(_recorded_ratio(diagnosis, *trials))}.",
        'Prints a line for each configuration and, where conversions and times are as recorded, "verdict: reproduced".',
    )


def _version(text: str | None) -> str:
    return text if text is not None and _VERSION.fullmatch(text) else "(version not recorded)"
