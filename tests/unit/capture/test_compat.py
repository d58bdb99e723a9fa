from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.graph import GraphLowering

from layoutdoctor.capture.compat import (
    InductorHooks,
    compile_settings,
    distinct_options,
    inductor_config,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _clean_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


def test_settings_hold_inside_and_are_as_before_outside() -> None:
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch

    config = inductor_config()

    def values() -> tuple[object, ...]:
        return (
            config.freezing,
            config.fx_graph_cache,
            functorch.enable_autograd_cache,
            dynamo.automatic_dynamic_shapes,
            dynamo.suppress_errors,
        )

    before = values()
    with contextlib.suppress(KeyError), compile_settings({"freezing": True, "no_such_setting": 1}):
        inside = values()
        raise KeyError
    assert inside == (True, False, False, False, False)
    assert values() == before


def test_options_that_set_configurations_apart_differ_and_are_known_to_inductor() -> None:
    one, other = distinct_options("a"), distinct_options("b")

    assert one != other
    with inductor_config().patch(**one):  # an unknown option would raise
        pass


def test_hooks_are_undone_also_where_a_compile_raises() -> None:
    before = GraphLowering.decide_layout_opt, GraphLowering.compile_to_module
    with contextlib.suppress(ZeroDivisionError), InductorHooks(lambda *_: None, lambda *_: None):
        inside = GraphLowering.decide_layout_opt
        raise ZeroDivisionError

    assert inside is not before[0]
    assert (GraphLowering.decide_layout_opt, GraphLowering.compile_to_module) == before


def test_a_hook_that_raises_is_noted_and_the_decision_stands() -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("boom")

    with InductorHooks(failing, lambda *_: None) as hooks:
        result = GraphLowering.decide_layout_opt(torch.fx.symbolic_trace(torch.nn.ReLU()), is_inference=True)

    assert result is False
    assert hooks.failures == ["a layout decision: RuntimeError: boom"]
