from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from builders import a_buffer, a_conversion, a_graph, a_kernel, a_read, channels_last, contiguous

from layoutdoctor.examination.graphs.costs import with_bandwidth_shares, with_costs

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.graph import Buffer
    from layoutdoctor.diagnosis.kernel import Kernel

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
    return [(c.seconds, c.seconds_source) for c in with_costs((graph,), launches, bandwidth)[0].conversions]


def measured(seconds: float) -> tuple[Any, str]:
    return pytest.approx(seconds), "measured"


ESTIMATED = (pytest.approx(BYTES / BANDWIDTH), "estimated")
UNKNOWN = (None, None)


TWICE = [buffer("buf0", launch=0), buffer("buf1", launch=1)]
LARGE = buffer("buf1", layout=channels_last((2, 24, 6, 6)))


@pytest.mark.parametrize(
    ("why", "found", "expected"),
    [
        (
            "a kernel that only moves is measured by name",
            costs(
                [buffer()],
                [conversion()],
                [ran(9.0, "cpp_fused_1"), ran(5e-6), ran(9.0, library="aten"), ran(9.0, graph="graph 1")],
            ),
            [measured(5e-6)],
        ),
        (
            "one launched twice in the order of its launches",
            costs(
                [buffer("buf0", launch=0), buffer("buf1", launch=2)],
                [conversion("buf1"), conversion("buf0")],
                [ran(1e-6), ran(3e-6)],
            ),
            [measured(3e-6), measured(1e-6)],
        ),
        (
            "of a graph that ran twice the mean of each launch",
            costs(TWICE, [conversion("buf0"), conversion("buf1")], [ran(1e-6), ran(3e-6), ran(2e-6), ran(5e-6)]),
            [measured(1.5e-6), measured(4e-6)],
        ),
        (
            "launches that do not fit the graph",
            costs(TWICE, [conversion("buf0")], [ran(1e-6), ran(3e-6), ran(2e-6)]),
            [ESTIMATED],
        ),
        (
            "a kernel that moves several buffers is divided by their bytes",
            costs([buffer(), LARGE], [conversion("buf0"), conversion("buf1")], [ran(8e-6)]),
            [measured(2e-6), measured(6e-6)],
        ),
        (
            "in a kernel that computes as well",
            costs([buffer(), buffer("buf1", operations=("relu",))], [conversion()], [ran(8e-6)]),
            [ESTIMATED],
        ),
        (
            "a constant that the kernel writes as well is no computation",
            costs(
                [buffer(), a_buffer("buf1", layout=channels_last(IMAGE), operations=("where",))],
                [conversion()],
                [ran(8e-6)],
            ),
            [measured(4e-6)],
        ),
        (
            "what rides along with a computed value has no time of its own",
            costs([buffer(operations=("relu",))], [conversion(fused=True)], [ran(8e-6)]),
            [UNKNOWN],
        ),
        ("without a kernel list", costs([buffer()], [conversion()], []), [ESTIMATED]),
        ("without a bandwidth nothing is estimated", costs([buffer()], [conversion()], [], None), [UNKNOWN]),
        ("a measured time needs no bandwidth", costs([buffer()], [conversion()], [ran(5e-6)], None), [measured(5e-6)]),
    ],
)
def test_a_conversion_is_measured_by_its_kernel_else_estimated_from_a_bandwidth_else_unknown(
    why: str, found: list[Any], expected: list[Any]
) -> None:
    assert found == expected


def test_a_measured_conversion_reaches_a_share_of_the_bandwidth_in_graphs_and_kernel_lists() -> None:
    graph = a_graph(buffers=(buffer(),), conversions=(conversion(),))

    (found,) = with_costs((graph,), [ran(BYTES / BANDWIDTH * 2)], BANDWIDTH)[0].conversions
    assert found.bandwidth_share == pytest.approx(0.5)
    (found,) = with_costs((graph,), [], BANDWIDTH)[0].conversions
    assert found.bandwidth_share is None

    listed = (
        a_conversion(seconds=1e-3, bytes_moved=250_000, seconds_source="measured"),
        a_conversion("reorder 1"),
    )

    assert [c.bandwidth_share for c in with_bandwidth_shares(listed, BANDWIDTH)] == [pytest.approx(0.25), None]
    assert with_bandwidth_shares(listed, None) == listed
