"""Why one configuration is slower than another, in one sentence."""

from __future__ import annotations

from typing import Any

from builders import a_location, contiguous
from loops import for_each

from layoutdoctor.diagnosis.answer import Account, AccountRow
from layoutdoctor.reports.sections.account import account_sentence, account_table


def row(kind: str, milliseconds: float, **changes: Any) -> AccountRow:
    fields: dict[str, Any] = {
        "kind": kind,
        "seconds": milliseconds * 1e-3,
        "slower_seconds": milliseconds * 1e-3,
        "operations": ("relu", "max_pool2d"),
        "locations": (a_location(30), a_location(31)),
    }
    return AccountRow(**{**fields, **changes})


def said(*rows: AccountRow, slower: str = "inductor") -> str:
    account = Account(slower=slower, faster="eager", slower_seconds=20e-3, faster_seconds=8e-3, rows=rows)
    return account_sentence(account)


@for_each(
    ("one", "part"),
    [
        (row("generated_kernel", 12), "a slower kernel for relu and max_pool2d (model.py:30)"),
        (row("conversion", 12, detail="16 weights against none"), "layout conversions (model.py:30)"),
        (row("layout", 12, slower_layout=contiguous()), "relu and max_pool2d in another layout (model.py:30)"),
        (row("implementation", 12, count=3), "3 x relu and max_pool2d in other library code (model.py:30)"),
        (row("missing_fusion", 12), "relu and max_pool2d, not fused (model.py:30)"),
        (row("operation", 12, locations=(), module="body.0"), "relu and max_pool2d (body.0)"),
        (row("outside_kernels", 12, locations=()), "outside kernels"),
        (row("small", 12, detail="9 rows", locations=()), "9 rows, each small"),
    ],
)
def test_each_kind_of_row(one: AccountRow, part: str) -> None:
    assert said(one) == f"the default is slower by 12.0 ms: 12.0 ms {part}"


def test_the_parts_and_the_rest_add_up_to_the_difference() -> None:
    rows = [row("operation", ms, operations=(f"op{ms}",), locations=()) for ms in (5, 4, 2, 1.5, -0.5)]

    assert said(*rows, slower="inductor-channels-last") == (
        "compiled + channels_last is slower by 12.0 ms: 5.00 ms op5, 4.00 ms op4, 2.00 ms op2, 1.00 ms the rest"
    )


def test_the_table_has_all_rows_and_the_names_in_words() -> None:
    rows = (row("layout", 8), row("outside_kernels", 4, locations=(), operations=()))
    account = Account(
        slower="inductor", faster="inductor-freezing", slower_seconds=20e-3, faster_seconds=8e-3, rows=rows
    )
    table = account_table(account)

    assert table.title == "Why compiled (the default) is slower than compiled + frozen, by 12.0 ms of 20.0 ms"
    assert [cells.cells[0] for cells in table.rows] == ["relu and max_pool2d", "outside kernels"]
