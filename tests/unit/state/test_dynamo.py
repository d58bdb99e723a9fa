from __future__ import annotations

import gc
import itertools
import linecache
import sys
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo.pgo as pgo
import torch._functorch.aot_autograd as aot_autograd
from loops import for_each
from torch import nn
from torch._dynamo import convert_frame
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import CleanupManager, counters

from layoutdoctor.state.dynamo import DynamoState, _keep_contents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def _clean_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.relu() + 1


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.relu()
    torch._dynamo.graph_break()
    return y + 1


@for_each("function", [plain, broken])
def test_the_callers_compiled_function_does_not_compile_again_after_a_diagnosis(function: object) -> None:
    mine, theirs = CompileCounter(), CompileCounter()
    own = torch.compile(function, backend=mine)
    own(torch.ones(3))
    before = mine.frame_count
    state = DynamoState()
    torch.compile(function, backend=theirs)(torch.ones(3))
    torch.compile(function, backend=theirs)(torch.ones(5))
    state.restore()

    assert torch.equal(own(torch.ones(3)), torch.full((3,), 2.0))
    assert before > 0
    assert mine.frame_count == before


@for_each("is_the_callers", [False, True])
def test_what_was_compiled_meanwhile_is_compiled_again_when_asked_for(is_the_callers: bool) -> None:
    theirs = CompileCounter()
    if is_the_callers:
        torch.compile(plain, backend=CompileCounter())(torch.ones(3))
    state = DynamoState()
    compiled = torch.compile(plain, backend=theirs)
    compiled(torch.ones(3))
    first = theirs.frame_count
    state.restore()
    compiled(torch.ones(3))

    assert (first, theirs.frame_count) == (1, 2)


def test_what_was_met_is_forgotten_in_the_counters_that_the_caller_holds_and_shapes_stay_static() -> None:
    sizes: list[object] = []

    def noting(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        sizes.append(next(i for i in inputs if isinstance(i, torch.Tensor)).shape[0])
        return graph.forward

    held = counters["frames"]
    held["total"] = 3
    state = DynamoState()
    torch.compile(plain, backend=CompileCounter())(torch.ones(3))
    seen = bool(pgo._CODE_STATE)
    state.restore()
    assert counters["frames"] is held
    assert dict(held) == {"total": 3}
    torch.compile(plain, backend=noting)(torch.ones(5))

    assert seen
    assert [type(size) for size in sizes] == [int]


def test_nothing_is_left_among_the_globals_of_the_callers_module_nor_for_the_end_of_its_classes() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def call(x: torch.Tensor) -> torch.Tensor:
        return broken(model(x))

    names, finalizers = set(globals()), set(weakref.finalize._registry)  # type: ignore[attr-defined]
    sources, codes = set(linecache.cache), set(convert_frame.input_codes.seen_ids)
    cleanups = len(CleanupManager.instance.values)
    state = DynamoState()
    torch.compile(call, backend=CompileCounter())(torch.ones(3))
    added = set(globals()) - names
    state.restore()
    gc.collect()

    assert {name.split("_")[2] for name in added} >= {"import", "compiled", "resume"}
    assert set(globals()) == names
    assert len(CleanupManager.instance.values) <= cleanups
    left = set(weakref.finalize._registry) - finalizers  # type: ignore[attr-defined]
    assert [finalizer for finalizer in left if "invalidate" in str(finalizer.peek())] == []
    assert set(linecache.cache) <= sources
    assert set(convert_frame.input_codes.seen_ids) <= codes


def test_the_class_of_modules_is_as_it_was_before_dynamo_wrapped_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.mutation_guard import install_generation_tagging_init

    mark, mark_of_215 = "___needs_generation_tag_patch", "___has_generation_tag_patch"
    monkeypatch.setattr(nn.Module, mark, True, raising=False)
    monkeypatch.delattr(nn.Module, mark_of_215, raising=False)
    before = {name: vars(nn.Module).get(name) for name in ("__init__", "__setstate__", mark, mark_of_215)}
    state = DynamoState()
    install_generation_tagging_init()
    wrapped = vars(nn.Module)["__init__"]
    state.restore()

    assert wrapped is not before["__init__"]
    assert {name: vars(nn.Module).get(name) for name in before} == before


def test_a_generated_module_goes_with_the_weights_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.codecache import PyCodeCache

    name = "torch._inductor.runtime.compile_tasks.of_a_test"
    if not hasattr(PyCodeCache, "modules_no_attr"):  # torch 2.7
        monkeypatch.setattr(PyCodeCache, "modules_no_attr", {}, raising=False)
    state = DynamoState()
    module = type(sys)(name)
    monkeypatch.setitem(sys.modules, name, module)
    PyCodeCache.modules.append(module)
    PyCodeCache.modules_no_attr["a path"] = module
    PyCodeCache.linemaps["a path"] = []
    state.restore()

    assert module not in PyCodeCache.modules
    assert "a path" not in PyCodeCache.modules_no_attr
    assert "a path" not in PyCodeCache.linemaps
    assert name not in sys.modules


@for_each(
    ("container", "change"),
    [
        ({"a": [1]}, lambda c: (c["a"].append(2), c.update(b=1))),
        (OrderedDict(a=1, b=2), lambda c: c.move_to_end("a")),
        (defaultdict(Counter, {"x": Counter(n=1)}), lambda c: c["x"].update(n=4)),
        (Counter(n=2), lambda c: c.update(n=1, m=1)),
        ([1, {2}], lambda c: (c[1].add(3), c.pop(0))),
        (deque([1, 2], maxlen=2), lambda c: c.append(3)),
    ],
)
def test_contents_are_put_back_in_place(container: Any, change: Callable[[Any], object]) -> None:
    before = repr(container)
    restore = _keep_contents(container)
    change(container)
    changed = repr(container)
    restore()

    assert changed != before
    assert repr(container) == before


def test_another_torch_without_these_names_keeps_its_own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(convert_frame, "input_codes")
    monkeypatch.delattr(pgo, "_CODE_STATE")
    monkeypatch.setattr(aot_autograd, "AOT_COUNTER", object())
    counters["frames"]["total"] = 1
    state = DynamoState()
    counters["frames"]["total"] = 5
    state.restore()

    assert counters["frames"]["total"] == 1
    assert not isinstance(aot_autograd.AOT_COUNTER, itertools.count)
    assert not hasattr(pgo, "_CODE_STATE")
