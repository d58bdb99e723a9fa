"""
The first run of a model: in eager mode, on a copy, before anything else is done with it.

It shows whether the model runs at all, what it takes, and what it changes in place. Faces doctor and reference; imports
measure's step, memory and weights, and errors.
"""

from __future__ import annotations

import contextlib
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.errors import LayoutDoctorError, SubjectError, first_line
from layoutdoctor.measure.copies import copy_model, input_tensors
from layoutdoctor.measure.memory import Need, out_of_memory, resident_peak
from layoutdoctor.measure.step import Step
from layoutdoctor.measure.weights import (
    SharedTensors,
    WatchedCopies,
    byte_count,
    refuse_unless_it_fits,
    weights_of,
)
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from layoutdoctor.layout import Layout
    from layoutdoctor.records import Mode
    from layoutdoctor.subjects.subject import LoadedSubject

_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<")

OWN_WEIGHTS_NOTE = (
    "the model changes {count} of its weights in place: every configuration has a copy of its own of them ({size} each)"
)


@dataclass(frozen=True)
class Rehearsal:
    """
    What one eager call on a copy showed.

    Attributes:
        changes_inputs: Whether the model writes into its inputs.
        output_layouts: Layouts of the outputs on the caller's own input.
        notes: What the reader should know.
        shared: What the configurations may share.
    """

    changes_inputs: bool
    output_layouts: tuple[Layout, ...]
    notes: tuple[str, ...] = ()
    shared: SharedTensors = field(default_factory=SharedTensors, repr=False)


def check_runs(subject: LoadedSubject, mode: Mode) -> Rehearsal:
    """
    One eager iteration on a copy, before anything else: a model that does not run is the user's to mend.

    Args:
        subject: What was loaded; it is not changed.
        mode: ``inference`` or ``training``.

    Raises:
        SubjectError: It raised: with the model's own exception, the line in the user's file and the inputs given. Or it
            does not fit into the memory: with the number needed.
    """
    weights, inputs = weights_of(subject.model), input_tensors(subject.args, subject.kwargs)
    trained = [tensor for tensor in weights if tensor.requires_grad] if mode == "training" else []
    known = [("weights", weights), ("inputs", inputs), ("gradients", trained)]
    refuse_unless_it_fits(subject.name, known)  # before anything is copied
    device = str(next((tensor.device for tensor in [*weights, *inputs]), "cpu"))
    watched = WatchedCopies()
    with in_eager_mode(subject):
        copied = copy_model(subject.model, watched)
        copied.set_mode(mode)
        step = Step(copied.run, copied.module, subject.args, subject.kwargs, mode)
        peak = resident_peak(step, device)
        results = step.results()
        changed = watched.changed()
    shared = SharedTensors(
        originals=watched.originals,
        changed=changed,
        is_ours=subject.is_ours,
        changes_inputs=step.fresh_inputs,
        activation_bytes=peak or 0,
        device=device,
    )
    rehearsal = Rehearsal(step.fresh_inputs, results.output_layouts, (*step.notes, *_notes_on(changed)), shared)
    # Outputs in float64 and gradients in float32, which lie on the host while configurations run.
    kept = 2 * byte_count(results.outputs) + byte_count(list(results.gradients.values())) if device == "cpu" else 0
    del copied, step, results, watched  # what was copied is gone before it is asked what is free
    activations = Need((("activations", shared.activation_bytes), ("the reference", kept)))
    # What an iteration takes is known now: copies of inputs and gradients are part of it.
    refuse_unless_it_fits(subject.name, known if peak is None else known[:1], activations)
    return rehearsal


def _notes_on(changed: Sequence[torch.Tensor]) -> tuple[str, ...]:
    return (OWN_WEIGHTS_NOTE.format(count=len(changed), size=format_bytes(byte_count(changed))),) if changed else ()


@contextlib.contextmanager
def in_eager_mode(subject: LoadedSubject) -> Iterator[None]:
    """
    A block in which the model runs uncompiled: what it raises is the user's to mend, and is said in one line.

    Args:
        subject: What is run.

    Raises:
        SubjectError: The model raised, or called ``sys.exit``.
    """
    try:
        yield
    except (LayoutDoctorError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        what = f"it called sys.exit({error.code!r})" if isinstance(error, SystemExit) else first_line(error)
        cure = "give inputs that the model accepts (--input, or example_input in Python)"
        if out_of_memory(error) is not None:
            what, cure = str(out_of_memory(error)), "diagnose it on a machine with more memory, or with a smaller input"
        if isinstance(error, SystemExit):
            cure = "take it out of the model's forward"
        raise SubjectError(
            f"cannot run {subject.name} on {describe_arguments(subject.args, subject.kwargs)}: {what}"
            f"{_place(error, subject.source)}; {cure}"
        ) from error


def describe_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """
    Arguments in short, such as ``float32[8, 3, 224, 224], mask=bool[1, 8]``.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    named = [f"{name}={_describe_argument(value)}" for name, value in kwargs.items()]
    return ", ".join([*map(_describe_argument, args), *named]) or "no arguments"


def _describe_argument(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)
    return type(value).__name__


def _place(error: BaseException, source: str | None) -> str:
    """The last line of the user's code that the exception passed, in brackets; empty where none is known."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == source]
    if not own:
        own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
