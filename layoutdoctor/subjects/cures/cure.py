"""What a cure is: when a trial speaks for it, and the lines that change the model."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from layoutdoctor.diagnosis.subject import Cure
from layoutdoctor.workers.messages import Proposal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import nn

    from layoutdoctor.diagnosis.graph import Graph
    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.subject import Mode
    from layoutdoctor.units import Bytes

ELEMENT_BYTES = 4
"""If a dtype is not known."""

READ_AND_WRITTEN = 2 * ELEMENT_BYTES
"""Bytes that a copy moves for each element."""

_LONGEST_TEXT = 90
_IN_ALL_RANKS = {"format": "torch.channels_last if output.dim() == 4 else torch.channels_last_3d", "edit": ""}
"""Words of the lines as they are run; a reader gets those of the model."""


@dataclass(frozen=True)
class Seen:
    """
    What a trial showed of a model.

    Attributes:
        module: The model that ran.
        graphs: As recorded, not examined yet; none if the trial failed before.
        failure: The failure and its log; None if it ran.
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
        propose: Whether a trial speaks for it, and the exact change; None if not.
        how: The change as Python lines for ``model``, which are run, and which a user can paste. ``{modules}`` and
            further words in braces are filled in. The parameters keep their names.
        answers: Code of the finding that it answers.
        mends_a_failure: Whether it is for trials that failed, and for those only.
    """

    name: str
    propose: Callable[[Seen], Proposal | None]
    how: str
    answers: str
    mends_a_failure: bool = False

    def proposal(
        self, modules: Iterable[str] = (), bytes_moved: Bytes = 0, *, dtype: str | None = None, **words: str
    ) -> Proposal:
        """The cure for some modules, and the bytes that it may save."""
        names = tuple(modules)
        how = self._lines(names, dtype=dtype or "", **words)
        cure = Cure(name=self.name, answers=self.answers, modules=names, dtype=dtype, how=how)
        return Proposal(cure=cure, bytes_moved=bytes_moved)

    def apply(self, module: nn.Module, cure: Cure) -> None:
        """Changes a model; the lines are our own, for a record from elsewhere might hold others."""
        lines = self._lines(cure.modules, dtype="float16" if cure.dtype == "float16" else "bfloat16", **_IN_ALL_RANKS)
        exec(compile(lines, __file__, "exec"), {"torch": torch, "model": module})

    def _lines(self, modules: Sequence[str], **words: str) -> str:
        lines = self.how
        for word, value in {"modules": _names_as_text(modules), **words}.items():
            lines = lines.replace(f"{{{word}}}", value)
        return lines


def _names_as_text(names: Sequence[str]) -> str:
    """Names of modules as Python text, a tuple on one line or one name a line."""
    quoted = [json.dumps(name) for name in names]
    text = f"({', '.join(quoted)}{',' if len(quoted) == 1 else ''})"
    return text if len(text) <= _LONGEST_TEXT else "(\n" + "".join(f"    {name},\n" for name in quoted) + ")"


def element_count(layout: Layout | None) -> int:
    """Elements of a tensor; 0 if its sizes are not known."""
    sizes = layout.shape if layout is not None else (0,)
    return math.prod(size if isinstance(size, int) else 0 for size in sizes)
