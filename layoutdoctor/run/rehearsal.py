"""
What a model does in eager mode before anything is compiled: whether it runs, what it takes, what it computes.

It computes in its own dtype and, where that runs, in float64: the reference that every configuration is held against.
"""

from __future__ import annotations

import contextlib
import functools
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from layoutdoctor.capture.fx_graph import is_user_file
from layoutdoctor.errors import LayoutDoctorError, SubjectError, first_line
from layoutdoctor.measure.equivalence import (
    Reference,
    ReferenceTensor,
    named,
    reference_tensor,
    why_random,
    with_perturbed,
)
from layoutdoctor.measure.memory import Need, out_of_memory, release_memory, resident_peak, trim_heap, why_too_little
from layoutdoctor.subjects.copies import clone_tensor, copy_model, input_tensors
from layoutdoctor.subjects.step import FIRST_CALL_SEED, Step, tensors_of
from layoutdoctor.subjects.weights import (
    SharedTensors,
    WatchedCopies,
    byte_count,
    refuse_unless_it_fits,
    weights_of,
)
from layoutdoctor.units import format_bytes
from layoutdoctor.words import joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Mode
    from layoutdoctor.measure.equivalence import StepResults
    from layoutdoctor.subjects.copies import Weights
    from layoutdoctor.subjects.subject import LoadedSubject

    OnGradient = Callable[[str, nn.Parameter], None]


_LARGE_GRADIENT = 1 << 18
"""Elements; smaller gradients are compared when all of them are there."""

_TRIM_AFTER = 1 << 26
"""Bytes of gradients and weights that may lie about unused in the heap: the next ones do not fit into the gaps."""

_PERTURBED_CALLS = 8
_PERTURBED_SECONDS = 10.0
"""No further call with perturbed weights is begun after so long."""

_PERTURBATION = {torch.float64: 30.0, torch.float32: 30.0, torch.float16: 0.5, torch.bfloat16: 0.5}
"""
By how many times its dtype's precision a weight is off at most in such a call. What is computed in float32 may come by
another algorithm (Winograd's convolution, a batch norm's sums in another order), whose error is some ten times larger;
half precision is rounded once, after sums in float32.
"""

OWN_WEIGHTS_NOTE = (
    "the model changes {count} of its weights in place: every configuration has a copy of its own of them ({size} each)"
)


FADED_NOTE = (
    "every output is 0 or next to it: that outputs are equal says nothing, and where values fade out within the "
    "network, as with random weights, a processor computes with subnormal numbers, which takes many times as long; "
    "give it trained weights"
)


@dataclass(frozen=True)
class Rehearsal:
    """
    What one eager call on a copy showed.

    Attributes:
        output_layouts: Layouts of the outputs on the caller's own input.
    """

    changes_inputs: bool
    output_layouts: tuple[Layout, ...]
    notes: tuple[str, ...] = ()
    shared: SharedTensors = field(default_factory=SharedTensors, repr=False)


def check_runs(subject: LoadedSubject, mode: Mode) -> Rehearsal:
    """
    One eager iteration on a copy, before anything else: a model that does not run is the user's to mend.

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
    notes = (*step.notes, *_notes_on(changed), *_notes_on_values(results.outputs))
    rehearsal = Rehearsal(step.fresh_inputs, results.output_layouts, notes, shared)
    # Outputs in float64 and gradients in float32, which lie on the host while configurations run.
    kept = 2 * byte_count(results.outputs) + byte_count(list(results.gradients.values())) if device == "cpu" else 0
    del copied, step, results, watched  # what was copied is gone before it is asked what is free
    activations = Need((("activations", shared.activation_bytes), ("the reference", kept)))
    # What an iteration takes is known now: copies of inputs and gradients are part of it.
    refuse_unless_it_fits(subject.name, known if peak is None else known[:1], activations)
    return rehearsal


def _notes_on(changed: Sequence[torch.Tensor]) -> tuple[str, ...]:
    return (OWN_WEIGHTS_NOTE.format(count=len(changed), size=format_bytes(byte_count(changed))),) if changed else ()


def _notes_on_values(outputs: Sequence[torch.Tensor]) -> tuple[str, ...]:
    """That a network's values have faded out, as those of a deep one with random weights do."""
    floating = [output for output in outputs if output.is_floating_point() and output.numel()]
    if not floating or any(bool((output.abs() >= torch.finfo(output.dtype).tiny).any()) for output in floating):
        return ()
    return (FADED_NOTE,)


@contextlib.contextmanager
def in_eager_mode(subject: LoadedSubject) -> Iterator[None]:
    """
    A block in which the model runs uncompiled: what it raises is the user's to mend, and is said in one line.

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
        if any(isinstance(value, (tuple, list, dict)) for value in subject.args):
            cure += "; a tuple holds positional arguments, a dict arguments by their names"
        if out_of_memory(error) is not None:
            what, cure = str(out_of_memory(error)), "diagnose it on a machine with more memory, or with a smaller input"
        if isinstance(error, SystemExit):
            cure = "take it out of the model's forward"
        raise SubjectError(
            f"cannot run {subject.name} on {describe_arguments(subject.args, subject.kwargs)}: {what}"
            f"{_place(error, subject.source)}; {cure}"
        ) from error


def describe_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Arguments in short, such as ``float32[8, 3, 224, 224], mask=bool[1, 8]``."""
    named = [f"{name}={_describe_argument(value)}" for name, value in kwargs.items()]
    return ", ".join([*map(_describe_argument, args), *named]) or "no arguments"


def _describe_argument(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)
    return type(value).__name__


def _place(error: BaseException, source: str | None) -> str:
    """The last line of the user's code that the exception passed, and the module, in brackets; empty if unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == source]
    if not own:
        own = [frame for frame in frames if is_user_file(frame.filename)]
    line = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else None
    where = joined((line, _module_of(error)), ", ")
    return f" ({where})" if where else ""


def _module_of(error: BaseException) -> str | None:
    """The innermost module whose code raised, by its path in the outermost; None where that is the same."""
    selves = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    modules = [module for module in selves if isinstance(module, nn.Module)]
    if not modules or modules[-1] is modules[0]:
        return None
    names = {id(module): name for name, module in modules[0].named_modules()}
    name = names.get(id(modules[-1]))
    return f"module {name} ({type(modules[-1]).__name__})" if name else None


class _SumsOfTerms(TorchDispatchMode):
    """
    Remembers, for every sum and mean that runs, how large its terms are.

    Attributes:
        found: The sum or mean of magnitudes, the largest, by the result's identity; with the result, which stays alive.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, tuple[torch.Tensor, float]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operation as it is, and a sum or mean once more on magnitudes."""
        del types
        keywords = kwargs or {}
        result = function(*args, **keywords)
        is_sum = str(function).split(".")[1] in ("sum", "mean") and isinstance(result, torch.Tensor)
        if is_sum and args[0].is_floating_point() and args[0].numel():
            self.found[id(result)] = (result, float(function(args[0].abs(), *args[1:], **keywords).max()))
        return result


def compute_reference(subject: LoadedSubject, mode: Mode, rehearsal: Rehearsal | None = None) -> Reference:
    """
    Runs the model in eager on copies: in its own dtype, once more with another seed, and in float64.

    In training it runs a few times more with weights that are off by some roundings, to see what these do to gradients.

    Args:
        rehearsal: What the first eager call showed; None where there was none.

    Raises:
        SubjectError: The model raised, though its first run did not.
    """
    gradients = _LargeGradients()
    with in_eager_mode(subject):
        results = _run(subject, mode, gradients.count)
        layouts = results.output_layouts
        eager = _on_host(named(results))
        del results
        random = why_random(eager, named(_run(subject, mode, seed=FIRST_CALL_SEED + 1)))
    problem = shortage = _why_no_room(subject, mode, rehearsal)
    notes: tuple[str, ...] = ()
    terms: dict[str, float] = {}
    shapes = {name: tensor.shape for name, tensor in eager.items()}
    gradients.eager = eager if random is None else {}
    exact = eager
    if problem is None:
        try:
            exact = _on_host(named(_run_in_float64(subject, mode, terms, gradients.compare)))
            same = {name: tensor.shape for name, tensor in [*exact.items(), *gradients.compared.items()]} == shapes
            problem = None if same else "it gives other outputs in float64"
        except (Exception, SystemExit) as error:  # what a model does with float64 is not known here
            shortage = out_of_memory(error)
            problem = shortage or first_line(error)
    if shortage is not None:
        notes = (f"the outputs were compared with eager's, not with float64's: {problem}",)
        release_memory()
    if problem is not None and gradients.compared:  # eager's own of these are gone
        gradients.compared.clear()
        with in_eager_mode(subject):
            eager = _on_host(named(_run(subject, mode)))
    if random is not None or problem is not None:
        exact = eager  # another dtype draws other random numbers
    name = "float64" if exact is not eager else f"eager {_floating_dtype(eager)}"
    made = {**_reference_tensors(exact, eager), **gradients.compared}
    if mode == "training" and random is None:
        _note_perturbed(subject, made)
    return Reference(name, {key: made[key] for key in shapes}, mode, layouts, random, problem, terms, notes)


def _note_perturbed(subject: LoadedSubject, made: dict[str, ReferenceTensor]) -> None:
    """
    What becomes of gradients where weights are off by a few roundings, as activations are in another configuration.

    The weights alone: an input may be a number of a class or a step, which no rounding may change.
    """
    started = time.monotonic()
    for seed in range(_PERTURBED_CALLS):
        if time.monotonic() - started > _PERTURBED_SECONDS:
            return
        release_memory()
        try:
            with in_eager_mode(subject):
                gradients = _run(subject, "training", weights=_perturbing(seed)).gradients
        except (Exception, SystemExit):  # a model may not like other weights: nothing is known of its gradients then
            return
        while gradients:  # let go of one by one, and all before the next call takes its own
            name, gradient = gradients.popitem()
            key = f"gradient of {name}"
            if key in made and made[key].shape == gradient.shape:
                made[key] = with_perturbed(made[key], gradient)
            del gradient


def _perturbing(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)

    def perturbed(tensor: torch.Tensor) -> torch.Tensor | None:
        if type(tensor) is not nn.Parameter or tensor.dtype not in _PERTURBATION:
            return None
        most = _PERTURBATION[tensor.dtype] * torch.finfo(tensor.dtype).eps
        copied = clone_tensor(tensor.detach())
        share = torch.rand(copied.shape, generator=generator).to(copied.device)
        return nn.Parameter(copied.mul_(share.mul_(2 * most).add_(1 - most)), tensor.requires_grad)

    return perturbed


class _LargeGradients:
    """
    Large gradients in float64, each compared when it is there, and let go of with the weight that has done its work.

    All of them together would take as much again as the weights in float64.

    Attributes:
        eager: The same by eager, taken out as they are compared; what is not among them is left alone.
    """

    def __init__(self) -> None:
        self.eager: dict[str, torch.Tensor] = {}
        self.compared: dict[str, ReferenceTensor] = {}
        self._parts: Counter[str] = Counter()
        self._let_go_of = 0

    def count(self, name: str, parameter: nn.Parameter) -> None:
        """Something was added to a gradient; more than once where a layer is checkpointed twice in one step."""
        del parameter
        self._parts[f"gradient of {name}"] += 1

    def compare(self, name: str, parameter: nn.Parameter) -> None:
        """The same in float64."""
        key, gradient = f"gradient of {name}", parameter.grad
        if gradient is None or gradient.numel() < _LARGE_GRADIENT or self._parts[key] != 1:
            return
        if key in self.eager and self.eager[key].shape == gradient.shape:
            parameter.grad = None
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
            eager = self.eager.pop(key)
            made = reference_tensor(key, gradient.cpu(), eager)
            if made.eager is None and made.exact.dtype == eager.dtype:  # in its place: nothing new is to stay
                made = replace(made, exact=eager.copy_(made.exact))
            self.compared[key] = made
            self._let_go_of += 2 * gradient.nbytes
            del gradient
            if self._let_go_of > _TRIM_AFTER:
                self._let_go_of = 0
                trim_heap()


def _why_no_room(subject: LoadedSubject, mode: Mode, rehearsal: Rehearsal | None) -> str | None:
    """Why a run in float64 does not fit into the memory; None where it does, or where nobody knows."""
    if rehearsal is None:
        return None
    weights = weights_of(subject.model)
    floating = [tensor for tensor in weights if tensor.is_floating_point()]
    wider = 8 / min((tensor.element_size() for tensor in floating), default=8)
    large = [tensor for tensor in floating if tensor.requires_grad and tensor.numel() >= _LARGE_GRADIENT]
    one_by_one = large if mode == "training" else []
    activations = max(rehearsal.shared.activation_bytes - byte_count(one_by_one), 0)  # gradients are among them
    need = Need(
        (
            ("weights in float64", 8 * sum(tensor.numel() for tensor in floating)),
            ("the largest gradient in float64", 8 * max((tensor.numel() for tensor in one_by_one), default=0)),
            ("activations in float64", int(wider * activations)),
        )
    )
    problem = why_too_little(need, rehearsal.shared.device)
    return None if problem is None else f"float64 needs {problem}"


def _reference_tensors(exact: dict[str, torch.Tensor], eager: dict[str, torch.Tensor]) -> dict[str, ReferenceTensor]:
    """The dicts are emptied on the way, so that a tensor is let go of once what is needed of it is known."""
    names = list(exact)
    made: dict[str, ReferenceTensor] = {}
    for name in names:
        by_eager = eager[name]
        made[name] = reference_tensor(name, exact[name], by_eager)
        exact.pop(name)
        eager.pop(name, None)
    return made


def _run(
    subject: LoadedSubject,
    mode: Mode,
    on_gradient: OnGradient | None = None,
    *,
    seed: int = FIRST_CALL_SEED,
    weights: Weights | None = None,
) -> StepResults:
    copied = copy_model(subject.model, weights)
    copied.set_mode(mode)
    _call_for_gradients(copied.module, on_gradient)
    return Step(copied.run, copied.module, subject.args, subject.kwargs, mode, first_seed=seed).results()


def _call_for_gradients(module: nn.Module | None, on_gradient: OnGradient | None) -> None:
    """Has a function called, with name and parameter, whenever something was added to a parameter's gradient."""
    if module is None or on_gradient is None:
        return
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.is_leaf:
            parameter.register_post_accumulate_grad_hook(functools.partial(on_gradient, name))


def _run_in_float64(
    subject: LoadedSubject, mode: Mode, terms: dict[str, float], on_gradient: OnGradient
) -> StepResults:
    copied = copy_model(subject.model, _double_parameter)
    copied.set_mode(mode)
    if copied.module is not None:
        copied.module.double()  # the buffers
    _call_for_gradients(copied.module, on_gradient)
    args, kwargs = pytree.tree_map(_as_double, (subject.args, subject.kwargs))
    return Step(_noting_terms(copied.run, terms), copied.module, args, kwargs, mode).results()


def _double_parameter(tensor: torch.Tensor) -> torch.Tensor | None:
    """Converted when it is copied: a copy in its own dtype beside that in float64 is not needed."""
    if type(tensor) is not nn.Parameter or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return None
    return nn.Parameter(tensor.detach().double(), tensor.requires_grad)


def _noting_terms(run: Callable[..., Any], terms: dict[str, float]) -> Callable[..., Any]:
    """The model, which notes how large the terms are of those outputs that are sums or means."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with _SumsOfTerms() as sums:
            output = run(*args, **kwargs)
        for index, tensor in enumerate(tensors_of(output)):
            if id(tensor) in sums.found:
                terms[f"output {index}"] = sums.found[id(tensor)][1]
        return output

    return call


def _as_double(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
        return leaf
    return leaf.detach().double().requires_grad_(leaf.requires_grad)


def _on_host(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """On a GPU the memory is what the model needs; the host has some left."""
    return {name: tensor if tensor.device.type == "cpu" else tensor.cpu() for name, tensor in tensors.items()}


def _floating_dtype(tensors: dict[str, torch.Tensor]) -> str:
    dtypes = [tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()]
    return str(dtypes[0] if dtypes else next(iter(tensors.values())).dtype).removeprefix("torch.")
