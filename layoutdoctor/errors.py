"""
The errors that layoutdoctor raises on purpose, and the exit status of each.

Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

NO_TORCH = (
    "cannot diagnose: torch is not installed; install it (https://pytorch.org) to diagnose models; "
    "saved diagnoses can be read without torch (layoutdoctor show SAVED.json)"
)


class LayoutDoctorError(Exception):
    """The base of all errors: the model or trace could not be examined (exit status 3)."""

    exit_status = 3


class UsageError(LayoutDoctorError):
    """The call or command line is wrong (exit status 2)."""

    exit_status = 2


class SubjectError(LayoutDoctorError):
    """The model or its inputs could not be loaded, built or run (exit status 3)."""


class TransportError(SubjectError):
    """The model could not be sent to another process, or no process or folder could be made (exit status 3)."""


class RecordError(LayoutDoctorError):
    """A saved diagnosis, a recording or a file of accepted findings could not be read (exit status 3)."""


class TraceError(LayoutDoctorError):
    """A recorded trace could not be read, or a file is not a recorded trace (exit status 3)."""


class UnsupportedTorchError(LayoutDoctorError):
    """torch cannot be imported, or lacks something that layoutdoctor needs (exit status 3)."""


@contextlib.contextmanager
def needs_torch() -> Iterator[None]:
    """
    A ``with`` block around imports that need torch.

    Raises:
        UnsupportedTorchError: torch is not installed, or this torch lacks a module. The error of a missing module of
            another package is kept.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "torch":
            raise
        lacks = f"this torch has no module {error.name!r}, which layoutdoctor needs; install torch 2.7 or newer"
        raise UnsupportedTorchError(NO_TORCH if error.name == "torch" else lacks) from error


class InconclusiveError(LayoutDoctorError):
    """Nothing could be concluded (exit status 4)."""

    exit_status = 4


def first_line(error: BaseException) -> str:
    """Describes an exception in one line: its class and the first line of its text that is not blank, if any."""
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def text_of(error: BaseException) -> str:
    """Returns the text of an exception, even if its ``__str__`` raises."""
    try:
        return str(error)
    except Exception:
        return "its message cannot be shown"
