"""What a row of the table of faults says, the model file that plants the fault, and the rows themselves."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import msgspec

_MODEL = """\
import ctypes, os, signal, subprocess, time
import torch
from torch import nn
import planting
{before}

@torch.compiler.disable
def strike():
    if planting.is_due({at!r}, {of!r}, once={once!r}):
{plant}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        strike()
        return self.conv(x)

def get_inputs():
    return [torch.randn(1, 8, 8, 8)]
"""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One planted fault, and what has to come of it.

    Attributes:
        planted: The fault, in words.
        status: The command's exit status.
        trials: Statuses of the saved trials, such as ``eager ok, inductor crashed``; empty where nothing is saved.
        timed: Names of the trials that have times, separated by commas.
        says: Words on standard output or error; `` ... `` stands for any words.
        at: The stage it strikes at: ``scout``, ``reference``, ``run`` in the worker; ``check``, ``timing``,
            ``profile`` in a start; another word where the model, its inputs or the surroundings are the fault.
        of: The configuration it strikes in; empty for any.
        plant: What the model does there.
        once: Whether it does so only the first time.
        before: Code of the model file, run when it is loaded.
        configurations: Those that are tried.
        options: More of the command line.
        environment: Variables of the command; ``{work}`` stands for the model's folder.
        files: Files beside the model, executable.
        limits: Limits of the process, by their names in ``resource``.
        output: A device that standard output goes to.
        interrupt: Signals sent to the command once the model waits, separated by commas.
        is_resumed: Whether a second run with ``--resume`` follows, which has to bring everything to its end.
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
    configurations: str = "eager,eager-channels-last"
    options: str = ""
    environment: dict[str, str] = {}
    files: dict[str, str] = {}
    limits: dict[str, int] = {}
    output: str = ""
    interrupt: str = ""
    is_resumed: bool = False
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
        )

    @property
    def when_resumed(self) -> Fault:
        """What the second run of a row has to give."""
        names = self.configurations.split(",")
        trials = ", ".join(f"{name} ok" for name in names)
        return msgspec.structs.replace(self, status=0, trials=trials, timed=", ".join(names), says="")


def _read_rows() -> tuple[Fault, ...]:
    rows = msgspec.toml.decode(Path(__file__).with_name("rows.toml").read_bytes())
    known = rows.pop("like")
    return tuple(
        msgspec.convert({**known[row.pop("like", "nothing")], "name": name, **row}, Fault) for name, row in rows.items()
    )


ROWS = _read_rows()
