"""Models as nobody expects them, what a diagnosis says of each, and how to see that it left the caller's alone."""

from __future__ import annotations

import collections
import functools
import types
import weakref
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils import parametrizations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Odd(NamedTuple):
    """
    A model of a caller.

    Attributes:
        holds: Modules and tensors that are the caller's.
        refused: What the refusal says; None where it is diagnosed.
    """

    model: Any
    holds: tuple[Any, ...]
    refused: str | None = None
    inputs: Any = None

    def example_input(self) -> Any:
        return torch.ones(2, 3, 8, 8) if self.inputs is None else self.inputs


def conv() -> nn.Module:
    """In the middle of training, in no usual format and mode, with gradients of its own."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    net(torch.ones(2, 3, 8, 8)).sum().backward()
    net[2].eval()
    return net


def checksum(holds: Iterable[Any]) -> list[object]:
    """Every value, stride, flag, mode and gradient, by means of torch's that the product does not use for it."""
    found: list[object] = []
    for held in holds:
        if isinstance(held, nn.Module):
            found += [(name, part.training, id(part), sorted(part._buffers)) for name, part in held.named_modules()]
            tensors = [*held.named_parameters(remove_duplicate=False), *held.named_buffers(remove_duplicate=False)]
        else:
            tensors = [("tensor", held)]
        for name, tensor in tensors:
            found.append((name, id(tensor), tensor.requires_grad, tensor.is_leaf, *_seen(tensor)))
            if tensor.is_leaf:
                found.append((id(tensor.grad), None if tensor.grad is None else _seen(tensor.grad)))
    return found


def _seen(tensor: torch.Tensor) -> tuple[object, ...]:
    if nn.parameter.is_lazy(tensor):
        return ("lazy",)
    plain = tensor.detach() if tensor.layout != torch.strided else tensor.detach().as_subclass(torch.Tensor)
    values = zlib.crc32(repr(plain.to_dense().flatten().tolist()).encode())
    if plain.layout != torch.strided:
        return values, plain.dtype
    return values, plain.dtype, plain.shape, plain.stride(), plain.data_ptr()


class Itself:
    def __deepcopy__(self, memo: Any) -> Any:
        return self


class FrozenNet(Itself, nn.Sequential):
    pass


class SharesOneBuffer(nn.BatchNorm2d):
    def __deepcopy__(self, memo: Any) -> SharesOneBuffer:
        made = SharesOneBuffer(self.num_features)
        made.running_mean = self.running_mean
        return made


class Around(nn.Module):
    """Calls what it is given; ``how`` says where it keeps it."""

    def __init__(self, **held: Any) -> None:
        super().__init__()
        for name, value in held.items():
            setattr(self, name, value)
        self.scale = nn.Parameter(torch.ones(1))


class CallsList(Around):
    def forward(self, x: torch.Tensor) -> Any:
        return self.nets[0](x) * self.scale


class CallsDict(Around):
    def forward(self, x: torch.Tensor) -> Any:
        return self.nets["a"]["b"](x) * self.scale


class CallsFunction(Around):
    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x) * self.scale


class CallsParent(Around):
    def forward(self, x: torch.Tensor) -> Any:
        return self.parent().net(x) * self.scale


class ReadsGlobal(Around):
    def forward(self, x: torch.Tensor) -> Any:
        return GLOBAL_NET(x) * self.scale


class OfItsClass(Around):
    net: Any = None

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x) * self.scale


class ReadsConstant(Around):
    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x - GLOBAL_MEAN)


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


class TogglesFlags(Around):
    def forward(self, x: torch.Tensor) -> Any:
        self.net.requires_grad_(requires_grad=False)
        self.net.train(not self.net.training)
        return self.net(x) * self.scale


class Trains(Around):
    def forward(self, x: torch.Tensor) -> Any:
        if self.net[0].weight.grad is not None:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return self.net(x) * self.scale


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)
        self.other.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> Any:
        return self.other(self.one(x))


class ViewsOfOneStorage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        flat = torch.randn(4 * 3 * 3 * 3 + 4)
        self.weight = nn.Parameter(flat[:-4].view(4, 3, 3, 3))
        self.register_buffer("bias", flat[-4:])
        self.register_buffer("all", flat)

    def forward(self, x: torch.Tensor) -> Any:
        return nn.functional.conv2d(x, self.weight, self.bias) + self.all.mean()


class WithGaps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 6)[..., ::2])
        self.register_buffer("bias", torch.ones(1).expand(4))

    def forward(self, x: torch.Tensor) -> Any:
        return nn.functional.conv2d(x, self.weight, self.bias)


class Marked(torch.Tensor):
    """A subclass without anything of its own."""


class Subclassed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3).as_subclass(Marked))
        self.register_buffer("bias", torch.randn(4).as_subclass(Marked))

    def forward(self, x: torch.Tensor) -> Any:
        return nn.functional.conv2d(x, self.weight, self.bias)


class Caller:
    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, x: torch.Tensor) -> Any:
        return self.net(x)

    def run(self, x: torch.Tensor, scale: float = 1.0) -> Any:
        return self.net(x) * scale


class Slotted:
    __slots__ = ("net",)

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, x: torch.Tensor) -> Any:
        return self.net(x)


@dataclass
class Batch:
    image: torch.Tensor


def uses_batch(net: nn.Module) -> Callable[..., Any]:
    def run(batch: Batch) -> Any:
        batch.image.mul_(0.5)
        return net(batch.image)

    return run


GLOBAL_NET = conv()
GLOBAL_NETS = {"nets": [conv()]}
GLOBAL_MEAN = torch.full((1, 3, 1, 1), 0.5)
ELSEWHERE = types.ModuleType("layoutdoctor_elsewhere")
ELSEWHERE.net = conv()  # type: ignore[attr-defined]


def reads_global(x: torch.Tensor) -> Any:
    return GLOBAL_NET(x)


def reads_global_by_helper(x: torch.Tensor) -> Any:
    return reads_global(x)


def reads_global_collection(x: torch.Tensor) -> Any:
    return GLOBAL_NETS["nets"][0](x)


def reads_module(x: torch.Tensor) -> Any:
    return ELSEWHERE.net(x)  # type: ignore[attr-defined]


def no_module(x: torch.Tensor) -> Any:
    return nn.functional.avg_pool2d(x, 2)


def _closures(net: nn.Module) -> dict[str, Callable[..., Any]]:
    nets, table, plain, queue = [net], {"a": (net,)}, types.SimpleNamespace(net=net), collections.deque([net])
    weight = nn.Parameter(torch.randn(4, 3, 3, 3))

    def helper(x: torch.Tensor) -> Any:
        return net(x)

    def by_helper(x: torch.Tensor) -> Any:
        def inner(y: torch.Tensor) -> Any:
            return helper(y)

        return inner(x)

    def with_default(x: torch.Tensor, used: Any = net) -> Any:
        return used(x)

    def with_keyword(x: torch.Tensor, *, used: Any = nets) -> Any:
        return used[0](x)

    @torch.enable_grad()
    def decorated(x: torch.Tensor) -> Any:
        return net(x)

    def with_attribute(x: torch.Tensor) -> Any:
        return with_attribute.net(x)  # type: ignore[attr-defined]

    with_attribute.net = net  # type: ignore[attr-defined]
    return {
        "closure": lambda x: net(x),
        "closure over a list": lambda x: nets[0](x),
        "closure over a dict of tuples": lambda x: table["a"][0](x),
        "closure over a plain object": lambda x: plain.net(x),
        "closure over a deque": lambda x: queue[0](x),
        "closure over a helper": by_helper,
        "closure over a parameter": lambda x: net(x) + nn.functional.conv2d(x, weight),
        "default": with_default,
        "keyword default": with_keyword,
        "decorated": decorated,
        "attribute of a function": with_attribute,
        "partial": functools.partial(lambda used, x: used(x), net),
        "partial of a bound method": functools.partial(Caller(net).run, scale=2.0),
        "partial with a list": functools.partial(lambda x, used: used[0](x), used=nets),
        "object": Caller(net),
        "bound method of an object": Caller(net).run,
        "slots": Slotted(net),
        "bound method of a module": net.forward,
    }


def _with_forward_of_its_own() -> Odd:
    net, other = conv(), conv()
    net.forward = lambda x: other(x) + nn.Sequential.forward(net, x)  # type: ignore[assignment]
    return Odd(net, (net, other))


def _with_hooks() -> Odd:
    net, other = conv(), conv()
    seen = types.SimpleNamespace(nets=[other])
    net[0].register_forward_hook(lambda module, given, output: output + seen.nets[0](given[0]))
    return Odd(net, (net, other))


def _with_method_of_its_own() -> Odd:
    net, other = conv(), conv()
    model = CallsFunction(net=net)
    model.function = types.MethodType(lambda self, x: self.net(x) + other(x), model)
    return Odd(model, (model, other))


def _with_parent() -> Odd:
    parent = nn.Module()
    parent.net = conv()
    model = CallsParent()
    model.parent, parent.child = weakref.ref(parent), model
    parent.forward = lambda x: parent.child(x)  # type: ignore[assignment]
    return Odd(parent, (parent,), "model.child.parent (ReferenceType) cannot be pickled")


def _with_cycle() -> Odd:
    net = conv()
    holder = Caller(net)
    holder.again = [holder, lambda x: holder.net(x)]  # type: ignore[attr-defined]
    return Odd(lambda x: holder.again[1](x), (net,))  # type: ignore[attr-defined]


def _with_lru_cache() -> Odd:
    net = conv()

    @functools.lru_cache
    def get(name: str) -> nn.Module:
        return net

    return Odd(lambda x: get("net")(x), (net,))


def _with_optimizer() -> Odd:
    net = conv()
    model = Trains(net=net)
    model.optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return Odd(model, (model,))


def _of_class() -> Odd:
    net = conv()
    kind = type("OfItsOwnClass", (OfItsClass,), {"net": net})
    return Odd(kind(), (net,))


def _frozen_part() -> Odd:
    net = conv()
    net[0].requires_grad_(requires_grad=False)
    net[1].eval()
    return Odd(net, (net,))


def _lazy(*, is_initialized: bool) -> Odd:
    net = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d())
    if is_initialized:
        net(torch.ones(2, 3, 8, 8))
    return Odd(net, (net,), refused=None if is_initialized else "has no shape yet (a lazy module)")


def _around(kind: type[Around], **held: Any) -> Odd:
    net = conv()
    model = kind(net=net, **held)
    return Odd(model, (model, GLOBAL_NET, GLOBAL_MEAN))


def _normed(norm: Callable[..., nn.Module]) -> Odd:
    net = nn.Sequential(norm(nn.Conv2d(3, 4, 3)), nn.ReLU())
    net(torch.ones(2, 3, 8, 8)).sum().backward()
    return Odd(net, (net,))


def _held(kind: type[Around], wrap: Callable[[nn.Module], Any], **more: Any) -> Odd:
    net = conv()
    model = kind(**{more.get("name", "nets"): wrap(net)})
    return Odd(model, (model, net))


def _plain(net: nn.Module, refused: str | None = None) -> Odd:
    return Odd(net, (net,), refused)


def _with_input(net: nn.Module, batch: Batch) -> Odd:
    return Odd(uses_batch(net), (net, batch.image), inputs=(batch,))


def _of_callable(name: str) -> Odd:
    net = conv()
    return Odd(_closures(net)[name], (net,))


SHARED = "its copy holds the parameters of the original"

ODD: dict[str, Callable[[], Odd]] = {
    "__deepcopy__ of itself": lambda: (lambda net: Odd(net, (net,), SHARED))(FrozenNet(conv())),
    "part with __deepcopy__ of itself": lambda: (lambda net: Odd(net, (net,), SHARED))(
        nn.Sequential(FrozenNet(conv()))
    ),
    "__deepcopy__ that shares a buffer": lambda: (lambda net: Odd(net, (net,), SHARED))(
        nn.Sequential(SharesOneBuffer(3))
    ),
    "weight_norm of old": lambda: _normed(torch.nn.utils.weight_norm),
    "weight_norm": lambda: _normed(parametrizations.weight_norm),
    "spectral_norm of old": lambda: _normed(torch.nn.utils.spectral_norm),
    "spectral_norm": lambda: _normed(parametrizations.spectral_norm),
    "orthogonal": lambda: _normed(parametrizations.orthogonal),
    "lazy": lambda: _lazy(is_initialized=True),
    "lazy, not called yet": lambda: _lazy(is_initialized=False),
    "tied": lambda: _plain(Tied()),
    "views of one storage": lambda: _plain(ViewsOfOneStorage()),
    "gaps and repetition": lambda: _plain(WithGaps()),
    "tensor subclass": lambda: _plain(Subclassed(), "implement new_empty()"),
    "sparse buffer and one in float16": lambda: _plain(_with_sparse()),
    "frozen part": _frozen_part,
    "modules in a list": lambda: _held(CallsList, lambda net: [net]),
    "modules in nested dicts": lambda: _held(CallsDict, lambda net: {"a": {"b": net}}),
    "a lambda as attribute": lambda: _held(CallsFunction, lambda net: lambda x: net(x), name="function"),
    "forward of its own": _with_forward_of_its_own,
    "method of its own": _with_method_of_its_own,
    "hooks that use another model": _with_hooks,
    "weak reference to its parent": _with_parent,
    "a circle of objects and functions": _with_cycle,
    "lru_cache": _with_lru_cache,
    "optimizer that steps in forward": _with_optimizer,
    "buffer that counts": lambda: _around(CountsCalls, count=nn.Buffer(torch.zeros(1))),
    "weights halved in forward": lambda: _around(WritesWeights),
    "flags changed in forward": lambda: _around(TogglesFlags),
    "constant of the module": lambda: _around(ReadsConstant),
    "constant written in forward": lambda: _around(WritesGlobal),
    "method that reads a global": lambda: Odd(ReadsGlobal(), (GLOBAL_NET,)),
    "attribute of its class": _of_class,
    "function of a global": lambda: Odd(reads_global, (GLOBAL_NET,)),
    "function of a helper's global": lambda: Odd(reads_global_by_helper, (GLOBAL_NET,)),
    "function of a global collection": lambda: Odd(reads_global_collection, (GLOBAL_NETS["nets"][0],)),
    "function of a Python module": lambda: Odd(reads_module, (ELSEWHERE.net,)),
    "no module": lambda: Odd(no_module, (), inputs=torch.ones(2, 3, 8, 8, requires_grad=True)),
    "input written in forward": lambda: _with_input(conv(), Batch(torch.ones(2, 3, 8, 8))),
    **{name: functools.partial(_of_callable, name) for name in _closures(nn.Identity())},
}


def _with_sparse() -> nn.Module:
    net = conv()
    net.register_buffer("sparse", torch.eye(3).to_sparse())
    net.register_buffer("halves", torch.ones(3, dtype=torch.float16))
    return net
