from __future__ import annotations

from typing import Any

from builders import Told, a_diagnosis, a_location, a_trial

from layoutdoctor.diagnosis.records import Account, AccountRow
from layoutdoctor.rules.slower import LD306


def a_row(milliseconds: float = 11.4, **changes: Any) -> AccountRow:
    fields: dict[str, Any] = {
        "kind": "generated_kernel",
        "seconds": milliseconds * 1e-3,
        "slower_seconds": (milliseconds + 0.9) * 1e-3,
        "faster_seconds": 0.9e-3,
        "operations": ("relu", "max_pool2d"),
        "module": "pool",
        "locations": (a_location(30), a_location(32)),
        "slower_kernels": ("cpp_fused_relu_2",),
        "faster_kernels": ("aten::clamp_min_", "aten::max_pool2d_with_indices"),
        "detail": "no loop of it uses vector instructions",
    }
    return AccountRow(**{**fields, **changes})


def an_account(*rows: AccountRow, faster: str = "eager") -> Account:
    return Account(slower="inductor", faster=faster, slower_seconds=20e-3, faster_seconds=9e-3, rows=rows)


def findings(*accounts: Account) -> list[Any]:
    return list(LD306.check(a_diagnosis(a_trial(), a_trial("eager"), accounts=accounts)))


def test_what_is_no_finding() -> None:
    for row in (
        a_row(kind="layout"),
        a_row(0.3),  # less than 2 % of a call
        a_row(-5, slower_seconds=1e-3, faster_seconds=6e-3),
        a_row(1, slower_seconds=9e-3, faster_seconds=8e-3),  # hardly slower than what it replaces
        a_row(faster_seconds=0.0),  # nothing is known of what it replaces
    ):
        assert findings(an_account(row)) == []
    assert findings() == []


def test_what_it_says(told: Told) -> None:
    told("A kernel that is slower than what it replaces", findings(an_account(a_row())))
    told("In the backward", findings(an_account(a_row(backward=True, detail=None))))
    more = [
        a_row(
            2 + number, slower_kernels=(f"cpp_fused_{number}",), operations=("cat",), module=None, backward=number == 3
        )
        for number in range(4)
    ]
    told("Several kernels are one finding, the worst in full", findings(an_account(*more[:1], a_row(), *more[1:])))
    told("Two of them", findings(an_account(a_row(), more[0])))
    # Once, though the default is accounted for twice.
    assert len(findings(an_account(a_row(), faster="inductor-channels-last"), an_account(a_row()))) == 1
