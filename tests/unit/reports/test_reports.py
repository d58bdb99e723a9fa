"""Formats, and single decisions of wording that a whole report would hide."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from builders import (
    a_breaker,
    a_comparison,
    a_configuration,
    a_conversion,
    a_decision,
    a_diagnosis,
    a_failed_trial,
    a_graph,
    a_measurement,
    a_pair,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_subject,
    a_trial,
    channels_last,
    kernels,
)
from golden.stories import STORIES, gain_with_findings, no_convolution, small_share
from loops import for_each

from layoutdoctor import reports
from layoutdoctor.diagnosis.records import Diagnosis, Equivalence, Failure, Finding
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.costs import conversion_share, convolution_count, counted_conversions
from layoutdoctor.reports import format_of_suffix, render
from layoutdoctor.reports.sections.answer import build_answer
from layoutdoctor.reports.sections.details import build_details
from layoutdoctor.reports.sections.rows import TableRow, build_tables, conversions_cell, decision_cell
from layoutdoctor.reports.sections.view import build_measurement, build_not_understood, build_remarks
from layoutdoctor.reports.sections.wording import clean_line, waste_of
from layoutdoctor.reports.text import MOST_FINDINGS, plain_table, render_text

NO_CONVOLUTION = a_decision(applied=False, rule="no-convolution", convolution_count=0)


def rows_of(diagnosis: Diagnosis) -> tuple[TableRow, ...]:
    (table,) = build_tables(diagnosis)
    return table.rows


def test_a_format_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(UsageError) as caught:
        render(a_diagnosis(), "pdf")

    formats = "html, json, junit, markdown, reproducer, sarif, text"
    assert str(caught.value) == f"cannot render as 'pdf': expected one of {formats}"


def test_no_format_is_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys, layoutdoctor.reports\n"
        "print(*(name for name in sys.modules if name.startswith('layoutdoctor.reports')))"
    )

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed.split() == ["layoutdoctor.reports"]


def test_reports_have_no_name_that_nobody_made() -> None:
    with pytest.raises(AttributeError) as caught:
        _ = reports.render_pdf

    assert str(caught.value) == "module 'layoutdoctor.reports' has no attribute 'render_pdf'"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.txt", "text"), ("a.md", "markdown"), ("b/a.markdown", "markdown"), ("a.JSON", "json"), ("a.tar.json", "json")],
)
def test_a_suffix_names_a_format(name: str, expected: str) -> None:
    assert format_of_suffix(name) == expected


@pytest.mark.parametrize(("name", "suffix"), [("report.pdf", ".pdf"), ("report", ""), (".json", "")])
def test_an_unknown_suffix_is_refused_with_those_that_are_known(name: str, suffix: str) -> None:
    with pytest.raises(UsageError) as caught:
        format_of_suffix(name)

    assert str(caught.value) == (
        f"cannot tell the format of {name!r}: got suffix {suffix!r}, expected one of .htm, .html, "
        ".json, .markdown, .md, .py, .sarif, .txt, .xml"
    )


@for_each("width", [60, 80, 100, 140])
@for_each("story", STORIES)
def test_no_line_is_wider_than_the_terminal_except_code(story: str, width: int) -> None:
    diagnosis = STORIES[story]()
    code = {f"  {line}" for line in build_answer(diagnosis).how}

    lines = [line for line in render_text(diagnosis, width).splitlines() if line not in code]

    # Below 80 columns the table keeps its narrowest columns and may stick out.
    assert max(map(len, lines)) <= max(width, 80)


def test_a_narrow_table_wraps_inside_its_cells() -> None:
    table = plain_table(("name", "what"), [("a", "one two three four"), ("b", "five")], 20)

    assert table.splitlines() == ["name  what", "a     one two three", "      four", "b     five"]


def test_a_row_with_a_clause_spans_the_other_columns() -> None:
    table = plain_table(("name", "x", "y"), [("a", "1", "2"), ("longer", "", "")], 60, [None, "failed: no compiler"])

    assert table.splitlines() == ["name    x  y", "a       1  2", "longer  failed: no compiler"]


def test_a_table_of_clauses_only_has_no_head() -> None:
    assert plain_table(("name", "x"), [("a", "")], 60, ["failed"]) == "a     failed"


def test_conversions_that_are_fused_or_change_nothing_or_stand_in_two_lists_are_not_counted_twice() -> None:
    fused = a_conversion("fused", owner="compiler", fused=True)
    moved = a_conversion("moved", owner="compiler", tensor="weight")
    twice = a_conversion("reorder 0")
    cast = a_conversion("cast", direction="none")
    graph = a_graph(a_decision(), conversions=(fused, moved, twice, a_conversion("seen", owner="library")))
    trial = a_trial(kernels=kernels(twice, cast), graphs=(graph,))

    assert [c.id for c in counted_conversions(trial)] == ["reorder 0", "moved"]
    assert conversions_cell(trial) == "1 activation, 1 weight"


def test_conversions_of_a_graph_are_shown_though_kernels_were_not_recorded() -> None:
    graph = a_graph(a_decision(), conversions=(a_conversion(owner="compiler", tensor="unknown"),))

    assert conversions_cell(a_trial(kernels=None, graphs=(graph,))) == "1 other in graphs; kernels not recorded"
    assert conversions_cell(a_trial(kernels=None)) == "kernels not recorded"


def test_a_conversion_shared_by_two_pairs_is_wasted_once() -> None:
    conversions = tuple(a_conversion(f"reorder {i}", seconds=1e-3, bytes_moved=10) for i in range(3))
    trial = a_trial(
        kernels=kernels(*conversions),
        redundant_pairs=(a_pair("reorder 0", "reorder 1"), a_pair("reorder 1", "reorder 2")),
    )

    waste = waste_of(trial)

    assert waste is not None
    assert (waste.pair_count, waste.seconds, waste.bytes_moved, waste.owners) == (
        2,
        pytest.approx(3e-3),
        30,
        ("library",),
    )


def test_a_pair_whose_conversions_are_not_listed_keeps_its_own_time() -> None:
    waste = waste_of(a_trial(redundant_pairs=(a_pair("x", "y", seconds=2e-3),)))

    assert waste is not None
    assert (waste.seconds, waste.bytes_moved, waste.owners) == (2e-3, None, ())


def test_a_pair_without_a_time_is_said_with_its_bytes() -> None:
    there = a_conversion("a", owner="compiler", seconds=None, bytes_moved=1024)
    back = a_conversion("b", owner="compiler", seconds=None, bytes_moved=1024)
    trial = a_trial(graphs=(a_graph(conversions=(there, back)),), redundant_pairs=(a_pair("a", "b", seconds=None),))

    assert build_answer(a_diagnosis(trial)).lines == (
        "Wasted now (inductor): 1 round trip, time not recorded, 2.00 KiB moved, all in compiled kernels",
    )


def test_an_unknown_time_is_no_zero_share() -> None:
    unknown = a_conversion("a", owner="compiler", seconds=None)

    assert conversion_share(a_trial(kernels=kernels(a_conversion(seconds=1e-3), seconds=10e-3))) == pytest.approx(0.1)
    assert conversion_share(a_trial(kernels=kernels(), graphs=(a_graph(conversions=(unknown,)),))) is None
    assert conversion_share(a_trial(kernels=kernels(lacks=("the log",)))) is None
    assert conversion_share(a_trial(kernels=kernels(not_understood_count=1))) is None
    assert conversion_share(a_trial(kernels=kernels(), graphs=(a_graph(hook_failure="KeyError"),))) is None
    assert conversion_share(a_trial(kernels=None)) is None
    assert conversion_share(None) is None


def test_convolutions_are_unknown_where_nothing_was_recorded() -> None:
    bare = a_subject(convolution_module_count=0)

    assert convolution_count(a_diagnosis(a_trial(), subject=bare)) is None
    assert convolution_count(a_diagnosis(a_trial(graphs=(a_graph(a_decision()),)), subject=bare)) == 1
    assert convolution_count(a_diagnosis(a_trial(), subject=a_subject(convolution_module_count=3))) == 3


def with_finding(diagnosis: Diagnosis, severity: str) -> Diagnosis:
    finding = Finding(code="LD203", rule="x", severity=severity, configuration=None, message="slower")
    return msgspec.structs.replace(diagnosis, findings=(finding,))


def test_a_short_report_is_about_four_lines() -> None:
    report = render(no_convolution())

    assert len([line for line in report.splitlines() if line]) <= 6
    assert "configuration " not in report


def test_a_warning_makes_the_report_of_an_irrelevant_layout_a_full_one() -> None:
    assert build_answer(with_finding(small_share(), "note")).is_short
    assert not build_answer(with_finding(small_share(), "warning")).is_short
    unrecorded = a_trial("eager", kernels=None, notes=("the kernel list was not recorded: OSError",))
    partly = msgspec.structs.replace(small_share(), trials=(*small_share().trials, unrecorded))
    assert not build_answer(partly).is_short
    assert "Findings\nLD203 warning" in render(with_finding(small_share(), "warning"))


def test_a_model_without_convolution_that_copies_a_lot_is_not_called_irrelevant() -> None:
    story = no_convolution()
    copied = kernels(*(a_conversion(f"c{i}", owner="framework", seconds=1e-4) for i in range(5)), seconds=1.9e-3)
    trials = tuple(msgspec.structs.replace(t, kernels=copied) if t.name == "inductor" else t for t in story.trials)

    headline = build_answer(msgspec.structs.replace(story, trials=trials)).headline

    assert headline == "Keep torch.compile's default (2.00 ms): nothing measured is faster"


def test_a_recommendation_that_did_not_repeat_is_a_tie() -> None:
    recommendation = a_recommendation(
        "inductor-channels-last", speedup=a_speedup(1.01), how="x", reason="not confirmed"
    )
    answer = build_answer(msgspec.structs.replace(gain_with_findings(), recommendation=recommendation))

    assert answer.headline == (
        "Tie: inductor-channels-last is not measurably faster than torch.compile's default, "
        "1.01x (99 % interval 0.98 to 1.04)"
    )
    assert answer.lines[0] == "Not verified: not confirmed"


def test_a_recommendation_whose_outputs_differ_is_never_verified() -> None:
    story = gain_with_findings()
    different = Equivalence(status="different", max_abs_error=1.0, tolerance=1e-4)
    trials = tuple(msgspec.structs.replace(t, equivalence=different) for t in story.trials)

    assert build_answer(msgspec.structs.replace(story, trials=trials)).lines[0] == (
        "Not verified: the outputs differ from the reference"
    )


def test_another_baseline_is_called_by_its_name() -> None:
    diagnosis = a_diagnosis(
        a_trial("eager"),
        a_trial("eager-channels-last"),
        comparison=a_comparison(
            a_ratio("eager-channels-last", 1.2), baseline="eager", fastest=("eager-channels-last",)
        ),
        recommendation=a_recommendation("eager-channels-last", speedup=a_speedup(1.2), verified=True),
    )

    assert build_tables(diagnosis)[0].head[2] == "vs eager"
    assert [row.cells[2] for row in rows_of(diagnosis)] == ["baseline", "1.20x  1.17..1.23"]
    assert build_answer(diagnosis).headline.startswith("Fastest: eager-channels-last, 1.20x faster than eager (99 %")


def test_a_missing_baseline_leaves_the_rest_of_the_report() -> None:
    comparison = a_comparison(a_ratio("eager", 1.2), fastest=("eager",))
    diagnosis = a_diagnosis(a_trial("eager"), comparison=comparison, interrupted="interrupted from the keyboard")

    assert build_answer(diagnosis).headline == (
        "Fastest measured: eager, 1.20x faster than torch.compile's default "
        "(99 % interval 1.17 to 1.23); nothing is recommended yet"
    )
    assert [row.cells[2] for row in rows_of(diagnosis)] == ["1.20x  1.17..1.23"]


def test_a_gain_that_did_not_repeat_keeps_the_baseline_and_says_why() -> None:
    answer = build_answer(
        a_diagnosis(
            a_trial("eager", kernels=kernels(a_conversion(seconds=1e-3))),
            a_trial(kernels=kernels(a_conversion(seconds=1e-3))),
            comparison=a_comparison(a_ratio("eager", 1.2), fastest=("eager",)),
            recommendation=a_recommendation(None, how=None, reason="the gain did not repeat"),
        )
    )

    assert answer.headline == "Keep torch.compile's default (10.0 ms): the gain did not repeat"
    assert "Looked faster, not confirmed: eager 1.20x" in answer.lines


def test_where_no_outputs_are_right_there_is_no_recommendation() -> None:
    answer = build_answer(
        a_diagnosis(
            a_trial("eager"),
            a_trial(),
            comparison=a_comparison(a_ratio("eager", 1.0), fastest=()),
            recommendation=a_recommendation(None, how=None, reason="no outputs are right"),
        )
    )

    assert (answer.headline, answer.lines) == ("No recommendation: no outputs are right", ())


def test_a_range_without_coverage_is_not_called_an_interval() -> None:
    story = gain_with_findings()
    ratios = tuple(msgspec.structs.replace(ratio, coverage=None) for ratio in story.comparison.ratios)
    diagnosis = msgspec.structs.replace(story, comparison=msgspec.structs.replace(story.comparison, ratios=ratios))

    assert build_answer(diagnosis).headline.endswith("(range 1.25 to 1.31)")
    assert build_measurement(diagnosis)[0] == "60 rounds, too few to compare"


def test_a_model_without_convolution_of_which_one_time_is_known_is_told_so() -> None:
    trial = a_trial(graphs=(a_graph(NO_CONVOLUTION),))
    answer = build_answer(a_diagnosis(trial, subject=a_subject(convolution_module_count=0)))

    assert answer.headline == "Only inductor (10.0 ms) was measured, so there is nothing to compare it with"
    assert answer.lines[0] == "The model has no convolution, so Inductor's layout optimization has nothing to change"


def test_where_every_configuration_is_the_same_there_is_nothing_to_choose() -> None:
    same = {"status": "same_as", "same_as": "inductor", "measurement": None, "kernels": None}
    diagnosis = a_diagnosis(a_trial(), a_trial("inductor-layout-opt-on", **same))

    assert build_answer(diagnosis).headline == (
        "Nothing to choose: every configuration is the same as inductor (10.0 ms) for this model"
    )
    assert build_answer(msgspec.structs.replace(diagnosis, interrupted="x")).headline.startswith("Only inductor (10.0")


def test_rounds_too_few_for_a_verdict_are_not_called_a_tie() -> None:
    few = a_ratio("eager", 1.4, verdict="no measurable difference", coverage=None, round_count=5)
    diagnosis = a_diagnosis(
        a_trial("eager"),
        a_trial(),
        comparison=a_comparison(few, fastest=("inductor", "eager"), resolution=0.01),
        recommendation=a_recommendation(None, how=None),
    )
    answer = build_answer(diagnosis)

    assert answer.headline == (
        "Keep torch.compile's default (10.0 ms): 5 rounds, too few to compare; give a larger --budget"
    )
    assert answer.lines[0] == "Not judged, too few rounds: eager 1.40x"
    assert [row.cells[2] for row in rows_of(diagnosis)] == ["1.40x  1.37..1.43", "default"]
    assert not any("tie" in line for line in build_measurement(diagnosis))


def test_a_tie_without_a_recommendation_is_said() -> None:
    comparison = a_comparison(a_ratio("eager", 1.0), fastest=("inductor", "eager"))
    answer = build_answer(a_diagnosis(a_trial("eager"), a_trial(), comparison=comparison))

    assert answer.headline == "No recommendation: no configuration may be recommended"
    assert answer.lines == ("Tie: inductor and eager, no measurable difference between them",)


def test_a_baseline_that_is_no_trial_has_no_time_in_the_headline() -> None:
    """No file can hold one; code can make one."""
    comparison = a_comparison(a_ratio("eager", 0.9), baseline="mine", fastest=("mine",))
    answer = build_answer(
        a_diagnosis(a_trial("eager"), comparison=comparison, recommendation=a_recommendation(None, how=None))
    )

    assert answer.headline == "Keep mine: nothing measured is faster"
    assert answer.lines == ("Slower: eager 0.90x",)


@pytest.mark.parametrize(
    ("others", "line"),
    [
        (("eager",), "Tie: eager is not measurably slower"),
        (("eager", "eager-channels-last"), "Tie: eager and eager-channels-last are not measurably slower"),
    ],
)
def test_those_as_fast_as_the_recommended_one_are_named(others: tuple[str, ...], line: str) -> None:
    best = "inductor-channels-last"
    diagnosis = a_diagnosis(
        *(a_trial(name) for name in ("inductor", best, *others)),
        comparison=a_comparison(*(a_ratio(name, 1.3) for name in (best, *others)), fastest=(best, *others)),
        recommendation=a_recommendation(best, speedup=a_speedup(1.3), verified=True),
    )

    assert line in build_answer(diagnosis).lines


def test_a_recommendation_that_was_measured_once_and_is_not_faster_is_a_tie() -> None:
    diagnosis = a_diagnosis(
        a_trial(),
        a_trial("inductor-channels-last", equivalence=None),
        comparison=a_comparison(
            a_ratio("inductor-channels-last", 1.02), fastest=("inductor", "inductor-channels-last")
        ),
        recommendation=a_recommendation("inductor-channels-last"),
    )
    answer = build_answer(diagnosis)

    assert answer.headline == (
        "Tie: inductor-channels-last is not measurably faster than torch.compile's default, "
        "1.02x (99 % interval 0.99 to 1.05)"
    )
    assert answer.lines[0] == (
        "Not verified: the gain was not measured again after the choice and the outputs were not compared"
    )


def test_round_trips_of_several_owners_are_said_to_be_nowhere_in_particular() -> None:
    conversions = a_conversion("reorder 0"), a_conversion("reorder 1", owner="framework")
    trial = a_trial(kernels=kernels(*conversions, seconds=10e-3), redundant_pairs=(a_pair(),))
    (line,) = build_answer(a_diagnosis(trial)).lines

    assert line == "Wasted now (inductor): 1 round trip, 2.00 ms of 10.0 ms kernel time (20 %)"


MISSING = (
    a_failed_trial("inductor-layout-opt-off"),
    msgspec.structs.replace(a_failed_trial("inductor-layout-opt-on"), status="crashed"),
    msgspec.structs.replace(a_failed_trial("inductor-channels-last"), status="timed_out"),
)


@pytest.mark.parametrize("configuration", [None, "eager"], ids=["keep", "change"])
@pytest.mark.parametrize("interrupted", [None, "interrupted from the keyboard"])
def test_every_answer_names_those_that_could_not_be_compared(configuration: str | None, interrupted: str) -> None:
    diagnosis = a_diagnosis(
        a_trial(kernels=kernels(a_conversion(seconds=2e-3))),
        a_trial("eager"),
        *MISSING,
        comparison=a_comparison(a_ratio("eager", 1.2), fastest=("eager",)),
        recommendation=a_recommendation(configuration, speedup=a_speedup(1.2), reason="why"),
        interrupted=interrupted,
    )

    assert (
        "No result: inductor-layout-opt-off (failed), inductor-layout-opt-on (crashed) and inductor-channels-last "
        "(timed out); 2 others were compared"
    ) in build_answer(diagnosis).lines


def test_a_report_that_layout_is_irrelevant_goes_on_where_a_configuration_crashed() -> None:
    story = no_convolution()
    answer = build_answer(msgspec.structs.replace(story, trials=(*story.trials, MISSING[1])))

    assert answer.headline == build_answer(story).headline
    assert answer.lines[0].startswith("No result: inductor-layout-opt-on (crashed); ")
    assert not answer.is_short


def test_a_failure_whose_reason_nobody_recorded_is_called_so() -> None:
    silent = msgspec.structs.replace(a_failed_trial("eager"), status="crashed", failure=None)

    assert rows_of(a_diagnosis(a_trial(), silent))[1].clause == "crashed: the reason was not recorded"


@pytest.mark.parametrize(
    ("line", "length", "shown"),
    [
        ('    File "x.py"  \n', 300, '    File "x.py"'),
        ("\t\x1b[31mred", 300, "\\x1b[31mred"),
        (" " * 5000 + "x", 300, " " * 100 + "x"),
        ("  " + "y" * 20, 10, "  yyyyyyy..."),
        ("", 300, ""),
    ],
)
def test_a_line_of_a_log_keeps_its_indentation_and_nothing_that_acts(line: str, length: int, shown: str) -> None:
    assert clean_line(line, length) == shown


def stack(count: int) -> str:
    frames = "".join(f'  File "site-packages/torch/fx/frame_{i}.py", line {i} in call\n' for i in range(count))
    return f"Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f3a (most recent call first):\n{frames}"


@for_each(
    ("log", "first", "last"),
    [
        ("short\n  log", "short", "  log"),
        ("".join(f"line {i}\n" for i in range(400)), "line 234", "line 399"),
        (f"{'x' * 2000}", "x" * 1500, "x" * 1500),
        (
            stack(5),
            "Fatal Python error: Segmentation fault",
            '  File "site-packages/torch/fx/frame_4.py", line 4 in call',
        ),
        (
            f"{'noise ' * 500}\n{stack(90)}",
            "Current thread 0x00007f3a (most recent call first):",
            '  File "site-packages/torch/fx/frame_23.py", line 23 in call',
        ),
        (
            stack(90).replace("Current t", "T") + stack(40).replace("Current t", "T").replace("3a", "3b"),
            "Thread 0x00007f3b (most recent call first):",
            '  File "site-packages/torch/fx/frame_23.py", line 23 in call',
        ),
    ],
)
def test_of_a_long_log_the_telling_part_is_shown(log: str, first: str, last: str) -> None:
    failed = msgspec.structs.replace(a_failed_trial(), failure=Failure(kind="run", message="it died", log=log))
    (shown,) = [detail.log for detail in build_details(a_diagnosis(failed), 10) if detail.log]

    assert (shown.splitlines()[0], shown.splitlines()[-1]) == (first, last)
    assert len(shown) <= 1500


@for_each(
    ("decisions", "expected"),
    [
        ((a_decision(),), "on, 1 of 1 convs channels-last"),
        ((a_decision(applied=False, rule="config-off"),), "off"),
        ((a_decision(applied=False, rule="grouped-convolution"),), "off (grouped-convolution)"),
        ((a_decision(applied=None, rule="not-recorded"),), "not recorded"),
        ((None,), "not recorded"),
        ((), "not recorded"),
        ((a_decision(), None), "on, 1 of 1 convs channels-last, 1 graph not recorded"),
        (
            (a_decision(), a_decision(applied=False, rule="no-convolution", convolution_count=0)),
            "on, 1 of 1 convs channels-last",
        ),
    ],
)
def test_a_decision_is_one_cell(decisions: tuple[object, ...], expected: str) -> None:
    graphs = tuple(a_graph(decision, name=f"graph {i}") for i, decision in enumerate(decisions))

    assert decision_cell(a_trial(graphs=graphs)) == expected


def test_eager_has_no_decision() -> None:
    assert decision_cell(a_trial("eager")) == "-"


def test_nothing_is_said_to_be_understood_that_was_not_recorded() -> None:
    assert build_not_understood(a_diagnosis(a_trial())) == ("nothing",)
    assert build_not_understood(a_diagnosis(a_trial(kernels=None))) == ("kernels not recorded for inductor",)
    assert build_not_understood(a_diagnosis(a_trial(kernels=kernels(not_understood_count=2)))) == (
        "2 kernel records: inductor",
    )


def test_findings_beyond_the_first_twenty_are_counted() -> None:
    finding = Finding(code="LD101", rule="x", severity="note", configuration=None, message="m")
    report = render(a_diagnosis(findings=(finding,) * 25))

    assert report.count("LD101 note") == MOST_FINDINGS
    assert "and 5 more: --output report.md lists them" in report


def test_an_unstable_measurement_is_called_so() -> None:
    comparison = a_comparison(a_ratio("eager", 1.0, 0.2))

    assert build_measurement(a_diagnosis(a_trial(), a_trial("eager"), comparison=comparison))[0] == (
        "24 rounds, not stable (widest interval 50 %); less than 1.0 % is called a tie"
    )


def test_a_symbolic_or_blocked_layout_is_shown_as_recorded() -> None:
    symbolic = msgspec.structs.replace(channels_last(), shape=("s0", 3, 8, 8), stride=None, memory_formats=())
    report = render(a_diagnosis(a_trial(kernels=kernels(a_conversion(target=symbolic, source=None)))), "markdown")

    assert "| \\[s0, 3, 8, 8\\] |" in report


def test_a_measured_trial_outside_the_comparison_has_no_ratio() -> None:
    diagnosis = a_diagnosis(a_trial(), a_trial("eager", measurement=a_measurement(0.5)), comparison=a_comparison())

    assert [(row.cells[0], row.cells[2]) for row in rows_of(diagnosis)] == [("inductor", "default"), ("eager", "-")]


def test_a_configuration_of_ones_own_stands_in_the_table() -> None:
    rows = rows_of(a_diagnosis(a_trial(configuration=a_configuration("mine", layout_optimization="on"))))

    assert [row.cells[0] for row in rows] == ["mine"]


def test_markdown_says_why_each_conversion_is_there_which_times_are_estimates_and_where_regions_end() -> None:
    conversion = a_conversion(
        "graph 0 conversion 0", owner="compiler", cause="required by convolution body.1", seconds_source="estimated"
    )
    graph = a_graph(conversions=(conversion,), breakers=(a_breaker(conversions=("graph 0 conversion 0",)),))
    report = render(a_diagnosis(a_trial(graphs=(graph,))), "markdown")

    (row,) = (line for line in report.splitlines() if line.startswith("| graph 0 conversion 0"))
    assert "required by convolution body.1" in row
    assert "1.00 ms (estimated)" in row
    assert "Layout breakers under inductor: 1" in report
    assert any(line.startswith("| instance_norm ") for line in report.splitlines())


def test_what_a_graph_could_not_follow_is_named_with_its_configuration() -> None:
    graph = a_graph(not_understood=("symbolic sizes: arg0_1",))

    assert build_not_understood(a_diagnosis(a_trial(graphs=(graph,)))) == (
        "not followed in the graph: symbolic sizes: arg0_1: inductor",
    )


@for_each(
    ("equivalence", "cell", "remark"),
    [
        (None, "not checked", None),
        (Equivalence(status="equal"), "equal", None),
        (Equivalence(status="equal", max_abs_error=1e-7), "equal, 1e-7", None),
        (Equivalence(status="different"), "different", "Outputs differ from the reference: inductor"),
        (
            Equivalence(status="different", detail="3 outputs, expected 2"),
            "different",
            "Outputs differ from the reference (3 outputs, expected 2): inductor",
        ),
        (Equivalence(status="not_checked"), "not checked", "Outputs not compared: inductor"),
    ],
)
def test_what_is_known_of_the_outputs_is_said_and_no_more(
    equivalence: Equivalence | None, cell: str, remark: str | None
) -> None:
    diagnosis = a_diagnosis(a_trial(equivalence=equivalence))
    (measurements,) = [detail for detail in build_details(diagnosis, 9) if detail.title == "Measurements"]

    assert measurements.rows[0][-1] == cell
    assert build_remarks(diagnosis) == (() if remark is None else (remark,))
    assert ("outputs" in build_measurement(diagnosis)[1]) == (cell != "not checked")


def test_kernels_that_were_not_timed_are_not_called_profiled() -> None:
    assert build_measurement(a_diagnosis(a_trial(kernels=None)))[1] == "measured: times and outputs"
