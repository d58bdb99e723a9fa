from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import sympy
import torch

from layoutdoctor.analysis.graph_conversions import graph_conversions
from layoutdoctor.capture import session as session_module
from layoutdoctor.capture.compat import DynamoState, compile_settings, distinct_options
from layoutdoctor.capture.inductor_graph import _Accesses, _is_reordered, _strides, code_fingerprint
from layoutdoctor.capture.session import CompileCapture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.records import Conversion, Graph


NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def _dynamo_as_before() -> Iterator[None]:
    state = DynamoState()
    yield
    state.restore()


class Chain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(4, 16, 3, padding=1)
        self.second = torch.nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))))


def captured(model: Callable[..., Any], *args: Any, on: bool = True) -> tuple[Graph, ...]:
    own = distinct_options(f"test {next(NUMBERS)}")  # else dynamo reuses the code of an equal model
    compiled = torch.compile(model, options={"layout_optimization": on, **own})
    with compile_settings({}), CompileCapture() as capture, torch.no_grad():
        expected, result = model(*args), compiled(*args)
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-4)
    assert capture.failures == ()
    assert all(graph.hook_failure is None for graph in capture.graphs)
    return capture.graphs


def image(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (2, 4, 12, 12))


def summary(conversions: tuple[Conversion, ...]) -> list[tuple[str, str, bool]]:
    return [(c.tensor, c.direction, c.fused) for c in conversions]


@pytest.mark.compile
def test_a_chain_under_layout_optimization_moves_its_input_and_weights_and_fuses_the_way_back() -> None:
    (graph,) = captured(Chain(), image())
    conversions = graph_conversions(graph)

    assert sorted(summary(conversions)) == [
        ("activation", "to_channels_last", False),
        ("activation", "to_contiguous", True),
        ("weight", "to_channels_last", False),
        ("weight", "to_channels_last", False),
    ]
    assert all(c.kernel in graph.kernel_names for c in conversions)
    assert {c.owner for c in conversions} == {"compiler"}
    assert graph.decision is not None
    assert (graph.decision.applied, graph.decision.channels_last_convolution_count) == (True, 2)


@pytest.mark.compile
def test_the_same_chain_without_it_has_no_conversion_in_its_graph() -> None:
    (graph,) = captured(Chain(), image(), on=False)

    assert graph_conversions(graph) == ()
    assert graph.decision is not None
    assert (graph.decision.applied, graph.decision.rule) == (False, "config-off")
    assert sum(buffer.is_extern for buffer in graph.buffers) == 2


@pytest.mark.compile
def test_moves_that_change_the_shape_or_the_place_are_no_conversions() -> None:
    def moves(x: torch.Tensor) -> list[torch.Tensor]:
        padded = torch.nn.functional.pad(x, (1, 1, 2, 2))
        return [
            padded,
            torch.cat([x, x], 1),
            torch.roll(x, 3, 2),
            x[:, 1:, ::2].clone(),
            x.flip(3),
            x.repeat(1, 2, 1, 1),
        ]

    for x in (image(), image().to(memory_format=torch.channels_last)):
        (graph,) = captured(moves, x)
        assert graph.kernel_names
        assert graph_conversions(graph) == ()


@pytest.mark.compile
def test_what_a_user_converts_is_found_by_what_the_kernel_does() -> None:
    (graph,) = captured(lambda x: x.clone(memory_format=torch.channels_last), image())
    (conversion,) = graph_conversions(graph)

    assert (conversion.direction, conversion.fused, conversion.tensor) == ("to_channels_last", False, "activation")
    assert conversion.bytes_moved == 2 * 4 * image().numel()


@pytest.mark.compile
def test_equal_models_have_equal_code_and_others_have_not() -> None:
    x = image()
    first, again = captured(Chain(), x), captured(Chain(), x)
    other = captured(Chain(), x, on=False)

    assert first[0].code_fingerprint is not None
    assert first[0].code_fingerprint == again[0].code_fingerprint
    assert first[0].code_fingerprint != other[0].code_fingerprint


@pytest.mark.compile
def test_for_three_dimensional_convolutions_the_option_changes_no_code() -> None:
    model = torch.nn.Sequential(torch.nn.Conv3d(4, 16, 3, padding=1), torch.nn.ReLU())
    x = image(1, 4, 6, 6, 6)
    (on,), (off,) = captured(model, x), captured(model, x, on=False)

    assert on.code_fingerprint == off.code_fingerprint
    assert on.decision is not None
    assert (on.decision.applied, on.decision.channels_last_convolution_count) == (True, 0)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("function", "part"),
    [
        ("describe_decision", "decision"),
        ("buffers_of", "buffers"),
        ("fx_nodes", "FX nodes"),
        ("code_fingerprint", "generated code"),
    ],
)
def test_a_capture_that_fails_is_recorded_and_the_compile_goes_on(
    function: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: Any, **keywords: Any) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(session_module, function, failing)
    compiled = torch.compile(lambda x: x.relu() + 1)
    with compile_settings({}), CompileCapture() as capture:
        result = compiled(torch.ones(3, 4))

    assert torch.equal(result, torch.full((3, 4), 2.0))
    assert [graph.hook_failure for graph in capture.graphs] == [f"{part}: RuntimeError: boom"]


@pytest.mark.compile
def test_a_failure_of_the_whole_record_is_noted_and_the_compile_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_graph_record", lambda *args: 1 / 0)
    compiled = torch.compile(lambda x: x.relu() + 2)
    with compile_settings({}), CompileCapture() as capture:
        result = compiled(torch.ones(3, 4))

    assert torch.equal(result, torch.full((3, 4), 3.0))
    assert capture.graphs == ()
    assert capture.failures == ("graph not recorded: ZeroDivisionError: division by zero",)


def accesses(loads: dict[str, list[int] | None], stores: dict[str, list[int] | None], *, only_moves: bool) -> _Accesses:
    return _Accesses(list(loads.items()), list(stores.items()), only_moves)


def test_a_body_that_only_loads_and_stores_in_another_order_moves() -> None:
    body = accesses({"x": [48, 1, 4]}, {"buf0": [48, 16, 1]}, only_moves=True)

    assert (body.moved("buf0"), body.converted("buf0")) == (["x"], [])
    assert body.moved("buf1") == []


def test_a_body_that_computes_or_reads_two_buffers_converts() -> None:
    computing = accesses({"x": [48, 1, 4]}, {"buf0": [48, 16, 1]}, only_moves=False)
    reading_two = accesses({"x": [48, 1, 4], "y": [48, 16, 1]}, {"buf0": [48, 16, 1]}, only_moves=True)

    assert (computing.moved("buf0"), computing.converted("buf0")) == ([], ["x"])
    assert (reading_two.moved("buf0"), reading_two.converted("buf0")) == ([], ["x"])


@pytest.mark.parametrize(
    ("source", "target", "reordered"),
    [
        ([48, 1, 4], [48, 16, 1], True),
        ([96, 16, 1], [48, 16, 1], False),
        ([0, 1, 4], [48, 16, 1], False),
        ([48, 1, 4], [0, 16, 1], False),
        ([1], [1], False),
        (None, [48, 16, 1], False),
        ([48, 1, 4], None, False),
        ([-1, 4], [4, 1], True),
    ],
)
def test_orders_are_compared_where_both_walk_every_element(
    source: list[int] | None, target: list[int] | None, reordered: bool
) -> None:
    assert _is_reordered(source, target) is reordered


def test_an_index_that_is_not_affine_has_no_strides() -> None:
    i, j = sympy.symbols("i j", integer=True, nonnegative=True)

    assert _strides(12 * i + 3 * j + 5, [i, j]) == [12, 3]
    assert _strides(i * j, [i, j]) is None
    assert _strides(12 * sympy.Function("ModularIndexing")(i, 4), [i, j]) is None


def test_names_that_differ_by_compile_do_not_change_a_fingerprint() -> None:
    source = "# AOT ID: ['{}_inference']\nkernel = load('/tmp/torchinductor_{}/ab/cab.cpp')\ngraph_{}_call(x)  \n"
    one, other = source.format(0, "me", 0), source.format(3, "you", 3)

    assert code_fingerprint([one]) == code_fingerprint([other])
    assert code_fingerprint([one]) != code_fingerprint([one.replace("(x)", "(y)")])
    assert code_fingerprint([one, "a"]) != code_fingerprint([one + "a"])
