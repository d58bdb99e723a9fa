"""
layoutdoctor finds out why a PyTorch model loses time to memory layouts, and what to do about it.

``diagnose(model, example_input)`` runs a model under several layout configurations and returns a ``Diagnosis``.
``examine_trace(path)`` finds the layout conversions in a recorded run, ``scan(path)`` in many recorded runs. Importing
this package does not import torch; the first call of ``diagnose`` does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from layoutdoctor._version import __version__
from layoutdoctor.errors import (
    InconclusiveError,
    LayoutDoctorError,
    RecordError,
    SubjectError,
    TraceError,
    TransportError,
    UnsupportedTorchError,
    UsageError,
    needs_torch,
)

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.layout import Layout, MemoryFormat
    from layoutdoctor.diagnosis.saved import load
    from layoutdoctor.diagnosis.subject import Configuration
    from layoutdoctor.diagnosis.trial import Measurement, Trial
    from layoutdoctor.examination.advice.policy import make_policy
    from layoutdoctor.fleet.scanning import scan
    from layoutdoctor.reports import render
    from layoutdoctor.rules import ALL_RULES, Rule, run_rules
    from layoutdoctor.run.diagnose import diagnose
    from layoutdoctor.run.in_process import profile
    from layoutdoctor.run.recorded import compare, examine_trace
    from layoutdoctor.subjects.recorded_inputs import record_inputs
    from layoutdoctor.testing import assert_no_redundant_conversions

__all__ = [
    "ALL_RULES",
    "BUILTIN_CONFIGURATIONS",
    "Configuration",
    "Diagnosis",
    "Finding",
    "InconclusiveError",
    "Layout",
    "LayoutDoctorError",
    "Measurement",
    "MemoryFormat",
    "RecordError",
    "Rule",
    "SubjectError",
    "TraceError",
    "TransportError",
    "Trial",
    "UnsupportedTorchError",
    "UsageError",
    "__version__",
    "assert_no_redundant_conversions",
    "compare",
    "diagnose",
    "examine_trace",
    "load",
    "make_policy",
    "profile",
    "record_inputs",
    "render",
    "run_rules",
    "scan",
]


_HOMES = {
    name: f"layoutdoctor.{module}"
    for module, names in {
        "diagnosis.answer": ("Finding",),
        "diagnosis.configurations": ("BUILTIN_CONFIGURATIONS",),
        "diagnosis.diagnosis": ("Diagnosis",),
        "diagnosis.layout": ("Layout", "MemoryFormat"),
        "diagnosis.saved": ("load",),
        "diagnosis.subject": ("Configuration",),
        "diagnosis.trial": ("Measurement", "Trial"),
        "examination.advice.policy": ("make_policy",),
        "fleet.scanning": ("scan",),
        "reports": ("render",),
        "rules": ("ALL_RULES", "Rule", "run_rules"),
        "run.diagnose": ("diagnose",),
        "run.in_process": ("profile",),
        "run.recorded": ("compare", "examine_trace"),
        "subjects.recorded_inputs": ("record_inputs",),
        "testing": ("assert_no_redundant_conversions",),
    }.items()
    for name in names
}
"""The module of each public name that is imported on first use."""


def __getattr__(name: str) -> object:
    """Returns a public name from its module, which is imported on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'layoutdoctor' has no attribute {name!r}")
    with needs_torch():
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
