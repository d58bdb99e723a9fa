from __future__ import annotations

from typing import Any

from builders import a_location, channels_last, contiguous

from layoutdoctor.diagnosis.records import Account, AccountRow
from layoutdoctor.reports.sections.account import account_lines, account_view


def row(kind: str, milliseconds: float, *sides: float, **changes: Any) -> AccountRow:
    slower, faster = sides or (milliseconds, 0.0)
    fields: dict[str, Any] = {
        "kind": kind,
        "seconds": milliseconds * 1e-3,
        "slower_seconds": slower * 1e-3,
        "faster_seconds": faster * 1e-3,
        "operations": ("relu", "max_pool2d"),
        "locations": (a_location(30), a_location(31), a_location(32)),
    }
    return AccountRow(**{**fields, **changes})


def told(*rows: AccountRow) -> tuple[str, ...]:
    account = Account(slower="inductor", faster="eager", slower_seconds=20e-3, faster_seconds=8e-3, rows=rows)
    return account_view(account).sentences


def test_each_kind_in_a_sentence() -> None:
    code = {"slower_kernels": ("reorder jit", "convolution gemm:ref"), "faster_kernels": ("convolution brgconv",)}
    layouts = {"slower_layout": contiguous(), "faster_layout": channels_last()}
    cases = {
        row("generated_kernel", 11.4, 12.3, 0.9, slower_kernels=("cpp_fused_relu_0",)): (
            "11.4 ms in a generated kernel for relu and max_pool2d at model.py:30 to 32, 12.3 ms against 900 us"
        ),
        row("generated_kernel", 4, slower_kernels=("cpp_0", "cpp_1"), backward=True): (
            "4.00 ms in 2 generated kernels for relu and max_pool2d (backward) at model.py:30 to 32, "
            "4.00 ms against nothing"
        ),
        row("conversion", 3.9, detail="16 weights against none, inside library calls", locations=()): (
            "3.90 ms in layout conversions, 16 weights against none, inside library calls"
        ),
        row("layout", 2, 5, 3, **layouts): (
            "2.00 ms in relu and max_pool2d at model.py:30 to 32, 5.00 ms against 3.00 ms: "
            "contiguous against channels_last"
        ),
        row("implementation", 2, 5, 3, **code): (
            "2.00 ms in relu and max_pool2d at model.py:30 to 32, 5.00 ms against 3.00 ms: "
            "convolution gemm:ref against convolution brgconv"
        ),
        row("missing_fusion", 1, locations=(a_location(7), a_location(9))): (
            "1.00 ms in relu and max_pool2d at model.py:7 and 9, 1.00 ms against nothing, "
            "which is computed within other kernels there"
        ),
        row("missing_fusion", 1, locations=(a_location(7), a_location(9)), count=4): (
            "1.00 ms in relu and max_pool2d at 4 places (model.py:7 and 9), 1.00 ms against nothing, "
            "which is computed within other kernels there"
        ),
        row("missing_fusion", 1, locations=(a_location(7),), detail="it transposes what it reads or writes"): (
            "1.00 ms in relu and max_pool2d at model.py:7, 1.00 ms against nothing, "
            "which is computed within other kernels there"
        ),
        row("operation", 1, 2, 1, locations=(), module="body.0"): (
            "1.00 ms in relu and max_pool2d at body.0, 2.00 ms against 1.00 ms"
        ),
        row("allocation", 2, detail="4700 against 0 page faults a call"): (
            "2.00 ms outside kernels: memory mapped anew in every call, 4700 against 0 page faults a call"
        ),
        row("launches", 2, detail="378 against 157 kernels"): (
            "2.00 ms outside kernels: more calls, 378 against 157 kernels"
        ),
        row("outside_kernels", 2): "2.00 ms outside kernels: cause not known",
        row("small", 2, detail="9 rows"): "2.00 ms in 9 rows, each small",
    }
    for one, sentence in cases.items():
        assert told(one) == (sentence,)


def test_three_sentences_of_what_is_slower_and_what_has_no_counterpart_after_them() -> None:
    rows = [row("operation", milliseconds, operations=(f"op{milliseconds}",)) for milliseconds in (5, 4, 3, 2, -3)]
    strange = row("not_aligned", -0.1, 4.0, 4.1, operations=("gelu",))

    assert [sentence.split(" at ")[0] for sentence in told(*rows)] == [
        "5.00 ms in op5",
        "4.00 ms in op4",
        "3.00 ms in op3",
    ]
    assert (
        told(rows[0], strange)[-1]
        == "4.00 ms against 4.10 ms in operations without a counterpart on the other side: gelu"
    )
    assert told(row("operation", 0.1)) == ()  # too little to be said


def test_calls_that_lost_alike_are_one_sentence() -> None:
    code = {"operations": ("conv3d",), "slower_kernels": ("aten::slow_conv3d",), "faster_kernels": ("convolution brg",)}
    layouts = {"slower_layout": contiguous(), "faster_layout": channels_last()}
    calls = [row("implementation", 0.5, 0.6, 0.1, locations=(a_location(line),), **code) for line in (7, 9, 9)]
    others = [row("layout", 1, 3, 2, backward=backward, **code, **layouts) for backward in (True, True, False)]

    # What was summed before is of as many calls: the account itself sums what is small.
    further = row("implementation", 0.3, 0.4, 0.1, locations=(a_location(9),), **code, count=60)
    assert told(calls[0], further)[0].startswith("800 us in 61 calls of conv3d at model.py:7 and 9, 1.00 ms against")
    assert told(*calls, *others) == (
        "2.00 ms in 2 calls of conv3d (backward) at model.py:30 to 32, 6.00 ms against 4.00 ms: "
        "contiguous against channels_last",
        "1.50 ms in 3 calls of conv3d at model.py:7 and 9, 1.80 ms against 300 us: aten::slow_conv3d against "
        "convolution brg",
        "1.00 ms in conv3d at model.py:30 to 32, 3.00 ms against 2.00 ms: contiguous against channels_last",
    )


def test_of_further_differences_the_first_screen_says_the_largest_part_alone() -> None:
    rows = (row("allocation", 7, detail="4700 against 0 page faults a call"), row("small", 5, detail="9 rows"))
    accounts = [
        Account(slower="inductor", faster=faster, slower_seconds=20e-3, faster_seconds=8e-3, rows=rows)
        for faster in ("inductor-freezing", "eager")
    ]
    largest = "7.00 ms outside kernels: memory mapped anew in every call, 4700 against 0 page faults a call"

    assert account_lines(accounts, "inductor", "inductor-freezing") == (
        f"Why the default is slower, by 12.0 ms of 20.0 ms: {largest}; 5.00 ms in 9 rows, each small",
        f"Why inductor is slower than eager, by 12.0 ms of 20.0 ms: {largest}",
    )
