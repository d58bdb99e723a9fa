"""
The reproducer: a script, with torch alone, that shows the worst finding.

Where the model can be written down operation by operation in a script of some length, it is; else the script loads the
user's own file again. Of a record only numbers, names of torch's own operators and of built-in configurations reach the
first kind, and nothing that could run.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from layoutdoctor.diagnosis.configurations import BASELINE, BUILTIN_CONFIGURATIONS, base_name
from layoutdoctor.diagnosis.records import FASTER, INCONCLUSIVE
from layoutdoctor.examination.choice import is_far_off, wrong_baseline
from layoutdoctor.examination.costs import counted_conversions
from layoutdoctor.reports.reproducer.code import model_code
from layoutdoctor.reports.reproducer.layers import free_placeholders, steps_of
from layoutdoctor.reports.reproducer.program import CannotWriteError, aligned, read_program, simplified
from layoutdoctor.reports.reproducer.recipe import source_of_recipe
from layoutdoctor.reports.reproducer.script import (
    GPU_CONVERSIONS,
    ModelSource,
    Script,
    Side,
    code_line_count,
    script_text,
    values_text,
)
from layoutdoctor.reports.sections.wording import clean_log, find_ratio, is_recording
from layoutdoctor.words import ONEDNN_LOG, count_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.records import Configuration, Diagnosis, Finding, Graph, Trial
    from layoutdoctor.reports.reproducer.program import Program

Source = Literal["operations", "file"]
MOST_CODE_LINES = 120
"""Lines of code that a script of operations may have, its header, imports and blank lines apart."""

_CODE = re.compile(r"LD[0-35-9][0-9]{2}", re.ASCII)
"""Codes of findings that a script can show by times and conversions; LD4xx are about the measurement."""

_WRONG_VALUES = re.compile("LD402")

_RULE = re.compile(r"[a-z0-9]+(-[a-z0-9]+){0,8}", re.ASCII)
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
        source: What it takes the model from; None where there is nothing to run.
        printed: What it printed before it was handed out; None where it was not run.
    """

    script: str
    is_runnable: bool
    title: str
    reason: str | None = None
    source: Source | None = None
    printed: str | None = None


def build_reproducer(diagnosis: Diagnosis, source: Source | None = None) -> Reproducer:
    """
    The reproducer of a diagnosis.

    Args:
        source: What it takes the model from; None for what was run, else what can be written.
    """
    done = diagnosis.reproduction
    try:
        reproducer = _reproducer(diagnosis, source)
        is_it = done is not None and reproducer.source == done.source
        return replace(reproducer, printed=done.printed) if is_it and done is not None else reproducer
    except CannotWriteError as error:
        reason = f"no reproducer: {error}"
    except (LookupError, TypeError, ValueError, RecursionError):  # a record that was edited by hand
        reason = "no reproducer: what the record says of the model's operations contradicts itself"
    return Reproducer(f'raise SystemExit("{reason}")\n', False, "No reproducer", reason)


def render_reproducer(diagnosis: Diagnosis) -> str:
    """The reproducer as Python source, and behind it what it printed."""
    reproducer = build_reproducer(diagnosis)
    if not reproducer.printed:
        return reproducer.script
    printed = "".join(f"# {line}\n" for line in clean_log(reproducer.printed).splitlines())
    return f"{reproducer.script}\n# Before it was handed out it printed:\n{printed}"


def _reproducer(diagnosis: Diagnosis, source: Source | None = None) -> Reproducer:
    subject = diagnosis.subject
    if is_recording(diagnosis):
        raise CannotWriteError("a recorded trace does not hold the operations of the model")
    if subject.target is not None:
        raise CannotWriteError("the graphs were lowered for a GPU that was not there, so nothing ran")
    if subject.device not in ("cpu", "cuda"):
        raise CannotWriteError("the model ran on neither a CPU nor a GPU")
    wrong = _wrong_values(diagnosis)
    base, other = _choose(diagnosis) if wrong is None else wrong
    finding = _finding_of(diagnosis, base, other, _CODE if wrong is None else _WRONG_VALUES)
    sides = (_side(base, "first configuration", subject.device), _side(other, "second configuration", subject.device))
    title = f"{sides[1].name} against {sides[0].name}"
    if finding is not None:
        title = f"{finding.code} {finding.rule}: {title}"
    ratio = _recorded_ratio(diagnosis, base, other)

    def written(model: ModelSource) -> str:
        script = Script(diagnosis, title, model, sides, ratio)
        return script_text(script) if wrong is None else values_text(script)

    if source is None:
        source = diagnosis.reproduction.source if diagnosis.reproduction is not None else None
    if source != "file":
        try:
            return Reproducer(_of_operations(diagnosis, written), True, title, source="operations")
        except CannotWriteError:
            if source is not None or subject.recipe is None:
                raise
    return Reproducer(written(source_of_recipe(subject)), True, title, source="file")


def _wrong_values(diagnosis: Diagnosis) -> tuple[Trial, Trial] | None:
    """Eager, and torch.compile's default that computes something else than it; None where that is right or unknown."""
    wrong = wrong_baseline(diagnosis)
    eager = diagnosis.find_trial("eager")
    if (
        wrong is None
        or eager is None
        or not is_far_off(wrong)
        or not all(_BUILTIN.get(t.name) == t.configuration for t in (eager, wrong))
    ):
        return None
    return eager, wrong


def _of_operations(diagnosis: Diagnosis, written: Callable[[ModelSource], str]) -> str:
    text = written(_operations(diagnosis))
    if code_line_count(text) > MOST_CODE_LINES:
        raise CannotWriteError("the model has too many operations for a script, and was no file")
    return text


def _operations(diagnosis: Diagnosis) -> ModelSource:
    """The model written down operation by operation."""
    program, subject = _program(diagnosis), diagnosis.subject
    names, is_training = _inputs_of(diagnosis, program), subject.mode == "training"
    code = model_code(program, names, is_training=is_training, device=subject.device or "cpu")
    inputs = [f"x = {code.inputs[0]}"]
    if len(names) > 1:
        inputs = ["args = [", *(f"    {text}," for text in code.inputs), "]"]
    count = count_of(len(program.operations), "operation")
    return ModelSource(
        what=f"The whole model ({count}), with random weights",
        imports=(),
        lines=(*code.lines, *inputs),
        arguments="x" if len(names) == 1 else "*args",
        input_ranks=code.input_ranks,
        weight_ranks=code.weight_ranks,
        has_many_outputs=code.output_count != 1,
    )


def _side(trial: Trial, own_name: str, device: str | None) -> Side:
    """One of the configurations; one that a user named is not passed on by its name."""
    name = trial.name if _BUILTIN.get(trial.name) == trial.configuration else own_name
    seconds = trial.measurement.median_seconds if trial.measurement is not None else None
    return Side(name, trial.configuration, _counts(trial, device), seconds, trial.equivalence)


def _choose(diagnosis: Diagnosis) -> tuple[Trial, Trial]:
    """
    The baseline, and what to compare it with.

    That is what is recommended; else what runs without the baseline's redundant pairs, the fewest conversions first;
    else what is surely faster; else what converts less; else the worst finding's configuration; else the next best.
    """
    ran = [trial for trial in diagnosis.trials if trial.status == "ok" and not trial.is_static]
    usable = {trial.name: trial for trial in ran if _can_be_written(trial.configuration)}
    if len(usable) < 2:
        raise CannotWriteError("fewer than two configurations ran")
    baseline = diagnosis.comparison.baseline if diagnosis.comparison is not None else BASELINE
    base = usable.get(baseline) or next(iter(usable.values()))
    ratios = diagnosis.comparison.ratios if diagnosis.comparison is not None else ()
    fastest = diagnosis.fastest
    wanted = [fastest.name, base_name(fastest.configuration)] if fastest is not None else []
    converted = {name: len(counted_conversions(t)) for name, t in usable.items() if t.kernels is not None}
    fewest = sorted(converted, key=converted.__getitem__)
    if base.redundant_pairs:  # what runs without them shows what they are
        wanted += [name for name in fewest if not usable[name].redundant_pairs]
    by_speed = sorted(ratios, key=lambda ratio: -ratio.median)
    wanted += [ratio.name for ratio in by_speed if ratio.verdict == FASTER]
    wanted += [name for name in fewest if converted[name] < converted.get(base.name, 0)]
    wanted += [f.configuration for f in diagnosis.findings if f.configuration is not None and _CODE.fullmatch(f.code)]
    wanted += [ratio.name for ratio in by_speed]
    for name in [*wanted, *usable]:
        trial = diagnosis.measured_trial(name)
        if trial is not None and trial.name in usable and trial.name != base.name:
            return base, usable[trial.name]
    raise CannotWriteError("fewer than two configurations ran")


def _can_be_written(configuration: Configuration) -> bool:
    """A cure changes modules, and a reproducer has none."""
    is_plain = not configuration.cures and not configuration.library_switches
    return is_plain and configuration.backend in ("eager", "inductor")


def _finding_of(diagnosis: Diagnosis, base: Trial, other: Trial, codes: re.Pattern[str]) -> Finding | None:
    """The worst finding, of some codes, that one of the two configurations shows."""
    for finding in diagnosis.findings:
        if not (codes.fullmatch(finding.code) and _RULE.fullmatch(finding.rule)):
            continue
        trial = diagnosis.measured_trial(finding.configuration) if finding.configuration is not None else base
        if trial is not None and trial.name in (base.name, other.name):
            return finding
    return None


def _program(diagnosis: Diagnosis) -> Program:
    eager = _eager_graph(diagnosis, "eager")
    trial = diagnosis.find_trial("eager")
    if eager is None or trial is None or trial.equivalence is None:
        raise CannotWriteError("the configuration 'eager' was not recorded, which holds the operations of the model")
    count = len(trial.equivalence.output_layouts)
    program = simplified(read_program(eager, count))
    other = _eager_graph(diagnosis, "eager-channels-last")
    return program if other is None else aligned(program, simplified(read_program(other, count)))


def _eager_graph(diagnosis: Diagnosis, name: str) -> Graph | None:
    trial = diagnosis.find_trial(name)
    if trial is None or trial.configuration != _BUILTIN[name] or not trial.graphs or not trial.graphs[0].nodes:
        return None
    return trial.graphs[0]


def _inputs_of(diagnosis: Diagnosis, program: Program) -> tuple[str, ...]:
    """The placeholders that are the model's inputs: of the shape and dtype of each, in order."""
    free = free_placeholders(program, steps_of(program))
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
    if ONEDNN_LOG not in kernels.sources:
        return None
    names = [kernel.name for kernel in kernels.kernels]
    return names.count("reorder"), names.count("aten::copy_")


def _recorded_ratio(diagnosis: Diagnosis, base: Trial, other: Trial) -> float | None:
    """How many times faster the other one was; None if they were not compared, or the ratio is inconclusive."""
    ratio = find_ratio(diagnosis, other.name)
    if diagnosis.comparison is None or diagnosis.comparison.baseline != base.name or ratio is None:
        return None
    is_usable = ratio.verdict != INCONCLUSIVE and math.isfinite(ratio.median) and ratio.median > 0
    return float(ratio.median) if is_usable else None
