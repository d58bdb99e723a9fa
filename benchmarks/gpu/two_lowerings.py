"""
One model lowered twice: statically for a target, as ``diagnose(target=...)`` does, and for real on the device.

For ``target_check``, which compares what comes out.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from layoutdoctor.analysis.graph_conversions import with_graph_conversions
from layoutdoctor.capture import retarget
from layoutdoctor.capture.compat import compile_settings
from layoutdoctor.capture.dynamo_state import DynamoState
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.run.static import lower_trial
from layoutdoctor.run.trial import compiled
from layoutdoctor.subjects.prepare import global_options, prepare
from layoutdoctor.subjects.state import preserved_state
from layoutdoctor.subjects.subject import subject_from_python
from layoutdoctor.targets import TARGETS, find_target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.measure.step import Step
    from layoutdoctor.records import Configuration, Graph, Mode
    from layoutdoctor.targets import Target


@dataclass(frozen=True)
class Model:
    """
    What is lowered on either side.

    Attributes:
        on_processor: Model and inputs for the static side.
        on_device: The same for the real one, made when it is needed.
        mode: ``inference`` or ``training``.
        configurations: To lower it under.
        is_computed: Whether the static side runs the traced graphs on the processor, as a static diagnosis does.
    """

    on_processor: tuple[nn.Module, tuple[torch.Tensor, ...]]
    on_device: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]
    mode: Mode
    configurations: tuple[Configuration, ...]
    is_computed: bool


def moved(built: tuple[nn.Module, tuple[torch.Tensor, ...]], device: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """
    A copy of a model, and its inputs, on a device, in their layouts.

    Args:
        built: Model and inputs.
        device: Such as ``cuda``.
    """
    module, inputs = built
    return copy.deepcopy(module).to(device), tuple(tensor.to(device) for tensor in inputs)


def target_of(device: str) -> Target:
    """
    The target that stands for a device; for a CPU, an H100.

    Args:
        device: ``cuda`` or ``cpu``.

    Raises:
        UsageError: No target has the device's compute capability.
    """
    major, minor = torch.cuda.get_device_capability() if device == "cuda" else (9, 0)
    same = [target for target in TARGETS if target.capability == (major, minor)]
    return same[0] if same else find_target(f"cuda:{major}{minor}")


class Uncomputed:
    """Stands for a traced graph: returns empty tensors in the layouts it was traced with, and computes nothing."""

    def __init__(self, graph_module: fx.GraphModule) -> None:
        self.nodes = list(graph_module.graph.nodes)

    def run(self, *given: Any) -> Any:
        """
        The outputs of the graph.

        Args:
            given: Its inputs; one that is returned is returned as it is.
        """
        inputs = dict(zip((node for node in self.nodes if node.op == "placeholder"), given, strict=True))
        output = next(node for node in self.nodes if node.op == "output")

        def value(node: Any) -> Any:
            if not isinstance(node, fx.Node):
                return node
            if node in inputs:
                return inputs[node]
            return pytree.tree_map(_empty, node.meta["val"])

        return pytree.tree_map(value, output.args[0], is_leaf=lambda one: isinstance(one, fx.Node))


def _empty(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(tuple(map(int, value.shape)), tuple(map(int, value.stride())), dtype=value.dtype)
    return int(value) if isinstance(value, torch.SymInt) else value


def lowered_statically(model: Model, configuration: Configuration, target: Target) -> tuple[Graph, ...]:
    """
    The graphs of a static diagnosis.

    Args:
        model: What to lower.
        configuration: Under which options and formats.
        target: For which GPU.

    Raises:
        RuntimeError: It could not be lowered.
    """
    subject = subject_from_python(*model.on_processor)
    stand_in = contextlib.nullcontext() if model.is_computed else mock.patch.object(retarget, "TracedRun", Uncomputed)
    with alone(), stand_in:
        trial = lower_trial(subject, configuration, model.mode, target, [], changes_inputs=False)
    if trial.failure is not None:
        raise RuntimeError(trial.failure.message)
    return with_graph_conversions(trial.graphs, len(trial.graph_break_reasons))


def lowered_for_real(model: Model, configuration: Configuration) -> tuple[tuple[Graph, ...], Step]:
    """
    The graphs of a compile on the device, and one iteration, warm as long as the ``alone`` lasts that both are used in.

    Args:
        model: What to lower.
        configuration: Under which options and formats.
    """
    prepared = prepare(subject_from_python(*model.on_device()), configuration, model.mode)
    step = prepared.step(model.mode, fresh_inputs=False)
    step.run = compiled(step.run, configuration)
    with compile_settings(global_options(configuration)), CompileCapture() as capture:
        step()
    step.forget_results()
    return with_graph_conversions(capture.graphs, len(capture.graph_break_reasons)), step


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A block after which torch and its compiler are as before, as around a diagnosis."""
    with preserved_state(), torch.inference_mode(mode=False):
        dynamo = DynamoState()
        try:
            yield
        finally:
            dynamo.restore()
