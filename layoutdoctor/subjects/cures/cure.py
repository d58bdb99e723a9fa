"""What a cure is: when a trial speaks for it, what it changes in a copy of the model, and the lines to paste."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.records import Cure
from layoutdoctor.workers.messages import Proposal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import nn

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Graph, Mode
    from layoutdoctor.units import Bytes

ELEMENT_BYTES = 4
"""Where a dtype is not known."""

READ_AND_WRITTEN = 2 * ELEMENT_BYTES
"""What a copy moves of each element."""

_LONGEST_TEXT = 90


@dataclass(frozen=True)
class Seen:
    """
    What a trial showed of a model.

    Attributes:
        module: The copy that ran.
        graphs: As recorded, not examined yet; none where the trial failed before.
        failure: What it failed with, and the log; None where it ran.
    """

    module: nn.Module
    graphs: Sequence[Graph]
    mode: Mode
    failure: str | None = None


@dataclass(frozen=True)
class KnownCure:
    """
    One cure.

    Attributes:
        propose: Whether a trial speaks for it, and what exactly is to be changed; None where not.
        apply: Makes the change in a module of a copy of the model, or in the copy where the cure names none; the
            parameters keep their names.
        how: The same change as lines to paste; ``{modules}`` and further words in braces are filled in.
        answers: Code of the finding that it answers.
        mends_a_failure: Whether it is for trials that failed, and for those only.
    """

    name: str
    propose: Callable[[Seen], Proposal | None]
    apply: Callable[[nn.Module, Cure], object]
    how: str = ""
    answers: str | None = None
    mends_a_failure: bool = False

    def proposal(
        self, modules: Iterable[str] = (), bytes_moved: Bytes = 0, *, dtype: str | None = None, **words: str
    ) -> Proposal:
        """The cure for some modules, and what is known to be at stake."""
        names, how = tuple(modules), self.how
        for word, value in {"modules": _names_as_text(names), "dtype": dtype or "", **words}.items():
            how = how.replace(f"{{{word}}}", value)
        cure = Cure(name=self.name, answers=self.answers, modules=names, dtype=dtype, how=how)
        return Proposal(cure=cure, bytes_moved=bytes_moved)


def _names_as_text(names: Sequence[str]) -> str:
    """Names of modules as Python text, a tuple on one line or one name a line."""
    quoted = [json.dumps(name) for name in names]
    text = f"({', '.join(quoted)}{',' if len(quoted) == 1 else ''})"
    return text if len(text) <= _LONGEST_TEXT else "(\n" + "".join(f"    {name},\n" for name in quoted) + ")"


def element_count(layout: Layout | None) -> int:
    """Elements of a tensor; 0 where its sizes are not known."""
    count = 1
    for size in layout.shape if layout is not None else (0,):
        count *= size if isinstance(size, int) else 0
    return count
