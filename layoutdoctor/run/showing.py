"""How a diagnosis from Python shows that it goes on: one line in a notebook or on a terminal, gone at the end."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.workers.messages import Progress

_LONGEST_LINE = 100


@contextlib.contextmanager
def showing(progress: Callable[[Progress], None] | None) -> Iterator[Callable[[Progress], None]]:
    """What is told each step: the caller's function; without one, a line where somebody watches, nothing elsewhere."""
    if progress is not None:
        yield progress
        return
    write = _in_a_notebook() or _on_a_terminal()
    if write is None:
        yield lambda step: None
        return
    try:
        yield lambda step: write(f"layoutdoctor: [{step.done}/{step.total}] {step.stage}"[:_LONGEST_LINE])
    finally:
        write("")


def _on_a_terminal() -> Callable[[str], None] | None:
    stream = sys.stderr
    if stream is None or not stream.isatty():
        return None

    def write(line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a terminal that was closed ends nothing
            stream.write(f"\r\x1b[K{line}")
            stream.flush()

    return write


def _in_a_notebook() -> Callable[[str], None] | None:
    """A display of the cell that is written anew; None where no notebook's kernel runs this."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    show: Any = display
    handle = show({"text/plain": ""}, raw=True, display_id=True)
    return lambda line: handle.update({"text/plain": line}, raw=True)
