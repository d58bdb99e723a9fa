"""
layoutdoctor finds out why a PyTorch model loses time to memory layouts, and what to do about it.

``diagnose(model, example_input)`` runs a model under several layout configurations and returns a ``Diagnosis``.
``examine_trace(path)`` finds the layout conversions in a recorded run. Importing this package does not import torch;
``diagnose`` does, on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor._version import __version__
from layoutdoctor.configurations import BUILTIN_CONFIGURATIONS
from layoutdoctor.errors import NO_TORCH, LayoutDoctorError, UnsupportedTorchError
from layoutdoctor.layout import Layout, MemoryFormat
from layoutdoctor.records import Configuration, Diagnosis, Finding, Measurement, Trial, load
from layoutdoctor.reports import render
from layoutdoctor.rules import ALL_RULES, Rule, run_rules

if TYPE_CHECKING:
    from layoutdoctor.changes import compare
    from layoutdoctor.doctor import diagnose
    from layoutdoctor.examination import examine_trace

__all__ = [
    "ALL_RULES",
    "BUILTIN_CONFIGURATIONS",
    "Configuration",
    "Diagnosis",
    "Finding",
    "Layout",
    "LayoutDoctorError",
    "Measurement",
    "MemoryFormat",
    "Rule",
    "Trial",
    "__version__",
    "compare",
    "diagnose",
    "examine_trace",
    "load",
    "render",
    "run_rules",
]


def __getattr__(name: str) -> object:
    """Loads what is not always needed on first use: ``diagnose`` brings torch with it, the others numpy."""
    if name == "examine_trace":
        from layoutdoctor.examination import examine_trace

        return examine_trace
    if name == "compare":
        from layoutdoctor.changes import compare

        return compare
    if name == "diagnose":
        try:
            from layoutdoctor.doctor import diagnose
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise UnsupportedTorchError(NO_TORCH) from error
        return diagnose
    raise AttributeError(f"module 'layoutdoctor' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
