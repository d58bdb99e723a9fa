"""A policy applied to a model: each call runs in the configuration for its shapes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from layoutdoctor.capture.compat import without_recompile_limit
from layoutdoctor.diagnosis.policy import Policy, load_policy
from layoutdoctor.errors import UsageError
from layoutdoctor.subjects.copies import input_tensors
from layoutdoctor.subjects.prepare import ReadyModel, compile_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from layoutdoctor.diagnosis.layout import Size

    Shapes = tuple[tuple[Size, ...], ...]


class PolicyModel:
    """
    A model that runs each call in the configuration that the policy has for it.

    A copy of the model is made for each configuration when it is first needed. Each of the policy's shapes is compiled
    with its own sizes, as it was measured. Other shapes share one more copy, in the best single choice, whose
    sizes become symbolic.
    """

    def __init__(self, model: Callable[..., Any], policy: Policy) -> None:
        self._model, self.policy = model, policy
        self._by_name = {configuration.name: configuration for configuration in policy.configurations}
        self._ready: dict[tuple[str, bool], ReadyModel] = {}
        self._compiled: set[Shapes] = set()
        self._choices: dict[tuple[str, int], dict[Shapes, str]] = {}

    def configuration_of(self, *args: Any, **kwargs: Any) -> str:
        """The name of the configuration that a call runs in."""
        return self._choice(input_tensors(args, kwargs)) or self.policy.everywhere

    def _choice(self, tensors: Sequence[torch.Tensor]) -> str | None:
        """The configuration of the case with these shapes; None if there is none."""
        where = (tensors[0].device.type if tensors else "cpu", torch.get_num_threads())
        if where not in self._choices:
            self._choices[where] = _choices(self.policy, *where)
        return self._choices[where].get(_shapes(tensors))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the copy of the model for these inputs."""
        tensors = input_tensors(args, kwargs)
        name, shapes = self._choice(tensors), _shapes(tensors)
        run = self._model_for(name or self.policy.everywhere, has_own_sizes=name is not None)
        if shapes in self._compiled:
            return run(*args, **kwargs)
        with without_recompile_limit():  # torch counts all compiled copies of a model together
            results = run(*args, **kwargs)
        if name is not None:
            self._compiled.add(shapes)
        return results

    def _model_for(self, name: str, *, has_own_sizes: bool) -> ReadyModel:
        if (name, has_own_sizes) not in self._ready:
            configuration = self._by_name[name]
            if has_own_sizes and configuration.backend == "inductor":
                arguments = {"dynamic": False, **configuration.compile_arguments}
                configuration = msgspec.structs.replace(configuration, compile_arguments=arguments)
            self._ready[name, has_own_sizes] = compile_for(self._model, configuration)
        return self._ready[name, has_own_sizes]


def _shapes(tensors: Sequence[torch.Tensor]) -> Shapes:
    return tuple(tuple(tensor.shape) for tensor in tensors)


def _choices(policy: Policy, device: str, threads: int) -> dict[Shapes, str]:
    """The configuration by shapes, of the cases for a device and a number of threads."""
    cases = [case for case in policy.cases if case.device == device]
    if not cases:
        known = ", ".join(sorted({case.device_name or case.device for case in policy.cases}))
        raise UsageError(
            f"cannot apply the policy to a model on {device}: it was made on {known}; diagnose the model here"
        )
    if device == "cpu":
        same = [case for case in cases if case.thread_count in (None, threads)]
        if not same:
            counts = ", ".join(str(case.thread_count) for case in cases)
            warnings.warn(f"the policy was made with {counts} threads, and torch uses {threads} here", stacklevel=4)
        cases = same or cases
    return {case.shapes: case.use for case in cases}


def apply_policy(model: Callable[..., Any], policy: Policy | str | Path) -> PolicyModel:
    """
    A model that runs each call in the configuration that a policy has for its shapes, device and number of threads.

    Args:
        model: A module or function; it is copied, and not changed.
        policy: Or the file that ``layoutdoctor policy --output policy.json`` wrote.

    Raises:
        RecordError: The file is no policy.
        UsageError: In a call: the policy was made on another kind of device.
    """
    return PolicyModel(model, policy if isinstance(policy, Policy) else load_policy(policy))
