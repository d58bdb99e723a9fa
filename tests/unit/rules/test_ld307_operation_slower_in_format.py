from __future__ import annotations

from typing import Any

from builders import (
    Told,
    a_diagnosis,
    a_graph,
    a_kernel,
    a_location,
    a_node,
    a_trial,
    an_environment,
    channels_last,
    contiguous,
    kernels,
)

from layoutdoctor.diagnosis.records import Account, AccountRow
from layoutdoctor.rules.slower import LD307


def a_row(milliseconds: float = 4, **changes: Any) -> AccountRow:
    fields: dict[str, Any] = {
        "kind": "layout",
        "seconds": milliseconds * 1e-3,
        "slower_seconds": (milliseconds + 1) * 1e-3,
        "faster_seconds": 1e-3,
        "operations": ("upsample_bilinear2d",),
        "module": "up",
        "locations": (a_location(12),),
        "slower_kernels": ("aten::upsample_bilinear2d",),
        "faster_kernels": ("aten::upsample_bilinear2d",),
        "slower_layout": contiguous(),
        "faster_layout": channels_last(),
    }
    return AccountRow(**{**fields, **changes})


def findings(*rows: AccountRow, third: Any = None) -> list[Any]:
    account = Account(slower="eager", faster="eager-channels-last", slower_seconds=9e-3, faster_seconds=5e-3, rows=rows)
    trials = [a_trial("eager"), a_trial("eager-channels-last"), *([] if third is None else [third])]
    environment = an_environment(copy_bandwidth_bytes_per_second=10e9)
    return list(LD307.check(a_diagnosis(*trials, accounts=(account, account), environment=environment)))


def test_what_is_no_finding() -> None:
    assert findings() == findings(a_row(0.1), a_row(-4), a_row(kind="operation"), a_row(kind="conversion")) == []
    assert findings(a_row(count=40)) == []  # the sum of small ones


def test_an_operation_that_is_as_slow_in_a_third_configuration_has_no_layout_to_blame() -> None:
    for seconds, layout, module, count in (
        (4e-3, channels_last(), "up", 0),
        (2e-3, channels_last(), "up", 1),  # nearer to the faster one
        (4e-3, contiguous(), "up", 1),
        (4e-3, channels_last(), "down", 1),
    ):
        node = a_node("up", "aten.upsample_bilinear2d.vec", layout=layout, module=module)
        called = kernels(kernels=(a_kernel("aten::upsample_bilinear2d", seconds, node="up", graph="graph 0"),))
        third = a_trial("inductor", kernels=called, graphs=(a_graph(nodes=(node,)),))

        assert len(findings(a_row(), third=third)) == count


def test_what_it_says(told: Told) -> None:
    told("An operation that one format makes slower, once for two accounts", findings(a_row()))
    told("In the backward", findings(a_row(backward=True)))
    told("Converting around it costs less", findings(a_row(tensor_bytes=10_000_000)))
    told("Converting around it costs more", findings(a_row(tensor_bytes=30_000_000)))
