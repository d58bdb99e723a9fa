"""The report of a recorded trace: what conversions took of what, what that rests on, and never "healthy" unproved."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import reviewed
from builders import (
    a_graph,
    a_lack,
    a_location,
    a_pair,
    a_total,
    a_trace,
    recorded,
)
from golden.stories import STORIES
from trace_builders import a_waiting, to_channels_last, to_contiguous

from layoutdoctor.diagnosis.trial import Failure
from layoutdoctor.examination.counts import conversion_share, convolution_count, irrelevance
from layoutdoctor.reports import render
from layoutdoctor.reports.markdown import markdown_parts
from layoutdoctor.reports.sections.rows import MOST_PLACES
from layoutdoctor.reports.sections.view import build_view

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.kernel import Total


def launched(number: int, *, back: bool = False, **changes: object) -> Conversion:
    """One launch of a cuDNN conversion kernel: to channels_last, or back."""
    fields = {"location": None, "module": None, "seconds": 400e-6, "exposed_seconds": 400e-6}
    fields |= {"start_seconds": number * 1e-3, "step": f"ProfilerStep#{9 + number // 6}", **changes}
    return (to_contiguous if back else to_channels_last)(f"kernel {number}", **fields)


def two(**changes: object) -> tuple[Conversion, Conversion]:
    return launched(0, **changes), launched(1, back=True, **changes)


def in_graph(*conversions: Conversion, kernels: object = None, **changes: object) -> Diagnosis:
    return a_trace(kernels, graphs=(a_graph(name="recorded", conversions=conversions),), **changes)


def places(kind: str, *seconds: float, **changes: object) -> tuple[Total, ...]:
    return tuple(
        a_total(kind, f"{kind} {n}", seconds=1e-2, conversion_count=1, conversion_seconds=s, **changes)
        for n, s in enumerate(seconds)
    )


def stepped(*names: str, **changes: object) -> tuple[Total, ...]:
    return tuple(a_total("step", name, **changes) for name in names)


FAILED = a_trace(None, status="failed", failure=Failure(kind="read", message="the file ends before its first event"))
LOG, TABLE = ("onednn_log",), ("totals_table",)
COSTLY = [1e-3 * (n + 1) for n in range(MOST_PLACES + 2)]
WHOLE = {"totals": (a_total(),)}

CASES = {
    "conversions without a time": a_trace(recorded(*two(seconds=None), conversion_seconds=None, share=None)),
    "the time of all kernels is not known": a_trace(recorded(*two(), seconds=None)),
    "no kernel ran for a convolution": a_trace(recorded(*two(), convolution_count=0)),
    "launches count, not entries": a_trace(recorded(launched(0, tensor="weight", count=7), launched(1))),
    "round trips by what they rest on": a_trace(
        recorded(*two(exposed_seconds=1e-4)),
        redundant_pairs=tuple(
            a_pair("kernel 0", "kernel 1", confidence=c, seconds=8e-4) for c in ("shapes", "shapes", "grid", "order")
        ),
    ),
    "the costliest lines added up": a_trace(
        recorded(
            *(
                launched(n, location=a_location(line, "net.py"), seconds=1e-3 / (n + 1))
                for n, line in enumerate((3, 1, 1, 4, 5))
            )
        )
    ),
    "nothing found and nothing to add": a_trace(recorded(**WHOLE)),
    "nothing found, lacks": a_trace(recorded(**WHOLE, lacks=(a_lack("no shapes"),))),
    "kernels that may convert a layout, and nothing lacks": a_trace(
        recorded(
            *two(),
            undecided_count=4,
            undecided_seconds=18e-6,
            waiting=a_waiting(),
            totals=(
                *(
                    a_total("possible", f"triton_poi_fused_convolution_{n}", count=1, seconds=s)
                    for n, s in enumerate((7e-6, 5e-6, 3e-6))
                ),
                a_total("possible", "tensorTransformGeneric", count=1, seconds=3e-6),
            ),
        )
    ),
    "nothing found, kernels that may convert a layout": a_trace(
        recorded(**{**WHOLE, "undecided_count": 1, "undecided_seconds": 18e-6})
    ),
    "work beside convolutions and moved data": a_trace(
        recorded(
            *two(),
            totals=(
                *(
                    a_total("beside", name, seconds=s)
                    for name, s in (("rounding to TF32", 2e-3), ("casts", 1e-3), ("filling", 5e-4), ("padding", 1e-4))
                ),
                a_total("moved", "copying", seconds=1e-3),
            ),
        )
    ),
    "work beside convolutions is little": a_trace(recorded(*two(), totals=(a_total("beside", "casts", seconds=1e-5),))),
    "a log names its reorders": a_trace(
        recorded(count=3, seconds=None, sources=LOG, convolution_count=0), subject={"device": "cpu"}
    ),
    "an empty list of a CPU": a_trace(recorded(count=0), subject={"device": "cpu"}),
    "an empty table": a_trace(recorded(count=0, sources=TABLE)),
    "an empty log": a_trace(recorded(count=0, sources=LOG)),
    "a file that could not be read": FAILED,
    "places: modules that hold half": a_trace(
        recorded(launched(0), totals=(*places("operation", 1e-3), *places("module", 0.5e-3)))
    ),
    "places: the costliest first, the rest added up": a_trace(
        recorded(
            *(launched(n, seconds=s) for n, s in enumerate([*COSTLY, 0.5e-3, 0.5e-3])),
            totals=places("operation", *COSTLY),
        )
    ),
    "steps in their order": a_trace(
        recorded(
            launched(0),
            totals=stepped(
                "ProfilerStep#10", "ProfilerStep#9", "ProfilerStep#11", conversion_count=1, conversion_seconds=4e-4
            ),
        )
    ),
    "notes of the file and of the trial": a_trace(
        recorded(*two()), subject={"notes": ("torch's old trace format of 2020",)}, notes=("a note",)
    ),
}


def test_every_case_is_said_as_reviewed(update_golden: bool) -> None:
    reviewed.check("traces", {name: render(case) for name, case in CASES.items()}, update=update_golden)
    for case in CASES.values():  # a trace without kernels is never healthy
        kernels = case.trials[0].kernels
        is_read = kernels is not None and (kernels.count or kernels.conversions)
        assert is_read or build_view(case).answer.claim.startswith("Nothing can be said")


def test_an_edited_file_is_no_traceback() -> None:
    moved = a_total("moved", "copying", conversion_count=1)
    assert build_view(a_trace(recorded(launched(0), totals=(moved,)))).tables == ()
    same = msgspec.structs.replace(FAILED.trials[0], status="same_as", failure=None)
    nothing = msgspec.structs.replace(FAILED, trials=(same, *FAILED.trials))
    assert build_view(nothing).answer.claim == "Nothing can be said: same_as: the reason was not recorded"


def test_markdown_lists_the_costliest_first_with_the_proof_of_each() -> None:
    fused = launched(0, seconds=1e-6, confidence="order", fused=True)
    unknown = launched(1, seconds=2e-6, owner="framework", kernel=None, op=None, source=None, target=None,
                    confidence=None, step=None, exposed_seconds=None)  # fmt: skip
    pair = a_pair("kernel 0", "kernel 1", between=(), tensor_shape=None, proof=None, location=None, module=None)
    diagnosis = in_graph(unknown, kernels=recorded(fused), redundant_pairs=(pair,))
    _, details = markdown_parts(diagnosis, "report.details.md")
    rows = [line for line in (details or "").splitlines() if re.match(r"\| (?:id|kernel \d|first) ", line)]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]

    bare, cheap = (dict(zip(cells[0], row, strict=True)) for row in cells[1:3])
    assert "cause" not in bare  # no column without a fact
    assert [bare[name] for name in ("id", "owner", "kernel", "time", "fused")] == [
        *("kernel 1", "framework", "-", "2.00 us", "no")
    ]
    assert [cheap[name] for name in ("fused", "bytes moved", "confidence", "step")] == [
        *("yes", "6.12 MiB", "order", "ProfilerStep#9")
    ]
    assert cells[3:] == [["first", "second", "time", "bytes moved"], ["kernel 0", "kernel 1", "2.00 ms", "12.2 MiB"]]


def test_a_trace_is_never_judged_to_be_one_to_which_layouts_do_not_matter() -> None:
    diagnosis = STORIES["trace_without_conversions"]()

    assert irrelevance(diagnosis) is None
    assert convolution_count(diagnosis) is None
    assert conversion_share(diagnosis.trials[0]) == 0.0
