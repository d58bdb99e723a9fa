"""
Records an eager iteration as a graph: the ATen operations that ran, their layouts, and which results each one uses.

A dispatch mode below autograd sees every operation of forward and backward with its real tensors.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from layoutdoctor.capture.compat import private
from layoutdoctor.capture.fx_graph import (
    dtype_name,
    first_tensor,
    is_user_file,
    layout_of,
    operator_problem,
    source_location,
    tensor_problem,
)
from layoutdoctor.diagnosis import FxNode, Graph, SourceLocation, TensorKind
from layoutdoctor.errors import first_line
from layoutdoctor.words import described

if TYPE_CHECKING:
    from types import FrameType


class EagerRecorder(TorchDispatchMode):
    """
    Records the operations of one iteration.

    Attributes:
        nodes: Nodes so far. Each operation has one node. If its result is a tuple or list, each tensor in the result
            has a ``getitem`` node. Each tensor that no recorded operation made has a placeholder.
        failures: Operations that could not be recorded, with the error; they run all the same.
        not_understood: Names of the operations whose tensors cannot be followed, by reason.
    """

    def __init__(self, modules: ModuleTracker, weights: dict[int, TensorKind]) -> None:
        super().__init__()
        self.nodes: list[FxNode] = []
        self.failures: list[str] = []
        self.not_understood: dict[str, list[str]] = {}
        self._modules = modules
        self._weights = weights
        self._names: dict[int, tuple[str, Any]] = {}
        self._counts: dict[str, int] = {}
        self._forward: dict[int, tuple[SourceLocation | None, str | None]] = {}

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether an operation may call torch.compile while this mode is active, as flex_attention does."""
        return True

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operation unchanged and records it."""
        del types
        keywords = kwargs or {}
        inputs: tuple[str, ...] = ()
        with self.noting(function):
            inputs = tuple(self._name_of(leaf) for leaf in _tensors((args, keywords)))
        result = function(*args, **keywords)
        with self.noting(function):
            self._record(function, inputs, args, result)
        return result

    @contextlib.contextmanager
    def noting(self, function: Any) -> Iterator[None]:
        """Turns an error while recording into a note: the operation itself always runs."""
        try:
            yield
        except Exception as error:  # the model must not see an error of the recorder
            self.failures.append(f"{function}: {first_line(error)}")

    def _record(self, function: Any, inputs: tuple[str, ...], args: tuple[Any, ...], result: Any) -> None:
        location, module, backward = self._place()
        caller = _caller(sys._getframe(2))  # a line of the model, or code of torch that it called
        name = self._fresh(str(function).split(".")[1])
        tensor = first_tensor(result)
        node = FxNode(
            name=name,
            op="call_function",
            target=str(function),
            inputs=inputs,
            layout=layout_of(tensor),
            dtype=dtype_name(tensor),
            location=location,
            module=module,
            backward=backward,
            uses_running_statistics=_uses_running_statistics(function, args),
            is_called_directly=None if backward or caller is None else is_user_file(caller.f_code.co_filename),
        )
        self.nodes.append(node)
        for what in (operator_problem(function), *(tensor_problem(leaf) for leaf in _tensors(result))):
            if what is not None:
                self.not_understood.setdefault(what, []).append(name)
        if isinstance(result, torch.Tensor):
            self._remember(result, name)
        else:
            self._record_results(node, result)

    def _record_results(self, node: FxNode, result: Any) -> None:
        """Adds a ``getitem`` node for each tensor of a tuple or list, as FX graphs have them."""
        for index, leaf in enumerate(result if isinstance(result, (tuple, list)) else ()):
            if isinstance(leaf, torch.Tensor):
                name = self._fresh("getitem")
                self.nodes.append(
                    msgspec.structs.replace(
                        node,
                        name=name,
                        target="getitem",
                        inputs=(node.name,),
                        layout=layout_of(leaf),
                        dtype=dtype_name(leaf),
                        uses_running_statistics=None,
                        result_index=index,
                    )
                )
                self._remember(leaf, name)

    def _place(self) -> tuple[SourceLocation | None, str | None, bool]:
        running = private("torch._C._current_autograd_node")()
        if running is not None:
            location, module = self._forward.get(int(running._sequence_nr()), (None, None))
            return location, module, True
        place = (_user_location(sys._getframe(3)), self._modules.current)
        # Autograd numbers a node just before its operation runs, so the first operation with a number is the node's.
        self._forward.setdefault(private("torch.autograd._get_sequence_nr")() - 1, place)
        return place[0], place[1], False

    def _name_of(self, tensor: torch.Tensor) -> str:
        known = self._names.get(id(tensor))
        if known is not None and known[1]() is tensor:
            return known[0]
        kind = self._weights.get(id(tensor), "activation")
        name = self._fresh("weight" if kind == "weight" else "value")
        self.nodes.append(
            FxNode(
                name=name,
                op="placeholder",
                target=name,
                layout=layout_of(tensor),
                dtype=dtype_name(tensor),
                tensor=kind,
            )
        )
        self._remember(tensor, name)
        return name

    def _remember(self, tensor: torch.Tensor, name: str) -> None:
        self._names[id(tensor)] = (name, weakref.ref(tensor))

    def _fresh(self, stem: str) -> str:
        count = self._counts.get(stem, 0)
        self._counts[stem] = count + 1
        return f"{stem}_{count}" if count else stem

    def names_of(self, value: Any) -> tuple[str, ...]:
        """Returns the names of the nodes that made the tensors in a value, such as the model's output."""
        return tuple(self._name_of(leaf) for leaf in _tensors(value))

    def still_held(self) -> tuple[str, ...]:
        """Returns the names of operations whose results are still referenced, for example by a module with a state."""
        made = {node.name for node in self.nodes if node.op == "call_function"}
        return tuple(name for name, weak in self._names.values() if name in made and weak() is not None)


def _uses_running_statistics(function: Any, args: tuple[Any, ...]) -> bool | None:
    """Whether a batch norm uses its running statistics, by its ``training`` argument; None without such an argument."""
    schema = function._schema
    if "batch_norm" not in schema.name or "backward" in schema.name:
        return None
    names = [argument.name for argument in schema.arguments]
    position = names.index("training") if "training" in names else len(args)
    return not args[position] if position < len(args) else None


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


_WRAPPERS = ("torch/_compile.py", "torch/_dynamo/eval_frame.py")
"""Files of torch's wrappers that keep dynamo out of every ``__torch_dispatch__`` (torch 2.7 to 2.15)."""


def _caller(frame: FrameType | None) -> FrameType | None:
    """Returns the innermost frame that is not one of torch's wrappers around a dispatch mode."""
    while frame is not None and frame.f_code.co_filename.endswith(_WRAPPERS):
        frame = frame.f_back
    return frame


def _user_location(frame: FrameType | None) -> SourceLocation | None:
    """Returns the innermost line of user code in the iteration; the call that started the diagnosis is outside."""
    while frame is not None and frame.f_code is not record_eager_iteration.__code__:
        if is_user_file(frame.f_code.co_filename):
            return source_location(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


class ModuleTracker(contextlib.ExitStack):
    """Tracks which nn.Module runs, with forward hooks on the modules of a copy of the model."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._running: list[str] = []
        for name, part in module.named_modules():
            if name:
                self.callback(part.register_forward_pre_hook(partial(self._entering, name)).remove)
                self.callback(part.register_forward_hook(self._leaving, always_call=True).remove)

    @property
    def current(self) -> str | None:
        """Path of the innermost submodule that runs; None if only the model itself runs, or nothing."""
        return self._running[-1] if self._running else None

    def _entering(self, name: str, module: torch.nn.Module, args: Any) -> None:
        del module, args
        self._running.append(name)

    def _leaving(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        del module, args, output
        if self._running:
            self._running.pop()


def record_eager_iteration(step: Callable[[], None], module: torch.nn.Module, outputs: Callable[[], Any]) -> Graph:
    """
    Runs one eager iteration and returns its operations as a graph.

    A tensor that is still referenced afterwards counts as an output, because other code may depend on its layout.

    Args:
        module: The copy of the user's module that ``step`` runs, or the module of the modules that a function uses.
        outputs: Function that returns the outputs of the iteration and, in training, the gradients.

    Raises:
        Exception: Any error of the step.
    """
    weights: dict[int, TensorKind] = {id(one): "weight" for one in module.parameters() if one.dim() > 1}
    with ModuleTracker(module) as modules:
        recorder = EagerRecorder(modules, weights)
        with recorder:
            step()
        gc.collect()  # a tensor that only a reference cycle holds is not held by the model
        names: dict[str, None] = {}
        with recorder.noting("outputs of the iteration"):
            names = dict.fromkeys((*recorder.names_of(outputs()), *recorder.still_held()))
    return Graph(
        name="eager",
        direction="inference" if not any(node.backward for node in recorder.nodes) else "forward",
        decision=None,
        nodes=tuple(recorder.nodes),
        output_names=tuple(names),
        hook_failure="; ".join(list(dict.fromkeys(recorder.failures))[:3]) or None,
        not_understood=described(recorder.not_understood),
    )
