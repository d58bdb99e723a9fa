"""What a row of the table of faults says, and the model file that plants the fault."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from textwrap import indent
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

EAGER = "eager,eager-channels-last"
THREE = "eager,eager-channels-last,inductor"
FOUR = "eager,eager-channels-last,inductor,inductor-layout-opt-off"

BOTH_TIMED = "eager, eager-channels-last"
ALL_OK = "eager ok, eager-channels-last ok"
LAST_FAILED = "eager ok, eager-channels-last failed"
LAST_CRASHED = "eager ok, eager-channels-last crashed"
LAST_TIMED_OUT = "eager ok, eager-channels-last timed_out"
LAST = "eager-channels-last"
HANG = "--timeout 10"

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


@dataclass(frozen=True, kw_only=True)
class Fault:
    """
    One planted fault, and what has to come of it.

    Attributes:
        name: Of the row; part of the test's name.
        planted: The fault, in words.
        status: The command's exit status; in Python, the one of the error or of the diagnosis.
        trials: Statuses of the saved trials, such as ``eager ok, inductor crashed``; empty where nothing is saved.
        timed: Names of the trials that have times, separated by commas.
        says: What is said of it on standard output or error, word for word; `` ... `` stands for any words.
        at: The stage it strikes at: ``rehearsal``, ``reference``, ``float64``, ``run``, ``profile``, ``memory``,
            ``timing``, ``confirming``; another word where the model, its inputs or the surroundings are the fault.
        of: The configuration it strikes in; empty for any.
        plant: What the model does there.
        once: Whether it does so only the first time.
        before: Code of the model file, run when it is loaded.
        build: Code at the end of the model's ``__init__``.
        forward: Code at the start of its ``forward``.
        returns: What it returns.
        inputs: What ``get_inputs`` returns.
        way: Through the command, through ``layoutdoctor.diagnose``, or through that with ``isolate=True``.
        configurations: Those that are tried.
        options: More of the command line.
        environment: Variables of the command; None removes one, ``{work}`` stands for the model's folder.
        limits: Limits of the process, by their names in ``resource``.
        shell_tail: Redirections of the command.
        interrupt: Signals sent to the command once the model waits, separated by commas.
        surroundings: What is prepared before the command runs: the name of a function in ``surroundings.py``.
        is_resumed: Whether a second run with ``--resume`` follows, which has to bring everything to its end.
        at_once: How many commands run at the same time, with one compiler cache of their own.
        within_seconds: The command has to end by then.
        keeps_journal: Whether the journal stays, so that the run can be continued as the command says.
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
    build: str = ""
    forward: str = "strike(self)"
    returns: str = "self.conv(x)"
    inputs: str = "[torch.randn(1, 8, 8, 8)]"
    way: Literal["command", "python", "isolated"] = "command"
    configurations: str = EAGER
    options: str = ""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    shell_tail: str = ""
    interrupt: str = ""
    surroundings: str = ""
    is_resumed: bool = False
    at_once: int = 1
    within_seconds: float = 120.0
    keeps_journal: bool = False
    shows_traceback: bool = False
    keeps: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    is_slow: bool = True

    @property
    def model_source(self) -> str:
        """The model file."""
        return _MODEL.format(
            before=self.before,
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
        return replace(
            self, status=0, trials=", ".join(f"{name} ok" for name in names), timed=", ".join(names), says=""
        )

    @property
    def expected_trials(self) -> dict[str, str]:
        """Status by configuration."""
        return trials_of(self.trials)

    @property
    def expected_times(self) -> set[str]:
        """Names of the trials with times."""
        return {name.strip() for name in self.timed.split(",") if name.strip()}


def trials_of(text: str) -> dict[str, str]:
    """
    Statuses as a row writes them.

    Args:
        text: Such as ``eager ok, inductor crashed``.
    """
    return dict(part.split() for part in text.split(",") if part.strip())


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


def while_tracing(code: str) -> str:
    """
    Code for the top of a model file that runs when its operator is traced.

    Args:
        code: One line.
    """
    return _FAKE.format(code=code)
