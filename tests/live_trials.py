"""Diagnoses of small models without times: in workers, or for one configuration in the process of the test."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.diagnosis.trial import Observed, Trial
from layoutdoctor.examination.examine import diagnosis_of
from layoutdoctor.recording.recording import Head, Recording
from layoutdoctor.rules import run_rules
from layoutdoctor.run.diagnose import diagnose_object, diagnose_request, record_only
from layoutdoctor.run.rehearsal import compute_reference, run_first
from layoutdoctor.run.trial import TrialWork
from layoutdoctor.run.watching import Watch
from layoutdoctor.run.work import describe_loaded
from layoutdoctor.subjects.subject import subject_from_python
from layoutdoctor.workers.launcher import kept_launcher
from layoutdoctor.workers.messages import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.subject import Configuration, Mode
    from layoutdoctor.measure.equivalence import Reference
    from layoutdoctor.subjects.subject import LoadedSubject
    from layoutdoctor.workers.messages import Proposal


def diagnosed(
    model: Callable[..., Any],
    x: Any,
    configurations: str | Iterable[str | Configuration] = "inductor",
    mode: Mode = "inference",
) -> Diagnosis:
    """Compiled, checked and profiled in workers; nothing is timed."""
    chosen = configurations.split(",") if isinstance(configurations, str) else configurations
    return record_only(model, x, mode=mode, configurations=chosen)


def requested(model: Callable[..., Any], x: Any, request: Request) -> Diagnosis:
    """All that a request asks for, of a model of the test."""
    return diagnose_object(model, x, request, Watch(lambda progress: None))


def requested_of_target(target: str, request: Request) -> Diagnosis:
    """All that a request asks for, of a file."""
    request = msgspec.structs.replace(request, target=target)
    return diagnose_request(kept_launcher(), request, Watch(lambda progress: None))


def trial_of(diagnosis: Diagnosis, name: str = "inductor") -> Trial:
    trial = diagnosis.trial(name)
    assert trial is not None
    assert trial.status == "ok", trial.failure
    return trial


def reference_of(subject: LoadedSubject, mode: Mode = "inference") -> Reference:
    return compute_reference(subject, mode, run_first(subject, mode))


class SeenHere(NamedTuple):
    """What a worker would send of its configuration."""

    diagnosis: Diagnosis
    trial: Trial
    proposals: tuple[Proposal, ...]


def seen_here(
    model: Callable[..., Any], x: Any, configuration: str | Configuration = "eager", mode: Mode = "inference"
) -> SeenHere:
    """
    One configuration as a worker has it, but in this process, so that what a test has changed of torch is in effect.

    The model is copied, because a worker changes its own.
    """
    (chosen,) = choose_configurations((configuration,))
    request = Request(mode=mode, configurations=(chosen,), is_timed=False)
    loaded, subject = describe_loaded(subject_from_python(model, x), request)
    work = TrialWork(replace(subject, model=copy.deepcopy(subject.model)), chosen, mode)
    with tempfile.TemporaryDirectory() as folder:
        reference = Path(folder) / "reference"
        reference_of(subject, mode).save(str(reference))
        try:
            work.prepare()
            compiled = work.compile()
            checked = work.check(str(reference))
            profiled = [work.profile(1, None) for _ in range(5)]
        except Exception as error:
            failed = work.failed(error)
            trial, iterations = Observed(configuration=chosen, status="failed", failure=failed.failure), ()
            proposals = failed.proposals
        else:
            iterations = tuple(iteration for one in profiled for iteration in one.iterations)
            trial, proposals = checked.trial, checked.proposals or compiled.proposals
            trial = msgspec.structs.replace(trial, lacks=(*trial.lacks, *profiled[0].lacks))
    head = Head(
        layoutdoctor_version=__version__,
        created_at="2026-11-20T12:00:00Z",
        environment=loaded.environment,
        subject=loaded.subject,
        configurations=(chosen.name,),
    )
    recording = Recording(head=head, trial=trial, iterations=iterations, was_profiled=bool(iterations), how=None)
    diagnosis = diagnosis_of([recording])
    diagnosis = msgspec.structs.replace(diagnosis, findings=run_rules(diagnosis))
    return SeenHere(diagnosis, diagnosis.trials[0], proposals)
