from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from builders import a_buffer, a_conversion, a_graph, a_kernel, a_read, channels_last, contiguous, kernels

from layoutdoctor.examination.costs import with_bandwidth_share, with_bandwidth_shares, with_costs, with_costs_of_all

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Buffer, Conversion, Kernel

IMAGE = (2, 8, 6, 6)
ELEMENTS = 2 * 8 * 6 * 6
BYTES = 2 * 4 * ELEMENTS
BANDWIDTH = 1e9


def buffer(name: str = "buf0", **changes: Any) -> Buffer:
    return a_buffer(name, a_read("x", contiguous(IMAGE)), **{"layout": channels_last(IMAGE), **changes})


def conversion(value: str = "buf0", **changes: Any) -> Conversion:
    fields: dict[str, Any] = {"value": value, "seconds": None, "bytes_moved": BYTES}
    return a_conversion(f"of {value}", **{**fields, **changes})


def ran(seconds: float, name: str = "cpp_fused_0", **changes: Any) -> Kernel:
    return a_kernel(name, seconds, **{"library": "inductor", "graph": "graph 0", **changes})


def costs(
    buffers: list[Buffer], conversions: list[Conversion], launches: list[Kernel], bandwidth: float | None = BANDWIDTH
) -> list[tuple[float | None, str | None]]:
    graph = a_graph(buffers=tuple(buffers), conversions=tuple(conversions))
    return [(c.seconds, c.seconds_source) for c in with_costs(graph, launches, bandwidth).conversions]


def measured(seconds: float) -> tuple[Any, str]:
    return pytest.approx(seconds), "measured"


ESTIMATED = (pytest.approx(BYTES / BANDWIDTH), "estimated")
UNKNOWN = (None, None)


def test_a_kernel_that_only_moves_is_measured_by_name() -> None:
    launches = [ran(9.0, "cpp_fused_1"), ran(5e-6), ran(9.0, library="aten"), ran(9.0, graph="graph 1")]

    assert costs([buffer()], [conversion()], launches) == [measured(5e-6)]


def test_a_kernel_of_an_unnamed_graph_counts_as_well() -> None:
    assert costs([buffer()], [conversion()], [ran(5e-6, graph=None)]) == [measured(5e-6)]


def test_a_launch_of_unknown_graph_counts_where_one_graph_alone_has_a_kernel_of_its_name() -> None:
    own, shared = "triton_poi_fused_0", "triton_poi_fused_1"
    graphs = tuple(
        a_graph(
            name=name,
            buffers=tuple(buffer(f"of {kernel}", kernel=kernel, launch=i) for i, kernel in enumerate(kernels)),
            conversions=tuple(conversion(f"of {kernel}") for kernel in kernels),
            kernel_names=kernels,
        )
        for name, kernels in (("graph 0", (own, shared)), ("graph 1", (shared,)))
    )
    launches = [ran(5e-6, own, graph=None), ran(7e-6, shared, graph=None), ran(3e-6, shared, graph="graph 1")]
    found = with_costs_of_all(graphs, launches, BANDWIDTH)

    assert [[(c.seconds, c.seconds_source) for c in graph.conversions] for graph in found] == [
        [measured(5e-6), ESTIMATED],
        [measured(3e-6)],
    ]


def test_a_measured_conversion_reaches_a_share_of_the_bandwidth() -> None:
    graph = a_graph(buffers=(buffer(),), conversions=(conversion(),))
    (found,) = with_costs(graph, [ran(BYTES / BANDWIDTH * 2)], BANDWIDTH).conversions

    assert found.bandwidth_share == pytest.approx(0.5)


def test_one_kernel_launched_twice_is_measured_in_the_order_of_its_launches() -> None:
    buffers = [buffer("buf0", launch=0), buffer("buf1", launch=2)]

    assert costs(buffers, [conversion("buf1"), conversion("buf0")], [ran(1e-6), ran(3e-6)]) == [
        measured(3e-6),
        measured(1e-6),
    ]


def test_a_graph_that_ran_twice_gives_the_mean_of_each_launch() -> None:
    buffers = [buffer("buf0", launch=0), buffer("buf1", launch=1)]
    times = [ran(1e-6), ran(3e-6), ran(2e-6), ran(5e-6)]

    assert costs(buffers, [conversion("buf0"), conversion("buf1")], times) == [measured(1.5e-6), measured(4e-6)]


def test_launches_that_do_not_fit_the_graph_are_estimated() -> None:
    buffers = [buffer("buf0", launch=0), buffer("buf1", launch=1)]

    assert costs(buffers, [conversion("buf0")], [ran(1e-6), ran(3e-6), ran(2e-6)]) == [ESTIMATED]


def test_a_kernel_that_moves_several_buffers_is_divided_by_their_bytes() -> None:
    large = buffer("buf1", layout=channels_last((2, 24, 6, 6)))

    assert costs([buffer(), large], [conversion("buf0"), conversion("buf1")], [ran(8e-6)]) == [
        measured(2e-6),
        measured(6e-6),
    ]


def test_a_buffer_in_registers_takes_no_share() -> None:
    kept = buffer("buf1", is_removed=True)

    assert costs([buffer(), kept], [conversion()], [ran(8e-6)]) == [measured(8e-6)]


def test_a_buffer_of_unknown_size_beside_it_leaves_an_estimate() -> None:
    unknown = buffer("buf1", dtype="float4")

    assert costs([buffer(), unknown], [conversion()], [ran(8e-6)]) == [ESTIMATED]


def test_in_a_kernel_that_computes_as_well_a_moved_buffer_is_estimated() -> None:
    beside = buffer("buf1", operations=("relu",))

    assert costs([buffer(), beside], [conversion()], [ran(8e-6)]) == [ESTIMATED]


def test_a_conversion_that_rides_along_with_a_computed_value_has_no_time_of_its_own() -> None:
    assert costs([buffer(operations=("relu",))], [conversion(fused=True)], [ran(8e-6)]) == [UNKNOWN]


def test_a_value_computed_in_registers_rides_along_too() -> None:
    kept = buffer("buf0", layout=contiguous(IMAGE), is_removed=True, operations=("relu",))
    written = a_buffer("buf1", a_read("buf0", contiguous(IMAGE)), layout=channels_last(IMAGE))

    assert costs([kept, written], [conversion("buf1", fused=True)], [ran(8e-6)]) == [UNKNOWN]


def test_without_a_kernel_list_it_is_estimated() -> None:
    assert costs([buffer()], [conversion()], []) == [ESTIMATED]


def test_an_estimate_reaches_no_share_of_what_it_was_estimated_by() -> None:
    graph = a_graph(buffers=(buffer(),), conversions=(conversion(),))
    (found,) = with_costs(graph, [], BANDWIDTH).conversions

    assert found.bandwidth_share is None


@pytest.mark.parametrize("changes", [{"bandwidth": None}, {"bandwidth": 0.0}])
def test_without_a_bandwidth_nothing_is_estimated(changes: dict[str, Any]) -> None:
    assert costs([buffer()], [conversion()], [], **changes) == [UNKNOWN]


def test_without_bytes_or_without_a_buffer_nothing_is_estimated() -> None:
    assert costs([buffer()], [conversion(bytes_moved=None), conversion("gone")], []) == [UNKNOWN, UNKNOWN]


def test_without_a_bandwidth_a_measured_time_stays() -> None:
    assert costs([buffer()], [conversion()], [ran(5e-6)], bandwidth=None) == [measured(5e-6)]


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": None},
        {"seconds": 0.0},
        {"bytes_moved": None},
        {"seconds_source": "estimated"},
        {"seconds_source": None},
    ],
)
def test_a_share_needs_a_measured_time_and_bytes(changes: dict[str, Any]) -> None:
    given = conversion(**{"seconds": 1e-3, "seconds_source": "measured", **changes})

    assert with_bandwidth_share(given, BANDWIDTH) is given


def test_every_conversion_of_a_kernel_list_gets_its_share() -> None:
    listed = kernels(
        a_conversion(seconds=1e-3, bytes_moved=250_000, seconds_source="measured"), a_conversion("reorder 1")
    )
    shares = [c.bandwidth_share for c in with_bandwidth_shares(listed, BANDWIDTH).conversions]

    assert shares == [pytest.approx(0.25), None]
    assert with_bandwidth_shares(listed, None) == listed
