"""
A tensor lies in one memory format and torch takes it for another, by the strides of its dimensions of size 1.

What it finds:
    An operation that is given a channels_last tensor and returns a contiguous one, or the reverse, where nothing but
    the strides of size-1 dimensions is the reason. Told once, in the first configuration that shows it; not where
    Inductor's layout optimization decided the format anyway.

Why it costs:
    ``Tensor.is_contiguous(memory_format=torch.channels_last)`` leaves the strides of dimensions of size 1 out; what
    ATen's operations go by (``suggest_memory_format``) does not. Such a tensor looks channels_last and is computed
    with as contiguous: the result is contiguous, what follows runs in that format, and is converted back where
    something else expects channels_last.

Example:
    ``batch[0].unsqueeze(0)`` of a channels_last batch has shape (1, 3, 32, 32) and strides (3, 1, 96, 3): a convolution
    with a contiguous weight returns contiguous. The reverse: ``image.permute(0, 3, 1, 2)`` of gray images has one
    channel with stride 1, and what follows runs in channels_last.

What to do:
    ``t = t.to(memory_format=torch.channels_last)``, or ``torch.contiguous_format`` for the reverse, where the tensor is
    made: it gives the strides that the format has. ``.contiguous(memory_format=...)`` returns it unchanged, since it
    asks ``is_contiguous``. A diagnosis of the default configurations tries the first: ``NAME+exact-strides``.

When it is fine:
    The rest of the model runs in the format that came out, or the parameters are channels_last: a convolution whose
    weight is channels_last returns channels_last all the same, and is not told.

Source:
    ``c10/core/MemoryFormat.h``, torch 2.13, tried with each operation of the list; pytorch/pytorch issues #68430,
    #78611 (over 10 % end to end), #83909 and #135358 (gradients of DistributedDataParallel).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.examination.costs import all_conversions_of, sum_known
from layoutdoctor.examination.graphs.dispatch import read_as_channels_last, read_as_contiguous
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.words import distinct, line_words, listing, op_words, shape_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Diagnosis, Finding, FxNode, Trial
    from layoutdoctor.examination.graphs.dispatch import Misread

_NAMED = 3
_CHOSEN_BY = frozenset({"contiguous", "to", "clone"})


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """At most one of each kind."""
    trials = [trial for trial in evidence.own_trials(diagnosis) if not _is_decided_by_compiler(trial)]
    for trial, found in evidence.first_showing(trials, _lost):
        yield _finding(trial, found, is_lost=True)
    as_given = [trial for trial in trials if not evidence.is_channels_last(trial)]
    for trial, found in evidence.first_showing(as_given, _gained):
        yield _finding(trial, found, is_lost=False)


def _is_decided_by_compiler(trial: Trial) -> bool:
    return any(card.applied for card in evidence.cards_of(trial))


def _lost(trial: Trial) -> list[Misread]:
    return [one for graph in trial.graphs if graph.direction != "backward" for one in read_as_contiguous(graph)]


def _gained(trial: Trial) -> list[Misread]:
    found = (one for graph in trial.graphs if graph.direction != "backward" for one in read_as_channels_last(graph))
    return [one for one in found if one.source.called not in _CHOSEN_BY]


def _finding(trial: Trial, found: list[Misread], *, is_lost: bool) -> Finding:
    layouts = [one.source.layout for one in {one.source.name: one for one in found}.values() if one.source.layout]
    last = CHANNELS_LAST_BY_RANK[len(layouts[0].shape)]
    lies, taken, wanted = (last, "contiguous", last) if is_lost else ("contiguous", last, "contiguous_format")
    tensors = [f"{shape_words(layout.shape)}, strides {_strides(layout)}" for layout in layouts]
    nodes = {one.node.name for one in found}
    conversions = [c for c in all_conversions_of(trial) if c.node in nodes and c.tensor == "activation"]
    subject, it = ("a tensor lies", "it") if len(layouts) == 1 else (f"{len(layouts)} tensors lie", "them")
    readers = distinct(_reader(one.node) for one in found)
    return RULE.finding(
        trial.name,
        f"{subject} in {lies} ({listing(tensors, _NAMED)}) and torch takes {it} for {taken}, by the strides of "
        f"dimensions of size 1: {listing(readers, _NAMED)} {'returns' if len(readers) == 1 else 'return'} {taken}",
        f"where the tensor is made: .to(memory_format=torch.{wanted}), which gives it the strides of that format; "
        ".contiguous(memory_format=...) leaves them as they are",
        severity=evidence.severity_of_cost(trial, sum_known(c.seconds for c in conversions)),
        evidence=(*distinct(one.source.name for one in found), *(c.id for c in conversions)),
        at=found[0].node,
        conversions=conversions,
    )


def _reader(node: FxNode) -> str:
    return op_words(node.target) + (f" at {line_words(node.location)}" if node.location is not None else "")


def _strides(layout: Layout) -> str:
    return f"({', '.join(map(str, layout.stride or ()))})"


RULE = document_rule("LD506", "dispatched-by-strides", check, __doc__)
