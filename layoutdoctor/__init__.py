"""
layoutdoctor finds out why a PyTorch model loses time to memory layouts, and what to do about it.

``diagnose(model, example_input)`` runs a model under several layout configurations and returns a ``Diagnosis``.
Importing this package does not import torch; ``diagnose`` does, on first use.
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
    from layoutdoctor.doctor import diagnose

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
    "diagnose",
    "load",
    "render",
    "run_rules",
]


def __getattr__(name: str) -> object:
    """Loads ``diagnose``, and torch with it, on first use."""
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
