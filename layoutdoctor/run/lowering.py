"""A static diagnosis: every configuration lowered for a GPU that is not there, each in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.configurations import find_target
from layoutdoctor.diagnosis.records import Failure, Trial
from layoutdoctor.recording.recording import Recording
from layoutdoctor.workers.launcher import LostError
from layoutdoctor.workers.messages import Compile, Compiled, Prepared, Progress

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Configuration
    from layoutdoctor.recording.recording import Head
    from layoutdoctor.run.watching import Watch
    from layoutdoctor.workers.launcher import Host
    from layoutdoctor.workers.messages import Request

_LOWERS_NO_EAGER = "eager runs no compiler: nothing to lower for a GPU that is not there"
_LOWERS_NO_FREEZING = (
    "freezing folds the weights into the CPU's own convolutions before a graph is lowered; "
    "diagnose it on a machine with the GPU"
)


def lowered(host: Host, head: Head, request: Request, watch: Watch) -> list[Recording]:
    """Every configuration lowered for a GPU that is not there, one after the other, each in a process of its own."""
    target = find_target(request.lower_for)
    note = f"{target.name}: what Inductor asks the device about was answered as for {target.device_name}"
    notes = (*head.subject.notes, note)
    head = msgspec.structs.replace(
        head,
        subject=msgspec.structs.replace(head.subject, device="cuda", target=target.name, notes=notes),
        # Processor and threads have no part in it.
        environment=msgspec.structs.replace(head.environment, device_name=None, thread_count=None),
        configurations=tuple(configuration.name for configuration in request.configurations),
    )
    found: list[Recording] = []
    known: dict[str, str] = {}
    for number, configuration in enumerate(request.configurations):
        done = 20 + 80 * number // len(request.configurations)
        watch.progress(Progress(stage=f"{configuration.name}: lowering for {target.name}", done=done))
        trial = _lowered_trial(host, configuration, request, known)
        found.append(Recording(head=head, trial=trial, source="static", was_profiled=trial.status == "ok"))
        watch.show(found)
    return found


def _lowered_trial(host: Host, configuration: Configuration, request: Request, known: dict[str, str]) -> Trial:
    """
    One configuration, lowered.

    Args:
        known: Names of the configurations before it, by the key of their options and of their code; this one is added.
    """
    trial = Trial(configuration=configuration, status="ok", is_static=True)
    reason = _LOWERS_NO_EAGER if configuration.backend != "inductor" else _LOWERS_NO_FREEZING
    if configuration.backend != "inductor" or configuration.freezes:
        return msgspec.structs.replace(trial, status="skipped", failure=Failure(kind="target", message=reason))
    process = None
    try:
        process = host.begin("static", configuration)
        key = process.answer(Prepared, request.timeout_seconds).key
        if key in known:
            return _same_as(trial, known[key], "options and formats")
        compiled = process.ask(Compile(), Compiled, request.timeout_seconds)
    except LostError as lost:
        return msgspec.structs.replace(trial, status=lost.status, failure=lost.failure)
    finally:
        if process is not None:
            process.end()
    if compiled.code is not None and compiled.code in known:
        return _same_as(compiled.trial, known[compiled.code], "generated code")
    if compiled.trial.status == "ok":
        known.update({one: configuration.name for one in (key, compiled.code) if one is not None})
    return compiled.trial


def _same_as(trial: Trial, other: str, what: str) -> Trial:
    notes = (*trial.notes, f"the same {what} as {other}")
    return msgspec.structs.replace(trial, status="same_as", same_as=other, notes=notes)
