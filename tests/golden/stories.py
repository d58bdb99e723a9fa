"""
One diagnosis for each situation that a report has words for: the ``.json`` beside its reports.

For a further one save a diagnosis there, such as one made with ``builders``, describe it below, and run
``pytest --update-golden``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.saved import from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from layoutdoctor.diagnosis.diagnosis import Diagnosis

FOLDER = Path(__file__).parent
SAVED = {
    "cured": "The best configuration with a cure that helps, and one that does not.",
    "failures_and_same": "One failed, one timed out, one crashed, one was skipped; two are the same as others.",
    "gain_with_findings": "A verified gain from channels-last, as in the sketch of the first screen.",
    "hostile_names": "Every name from outside is made to end a script, a table, a code span or a string.",
    "little_recorded": 'Times, but hardly anything about kernels or decisions: never "healthy".',
    "no_convolution": "A model to which layouts do not matter.",
    "no_gain": "Nothing beats the default, although conversions cost a tenth.",
    "noisy": "The machine was busy: wide intervals, nothing certain.",
    "nothing_measured": "Every configuration failed.",
    "reproducible_round_trips": "Conversions around every batch norm; every call can be written.",
    "round_trip_by_hand": "One finding: the model itself converts there and back, as its graph proves.",
    "small_share": "One convolution that takes next to nothing; a note was found.",
    "static_target": "Lowered for a GPU that is not there: decisions, conversions and bytes, no time.",
    "tie": "The default and another configuration are equally fast.",
    "trace_of_kernel_totals": "A table: one entry stands for thousands of launches, without order or shapes.",
    "trace_of_onednn": "A log of oneDNN: reorders of activations and of weights, one of them a cast only.",
    "trace_of_owners": "Conversions by everybody, at more places than a table holds; a file cut short.",
    "trace_with_round_trips": "Two steps on two streams: what overlaps with communication costs less.",
    "trace_without_conversions": "Everything was recorded and no conversion ran: a control.",
    "trace_without_kernels": "Recorded on a CPU: no device kernel, so nothing can be concluded.",
    "training": "Forward and backward, decided apart; the backward graph counts no forward convolution.",
    "unfinished_comparison": "Stopped before anything was recommended; cut by a graph break, compiled again.",
    "usual": "Three Conv3d layers on a CPU, whose page faults matter: the first screen of docs/reading.md.",
}


def saved(story: str) -> Diagnosis:
    return from_json((FOLDER / f"{story}.json").read_bytes())


STORIES: Mapping[str, Callable[[], Diagnosis]] = {story: partial(saved, story) for story in SAVED}
