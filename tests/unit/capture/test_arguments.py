"""The arguments of a call as a record holds them: plain data and names, nothing of the user's own."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from layoutdoctor.capture.eager_graph import record_eager_iteration
from layoutdoctor.capture.fx_graph import arguments_text, fx_nodes

WORDS: dict[str, tuple[Any, str]] = {
    "nothing": (None, "None"),
    "a number": (2.5, "2.5"),
    "infinity": (float("-inf"), "-inf"),
    "a list": ([1, (2, True)], "[1, [2, True]]"),
    "a dtype": (torch.bfloat16, "torch.bfloat16"),
    "a memory format": (torch.channels_last, "torch.channels_last"),
    "a layout": (torch.strided, "torch.strided"),
    "a device": (torch.device("cpu"), "'cpu'"),
    "a mode": ("tanh", "'tanh'"),
}


@pytest.mark.parametrize("name", WORDS)
def test_plain_data_stands_as_python_writes_it(name: str) -> None:
    value, text = WORDS[name]

    assert arguments_text((value,), {}) == text
    assert arguments_text((), {"option": value}) == f"option={text}"


class Odd(int):
    """A subclass of a number, whose text could be anything."""

    def __repr__(self) -> str:
        return "__import__('os')"


@pytest.mark.parametrize(
    "value",
    [
        Odd(1),
        object(),
        {"a": 1},
        1j,
        slice(None),
        b"x",
        "/home/user/model.py",
        "two words",
        "'",
        torch.Generator(),
        "x" * 21,
    ],
    ids=lambda value: re.sub(r" object at 0x\w+", "", repr(value)),
)
def test_what_is_no_plain_data_is_not_recorded(value: object) -> None:
    assert arguments_text((1, value), {}) is None
    assert arguments_text(([value],), {}) is None


def test_eager_operations_name_what_they_read() -> None:
    x, weight = torch.randn(1, 2, 4, 4), torch.randn(3, 2, 1, 1)

    def step() -> None:
        y = torch.nn.functional.conv2d(x, weight)
        y.relu_()
        torch.cat([y, y], dim=1).split([2, 4], dim=1)

    with torch.no_grad():
        graph = record_eager_iteration(step, None, lambda: ())
    texts = {node.name: node.arguments for node in graph.nodes if node.op == "call_function"}

    assert texts == {
        "convolution": "value, value_1, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1",
        "relu_": "convolution",
        "cat": "[relu_, relu_], 1",
        "split_with_sizes": "cat, [2, 4], 1",
        "getitem": "split_with_sizes, 0",
        "getitem_1": "split_with_sizes, 1",
    }


def test_nodes_of_a_compiled_graph_name_what_they_read() -> None:
    traced = make_fx(lambda x: torch.add(x, x, alpha=2).to(torch.float64))(torch.randn(2))
    calls = [node for node in fx_nodes(traced) if node.op == "call_function"]

    assert [node.arguments for node in calls] == ["x_1, x_1, alpha=2", "add, dtype=torch.float64"]
    assert all(node.arguments is None for node in fx_nodes(traced) if node.op != "call_function")
