from __future__ import annotations

import pytest

from layoutdoctor import errors
from layoutdoctor.errors import (
    LayoutDoctorError,
    first_line,
    text_of,
)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("LayoutDoctorError", 3),
        ("UsageError", 2),
        ("SubjectError", 3),
        ("RecordError", 3),
        ("UnsupportedTorchError", 3),
        ("InconclusiveError", 4),
    ],
)
def test_each_error_has_its_exit_status(name: str, status: int) -> None:
    error = getattr(errors, name)

    assert issubclass(error, LayoutDoctorError)
    assert error.exit_status == status


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("wrong\nmore"), "ValueError: wrong"),
        (ValueError("\n  \n  wrong  \n"), "ValueError: wrong"),
        (ValueError(), "ValueError"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_an_exception_is_shown_in_one_line(error: Exception, line: str) -> None:
    assert first_line(error) == line


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_that_raises_when_it_is_printed_has_words_all_the_same() -> None:
    assert text_of(UnprintableError()) == "its message cannot be shown"
    assert first_line(UnprintableError()) == "UnprintableError: its message cannot be shown"
