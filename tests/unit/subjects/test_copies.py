"""Copies of tensors, inputs and models, and the modules that a callable uses."""

from __future__ import annotations

import collections
import functools
import threading
import types
from typing import Any

import pytest
import torch
from torch import fx, nn

from layoutdoctor.errors import SubjectError
from layoutdoctor.subjects.copies import (
    clone_tensor,
    copy_inputs,
    copy_model,
    layout_of_tensor,
    mark_sizes,
    outermost_modules,
    symbolic_dimensions,
)

GLOBAL_NET = nn.Conv2d(3, 4, 3)
GLOBAL_NETS = {"nets": [GLOBAL_NET]}


def test_a_clone_has_the_values_and_strides_but_not_the_memory() -> None:
    for tensor in (
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(2, 3, 4, 5)[:, 1:, ::2],
        torch.randn(3, 1).expand(3, 4),
        torch.randn(12).as_strided((3, 4), (2, 1), 2),  # overlapping
        torch.randn(0, 3),
        torch.randn(()),
        torch.randn(2, 2, dtype=torch.complex64).conj(),
        torch.randn(2, requires_grad=True) * 2,
    ):
        clone = clone_tensor(tensor)

        assert torch.equal(clone, tensor)
        assert (clone.stride(), clone.is_leaf, clone.requires_grad) == (tensor.stride(), True, tensor.requires_grad)
        assert tensor.numel() == 0 or clone.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(clone_tensor(sparse).to_dense(), torch.eye(3))
    assert layout_of_tensor(sparse).stride is None


def test_marks_of_dynamic_sizes_survive_a_copy_and_are_taken_away_as_a_whole() -> None:
    marked, plain = torch.randn(4, 3), torch.randn(4, 3)
    torch._dynamo.mark_dynamic(marked, 1)
    seen: list[int] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        return x.sum(0)

    def backend(graph: fx.GraphModule, inputs: Any) -> Any:
        seen.append(len(inputs))  # a symbolic size is one
        return graph.forward

    for tensor in (clone_tensor(marked), clone_tensor(plain)):
        torch._dynamo.reset()
        torch.compile(model, backend=backend)(tensor)

    assert seen == [2, 1]
    assert symbolic_dimensions(model, (marked, plain)) == [(1,), ()]
    mark_sizes(model, (marked, plain), dynamic=False)
    assert vars(marked) == vars(plain) == {}


def test_inputs_are_copied_once_each_and_what_cannot_be_copied_is_passed_on() -> None:
    x, lock, size = torch.ones(2), threading.Lock(), types.SimpleNamespace(n=torch.ones(1))

    (one, other), keywords = copy_inputs((x, [x]), {"lock": lock, "size": size, "flag": True})

    assert one is other[0]
    assert one is not x
    assert keywords["lock"] is lock
    assert keywords["size"].n is not size.n
    assert keywords["flag"] is True


def test_of_inputs_only_the_tensors_may_be_copied() -> None:
    x, size = torch.ones(1, 2, 4, 4).to(memory_format=torch.channels_last), types.SimpleNamespace(n=torch.ones(1))

    (one, other), keywords = copy_inputs((x, x), {"size": size}, tensors_only=True)

    assert one is other
    assert one.data_ptr() != x.data_ptr()
    assert one.stride() == x.stride()
    assert torch.equal(one, x)
    assert keywords["size"] is size


def test_a_copied_model_keeps_strides_and_ties_and_carries_no_gradient() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)).to(
        memory_format=torch.channels_last
    )
    model[2].weight = model[1].weight
    model[0].weight.grad = torch.ones_like(model[0].weight)
    model.kept = model[1](torch.ones(4))  # a result of autograd, as weight_norm keeps one
    for original in (model, model.forward, functools.partial(model)):
        (copied,) = outermost_modules(copy_model(original))

        assert [p.stride() for p in copied.parameters()] == [p.stride() for p in model.parameters()]
        assert all(map(torch.equal, copied.parameters(), model.parameters()))
        assert copied[0].weight is not model[0].weight
        assert copied[2].weight is copied[1].weight
        assert not copied.kept.requires_grad
    assert copy_model(model)[0].weight.grad is None
    assert model[0].weight.grad is not None
    assert copy_model(layout_of_tensor) is layout_of_tensor


def test_a_model_that_cannot_be_copied_is_refused_with_the_reason() -> None:
    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("holds a socket")

    with pytest.raises(SubjectError) as caught:
        copy_model(Stubborn(1, 1))

    assert str(caught.value) == "cannot copy Stubborn: TypeError: holds a socket; give it a __deepcopy__"


class Caller:
    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, x: torch.Tensor) -> Any:
        return self.net(x)


class Slotted:
    __slots__ = ("net",)

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, x: torch.Tensor) -> Any:
        return self.net(x)


def callables(net: nn.Module) -> dict[str, Any]:
    """Every way in which a function comes by a module."""
    nets, table, plain, queue = [net], {"a": (net,)}, types.SimpleNamespace(net=net), collections.deque([net])
    around = Caller(net)
    around.again = [around, lambda x: around.net(x)]  # type: ignore[attr-defined]

    def helper(x: torch.Tensor) -> Any:
        return net(x)

    def by_helper(x: torch.Tensor) -> Any:
        return (lambda y: helper(y))(x)

    def with_default(x: torch.Tensor, used: Any = net) -> Any:
        return used(x)

    def with_keyword(x: torch.Tensor, *, used: Any = nets) -> Any:
        return used[0](x)

    def with_attribute(x: torch.Tensor) -> Any:
        return with_attribute.net(x)  # type: ignore[attr-defined]

    with_attribute.net = net  # type: ignore[attr-defined]
    return {
        "module": net,
        "closure": lambda x: net(x),
        "list": lambda x: nets[0](x),
        "dict of tuples": lambda x: table["a"][0](x),
        "plain object": lambda x: plain.net(x),
        "deque": lambda x: queue[0](x),
        "circle": lambda x: around.again[1](x),  # type: ignore[attr-defined]
        "helper": by_helper,
        "default": with_default,
        "keyword default": with_keyword,
        "decorated": torch.enable_grad()(helper),
        "attribute of a function": with_attribute,
        "partial": functools.partial(lambda used, x: used(x), net),
        "object": Caller(net),
        "slots": Slotted(net),
        "bound method": net.forward,
        "global": lambda x: GLOBAL_NET(x),
        "global collection": lambda x: GLOBAL_NETS["nets"][0](x),
    }


@pytest.mark.parametrize("kind", list(callables(nn.Identity())))
def test_the_modules_that_a_callable_uses_are_found(kind: str) -> None:
    net = GLOBAL_NET if kind.startswith("global") else nn.Sequential(nn.Conv2d(3, 4, 3))

    assert outermost_modules(callables(net)[kind]) == [net]
    assert outermost_modules(layout_of_tensor) == []
