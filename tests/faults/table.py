"""
The table of planted faults: each with what is reported, what is kept and with which exit status the command ends.

What has to hold in every row (``test_faults.py``): it ends in time; no process of the run is alive afterwards; no
temporary file, lock or half-written output is left; what is saved is a valid diagnosis that can be loaded; nobody sees
a traceback of layoutdoctor's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from faults.rows_of_compiling import COMPILES
from faults.rows_of_isolation import ISOLATED
from faults.rows_of_models import OUTPUTS, RAISES
from faults.rows_of_processes import CRASHES, HANGS, INTERRUPTS
from faults.rows_of_surroundings import MISCHIEF, SURROUNDINGS

if TYPE_CHECKING:
    from faults.fault import Fault

TABLE: tuple[tuple[str, tuple[Fault, ...]], ...] = (
    ("The model raises", RAISES),
    ("The model's outputs and inputs", OUTPUTS),
    ("Compiling", COMPILES),
    ("The process dies", CRASHES),
    ("It hangs", HANGS),
    ("It is interrupted", INTERRUPTS),
    ("In Python, isolated", ISOLATED),
    ("The model does what it should not", MISCHIEF),
    ("The machine and the files", SURROUNDINGS),
)
"""Rows by chapter."""

ROWS: tuple[Fault, ...] = tuple(row for _, rows in TABLE for row in rows)
