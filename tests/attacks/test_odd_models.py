"""Whatever the model is: it gets an answer, or an error that names the reason."""

from __future__ import annotations

import types
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from layoutdoctor.errors import LayoutDoctorError
from layoutdoctor.run.diagnose import record_only

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.subject import Mode

IMAGE = torch.linspace(-1, 1, 384).reshape(2, 3, 8, 8)


def conv() -> nn.Module:
    """In the middle of training, with gradients of its own and a part in another mode."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    net(IMAGE).sum().backward()
    net[2].eval()
    return net


class Around(nn.Module):
    """Keeps what it is given under the names given."""

    def __init__(self, **held: Any) -> None:
        super().__init__()
        for name, value in held.items():
            setattr(self, name, value)
        self.scale = nn.Parameter(torch.ones(1))


class CallsFunction(Around):
    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x) * self.scale


class CallsParent(Around):
    def forward(self, x: torch.Tensor) -> Any:
        return self.parent().net(x) * self.scale


class ReadsGlobal(Around):
    def forward(self, x: torch.Tensor) -> Any:
        return GLOBAL_NET(x - GLOBAL_MEAN) * self.scale


class OfItsClass(Around):
    net: Any = None

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x) * self.scale


class WritesGlobal(Around):
    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            GLOBAL_MEAN.add_(1)
        return self.net(x)


class WritesWeights(Around):
    def forward(self, x: torch.Tensor) -> Any:
        for parameter in self.net.parameters():
            parameter.data.mul_(0.5)
        return self.net(x) * self.scale


class CountsCalls(Around):
    def forward(self, x: torch.Tensor) -> Any:
        self.count += 1
        self.count = self.count.clone()
        return self.net(x) * self.scale


class Trains(Around):
    def forward(self, x: torch.Tensor) -> Any:
        if self.net[0].weight.grad is not None:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return self.net(x) * self.scale


@dataclass
class Batch:
    image: torch.Tensor


def writes_its_input(net: nn.Module) -> Callable[..., Any]:
    def run(batch: Batch) -> Any:
        batch.image.mul_(0.5)
        return net(batch.image)

    return run


GLOBAL_NET = conv()
GLOBAL_MEAN = torch.full((1, 3, 1, 1), 0.5)


def no_module(x: torch.Tensor) -> Any:
    return nn.functional.avg_pool2d(x, 2)


def closure(net: nn.Module) -> Callable[..., Any]:
    nets, weight = [net], nn.Parameter(torch.randn(4, 3, 3, 3))
    return lambda x: nets[0](x) + nn.functional.conv2d(x, weight)


def with_forward_of_its_own() -> nn.Module:
    net, other = conv(), conv()
    net.forward = lambda x: other(x) + nn.Sequential.forward(net, x)  # type: ignore[assignment]
    return net


def with_hooks() -> nn.Module:
    net, seen = conv(), types.SimpleNamespace(nets=[conv()])
    net[0].register_forward_hook(lambda module, given, output: output + seen.nets[0](given[0]))
    return net


def with_method_of_its_own() -> nn.Module:
    other, model = conv(), CallsFunction(net=conv())
    model.function = types.MethodType(lambda self, x: self.net(x) + other(x), model)
    return model


def with_parent() -> nn.Module:
    parent = nn.Module()
    parent.net = conv()
    model = CallsParent()
    model.parent, parent.child = weakref.ref(parent), model
    parent.forward = lambda x: parent.child(x)  # type: ignore[assignment]
    return parent


def with_optimizer() -> nn.Module:
    model = Trains(net=conv())
    model.optimizer = torch.optim.SGD(model.net.parameters(), lr=0.1, momentum=0.9)
    return model


def lazy(*, is_initialized: bool) -> nn.Module:
    net = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d())
    if is_initialized:
        net(IMAGE)
    return net


def with_weight_norm() -> nn.Module:
    net = nn.Sequential(torch.nn.utils.weight_norm(nn.Conv2d(3, 4, 3)), nn.ReLU())
    net(IMAGE).sum().backward()
    return net


ODD: dict[str, Callable[[], Any]] = {
    "weight_norm of old": with_weight_norm,
    "lazy": lambda: lazy(is_initialized=True),
    "lazy, not called yet": lambda: lazy(is_initialized=False),
    "a lambda as attribute": lambda: (lambda net: CallsFunction(function=lambda x: net(x)))(conv()),
    "forward of its own": with_forward_of_its_own,
    "method of its own": with_method_of_its_own,
    "hooks that use another model": with_hooks,
    "weak reference to its parent": with_parent,
    "optimizer that steps in forward": with_optimizer,
    "buffer that counts": lambda: CountsCalls(net=conv(), count=nn.Buffer(torch.zeros(1))),
    "weights halved in forward": lambda: WritesWeights(net=conv()),
    "constant written in forward": lambda: WritesGlobal(net=conv()),
    "method that reads globals": ReadsGlobal,
    "attribute of its class": lambda: type("OfItsOwnClass", (OfItsClass,), {"net": conv()})(),
    "closure": lambda: closure(conv()),
    "no module": lambda: no_module,
    "input written in forward": lambda: writes_its_input(conv()),
}
INPUTS = {"no module": IMAGE.clone().requires_grad_(), "input written in forward": (Batch(IMAGE.clone()),)}
REFUSED = {
    "lazy, not called yet": "has no shape yet (a lazy module)",
    "weak reference to its parent": "model.child.parent (ReferenceType) cannot be pickled",
}

SMOKE = ("weight_norm of old", "closure")


def troubles(name: str, mode: Mode) -> list[str]:
    """Everything that went otherwise than the table says."""
    refused, said = REFUSED.get(name), []
    try:
        diagnosis = record_only(ODD[name](), INPUTS.get(name, IMAGE), mode=mode, configurations=["eager-channels-last"])
    except LayoutDoctorError as error:
        if refused is None or refused not in str(error):
            said.append(f"{error}; expected {refused}")
    else:
        said += [f"expected {refused}"] if refused is not None else []
        for trial in diagnosis.trials:
            is_other = trial.equivalence is not None and trial.equivalence.status == "different"
            if trial.status not in ("ok", "skipped") or is_other:
                said.append(f"{trial.status} {trial.failure} {trial.equivalence}")
            said += [note for note in trial.notes if "not recorded" in note]
    return [f"{name}: {line}" for line in said]


def test_some_odd_models_get_an_answer_in_training() -> None:
    assert [line for name in SMOKE for line in troubles(name, "training")] == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_every_odd_model_gets_an_answer_or_an_error_that_names_why(mode: Mode) -> None:
    assert [line for name in ODD for line in troubles(name, mode)] == []
