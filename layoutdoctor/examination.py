"""
``examine_trace``: what a recorded trace says about layouts, the whole story on one page.

Read the file, find the conversions, run the rules, and return the same ``Diagnosis`` that ``diagnose`` returns. Needs
no torch, no model and no GPU. Faces the public API and the command line.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.analysis.logged_primitives import summarize_log
from layoutdoctor.analysis.trace_conversions import TraceFacts, examine_recorded
from layoutdoctor.analysis.trace_environment import describe_environment, device_of
from layoutdoctor.analysis.trace_tables import summarize_table
from layoutdoctor.records import Configuration, Diagnosis, Environment, Graph, Subject, Trial
from layoutdoctor.rules import run_rules
from layoutdoctor.traces import DEFAULT_MOST_BYTES, read_trace
from layoutdoctor.traces.recorded import KernelTotals, RecordedTrace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.rules import Rule
    from layoutdoctor.traces.onednn import OnednnLog
    from layoutdoctor.traces.recorded import Problem

RECORDED = Configuration(
    name="recorded",
    backend="recorded",
    layout_optimization=None,
    model_format=None,
    input_format=None,
)


def examine_trace(
    path: str | Path, *, max_bytes: int = DEFAULT_MOST_BYTES, rules: Sequence[Rule] | None = None
) -> Diagnosis:
    """
    Finds every layout conversion in a recorded run.

    Args:
        path: A Chrome trace of ``torch.profiler`` (``.json`` or ``.json.gz``, any version since 2020), an SQLite export
            or a kernel summary in CSV of Nsight Systems, or a verbose log of oneDNN.
        max_bytes: How many bytes to read at the most, after unpacking.
        rules: Which rules to run; None for all.

    Returns:
        A diagnosis with one trial, ``recorded``: conversions and round trips with what each claim rests on. Nothing in
        it was measured again, so it recommends no configuration.

    Raises:
        TraceError: The file cannot be read, or is no recorded trace.
    """
    file = Path(path)
    recorded = read_trace(file, max_bytes)
    if isinstance(recorded, RecordedTrace):
        facts = examine_recorded(recorded)
        environment, device = describe_environment(recorded), device_of(recorded)
        notes = _notes(recorded.problems)
    elif isinstance(recorded, KernelTotals):
        facts = TraceFacts(summarize_table(recorded), (), ())
        environment, device = Environment(torch=None), "cuda"
        notes = _notes(recorded.problems)
    else:
        facts = TraceFacts(summarize_log(recorded), (), ())
        environment, device, notes = _log_environment(recorded), "cpu", ()
    diagnosis = Diagnosis(
        layoutdoctor_version=__version__,
        created_at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        environment=environment,
        subject=Subject(name=file.name, mode="trace", device=device, inputs=(), notes=notes),
        trials=(_trial(facts),),
    )
    return msgspec.structs.replace(diagnosis, findings=run_rules(diagnosis, rules))


def _trial(facts: TraceFacts) -> Trial:
    graph = Graph(name="recorded", direction="inference", decision=None, conversions=facts.conversions)
    return Trial(
        configuration=RECORDED,
        status="ok",
        graphs=(graph,) if facts.conversions else (),
        kernels=facts.kernels,
        redundant_pairs=facts.pairs,
    )


def _notes(problems: Sequence[Problem]) -> tuple[str, ...]:
    return tuple(f"{problem.what} ({problem.count})" if problem.count > 1 else problem.what for problem in problems)


def _log_environment(log: OnednnLog) -> Environment:
    return Environment(torch=None, onednn=log.version, onednn_isa=log.isa)
