"""Formats, and single decisions of wording: what small records are said to hold is reviewed in one file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import reviewed
from builders import (
    a_comparison,
    a_configuration,
    a_conversion,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_failed_trial,
    a_finding,
    a_graph,
    a_lack,
    a_location,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_subject,
    a_trial,
    an_environment,
    an_input,
    contiguous,
    kernels,
)
from golden.stories import STORIES

from layoutdoctor.diagnosis.answer import Account, AccountRow, WithoutFreezing
from layoutdoctor.diagnosis.trial import Equivalence, Failure, Trial
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.counts import conversion_share
from layoutdoctor.reports import format_of_suffix, render
from layoutdoctor.reports.sections.account import account_sentence, decision_sentence
from layoutdoctor.reports.sections.answer import build_answer
from layoutdoctor.reports.sections.details import build_details
from layoutdoctor.reports.sections.rows import Table, TableRow
from layoutdoctor.reports.sections.view import build_row_of_model, build_view
from layoutdoctor.reports.sections.wording import clean, clean_line
from layoutdoctor.reports.text import plain_table, render_text

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Ratio
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

GAIN, NO_CONVOLUTION, SMALL_SHARE = (
    STORIES[name]() for name in ("gain_with_findings", "no_convolution", "small_share")
)
BEST = "inductor-channels-last"
DIFFERENT = Equivalence(status="different", max_abs_error=7.07, tolerance=0.141, reference="float64")
MISSING = (a_failed_trial(), msgspec.structs.replace(a_failed_trial(BEST), status="timed_out", failure=None))
STATIC = {"kernels": None, "measurement": None, "equivalence": None, "is_static": True}
APPLIED = a_decision(rule="weighted-flops", explanation="the weighted flops predict no slowdown")
VETOED = a_decision(applied=False, rule="small-channels", explanation="all convolutions are small")


def with_finding(diagnosis: Diagnosis, severity: str) -> Diagnosis:
    finding = a_finding("LD201", severity=severity, configuration=None)
    return msgspec.structs.replace(diagnosis, findings=(finding,))


def two(*trials: Trial, default: Trial | None = None, **changes: object) -> Diagnosis:
    """Eager and the default, compared."""
    fields = {"comparison": a_comparison(a_ratio("eager", 1.2), fastest=("eager",)), **changes}
    return a_diagnosis(a_trial("eager"), default or a_trial(), *trials, **fields)


def static(*trials: Trial) -> Diagnosis:
    return a_diagnosis(*trials, subject=a_subject(device="cuda", target="cuda:90"))


ALL_DIFFER = a_diagnosis(
    a_trial(equivalence=DIFFERENT),
    a_trial(BEST, equivalence=Equivalence(status="different", detail="3 outputs, expected 2")),
    comparison=a_comparison(a_ratio(BEST, 1.0), fastest=()),
    recommendation=a_recommendation(None, how=None),
)
DEFAULT_DIFFERS = two(
    default=a_trial(equivalence=DIFFERENT),
    recommendation=a_recommendation("eager", speedup=a_speedup(1.2), how="y = model(x)", verified=True),
)
CASES = {
    "irrelevant, a note": with_finding(SMALL_SHARE, "note"),
    "irrelevant, a warning": with_finding(SMALL_SHARE, "warning"),
    "irrelevant, one crashed": msgspec.structs.replace(NO_CONVOLUTION, trials=(*NO_CONVOLUTION.trials, *MISSING)),
    "a gain with frozen weights": msgspec.structs.replace(
        GAIN,
        recommendation=a_recommendation(
            BEST,
            speedup=a_speedup(1.3),
            without_freezing=WithoutFreezing(configuration="eager", speedup=a_ratio("eager", 1.1, 0.2), how="model(x)"),
        ),
    ),
    "another program on the machine": two(
        comparison=a_comparison(a_ratio("eager", 1.1, 0.3), other_cores=0.8),
        environment=an_environment(settings={"OMP_WAIT_POLICY": "PASSIVE"}),
    ),
    "another baseline": a_diagnosis(
        a_trial("eager"),
        a_trial("eager-channels-last"),
        comparison=a_comparison(
            a_ratio("eager-channels-last", 1.2), baseline="eager", fastest=("eager-channels-last",)
        ),
        recommendation=a_recommendation("eager-channels-last", speedup=a_speedup(1.2), verified=True),
    ),
    "all outputs differ": ALL_DIFFER,
    "the default's outputs differ": DEFAULT_DIFFERS,
    "nothing to choose": a_diagnosis(a_trial(), a_trial(BEST, status="same_as", same_as="inductor", measurement=None)),
    "some missing": two(*MISSING, recommendation=a_recommendation("eager", speedup=a_speedup(1.2, name="eager"))),
    "a graph not followed, no kernels": a_diagnosis(
        a_trial(kernels=None, graphs=(a_graph(not_understood=("symbolic sizes: arg0_1",)),))
    ),
    "not stable": two(comparison=a_comparison(a_ratio("eager", 1.0, 0.2))),
    "static, nothing lowered": static(a_failed_trial("inductor", "cannot lower it")),
    "static, training": static(
        a_trial(
            graphs=(a_graph(APPLIED, direction="forward"), a_graph(VETOED, name="1", direction="backward")), **STATIC
        ),
    ),
}


def test_every_case_is_said_as_reviewed(update_golden: bool) -> None:
    said = {name: render_text(case, 200) for name, case in CASES.items()}

    reviewed.check("models", said, update=update_golden)
    for name, text in said.items():  # nothing sounds measured that never ran
        assert not name.startswith("static") or not re.search("against the default|faster|not measured|rounds", text)


def test_the_table_of_models_says_what_to_use_and_why_not() -> None:
    rows = [build_row_of_model("m.py", one) for one in (DEFAULT_DIFFERS, ALL_DIFFER, NO_CONVOLUTION, GAIN, "no file")]

    assert [row.cells[1:4] or row.clause for row in rows] == [
        ("eager", "1.20x  1.17 to 1.23", "outputs of the default differ"),
        ("-", "-", "outputs of the default differ"),
        ("torch.compile's default", "-", "layouts do not matter"),
        ("compiled + channels_last", "1.28x  1.25 to 1.31", "3 fresh processes agree"),
        "no file",
    ]


@pytest.mark.parametrize(
    ("width", "claim"), [(0.03, "is faster than anything else tried"), (0.2, "is as fast as anything tried")]
)
def test_the_default_is_the_fastest_only_if_the_interval_says_so(width: float, claim: str) -> None:
    assert claim_of(a_ratio(BEST, 0.9, width)).startswith(f"torch.compile's default {claim}")


def compared(*ratios: Ratio, **changes: object) -> Diagnosis:
    """A default that takes long to convert, and the configurations of the ratios."""
    costly = a_trial(kernels=kernels(a_conversion(seconds=5e-3)))
    trials = (a_trial(one.name) for one in ratios)
    return a_diagnosis(costly, *trials, **{"comparison": a_comparison(*ratios), **changes})


def claim_of(*ratios: Ratio, **changes: object) -> str:
    return build_answer(compared(*ratios, **changes)).claim


def test_what_is_not_certain_says_what_to_do_and_a_wide_interval_is_no_claim() -> None:
    assert claim_of(a_ratio("eager", 1.1, 0.2)) == (
        "Looks 1.10x faster than torch.compile's default (0.90 to 1.30), not certain: eager; "
        "keep torch.compile's default"
    )
    busy = compared(a_ratio("eager", 1.2, 0.7))
    answer = build_answer(busy)
    assert (answer.claim, answer.how) == ("Nothing can be said: the machine was busy", ())
    assert dict(answer.notes)["Next"] == "run again on a quiet machine, or measure longer (--budget)"
    assert [row.cells[2] for row in build_view(busy).tables[0].rows] == ["1.20x  0.50 to 1.90", "1"]


def test_beside_programs_that_leave_no_cores_for_the_threads_nothing_is_claimed() -> None:
    ratio = msgspec.structs.replace(a_ratio("eager", 1.2), verdict="inconclusive")

    claims = [claim_of(ratio, comparison=a_comparison(ratio, other_cores=cores)) for cores in (0.9, 1.2)]

    assert claims[0].startswith("Looks 1.20x faster")
    assert claims[1] == "Nothing can be said: the machine was busy"


def test_the_claim_is_of_a_configuration_that_was_started_again_if_any_was() -> None:
    once = msgspec.structs.replace(a_ratio("eager", 1.66, 0.3), verdict="inconclusive", start_ratios=())
    again = msgspec.structs.replace(a_ratio(BEST, 1.1, 0.2), start_ratios=(1.0, 1.1, 1.2))

    assert claim_of(once, again).startswith("Looks 1.10x faster than torch.compile's default (0.90 to 1.30)")
    assert claim_of(once).startswith("Looks 1.66x faster")


def test_if_the_advice_is_open_the_claim_is_of_what_demands_less() -> None:
    both = msgspec.structs.replace(a_ratio("inductor-channels-last-freezing", 1.07, 0.02), start_ratios=(1.06, 1.08))
    less = msgspec.structs.replace(a_ratio("inductor-freezing", 1.06, 0.08), start_ratios=(1.0, 1.12))

    assert claim_of(both, less).startswith(
        "Looks 1.06x faster than torch.compile's default (0.98 to 1.14), not certain"
    )


def test_a_certain_gain_that_is_too_little_for_the_advice_is_the_claim() -> None:
    frozen = msgspec.structs.replace(a_ratio("inductor-freezing", 1.032, 0.009), start_ratios=(1.03, 1.034))
    nearly = msgspec.structs.replace(a_ratio(BEST, 1.004, 0.01), start_ratios=(1.0, 1.008))
    claim = (
        "Only 1.03x faster than torch.compile's default (1.02 to 1.04): compiled + frozen; keep torch.compile's default"
    )

    for ratios in ((frozen, nearly), (frozen,)):
        assert claim_of(*ratios, recommendation=a_recommendation(how=None)) == claim


def test_findings_with_one_cure_are_one_entry_with_all_places_and_the_cost_together() -> None:
    fields = {"configuration": "inductor", "severity": "warning", "suggestion": "delete the call"}
    places = [(41, 2e-3), (42, 1e-3), (44, 1e-3)]
    found = [
        a_finding("LD501", location=a_location(line), seconds=cost, bytes_moved=1024, message=f"line {line}", **fields)
        for line, cost in places
    ]
    other = a_finding("LD501", location=a_location(50), message="line 50", **{**fields, "suggestion": "write .mT"})
    view = build_view(a_diagnosis(findings=(*found, other)))

    merged, alone = view.findings
    assert (merged.place, merged.message) == (
        "model.py:41, 42 and 44",
        "3 places, 4.00 ms, 3.00 KiB moved in all; the costliest: line 41",
    )
    assert [text.partition(": ")[2] for text in merged.others] == ["line 42", "line 44"]
    assert merged.findings == tuple(found)
    assert (alone.message, alone.others) == ("line 50", ())


def test_kernels_that_may_convert_are_no_events_that_could_not_be_read() -> None:
    summary = kernels(undecided_count=3, undecided_seconds=1e-3, sources=("profiler",))
    for count, said in ((0, False), (2, True)):
        trial = a_trial(kernels=msgspec.structs.replace(summary, not_understood_count=count))
        text = render(a_diagnosis(trial, subject=a_subject(device="cuda")), "text")
        assert (f"{count} events or kernels could not be read" in text) is said
        assert "-" not in re.findall(r"(\S*) events or kernels", text)


def test_a_failure_is_told_in_whole_sentences() -> None:
    message = f"no primitive for this; {'a second part that is long, ' * 6}and ends; do this"
    failed = msgspec.structs.replace(a_failed_trial(), failure=Failure(kind="run", message=message))

    assert build_view(a_diagnosis(failed)).tables[0].rows[0].clause == "failed (run): no primitive for this; do this"


def test_a_report_ends_early_only_if_layouts_do_not_matter_and_nothing_was_lost() -> None:
    assert [name for name, case in CASES.items() if build_answer(case).is_short] == ["irrelevant, a note", "not stable"]
    trials = (*SMALL_SHARE.trials, a_trial(configuration=a_configuration("aot-inductor", ahead_of_time=True)))
    assert not build_answer(msgspec.structs.replace(SMALL_SHARE, trials=trials)).is_short  # the package has a line


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    formats = "html, json, markdown, reproducer, sarif, text"
    with pytest.raises(UsageError, match=f"^cannot render as 'pdf': expected one of {formats}$"):
        render(a_diagnosis(), "pdf")
    for name, suffix in (("report.pdf", ".pdf"), ("report", ""), (".json", "")):
        with pytest.raises(UsageError) as caught:
            format_of_suffix(name)
        assert str(caught.value) == (
            f"cannot tell the format of {name!r}: got suffix {suffix!r}, expected one of .htm, .html, "
            ".json, .json.gz, .markdown, .md, .py, .sarif, .txt"
        )
    with pytest.raises(UsageError, match=r"^cannot write 'r\.xml': layoutdoctor writes no JUnit; pytest writes it"):
        format_of_suffix("r.xml")
    with pytest.raises(UsageError, match=r"^cannot render as 'junit': layoutdoctor writes no JUnit; pytest writes it"):
        render(a_diagnosis(), "junit")


@pytest.mark.parametrize("width", [60, 100, 140])
@pytest.mark.parametrize("story", STORIES)
def test_no_line_is_wider_than_the_terminal_except_code(story: str, width: int) -> None:
    diagnosis = STORIES[story]()
    code = {f"    {line}" for line in build_answer(diagnosis).how}

    lines = [line for line in render_text(diagnosis, width).splitlines() if line not in code]

    # Below 80 columns the table keeps its narrowest columns and may be wider.
    assert max(map(len, lines)) <= max(width, 80)


def test_a_table_wraps_in_its_cells_and_a_clause_spans_the_other_columns() -> None:
    narrow = plain_table(Table(("name", "what"), (TableRow(("a", "one two three four")), TableRow(("b", "five")))), 20)
    failed = TableRow(("longer",), "failed: no compiler")
    spanned = plain_table(Table(("name", "x", "y"), (TableRow(("a", "1", "2")), failed)), 60)

    assert narrow.splitlines() == ["name  what", "a     one two three", "      four", "b     five"]
    assert spanned.splitlines() == ["name    x  y", "a       1  2", "longer  failed: no compiler"]
    assert plain_table(Table(("name", "x"), (TableRow(("a",), "failed"),)), 60) == "a     failed"


def test_an_unknown_time_is_no_zero_share() -> None:
    unknown = a_conversion("a", owner="compiler", seconds=None)

    assert conversion_share(a_trial(kernels=kernels(a_conversion(seconds=1e-3), seconds=10e-3))) == pytest.approx(0.1)
    for trial in (
        a_trial(kernels=kernels(), graphs=(a_graph(conversions=(unknown,)),)),
        a_trial(kernels=kernels(lacks=(a_lack("the log"),))),
        a_trial(kernels=kernels(not_understood_count=1)),
        a_trial(kernels=kernels(), graphs=(a_graph(hook_failure="KeyError"),)),
        a_trial(kernels=None),
    ):
        assert conversion_share(trial) is None


FRAMES = "".join(f'  File "site-packages/torch/fx/frame_{i}.py", line {i} in call\n' for i in range(90))
CURRENT, THREAD = "Current thread 0x00007f3a (most recent call first):", "Thread 0x00007f3b (most recent call first):"


@pytest.mark.parametrize(
    ("log", "first", "last"),
    [
        ("short\n  log", "short", "  log"),
        ("".join(f"line {i}\n" for i in range(400)), "line 234", "line 399"),
        (f"{'noise ' * 500}\n{CURRENT}\n{FRAMES}", CURRENT, " in call"),
        (f"Timeout\n{THREAD}\n{FRAMES}", THREAD, " in call"),
    ],
)
def test_of_a_long_log_the_end_is_shown_and_of_a_stack_the_last_calls(log: str, first: str, last: str) -> None:
    failed = msgspec.structs.replace(a_failed_trial(), failure=Failure(kind="run", message="it died", log=log))
    (shown,) = [detail.log for detail in build_details(a_diagnosis(failed), 10) if detail.log]

    lines = [line for line in shown.splitlines() if line]
    assert (lines[0], lines[-1].endswith(last)) == (first, True)
    assert len(shown) <= 1500


def test_a_configuration_twice_as_inexact_as_eager_mode_is_called_so_with_what_is_as_exact() -> None:
    def trial(name: str, error: float) -> Trial:
        seen = Equivalence(status="equal", relative_error=error, eager_relative_error=2.3e-3, reference="float64")
        return a_trial(name, equivalence=seen)

    def accuracy(error: float) -> tuple[str, Table]:
        trials = trial("inductor", 2.6e-3), trial(BEST, error)
        free = WithoutFreezing(configuration="inductor", speedup=None, how=None)
        advice = a_recommendation(BEST, speedup=a_speedup(1.25), without_freezing=free)
        comparison = a_comparison(a_ratio(BEST, 1.25), fastest=(BEST,))
        view = build_view(a_diagnosis(*trials, comparison=comparison, recommendation=advice))
        return dict(view.answer.notes)["Accuracy"], view.tables[0].narrow

    words, table = accuracy(1.4e-2)
    assert words == (
        "6.1 times less exact than eager mode: largest error against float64 0.014, eager mode itself 0.0023; "
        "without frozen weights: 0.0026 (compiled (the default))"
    )
    assert [row.cells[3] for row in table.rows] == ["0.014", "0.0026"]
    words, table = accuracy(4.6e-3)
    assert words == "largest error against float64 0.0046, eager mode itself 0.0023"
    assert "error" not in table.head


def test_symbolic_sizes_are_said_with_the_decision_for_the_other_kind() -> None:
    # A dimension that the input does not have may stand in an edited file.
    subject = a_subject(inputs=(msgspec.structs.replace(an_input(), symbolic=(0, 2, 9)),))
    off = a_decision(applied=False, rule="dynamic-shape", explanation="a convolution has symbolic sizes")
    other = a_trial("inductor+symbolic-sizes", graphs=(a_graph(off),), is_static=True)
    said = "dimension 0 of x (here 4) and dimension 2 of x (here 56) are symbolic: no other size was diagnosed"

    static = a_diagnosis(a_trial(is_static=True), other, subject=msgspec.structs.replace(subject, target="cuda:90"))
    assert dict(build_answer(static).notes)["Sizes"] == (
        f"{said}; with sizes as symbols, layout optimization is off: a convolution has symbolic sizes"
    )
    measured = a_diagnosis(a_trial(), a_trial(BEST), comparison=a_comparison(a_ratio(BEST, 1.25)), subject=subject)
    assert dict(build_answer(measured).notes)["Sizes"] == said


def test_what_is_eager_mode_is_named_below_the_table() -> None:
    same = a_trial(status="same_as", same_as="eager", ran_as_eager=True)
    (table,) = build_view(a_diagnosis(a_trial("eager"), same)).tables

    assert table.below == ("the same code as eager, because torch.compile lowered no graph: compiled (the default)",)


def test_a_diagnosis_from_python_speaks_of_arguments_and_no_options() -> None:
    suggestion = "measure longer (--budget), or --configurations all measures it; see --mode training"
    finding = a_finding(configuration="inductor", severity="warning", suggestion=suggestion)
    texts = {}
    for command in ("layoutdoctor model.py", None):
        environment = an_environment(command=command)
        texts[command] = " ".join(str(a_diagnosis(a_trial(), findings=(finding,), environment=environment)).split())

    assert f"-> {suggestion}" in texts["layoutdoctor model.py"]
    assert "--output report.html, or report.md for an issue" in texts["layoutdoctor model.py"]
    asked = 'measure longer (budget_seconds), or configurations="all" measures it; see mode="training"'
    assert f"-> {asked}" in texts[None]
    assert 'diagnosis.save("report.html"), or .md' in texts[None]
    assert "--" not in texts[None]


def test_unprintable_characters_are_escaped_and_a_log_keeps_its_indentation() -> None:
    assert clean("a\x1b[0m\tb\n\nc\u202e") == "a\\x1b[0m b c\\u202e"
    assert clean("x" * 20, 10) == "xxxxxxx..."
    assert clean("Größe → 変換") == "Größe → 変換"
    assert clean_line('    File "x.py"  \n') == '    File "x.py"'
    assert clean_line("\t\x1b[31mred") == "\\x1b[31mred"
    assert clean_line(" " * 5000 + "x") == " " * 100 + "x"
    assert clean_line("  " + "y" * 20, 10) == "  yyyyyyy..."


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


@pytest.mark.parametrize(
    ("one", "part"),
    [
        (row("generated_kernel", 12), "a slower kernel for relu and max_pool2d (model.py:30)"),
        (row("conversion", 12, detail="16 weights against none"), "layout conversions"),
        (row("layout", 12, slower_layout=contiguous()), "relu and max_pool2d in another layout (model.py:30)"),
        (row("implementation", 12, count=3), "3 x relu and max_pool2d in other library code (model.py:30 and 1 more)"),
        (row("missing_fusion", 12), "relu and max_pool2d, not fused (model.py:30)"),
        (row("operation", 12, locations=(), module="body.0"), "relu and max_pool2d (body.0)"),
        (row("operation", 12, locations=(), module="5"), "relu and max_pool2d (module 5)"),
        (row("operation", 12, module="5"), "relu and max_pool2d (model.py:30)"),
        (row("outside_kernels", 12, locations=()), "unrecorded causes"),
        (row("small", 12, detail="9 rows", locations=()), "small differences (9 rows)"),
    ],
)
def test_each_kind_of_row_has_its_words(one: AccountRow, part: str) -> None:
    assert said(one) == f"the default is slower by 12.0 ms: 12.0 ms from {part}"


def test_the_parts_and_the_rest_add_up_to_the_difference() -> None:
    rows = [row("operation", ms, operations=(f"op{ms}",), locations=()) for ms in (5, 4, 2, 1.5, -0.5)]

    assert said(*rows, slower="inductor-channels-last") == (
        "compiled + channels_last is slower by 12.0 ms: 5.00 ms from op5, 4.00 ms from op4, 2.00 ms from op2, "
        "the rest 1.00 ms"
    )


def test_rows_that_a_reader_could_not_tell_apart_are_one_part() -> None:
    calls = [row("operation", ms, operations=("conv2d",), count=count) for ms, count in ((6, 8), (4, 9), (-1, 1))]
    assert said(*calls, row("layout", 3, operations=("conv2d",))) == (
        "the default is slower by 12.0 ms: 10.0 ms from 17 x conv2d (model.py:30 and 1 more), 3.00 ms from conv2d "
        "in another layout (model.py:30), the rest -1.00 ms (less in conv2d)"
    )


def test_slower_generated_kernels_are_one_part() -> None:
    kernels_ = [
        row("generated_kernel", ms, operations=(name,), locations=(a_location(line), a_location(99)))
        for ms, name, line in ((3, "gelu", 7), (4, "silu", 9), (2, "cat", 7), (-1, "mean", 8))
    ]
    assert said(*kernels_, row("conversion", 4, locations=())) == (
        "the default is slower by 12.0 ms: 9.00 ms from slower generated kernels (model.py:9 and 2 more), 4.00 ms from "
        "layout conversions, the rest -1.00 ms (less in mean)"
    )


def test_a_part_that_is_too_long_gives_way_to_the_next_one() -> None:
    long = tuple(f"an_operation_with_a_rather_long_name_{number}" for number in range(3))
    parts = (6, ("a",)), (4, long), (2, ("b",))
    rows = [row("operation", ms, operations=names, locations=()) for ms, names in parts]
    assert said(*rows) == "the default is slower by 12.0 ms: 6.00 ms from a, 2.00 ms from b, the rest 4.00 ms"


def test_a_rest_below_zero_names_what_takes_longest_in_the_faster_configuration() -> None:
    longer = [
        row("operation", ms, operations=(name,)) for ms, name in ((-2, "conv2d"), (-1.5, "linear"), (-1, "conv2d"))
    ]
    assert said(row("conversion", 12), row("outside_kernels", 4.5, locations=()), *longer) == (
        "the default is slower by 12.0 ms: 12.0 ms from layout conversions, 4.50 ms from unrecorded causes, the "
        "rest -4.50 ms (less in conv2d)"
    )


def test_conversions_are_added_up_before_their_part_is_judged() -> None:
    """94.6 us of conversions, 14 % of a training step's difference, were in no sentence: each kind is below 5 %."""
    small = [row("conversion", 0.5, operations=(f"conversion of {kind}",)) for kind in ("weights", "gradients")]
    others = [row("conversion", ms, locations=(), module="3") for ms in (0.5, -0.1)]
    outside = row("outside_kernels", 11, locations=())

    assert said(outside, *small) == (
        "the default is slower by 12.0 ms: 11.0 ms from unrecorded causes, 1.00 ms from layout conversions"
    )
    assert said(outside, *small, *others).endswith("11.0 ms from unrecorded causes, 1.40 ms from layout conversions")
    assert said(outside, *others) == (
        "the default is slower by 12.0 ms: 11.0 ms from unrecorded causes, the rest 1.00 ms"
    )


def test_a_target_whose_graphs_hold_no_convolution_of_the_model_says_so() -> None:
    none = msgspec.structs.replace(a_decision(), convolution_count=0)
    subject = a_subject(target="cuda:90", convolution_module_count=4)
    trial = a_trial(graphs=(a_graph(none),), is_static=True)

    notes = dict(build_answer(a_diagnosis(trial, subject=subject)).notes)

    assert notes["Decision"] == "no graph holds any of the model's convolutions (4), so their decision is unknown"
    assert notes["Converts"] == "no conversion in the graphs"


def test_a_gap_of_both_graphs_of_a_training_step_is_named_once() -> None:
    graph = a_graph(not_understood=("custom operation (mine.scale.default): scale",))
    both = a_diagnosis(a_trial(graphs=(graph, graph)), a_trial(BEST, graphs=(a_graph(),)))
    text = " ".join(render_text(both).split())

    assert "Not understood: compiled (the default): not followed" in text
    assert "compiled (the default), compiled (the default)" not in text


@pytest.mark.parametrize(
    ("rank", "sentence"),
    [
        (3, "layout optimization reaches 0 of 2 convolutions (2-D only)"),
        (2, "layout optimization is off in the backward: only backward convolutions are in the graph"),
    ],
)
def test_a_decision_about_other_ranks_than_2_d_names_the_rank_and_not_the_rule(rank: int, sentence: str) -> None:
    convolution = a_convolution(rank=rank, channels_last=False)
    why = {"rule": "only-backward-convolutions", "explanation": "only backward convolutions are in the graph"}
    halves = (
        a_graph(a_decision(convolution), direction="forward"),
        a_graph(a_decision(convolution, applied=False, **why), direction="backward", name="graph 1"),
    )

    assert decision_sentence(a_trial(graphs=halves), in_full=True) == sentence


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("weighted flops: default 1,397,798,993", "weighted flops: default..."),
        ("weighted flops: default, 397 798 993", "weighted flops: default, 397..."),
        ("cut at a name sm80_xmma_tilesize128x128x32", "cut at a name sm80_xmma_tilesi..."),
    ],
)
def test_a_text_that_is_too_long_ends_before_a_number_and_not_within(text: str, shown: str) -> None:
    assert clean(text, 33) == shown
