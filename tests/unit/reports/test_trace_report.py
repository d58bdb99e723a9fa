"""The report of a recorded trace: what conversions took of what, what that rests on, and never "healthy" unproved."""

from __future__ import annotations

import re

import msgspec
import pytest
from builders import (
    a_conversion,
    a_graph,
    a_location,
    a_pair,
    a_total,
    a_trace,
    channels_last,
    recorded,
)
from golden.trace_stories import (
    FORWARD,
    launched,
    trace_of_a_graph_replay,
    trace_of_kernel_totals,
    trace_of_owners,
    trace_with_round_trips,
    trace_without_conversions,
)
from loops import for_each

from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Failure, Finding, KernelSummary
from layoutdoctor.examination.costs import conversion_share, convolution_count, counted_conversions, irrelevance
from layoutdoctor.examination.costs import launch_count as launches_of
from layoutdoctor.reports import render
from layoutdoctor.reports.markdown import MOST_CHARACTERS
from layoutdoctor.reports.sections.answer import build_answer
from layoutdoctor.reports.sections.rows import MOST_PLACES, build_tables
from layoutdoctor.reports.sections.view import (
    build_hints,
    build_measurement,
    build_not_understood,
    build_remarks,
    build_view,
)
from layoutdoctor.reports.text import plain_table

HOSTILE = "\x1b[31mred\x07\r\nnew | line `code` <script>alert(1)</script> </details> [x](y) *b* \u202e\u2028 ```"
PAIR = ("kernel 0", "kernel 1")


def two(**changes: object) -> tuple[Conversion, Conversion]:
    return launched(0, **changes), launched(1, back=True, **changes)


def line_of(diagnosis: Diagnosis, beginning: str) -> str | None:
    lines = build_answer(diagnosis).lines
    return next((line for line in lines if line.startswith(beginning)), None)


def failed() -> Diagnosis:
    failure = Failure(kind="read", message="the file ends before its first event")
    return a_trace(None, status="failed", failure=failure)


def a_finding(severity: str = "warning", **changes: object) -> Finding:
    fields = {"code": "LD101", "rule": "round-trip-conversion", "configuration": "recorded", "message": "3 round trips"}
    return Finding(**(fields | {"severity": severity} | changes))


def test_the_title_names_the_file_and_what_wrote_it() -> None:
    assert build_view(trace_of_owners()).title == (
        "layoutdoctor 0.1.0",
        "unet.json",
        "Kineto trace",
        "cuda (NVIDIA H100 80GB HBM3)",
        "torch 2.6.0",
    )
    assert build_view(failed()).title[2:] == ("trace", "cuda (NVIDIA H100 80GB HBM3)")


def test_the_first_line_has_the_sum_the_share_and_what_nothing_hid() -> None:
    diagnosis = a_trace(recorded(*two(seconds=1e-3, exposed_seconds=0.4e-3), seconds=40e-3))

    assert build_answer(diagnosis).headline == (
        "Layout conversions take 2.00 ms of 40.0 ms recorded GPU time (5.0 %), 800 us of that with nothing else running"
    )


@pytest.mark.parametrize(
    ("exposed", "expected"),
    [
        (1e-3, "(5.0 %), all with nothing else running"),
        (0.0, "(5.0 %), always with something else running"),
        (None, "(5.0 %)"),
    ],
)
def test_what_ran_alone_is_said_only_where_it_is_known(exposed: float | None, expected: str) -> None:
    diagnosis = a_trace(recorded(*two(seconds=1e-3, exposed_seconds=exposed), seconds=40e-3))

    assert build_answer(diagnosis).headline.endswith(f"recorded GPU time {expected}")


def test_copies_of_the_framework_count_as_well_as_those_of_libraries() -> None:
    eager = launched(2, owner="framework", seconds=1e-3, exposed_seconds=1e-3)
    kernels = recorded(*two(seconds=1e-3, exposed_seconds=0.5e-3), seconds=30e-3, totals=(a_total(),))
    diagnosis = a_trace(kernels, graphs=(a_graph(name="recorded", conversions=(eager,)),))

    assert build_answer(diagnosis).headline == (
        "Layout conversions take 3.00 ms of 30.0 ms recorded GPU time (10.0 %), "
        "2.00 ms of that with nothing else running"
    )
    assert line_of(diagnosis, "Conversions") == (
        "Conversions: 2 inside library calls, 2.00 ms (1 to channels_last, 1 to contiguous); "
        "1 inside eager operations, 1.00 ms (1 to channels_last)"
    )


def test_a_copy_of_the_framework_whose_exposed_time_is_not_known_leaves_that_out() -> None:
    eager = launched(2, owner="framework", exposed_seconds=None)
    diagnosis = a_trace(recorded(*two()), graphs=(a_graph(name="recorded", conversions=(eager,)),))

    assert "nothing else running" not in build_answer(diagnosis).headline


def test_eager_copies_alone_are_no_reason_to_try_channels_last_but_to_diagnose_the_model() -> None:
    eager = launched(2, owner="framework", exposed_seconds=1e-4)
    diagnosis = a_trace(recorded(), graphs=(a_graph(name="recorded", conversions=(eager,)),))

    assert build_answer(diagnosis).headline == (
        "Layout conversions take 400 us of 15.0 ms recorded GPU time (2.7 %), 100 us of that with nothing else running"
    )
    assert line_of(diagnosis, "To try") is None
    assert line_of(diagnosis, "To find") == "To find the fastest layout: python -m layoutdoctor model.py"
    assert build_tables(diagnosis) == ()


def test_conversions_without_a_time_are_counted() -> None:
    diagnosis = a_trace(recorded(*two(seconds=None), conversion_seconds=None, share=None))

    assert build_answer(diagnosis).headline == "2 layout conversions, whose time was not recorded"


def test_conversions_without_the_time_of_all_kernels_have_no_share() -> None:
    for diagnosis in (
        a_trace(recorded(*two(), seconds=None)),
        a_trace(None, graphs=(a_graph(name="recorded", conversions=two(owner="framework")),)),
    ):
        assert build_answer(diagnosis).headline == (
            "Layout conversions take 800 us; the time of all kernels was not recorded"
        )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"convolution_count": 0}, "Convolutions: no kernel ran for one"),
        ({"convolution_count": 1}, "Convolutions: 1 kernel"),
        ({"convolution_seconds": 3.2e-3}, "Convolutions: 3.20 ms, 25.0 % of that in layout conversions"),
        # Conversions that take longer than all convolutions did not run within them.
        ({"convolution_count": 3, "convolution_seconds": 0.5e-3}, "Convolutions: 3 kernels, 500 us"),
    ],
)
def test_the_share_of_the_convolution_time_is_given_where_it_is_one(
    changes: dict[str, float], expected: str | None
) -> None:
    assert line_of(a_trace(recorded(*two(), **changes)), "Convolutions") == expected


def test_a_conversion_without_layouts_has_a_direction_that_is_not_known() -> None:
    unknown = launched(0, direction="other", source=None, target=None, tensor="unknown")
    other = launched(1, direction="other", target=channels_last(), tensor="unknown")

    assert line_of(a_trace(recorded(unknown, unknown)), "Conversions") == (
        "Conversions: 1 inside library calls (1 between other layouts, or which way is not known)"
    )
    assert line_of(a_trace(recorded(unknown, other)), "Conversions") == (
        "Conversions: 2 inside library calls "
        "(1 between other layouts, or which way is not known, 1 between other layouts)"
    )
    assert line_of(a_trace(recorded(unknown, other)), "Tensors") is None


def test_an_entry_of_a_table_counts_as_often_as_it_was_launched() -> None:
    diagnosis = trace_of_kernel_totals()
    (trial,) = diagnosis.trials

    assert launches_of(counted_conversions(trial)) == trial.kernels.conversion_count == 13_128
    assert line_of(diagnosis, "Conversions") == (
        "Conversions: 13128 inside library calls (9846 to channels_last, 3282 to contiguous)"
    )
    weights = a_trace(recorded(launched(0, tensor="weight", count=7), launched(1)))
    assert line_of(weights, "Tensors") == "Tensors converted: 1 activation and 7 weights"


def test_round_trips_say_what_they_rest_on() -> None:
    pairs = tuple(a_pair(*PAIR, confidence=c, seconds=8e-4) for c in ("shapes", "shapes", "grid", "order"))
    diagnosis = a_trace(recorded(*two(exposed_seconds=1e-4)), redundant_pairs=pairs)

    assert line_of(diagnosis, "Round trips") == (
        "Round trips: 4, 800 us, 200 us of that with nothing else running; 2 with shapes that agree all along the way; "
        "1 by launch grids that agree; 1 by the order of kernels only"
    )


def test_round_trips_whose_conversions_are_not_listed_keep_their_own_time() -> None:
    diagnosis = a_trace(recorded(*two()), redundant_pairs=(a_pair("a", "b", seconds=1e-3),))
    untimed = a_trace(recorded(*two()), redundant_pairs=(a_pair("a", "b", seconds=None),))

    assert line_of(diagnosis, "Round trips") == "Round trips: 1, 1.00 ms"
    assert line_of(untimed, "Round trips") == "Round trips: 1"


def test_no_round_trip_is_not_said_where_nobody_could_look() -> None:
    assert line_of(a_trace(recorded(*two())), "Round trips") == "Round trips: none found"
    assert line_of(a_trace(recorded(*two(), lacks=("no shapes",))), "Round trips") == (
        "Round trips: none found in what was recorded"
    )
    assert line_of(trace_of_kernel_totals(), "Round trips") == (
        "Round trips: not looked for, as a table of totals has no order"
    )
    in_graph = a_trace(None, graphs=(a_graph(name="recorded", conversions=two(owner="framework")),))
    assert line_of(in_graph, "Round trips") == "Round trips: none found"


def test_the_costliest_lines_are_added_up_and_cut() -> None:
    places = [a_location(line, "net.py") for line in (3, 1, 1, 4, 5)]
    conversions = [launched(n, location=place, seconds=1e-3 / (n + 1)) for n, place in enumerate(places)]

    assert line_of(a_trace(recorded(*conversions)), "Costliest lines") == (
        "Costliest lines: net.py:3 1.00 ms, net.py:1 833 us, net.py:4 250 us and 1 more"
    )
    assert line_of(a_trace(recorded(launched(0))), "Costliest lines") is None


def test_channels_last_is_to_be_tried_where_a_rule_found_conversions_into_it_worth_telling() -> None:
    found = msgspec.structs.replace(a_finding("warning"), code="LD111")
    back = launched(0, direction="to_contiguous")

    assert line_of(a_trace(recorded(launched(0)), findings=(found,)), "To try") == (
        "To try: model and inputs in channels_last (5-D: channels_last_3d), where they are not yet"
    )
    assert line_of(a_trace(recorded(launched(0))), "To try") is None
    assert line_of(a_trace(recorded(back), findings=(found,)), "To try") is None


def test_no_conversion_in_a_whole_trace_is_a_short_report() -> None:
    report = render(trace_without_conversions())

    assert report.splitlines()[2:] == [
        "No layout conversion in 768 kernels, 12.3 ms recorded GPU time",
        "Convolutions: no kernel ran for one",
        "Not understood: nothing.",
        "Measurement: one recorded run.",
    ]
    assert "<summary>All configurations" not in render(trace_without_conversions(), "markdown")


@for_each(
    "changes",
    [
        {"subject": {"notes": ("the file ends in the middle of an event",)}},
        {"notes": ("one of two processes was examined",)},
        {"findings": (a_finding("warning"),)},
        {"interrupted": "interrupted from the keyboard"},
        {"graphs": (a_graph(name="recorded", not_understood=("a sparse tensor",)),)},
        {"kernels": {"lacks": ("no shapes",)}},
        {"kernels": {"not_understood_count": 1}},
    ],
)
def test_no_conversion_is_a_full_report_as_soon_as_there_is_anything_to_add(changes: dict[str, object]) -> None:
    changes = dict(changes)
    kernels = recorded(totals=(a_total(),), **changes.pop("kernels", {}))

    assert build_answer(a_trace(recorded(totals=(a_total(),)))).is_short
    assert not build_answer(a_trace(kernels, **changes)).is_short


def test_a_note_does_not_make_a_short_report_long() -> None:
    assert build_answer(a_trace(recorded(totals=(a_total(),)), findings=(a_finding("note"),))).is_short


def test_no_conversion_by_names_alone_says_what_was_not_judged() -> None:
    assert build_answer(trace_of_a_graph_replay()).lines == (
        "Looked for by kernel name alone: the trace does not say which operations ran, "
        "so copies outside libraries were not judged",
    )


def test_no_conversion_in_a_trace_with_gaps_says_so() -> None:
    for gap in ({"lacks": ("no shapes",)}, {"not_understood_count": 2}):
        diagnosis = a_trace(recorded(totals=(a_total(),), **gap))

        assert build_answer(diagnosis).lines == ("That is as far as the trace tells; what it lacks stands below",)


def test_a_log_names_its_reorders_so_that_none_is_none() -> None:
    kernels = recorded(count=3, seconds=None, sources=("oneDNN verbose log",), convolution_count=0)
    answer = build_answer(a_trace(kernels, subject={"device": "cpu"}))

    assert answer.headline == "No layout conversion in 3 primitives"
    assert answer.lines == ("Convolutions: no primitive ran for one",)


def test_what_changes_no_layout_is_named_and_not_counted() -> None:
    padding = launched(0, direction="none", seconds=30e-6)
    permuted = tuple(launched(n, owner="framework", direction="none", seconds=None) for n in (1, 2))
    kernels = recorded(padding, totals=(a_total(),))
    diagnosis = a_trace(kernels, graphs=(a_graph(name="recorded", conversions=permuted),))

    assert build_answer(diagnosis).lines == (
        "Not counted: 1 library kernel padding or copying without a layout change, 30.0 us",
        "Not counted: 2 copies into another order of dimensions, as attention makes them",
    )


NOTHING = "Nothing could be concluded: "
FIND = "To find the fastest layout: python -m layoutdoctor model.py"


@pytest.mark.parametrize("kernels", [None, recorded(count=0, seconds=0.0)], ids=["no list", "an empty list"])
@pytest.mark.parametrize("device", ["cuda", None])
def test_a_trace_without_kernels_is_never_healthy(kernels: KernelSummary | None, device: str | None) -> None:
    answer = build_answer(a_trace(kernels, subject={"device": device}))

    assert answer.headline == NOTHING + "the trace holds no device kernels"
    assert not answer.is_short
    assert answer.lines == (
        "To record them: torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
        FIND,
    )


def test_a_trace_of_a_cpu_sends_to_the_log_of_onednn() -> None:
    answer = build_answer(a_trace(recorded(count=0), subject={"device": "cpu"}))

    assert answer.headline == NOTHING + "the trace holds no device kernels"
    assert answer.lines == (
        "On a CPU, layout conversions run inside oneDNN, which writes them to its own log, not to a trace",
        "To record them: run the model with ONEDNN_VERBOSE=1 and examine what it prints",
        FIND,
    )


def test_a_cpu_trace_with_a_kernel_list_is_judged() -> None:
    diagnosis = a_trace(recorded(*two()), subject={"device": "cpu"})

    assert build_answer(diagnosis).headline.startswith("Layout conversions take 800 us of 15.0 ms recorded kernel")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("table of kernel totals", "the table holds no kernels"),
        ("oneDNN verbose log", "the log holds no primitive that ran"),
    ],
)
def test_an_empty_table_or_log_is_called_by_its_name(source: str, expected: str) -> None:
    assert build_answer(a_trace(recorded(count=0, sources=(source,)))).headline == NOTHING + expected


def test_a_file_that_could_not_be_examined_says_why() -> None:
    no_trial = msgspec.structs.replace(failed(), trials=())

    assert build_answer(failed()).headline == NOTHING + "failed (read): the file ends before its first event"
    assert build_answer(no_trial).headline == NOTHING + "nothing was examined"
    assert build_not_understood(failed()) == ("nothing was read, so nothing is known",)
    assert build_measurement(failed()) == ("none, as no kernel was read",)
    assert build_hints(failed()) == ("layoutdoctor explain", "layoutdoctor compare OLD NEW")
    assert build_tables(failed()) == ()
    assert "\n### Versions\n" in render(failed(), "markdown")


def test_an_interrupted_examination_says_so_first() -> None:
    diagnosis = a_trace(recorded(*two()), interrupted="interrupted from the keyboard")

    assert render(diagnosis).splitlines()[1].startswith("Not finished: interrupted from the keyboard.")


def test_a_finding_of_the_only_run_does_not_repeat_its_name() -> None:
    assert build_view(a_trace(recorded(*two()), findings=(a_finding(),))).findings[0].configuration is None


def places(kind: str, *seconds: float, **changes: object) -> tuple[object, ...]:
    return tuple(
        a_total(kind, f"{kind} {n}", seconds=1e-2, conversion_count=1, conversion_seconds=s, **changes)
        for n, s in enumerate(seconds)
    )


@for_each(
    ("totals", "expected"),
    [
        ((), None),
        (places("kernel", 1e-3), "kernel"),
        ((*places("kernel", 1e-3), *places("operation", 1e-3)), "operation"),
        ((*places("operation", 1e-3), *places("module", 0.5e-3)), "module"),
        ((*places("operation", 1e-3), *places("module", 0.4e-3)), "operation"),
        (places("module", 1e-3), "module"),
        ((a_total("module", "a"), a_total("operation", "b")), None),
    ],
)
def test_modules_are_shown_where_enough_was_laid_to_them(totals: tuple[object, ...], expected: str | None) -> None:
    tables = build_tables(a_trace(recorded(launched(0), totals=totals)))

    assert [table.head[0] for table in tables] == ([expected] if expected else [])


def test_the_costliest_place_stands_first_and_the_rest_is_added_up() -> None:
    seconds = [1e-3 * (n + 1) for n in range(MOST_PLACES + 2)]
    conversions = tuple(launched(n, seconds=s) for n, s in enumerate([*seconds, 0.5e-3, 0.5e-3]))
    (table,) = build_tables(a_trace(recorded(*conversions, totals=places("operation", *seconds))))

    assert table.head == ("operation", "kernels", "time", "conversions", "in conversions", "share")
    assert table.rows[0].cells == ("operation 9", "10", "10.0 ms", "1", "10.0 ms", "100.0 %")
    assert table.rows[-2].cells == ("2 more", "20", "20.0 ms", "2", "3.00 ms", "15.0 %")
    assert table.rows[-1].cells == ("no operation known", "", "", "2", "1.00 ms", "")


def test_a_table_of_kernels_has_no_share_as_a_kernel_converts_or_does_not() -> None:
    kernels = recorded(launched(0), launched(1), totals=places("kernel", 4e-4, count=1))
    (table,) = build_tables(a_trace(kernels))

    assert table.head == ("kernel", "launches", "time", "conversions")
    assert [row.cells for row in table.rows] == [
        ("kernel 0", "1", "10.0 ms", "1"),
        ("no kernel known", "1", "400 us", "1"),
    ]


def test_an_operation_without_any_time_has_no_share() -> None:
    total = a_total(seconds=0.0, conversion_count=1, conversion_seconds=0.0)
    (table,) = build_tables(a_trace(recorded(launched(0, seconds=0.0), totals=(total,))))

    assert table.rows[0].cells == ("aten::convolution", "10", "0 s", "1", "0 s", "")


def test_conversions_without_a_sum_leave_the_table_as_it_is() -> None:
    kernels = recorded(*two(), conversion_seconds=None, totals=places("operation", 4e-4))
    (table,) = build_tables(a_trace(kernels))

    assert len(table.rows) == 1


def test_steps_stand_side_by_side_in_their_order() -> None:
    steps = tuple(
        a_total("step", f"ProfilerStep#{n}", conversion_count=1, conversion_seconds=4e-4) for n in (10, 9, 11)
    )
    several = build_tables(a_trace(recorded(launched(0), totals=steps)))

    assert [row.cells[0] for row in several[0].rows] == ["ProfilerStep#9", "ProfilerStep#10", "ProfilerStep#11"]
    assert build_tables(a_trace(recorded(launched(0), totals=steps[:1]))) == ()
    assert build_tables(a_trace(recorded(totals=(a_total("step", "1"), a_total("step", "2"))))) == ()


def test_notes_are_remarks_without_a_configuration() -> None:
    diagnosis = a_trace(recorded(*two()), subject={"notes": ("torch's old trace format of 2020",)}, notes=("a note",))

    assert build_remarks(diagnosis) == ("torch's old trace format of 2020", "a note")


def test_what_lacks_and_what_could_not_be_read_is_named_once() -> None:
    kernels = recorded(not_understood_count=2, lacks=("no shapes", "no Python stack"))
    graph = a_graph(name="recorded", not_understood=("a sparse tensor", "a sparse tensor"))

    assert build_not_understood(a_trace(kernels, graphs=(graph,))) == (
        "no shapes",
        "no Python stack",
        "a sparse tensor",
    )
    assert build_not_understood(a_trace(recorded(not_understood_count=2))) == (
        "2 events or conversions could not be read or described",
    )
    assert build_not_understood(a_trace(recorded())) == ("nothing",)
    assert build_not_understood(a_trace(None)) == ("the kernel list was not recorded",)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("Kineto trace", "kernel times from the profiler, which slows small kernels"),
        ("Nsight Systems export", "kernel times from the profiler, which slows small kernels"),
        ("table of kernel totals", "times added up as the table has them"),
        ("oneDNN verbose log", "times from oneDNN's own log"),
    ],
)
def test_the_report_says_where_its_times_come_from(source: str, expected: str) -> None:
    diagnosis = a_trace(recorded(*two(), sources=(source,)))

    assert build_measurement(diagnosis) == ("one recorded run", expected, "nothing was compared")


def test_marking_for_perfetto_is_offered_for_a_trace_that_has_something_to_mark() -> None:
    mark = "--output annotated.json.gz marks them for Perfetto"

    assert build_hints(a_trace(recorded(*two()), findings=(a_finding(),))) == (
        "layoutdoctor explain LD101",
        mark,
        "layoutdoctor compare OLD NEW",
    )
    assert mark not in build_hints(a_trace(recorded()))
    assert mark not in build_hints(trace_of_kernel_totals())


def test_markdown_lists_the_costliest_first_with_what_each_rests_on() -> None:
    cheap = launched(0, seconds=1e-6, confidence="order", fused=True)
    bare = launched(1, seconds=2e-6, owner="framework", kernel=None, op=None, source=None, target=None,
                    confidence=None, step=None, exposed_seconds=None)  # fmt: skip
    pair = a_pair("kernel 0", "kernel 1", between=(), tensor_shape=None, proof=None, location=None, module=None)
    diagnosis = a_trace(recorded(cheap), graphs=(a_graph(conversions=(bare,)),), redundant_pairs=(pair,))
    rows = [line for line in render(diagnosis, "markdown").splitlines() if line.startswith("| kernel ")]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]

    assert cells[0] == [
        "kernel 1",
        "framework",
        "-",
        "activation",
        "to channels_last",
        "1",
        "2.00 us",
        "-",
        "-",
        "-",
        "-",
    ]
    assert cells[1][4:9] == ["to channels_last (fused)", "1", "1.00 us", "400 us", "order of kernels"]
    assert cells[1][10] == FORWARD
    assert cells[2] == ["kernel 0, kernel 1", "-", "nothing", "2.00 ms", "-", "-", "-", "-"]


def test_markdown_says_when_the_file_was_examined_not_when_it_was_recorded() -> None:
    report = render(trace_with_round_trips(), "markdown")

    assert "Examined at 2026-11-20T12:00:00Z." in report
    assert "Recorded at" not in report


def hostile(name: str = HOSTILE) -> Diagnosis:
    location = a_location(file=name)
    conversions = tuple(
        a_conversion(f"{n}{name}", kernel=name, op=name, location=location, module=name, step=name, confidence="grid")
        for n in range(2)
    )
    totals = tuple(
        a_total(kind, f"{n}{name}", conversion_count=1, conversion_seconds=1e-3, library=name)
        for kind in ("operation", "module", "step", "kernel")
        for n in range(2)
    )
    return a_trace(
        recorded(*conversions, totals=totals, lacks=(name,), sources=(name,)),
        subject={"name": name, "device": name, "notes": (name,)},
        environment={"device_name": name, "torch": name, "settings": {name: name}},
        graphs=(a_graph(name=name, conversions=(launched(5, owner="user", kernel=name),), not_understood=(name,)),),
        redundant_pairs=(a_pair(conversions[0].id, conversions[1].id, between=(name,), module=name, proof=name),),
        notes=(name,),
        findings=(a_finding(message=name, suggestion=name, location=location, module=name),),
    )


def test_no_name_of_a_trace_can_act_in_a_report() -> None:
    text, markdown = render(hostile()), render(hostile(), "markdown")

    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", text + markdown)
    assert not [line for line in text.splitlines() if line.startswith("new |")]
    assert "<script" not in markdown
    assert markdown.count("<details>") == markdown.count("</details>")


@pytest.mark.parametrize("name", ["n" * 100_000, "<" * 5_000, "\x1b" * 5_000, "\ud800"], ids=len)
def test_the_markdown_of_a_trace_stays_short_whatever_its_names(name: str) -> None:
    report = render(hostile(name), "markdown")

    assert len(report) < MOST_CHARACTERS
    report.encode()


def test_thousands_of_conversions_are_cut_and_counted() -> None:
    conversions = tuple(launched(n) for n in range(3_000))
    report = render(a_trace(recorded(*conversions)), "markdown")

    assert len(report) < MOST_CHARACTERS
    (left_out,) = re.findall(r"(\d+) more left out here", report)
    assert report.count("\n| kernel ") + int(left_out) == 3_000


def test_a_report_too_long_even_so_counts_the_places_it_leaves_out() -> None:
    findings = tuple(a_finding(message="<" * 900) for _ in range(3))
    totals = tuple(
        a_total("operation", f"{n}{'<' * 99}", conversion_count=1, conversion_seconds=4e-4) for n in range(8)
    )
    notes = tuple("<" * 1_000 for _ in range(20))
    kernels = recorded(*two(), totals=totals, lacks=tuple("<" * 300 for _ in range(60)))
    report = render(a_trace(kernels, subject={"notes": notes}, findings=findings), "markdown")

    assert "8 operations and 3 findings; the JSON report has them." in report


def test_long_names_are_broken_where_a_table_may_do_so() -> None:
    rows = [("a_name_that_is_far_too_long", "1"), ("b", "2")]

    assert plain_table(("name", "n"), rows, 20, wraps_names=True).splitlines() == [
        "name               n",
        "a_name_that_is_fa  1",
        "r_too_long",
        "b                  2",
    ]
    assert max(map(len, render(trace_of_owners(), "text").splitlines())) <= 100


def test_a_trace_is_never_judged_to_be_one_to_which_layouts_do_not_matter() -> None:
    diagnosis = trace_without_conversions()

    assert irrelevance(diagnosis) is None
    assert convolution_count(diagnosis) is None
    assert conversion_share(diagnosis.trials[0]) == 0.0
