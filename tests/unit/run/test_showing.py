"""What a diagnosis from Python shows meanwhile: to the caller's function, on a terminal, in a notebook, or nobody."""

from __future__ import annotations

import io
import sys
import types
from typing import TYPE_CHECKING

from layoutdoctor.run.showing import showing
from layoutdoctor.workers.messages import Progress

if TYPE_CHECKING:
    import pytest

STEP = Progress(stage="inductor: compiling", done=2, total=9)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_callers_function_is_told_and_nothing_else_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Progress] = []
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with showing(told.append) as tell:
        tell(STEP)

    assert told == [STEP]
    assert terminal.getvalue() == ""


def test_a_terminal_has_one_line_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with showing(None) as tell:
        tell(STEP)

    assert terminal.getvalue() == "\r\x1b[Klayoutdoctor: [2/9] inductor: compiling\r\x1b[K"


def test_a_file_a_closed_and_a_missing_stream_get_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    file, closed = io.StringIO(), Terminal()
    for stream in (file, closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        with showing(None) as tell:
            closed.close()
            tell(STEP)
    assert file.getvalue() == ""


def test_a_notebook_has_a_display_that_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], *, raw: bool) -> None:
            assert raw
            shown.append(data["text/plain"])

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert (raw, display_id) == (True, True)
        shown.append(data["text/plain"])
        return Handle()

    python, inner = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    python.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    inner.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    with showing(None) as tell:
        tell(STEP)

    assert shown == ["", "layoutdoctor: [2/9] inductor: compiling", ""]
