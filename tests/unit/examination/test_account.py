from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builders import (
    a_buffer,
    a_comparison,
    a_configuration,
    a_conversion,
    a_diagnosis,
    a_graph,
    a_kernel,
    a_location,
    a_measurement,
    a_node,
    a_placeholder,
    a_ratio,
    a_recommendation,
    a_trial,
    channels_last,
    contiguous,
    kernels,
    recordings_of,
)

from layoutdoctor.examination import examine
from layoutdoctor.examination.account import account, accounts_of

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Account, AccountRow
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.graph import FxNode, Graph
    from layoutdoctor.diagnosis.kernel import Kernel
    from layoutdoctor.diagnosis.trial import Trial

MS = 1e-3
CONV = "aten.convolution.default"


def at(line: int, name: str, target: str = "aten.relu.default", **changes: Any) -> FxNode:
    """An operation of module ``m<line>`` at that line."""
    fields = {"inputs": ("x",), "location": a_location(line), "module": f"m{line}", **changes}
    return a_node(name, target, **fields)


def in_eager(node: str, milliseconds: float, name: str = "aten::relu", **changes: Any) -> Kernel:
    fields = {"library": "aten", "op": name, "node": node, "graph": "eager", **changes}
    return a_kernel(name, milliseconds * MS, **fields)


def generated(milliseconds: float, name: str = "cpp_fused_0", **changes: Any) -> Kernel:
    return a_kernel(name, milliseconds * MS, **{"library": "inductor", "graph": "graph 0", **changes})


def ran(
    name: str,
    *ran_kernels: Kernel,
    takes: float,
    graph: Graph,
    conversions: tuple[Conversion, ...] = (),
    **changes: Any,
) -> Trial:
    seconds = sum(kernel.seconds or 0.0 for kernel in ran_kernels)
    measurement = a_measurement(takes * MS, **changes)
    summary = kernels(*conversions, seconds=seconds, kernels=ran_kernels)
    return a_trial(name, graphs=(graph,), kernels=summary, measurement=measurement)


def eager(*nodes: FxNode) -> Graph:
    return a_graph(name="eager", direction="forward", nodes=nodes)


def told(slower: Trial, faster: Trial) -> Account:
    found = account(slower, faster)
    assert found is not None
    assert sum(row.seconds for row in found.rows) == pytest.approx(found.slower_seconds - found.faster_seconds)
    return found


def parts(found: Account) -> list[tuple[str, float, tuple[str, ...]]]:
    return [(row.kind, round(row.seconds / MS, 6), row.operations) for row in found.rows]


def row_of(found: Account, kind: str) -> AccountRow:
    (row,) = (row for row in found.rows if row.kind == kind)
    return row


def test_a_fused_kernel_stands_for_all_that_is_fused_into_it_also_for_parts_of_a_concatenation() -> None:
    nodes = (at(1, "relu"), at(2, "pool", "aten.max_pool2d.default"), at(3, "cat", "aten.cat.default"))
    whole = a_buffer("buf2", kernel=None, launch=None, origins=("cat",))
    part = a_buffer("buf0", origins=("relu", "pool"), alias_of="buf2")
    slower = ran("inductor", generated(12.3), takes=14, graph=a_graph(nodes=nodes, buffers=(part, whole)))
    faster = ran("eager", *(in_eager(node.name, 0.3) for node in nodes), takes=2, graph=eager(*nodes))

    found = told(slower, faster)

    assert parts(found) == [
        ("generated_kernel", 11.4, ("relu", "max_pool2d", "cat")),
        ("outside_kernels", 0.6, ()),
    ]
    row = row_of(found, "generated_kernel")
    assert (row.slower_seconds, row.faster_seconds) == pytest.approx((12.3 * MS, 0.9 * MS))
    assert [place.line for place in row.locations] == [1, 2, 3]
    assert row.slower_kernels == ("cpp_fused_0",)
    assert row.faster_kernels == ("aten::relu",)


def test_what_only_moves_data_has_rows_that_say_so() -> None:
    nodes = (
        at(1, "cat", "aten.cat.default"),
        at(2, "kept", "aten.clone.default", called="clone"),
        at(2, "zeros", "aten.new_zeros.default", called="new_zeros"),
        at(3, "relu"),
    )
    slower = ran("eager", *(in_eager(node.name, 2.0) for node in nodes), takes=9, graph=eager(*nodes))
    faster = ran("eager-channels-last", *(in_eager(node.name, 1.0) for node in nodes), takes=4, graph=eager(*nodes))

    assert sorted(parts(told(slower, faster))) == [
        ("data_movement", 1.0, ("cat",)),
        ("data_movement", 2.0, ("clone", "new_zeros")),
        ("operation", 1.0, ("relu",)),
        ("outside_kernels", 1.0, ()),
    ]


def test_forward_and_backward_of_one_line_are_apart_and_other_lines_too() -> None:
    forward, backward = at(1, "relu"), at(1, "threshold", "aten.threshold_backward.default", backward=True)
    other = at(2, "gelu", "aten.gelu.default")
    graph = eager(forward, backward, other)
    slow = [in_eager("relu", 3), in_eager("threshold", 5, backward=True), in_eager("gelu", 2)]
    fast = [in_eager("relu", 1), in_eager("threshold", 1, backward=True), in_eager("gelu", 2)]

    found = told(ran("eager", *slow, takes=10, graph=graph), ran("eager-channels-last", *fast, takes=4, graph=graph))

    assert [(row.kind, row.operations, row.backward, round(row.seconds / MS, 6)) for row in found.rows] == [
        ("operation", ("threshold_backward",), True, 4),
        ("operation", ("relu",), False, 2),
        ("outside_kernels", (), False, 0),
    ]


def test_a_call_is_told_by_its_layout_else_by_the_code_that_the_library_chose() -> None:
    def side(name: str, layout: Any, code: str | None, takes: float, kernel_name: str = "convolution") -> Trial:
        given, node = a_placeholder("x", layout), at(4, "convolution", CONV, called="conv2d")
        kernel = a_kernel(kernel_name, takes * MS, implementation=code, node="convolution", graph="graph 0")
        return ran(name, kernel, takes=takes, graph=a_graph(nodes=(given, node)))

    other_layout = told(side("a", contiguous(), "jit", 4), side("b", channels_last(), "brgconv", 3))
    other_code = told(side("a", contiguous(), "gemm:ref", 4), side("b", contiguous(), "brgconv", 3))
    same = told(side("a", contiguous(), "jit", 4), side("b", contiguous(), "jit", 3))

    row = row_of(other_layout, "layout")
    assert (row.operations, row.slower_layout, row.faster_layout) == (("conv2d",), contiguous(), channels_last())
    assert row_of(other_code, "implementation").slower_kernels == ("convolution gemm:ref",)
    assert [row.kind for row in same.rows] == ["operation", "outside_kernels"]
    # A weight that is converted in each call is a row of its own; the convolution itself runs the same code.
    reorder = a_kernel("reorder", 0.5 * MS, implementation="jit:uni", node="convolution", graph="graph 0")
    weight = a_conversion("k", tensor="weight", kernel="reorder", node="convolution", graph="graph 0", seconds=0.5 * MS)
    slow = side("a", contiguous(), "jit", 4)
    slow = ran("a", *slow.kernel_summary.kernels, reorder, takes=4.5, graph=slow.graphs[0], conversions=(weight,))
    assert parts(told(slow, side("b", contiguous(), "jit", 3)))[:2] == [
        ("operation", 1.0, ("conv2d",)),
        ("conversion", 0.5, ("conversion of weights",)),
    ]
    # A compiled call reads the compiler's buffer, which may have another layout than the traced tensor.
    made = a_buffer("buf0", layout=channels_last(), kernel="triton_0")
    call = a_buffer("buf1", kernel="conv", is_extern=True, source_node="convolution", reads=("buf0",), launch=None)
    converted = side("a", contiguous(), "jit", 4)
    graphs = (msgspec.structs.replace(converted.graphs[0], buffers=(made, call)),)
    converted = msgspec.structs.replace(converted, graphs=graphs)
    assert row_of(told(converted, side("b", channels_last(), "jit", 3)), "operation").slower_layout == channels_last()
    # What no library took is slow in either format: a DynUNet whose small Conv3d freezing brings into oneDNN.
    fallback = side("a", contiguous(), None, 4, "aten::slow_conv3d_forward")
    assert row_of(told(fallback, side("b", channels_last(), "brgconv", 3)), "implementation").seconds == pytest.approx(
        MS
    )


def test_kernels_that_share_a_layout_with_the_other_side_are_not_slower_for_their_layout() -> None:
    def side(name: str, takes: float, *layouts: Any) -> Trial:
        buffers = [
            a_buffer(f"buf{n}", kernel=f"triton_{n}", launch=n, layout=one, origins=("relu",))
            for n, one in enumerate(layouts)
        ]
        launched = [generated(takes, name=f"triton_{n}") for n in range(len(layouts))]
        graph = a_graph(nodes=(at(1, "relu"),), buffers=buffers)
        return ran(name, *launched, takes=takes * len(layouts), graph=graph)

    other = told(side("a", 3, contiguous(), contiguous()), side("b", 1, channels_last(), channels_last()))
    mixed = told(side("a", 3, contiguous(), channels_last()), side("b", 1, channels_last(), channels_last()))

    assert [row.kind for row in other.rows] == ["layout", "outside_kernels"]
    assert [row.kind for row in mixed.rows] == ["generated_kernel", "outside_kernels"]


def test_conversions_are_rows_of_their_own_and_the_kernel_loses_their_time() -> None:
    conv = at(4, "convolution", CONV)
    reorders = [a_kernel("reorder", (1 + n) * MS, node="convolution", graph="graph 0") for n in range(2)]
    call = a_kernel("convolution", 5 * MS, node="convolution", graph="graph 0")
    made = [
        a_conversion(
            f"reorder {n}", node="convolution", graph="graph 0", seconds=(1 + n) * MS, tensor="weight", owner="library"
        )
        for n in range(2)
    ]
    copied = a_conversion(
        "copy", owner="compiler", graph="graph 0", value="buf0", seconds=2 * MS, seconds_source="measured", fused=False
    )
    fused = a_conversion("fused", graph="graph 0", value="buf0", seconds=MS, fused=True)
    graph = a_graph(
        nodes=(conv, at(5, "relu")), buffers=(a_buffer("buf0", origins=("relu",)),), conversions=(copied, fused)
    )
    slower = ran("inductor", *reorders, call, generated(3), takes=12, graph=graph, conversions=tuple(made))
    plain = a_graph(nodes=(conv, at(5, "relu")), buffers=(a_buffer("buf0", origins=("relu",)),))
    faster = ran("inductor-freezing", call, generated(1), takes=7, graph=plain)

    found = told(slower, faster)

    assert parts(found) == [
        ("conversion", 3, ("conversion of weights",)),
        ("conversion", 2, ("conversion of activations",)),
        ("outside_kernels", 0, ()),
    ]
    assert [row.detail for row in found.rows[:2]] == [
        "2 weights against none, inside library calls",
        "1 activation against none, in compiled kernels",
    ]


@pytest.mark.parametrize(("slow_code", "kind"), [("gemm:ref", "implementation"), ("brgconv", "operation")])
def test_calls_that_run_the_same_two_codes_in_every_layer_are_one_row(slow_code: str, kind: str) -> None:
    """A video VAE lost 48 ms in 90 calls; a third of it stood in "130 rows, each small"."""
    lines = range(1, 41)
    nodes = [at(line, f"conv{line}", CONV, called="conv3d") for line in lines]

    def side(name: str, code: str, takes: float) -> Trial:
        called = (a_kernel("convolution", takes * MS, implementation=code, node=n.name, graph="eager") for n in nodes)
        return ran(name, *called, takes=40 * takes, graph=eager(*nodes))

    row = told(side("a", slow_code, 2), side("b", "brgconv", 1)).rows[0]

    assert (row.kind, row.count, row.seconds) == (kind, 40, pytest.approx(40 * MS))
    assert [place.line for place in row.locations] == [*lines]
    assert row.slower_kernels == (f"convolution {slow_code}",)


def test_a_small_fallback_is_not_the_reason_of_a_row_whose_time_is_in_a_kernel_that_is_fused_there() -> None:
    """BiFPN: four SiLU kernels took 249 of 274 us; the row was "other library code" for one fallback of 32 us."""
    nodes = (at(1, "conv", CONV, called="conv2d"), at(1, "silu", "aten.silu.default"))
    call, buffers = {"node": "conv", "graph": "graph 0"}, [a_buffer(launch=0, origins=("silu",))]
    for fused, kind in ((3, "missing_fusion"), (0.5, "implementation")):
        before = a_kernel("aten::_slow_conv2d_forward", 2 * MS, library="aten", **call)
        after = a_kernel("convolution", 1 * MS, implementation="brgconv", **call)
        slower = ran("a", before, generated(fused), takes=2 + fused, graph=a_graph(nodes=nodes, buffers=buffers))
        faster = ran("b", after, takes=1, graph=a_graph(nodes=nodes[:1]))
        assert [row.kind for row in told(slower, faster).rows][:1] == [kind]


@pytest.mark.parametrize(
    ("with_silu", "row"),
    [
        (2.5, ("missing_fusion", 2.0, ("silu",))),
        (3.25, ("missing_fusion", 0.5, ("silu",))),
        (4.5, ("operation", -2.0, ("conv2d",))),
    ],
)
def test_an_operation_that_the_other_side_fuses_into_a_call_counts_together_with_the_call(
    with_silu: float, row: tuple[str, float, tuple[str, ...]]
) -> None:
    """EfficientNet's "848 us from 31 x silu, not fused" were 154 us: with silu, the convolutions took 694 us longer."""
    silus = [at(10 + number, f"silu{number}", "aten.silu.default") for number in (0, 1)]
    convs = [at(number, f"conv{number}", CONV, called="conv2d") for number in (0, 1)]
    # A call has the place of the last operation that is fused into it.
    fused = [
        msgspec.structs.replace(conv, location=silu.location, module=silu.module)
        for conv, silu in zip(convs, silus, strict=True)
    ]
    plain, alone = [], []
    for number, conv in enumerate(convs):
        call = {"node": conv.name, "graph": "graph 0"}
        plain += [a_kernel("convolution", 2 * MS, **call), generated(1.5, f"cpp_fused_{number}")]
        alone.append(a_kernel("convolution", with_silu * MS, **call))
    buffers = [a_buffer(f"buf{n}", kernel=f"cpp_fused_{n}", launch=n, origins=(f"silu{n}",)) for n in (0, 1)]
    slower = ran("inductor", *plain, takes=7, graph=a_graph(nodes=(*convs, *silus), buffers=buffers))
    faster = ran("inductor-freezing", *alone, takes=2 * with_silu, graph=a_graph(nodes=fused))

    found = told(slower, faster)

    assert parts(found) == [row, ("outside_kernels", 0, ())]
    assert found.rows[0].count == 2


def test_the_time_of_the_host_alone_has_rows_of_its_own() -> None:
    def found(slow: tuple[float | None, float | None], fast: tuple[float | None, float | None]) -> dict[str, float]:
        trials = []
        for name, takes, (around, between) in (("inductor", 10, slow), ("eager", 7, fast)):
            trial = ran(name, in_eager("relu", 5), takes=takes, graph=eager(at(1, "relu")))
            seconds = [None if one is None else one * MS for one in (around, between)]
            kernels = msgspec.structs.replace(trial.kernels, around_seconds=seconds[0], between_seconds=seconds[1])
            trials.append(msgspec.structs.replace(trial, kernels=kernels))
        made = account(*trials)
        assert made is not None
        return {row.kind: row.seconds / MS for row in made.rows}

    expected = {"around_kernels": 2.0, "between_kernels": 1.0, "outside_kernels": 0.0}
    assert found((3.0, 2.0), (1.0, 1.0)) == pytest.approx(expected)
    assert found((3.0, 2.0), (None, None)) == pytest.approx({"outside_kernels": 3.0})


def test_small_rows_with_the_same_operations_are_added_up() -> None:
    nodes = [at(line, f"relu_{line}") for line in range(200)]
    slow = ran("inductor", *[in_eager(node.name, 0.02) for node in nodes], takes=10, graph=eager(*nodes))
    fast = ran("eager", *[in_eager(node.name, 0.01) for node in nodes], takes=8, graph=eager(*nodes))

    made = account(slow, fast)

    assert made is not None
    (row, rest) = made.rows
    assert (row.kind, row.operations, row.count) == ("operation", ("relu",), 200)
    assert row.seconds == pytest.approx(2 * MS)
    assert rest.seconds == pytest.approx(0.0, abs=1e-9)


def test_the_default_is_told_against_the_recommended_and_against_eager_where_that_is_faster() -> None:
    graph = eager(at(1, "relu"))
    names = ("inductor", "eager", "eager-channels-last", "inductor-channels-last")
    times = (10, 9, 8, 7)
    trials = [
        ran(name, in_eager("relu", 1), takes=takes, graph=graph) for name, takes in zip(names, times, strict=True)
    ]
    trials[1:3] = [
        a_trial(
            trial.name,
            configuration=a_configuration(trial.name, backend="eager", layout_optimization=None),
            graphs=trial.graphs,
            kernels=trial.kernels,
            measurement=trial.measurement,
        )
        for trial in trials[1:3]
    ]
    ratios = [a_ratio(name, 10 / takes) for name, takes in zip(names[1:], times[1:], strict=True)]
    compared = a_diagnosis(
        *trials,
        comparison=a_comparison(*ratios, fastest=names[3:]),
        recommendation=a_recommendation("inductor-channels-last"),
    )

    assert [(one.slower, one.faster) for one in accounts_of(compared)] == [
        ("inductor", "inductor-channels-last"),
        ("inductor", "eager-channels-last"),
    ]
    assert accounts_of(a_diagnosis(*trials, comparison=None)) == ()
    # The recommended one takes longer, if the default computes something else: there is nothing to account for.
    slow = a_trial("inductor-channels-last", kernels=trials[3].kernels, measurement=a_measurement(0.011))
    refuted = msgspec.structs.replace(compared, trials=(trials[0], slow))
    assert accounts_of(refuted) == ()


def test_a_fault_in_the_account_costs_the_account_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(examine, "accounts_of", fail)
    before = a_diagnosis(a_trial())

    after = examine.diagnosis_of(recordings_of(before))

    assert after.subject.notes[-1] == "causes of the difference were not looked for: RuntimeError: planted"
    assert [trial.name for trial in after.trials] == [trial.name for trial in before.trials]
