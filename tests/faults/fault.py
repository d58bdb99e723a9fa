"""What a row of the table of faults says, the model file that plants the fault, and the rows themselves."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import Any, Literal

import msgspec

_MODEL = """\
import ctypes, faulthandler, os, re, resource, signal, subprocess, sys, threading, time
import torch
from torch import nn
import planting
{before}

@torch.compiler.disable
def strike(model):
    if planting.is_due({at!r}, {of!r}, model, once={once!r}):
{plant}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
{build}
    def forward(self, x):
{forward}
        return {returns}

def get_inputs():
    return {inputs}
"""

# The way from a model into the compiler: an operator's fake implementation runs while dynamo traces.
_FAKE = """
@torch.library.custom_op("faults::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2
@double.register_fake
def _(x):
    {code}
    return torch.empty_like(x)
"""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One planted fault, and what has to come of it.

    Attributes:
        name: Of the row; part of the test's name.
        planted: The fault, in words.
        status: The command's exit status; in Python, the one of the error or of the diagnosis.
        trials: Statuses of the saved trials, such as ``eager ok, inductor crashed``; empty where nothing is saved.
        timed: Names of the trials that have times, separated by commas.
        says: What is said of it on standard output or error, word for word; `` ... `` stands for any words.
        at: The stage it strikes at: ``scout``, ``reference``, ``float64``, ``run`` in the worker; ``check``,
            ``timing``, ``profile``, ``memory`` in a start; another word where the model, its inputs or the surroundings
            are the fault.
        of: The configuration it strikes in; empty for any.
        plant: What the model does there.
        once: Whether it does so only the first time.
        before: Code of the model file, run when it is loaded.
        while_tracing: One line of code that the fake implementation of the operator ``faults::double`` runs.
        build: Code at the end of the model's ``__init__``.
        forward: Code at the start of its ``forward``.
        returns: What it returns.
        inputs: What ``get_inputs`` returns.
        way: Through the command, or through ``layoutdoctor.diagnose``.
        configurations: Those that are tried.
        options: More of the command line.
        environment: Variables of the command; ``{work}`` stands for the model's folder.
        limits: Limits of the process, by their names in ``resource``.
        shell_tail: Redirections of the command.
        prefix: Program that runs the command, such as ``timeout 20``.
        interrupt: Signals sent to the command once the model waits, separated by commas.
        surroundings: What is prepared before the command runs: the name of a function in ``surroundings.py``.
        is_resumed: Whether a second run with ``--resume`` follows, which has to bring everything to its end.
        at_once: How many commands run at the same time, with one compiler cache of their own.
        within_seconds: The command has to end by then, also on a busy machine.
        shows_traceback: Whether the model's own process may show one, as Python does when it ends by an exception.
        keeps: Other files that have to be there, in the folder of the model.
        leaves: How names begin that may be left beside the saved record; nothing else may, and no process ever.
        is_slow: Whether the row is left out of ``make test``.
    """

    name: str
    planted: str
    status: int
    trials: str = ""
    timed: str = ""
    says: str
    at: str
    of: str = ""
    plant: str = "pass"
    once: bool = False
    before: str = ""
    while_tracing: str = ""
    build: str = ""
    forward: str = "strike(self)"
    returns: str = "self.conv(x)"
    inputs: str = "[torch.randn(1, 8, 8, 8)]"
    way: Literal["command", "python"] = "command"
    configurations: str = "eager,eager-channels-last"
    options: str = ""
    environment: dict[str, str] = {}
    limits: dict[str, int] = {}
    shell_tail: str = ""
    prefix: str = ""
    interrupt: str = ""
    surroundings: str = ""
    is_resumed: bool = False
    at_once: int = 1
    within_seconds: float = 300.0
    shows_traceback: bool = False
    keeps: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    is_slow: bool = True

    @property
    def model_source(self) -> str:
        """The model file."""
        return _MODEL.format(
            before=_FAKE.format(code=self.while_tracing) if self.while_tracing else self.before,
            at=self.at,
            of=self.of,
            once=self.once,
            plant=indent(self.plant, " " * 8),
            build=indent(self.build, " " * 8),
            forward=indent(self.forward, " " * 8),
            returns=self.returns,
            inputs=self.inputs,
        )

    @property
    def when_resumed(self) -> Fault:
        """What the second run of a row has to give."""
        names = self.configurations.split(",")
        trials = ", ".join(f"{name} ok" for name in names)
        return msgspec.structs.replace(self, status=0, trials=trials, timed=", ".join(names), says="")

    @property
    def expected_trials(self) -> dict[str, str]:
        """Status by configuration."""
        return dict(part.split() for part in self.trials.split(",") if part.strip())

    @property
    def expected_times(self) -> set[str]:
        """Names of the trials with times."""
        return {name.strip() for name in self.timed.split(",") if name.strip()}


def _read_rows() -> dict[str, tuple[Fault, ...]]:
    chapters: dict[str, Any] = msgspec.toml.decode(Path(__file__).with_name("rows.toml").read_bytes())
    known = chapters.pop("like")
    return {
        chapter: tuple(
            msgspec.convert({**known[row.pop("like", "nothing")], "name": name, **row}, Fault)
            for name, row in rows.items()
        )
        for chapter, rows in chapters.items()
    }


TABLE = _read_rows()
"""
Rows by chapter.

What has to hold in every row (``test_faults.py``): it ends in time; no process of the run is alive afterwards; no
temporary file, lock or half-written output is left; what is saved is a valid diagnosis that can be loaded; nobody sees
a traceback of layoutdoctor's own.
"""

ROWS = tuple(row for rows in TABLE.values() for row in rows)
