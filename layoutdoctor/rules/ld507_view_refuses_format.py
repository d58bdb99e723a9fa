"""
A configuration failed because the model calls ``.view`` on a tensor that is not contiguous.

What it finds:
    Configurations that ended in the error "view size is not compatible with input tensor's size and stride", with the
    line that called. Told once for all of them.

Why it costs:
    ``.view`` never copies, so it refuses to merge dimensions that do not lie next to each other: in channels_last the
    channels lie behind height and width. The configurations that are usually fastest cannot be tried at all.

Example:
    ``features.view(features.shape[0], -1)`` before a linear layer.

What to do:
    ``.reshape`` with the same arguments, or ``.flatten(1)``: the same where nothing has to be moved, a copy of this one
    tensor where it has. A diagnosis of the default configurations tries it: ``NAME+view-as-reshape``.

When it is fine:
    The model is to run contiguous only.

Source:
    ``Tensor.view`` in the PyTorch documentation; pytorch/pytorch issue #34977 and many a forum thread on channels_last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import Place
from layoutdoctor.rules.base import document_rule
from layoutdoctor.words import count_of, line_words, listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Diagnosis, Finding

_NAMED = 3


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most."""
    failed = [trial for trial in diagnosis.trials if trial.failure is not None and trial.failure.refuses_view]
    if not failed:
        return
    locations = [t.failure.location for t in failed if t.failure is not None and t.failure.location is not None]
    place = locations[0] if locations else None
    where = f" at {line_words(place)}" if place is not None else ""
    code = f" ({place.code})" if place is not None and place.code else ""
    names = [trial.name for trial in failed]
    yield RULE.finding(
        failed[0].name,
        f"{count_of(len(failed), 'configuration')} failed because `.view`{where}{code} needs contiguous memory: "
        f"{listing(names, _NAMED)}",
        "write .reshape(...) there, or .flatten(1): the same where nothing has to be moved, one copy where it has",
        severity="warning",
        evidence=names,
        at=Place(None, place, 1, None),
    )


RULE = document_rule("LD507", "view-refuses-format", check, __doc__)
