"""Faults in a model that is made here and handed to ``layoutdoctor.diagnose``."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

from faults.harness import MARKER, ROOT, Ended, processes_left

import layoutdoctor
from layoutdoctor.commands.diagnose import status_of
from layoutdoctor.diagnosis.saved import to_json
from layoutdoctor.workers.launcher import close_kept_launcher

if TYPE_CHECKING:
    import pytest
    from faults.fault import Fault
    from faults.harness import Workplace

_numbers = itertools.count()


def diagnose_in_python(fault: Fault, place: Workplace, monkeypatch: pytest.MonkeyPatch) -> Ended:
    """What ``layoutdoctor.diagnose`` gives for a row's model, in the words of the command."""
    monkeypatch.syspath_prepend(place.work)
    monkeypatch.setattr("tempfile.tempdir", str(place.temporary))
    monkeypatch.setenv("TMPDIR", str(place.temporary))
    number = uuid.uuid4().hex
    monkeypatch.setenv(MARKER, number)  # of the processes that are started from here, not of this one
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delitem(sys.modules, "planting", raising=False)
    before = place.given()
    start = time.monotonic()
    diagnosis, said, status = None, "", 0
    try:
        diagnosis = _diagnose(fault, place, monkeypatch)
        status = status_of(diagnosis)
    except layoutdoctor.LayoutDoctorError as error:
        said, status = str(error), error.exit_status
    close_kept_launcher()
    return Ended(
        status=status,
        output="" if diagnosis is None else _with_notes(diagnosis),
        said=said,
        seconds=time.monotonic() - start,
        processes=tuple(processes_left(number)),
        temporary=tuple(sorted(path.name for path in place.temporary.iterdir() if path != place.headers)),
        files=tuple(sorted({path.name for path in place.work.iterdir()} - before)),
        diagnosis=diagnosis,
        record_text="" if diagnosis is None else to_json(diagnosis).decode(),
        folder=place.work,
    )


def _diagnose(fault: Fault, place: Workplace, monkeypatch: pytest.MonkeyPatch) -> layoutdoctor.Diagnosis:
    name = f"planted_model_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, place.work / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    options: dict[str, Any] = {}
    if "--timeout" in fault.options:
        options["timeout_seconds"] = float(fault.options.rpartition("--timeout ")[2])
    return layoutdoctor.diagnose(
        module.Model(),
        tuple(module.get_inputs()),
        mode="training" if "training" in fault.options else "inference",
        configurations=fault.configurations.split(","),
        budget_seconds=0.2,
        **options,
    )


def _with_notes(diagnosis: layoutdoctor.Diagnosis) -> str:
    """The report, and what of the record it leaves to the longer ones."""
    details = [trial.equivalence.detail or "" for trial in diagnosis.trials if trial.equivalence is not None]
    notes = [*diagnosis.subject.notes, *(note for trial in diagnosis.trials for note in trial.notes)]
    return "\n".join([str(diagnosis), *details, *notes])
