from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from loops import for_each
from torch import nn

from layoutdoctor.errors import SubjectError
from layoutdoctor.subjects.copies import clone_tensor, copy_model, copy_module, layout_of

GLOBAL_NET = nn.Conv2d(3, 4, 3)


def function_of_a_global(x: torch.Tensor) -> Any:
    return GLOBAL_NET(x)


def test_a_clone_has_the_values_and_strides_but_not_the_memory() -> None:
    for tensor in (
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(2, 3, 4, 5)[:, 1:, ::2],
        torch.randn(3, 1).expand(3, 4),
        torch.randn(12).as_strided((3, 4), (2, 1), 2),  # overlapping
        torch.randn(0, 3),
        torch.randn(()),
        torch.arange(6).reshape(2, 3).t(),
        torch.randn(2, 2, dtype=torch.complex64).conj(),
        torch.randn(2, requires_grad=True) * 2,
    ):
        clone = clone_tensor(tensor)

        assert torch.equal(clone, tensor)
        assert (clone.stride(), clone.is_leaf, clone.requires_grad) == (tensor.stride(), True, tensor.requires_grad)
        assert tensor.numel() == 0 or clone.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(clone_tensor(sparse).to_dense(), torch.eye(3))
    assert layout_of(sparse).stride is None


def test_a_copied_module_keeps_strides_and_ties_and_carries_no_gradient() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)).to(
        memory_format=torch.channels_last
    )
    model[2].weight = model[1].weight
    model[0].bias = nn.Parameter(torch.randn(8)[::2])
    model[0].weight.grad = torch.ones_like(model[0].weight)

    copied = copy_module(model)

    assert [p.stride() for p in copied.parameters()] == [p.stride() for p in model.parameters()]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(copied.parameters(), model.parameters(), strict=True))
    assert copied[2].weight is copied[1].weight
    assert copied[0].weight.grad is None
    assert model[0].weight.grad is not None


def test_a_module_that_cannot_be_copied_is_refused_with_the_reason() -> None:
    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("holds a socket")

    with pytest.raises(SubjectError, match=r"cannot copy Stubborn.*TypeError: holds a socket; give it a __deepcopy__"):
        copy_module(Stubborn(1, 1))


class Itself:
    """A constant, its author thought: there is no need to copy it."""

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class Frozen(Itself, nn.Conv2d):
    pass


@for_each("holder", [lambda net: net, nn.Sequential])
def test_a_copy_that_holds_the_parameters_of_the_original_is_refused(holder: Any) -> None:
    model = holder(Frozen(3, 3, 3))

    with pytest.raises(SubjectError, match=r"its copy holds the parameters of the original; make __deepcopy__ return"):
        copy_model(model)


class Copied(nn.Linear):
    """Copies itself, without the memo."""

    def __deepcopy__(self, memo: Any) -> Copied:
        made = Copied(self.in_features, self.out_features)
        made.load_state_dict(self.state_dict())
        return made


def test_real_copies_ties_views_and_tensors_without_memory_pass() -> None:
    net = nn.Sequential(Copied(2, 2), nn.Linear(2, 2), nn.Linear(2, 2), nn.LSTM(2, 2))
    net[2].weight = net[1].weight
    nn.utils.parametrizations.weight_norm(net[1], "bias")
    net.register_buffer("view", net[1].weight.data.view(-1))
    net.register_buffer("nothing", torch.empty(0))
    net.register_buffer("sparse", torch.eye(2).to_sparse())
    net.later, net.again, net.cycle = torch.empty(2, device="meta"), [net[1].weight], {}
    net.cycle["self"] = net.cycle
    net.script = torch.jit.script(nn.Linear(2, 2))

    copied = copy_module(net)

    assert copied[2].weight is copied[1].weight is copied.again[0]
    assert copied[1].weight is not net[1].weight


def make_functions(net: nn.Module) -> dict[str, Any]:
    def default(x: torch.Tensor, used: nn.Module = net) -> Any:
        return used(x)

    return {
        "closure": lambda x: net(x),
        "default": default,
        "partial": functools.partial(lambda used, x: used(x), net),
        "bound method": net.forward,
        "global": function_of_a_global,
    }


@for_each("kind", ["closure", "default", "partial", "bound method", "global"])
def test_a_functions_copy_uses_copies_of_the_modules_it_reads(kind: str) -> None:
    net = GLOBAL_NET if kind == "global" else nn.Conv2d(3, 4, 3)
    x = torch.randn(1, 3, 5, 5)
    expected = net(x).detach()

    copied = copy_model(make_functions(net)[kind])
    assert copied.module is not None
    assert torch.equal(copied.run(x), expected)
    with torch.no_grad():
        for parameter in copied.module.parameters():
            parameter.zero_()

    assert torch.equal(copied.run(x), torch.zeros_like(expected))
    assert torch.equal(net(x), expected)
    assert copy_model(layout_of) == (layout_of, None)  # which reads none


def test_a_module_that_cannot_change_its_mode_says_so() -> None:
    class Exported(nn.ReLU):
        def train(self, mode: bool = True) -> Any:
            raise NotImplementedError("Calling train() is not supported yet.")  # as torch.export's modules say

    assert copy_model(Exported()).set_mode("training") == (
        "the model cannot change between train and eval mode: it runs in the one it was exported in",
    )
