"""The reproducer from records made by hand: what it compares, and what a hostile record cannot do to it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import msgspec
import pytest
import reviewed
from builders import (
    a_comparison,
    a_conversion,
    a_finding,
    a_ratio,
    a_recommendation,
    a_subject,
    a_trace,
    an_environment,
    an_input,
    contiguous,
    kernels,
    recorded,
)
from reproducer_builders import TRACED, a_builtin, a_record

from layoutdoctor.diagnosis.answer import Finding
from layoutdoctor.diagnosis.diagnosis import Reproduction
from layoutdoctor.diagnosis.saved import from_json, to_json
from layoutdoctor.diagnosis.subject import Cure
from layoutdoctor.diagnosis.trial import Equivalence, TracedModel
from layoutdoctor.privacy import redact
from layoutdoctor.reports.reproducer import build_reproducer, render_reproducer

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis


def script_of(record: Diagnosis) -> str:
    reproducer = build_reproducer(record)
    assert reproducer.is_runnable
    compile(reproducer.script, "reproducer", "exec")
    return reproducer.script


def with_trials(*names: str, **changes: object) -> Diagnosis:
    """The default, and these."""
    return msgspec.structs.replace(
        a_record(**{"recommendation": None, "comparison": a_comparison(), **changes}),
        trials=(a_builtin("inductor", traced=TRACED), *map(a_builtin, names)),
    )


def wrong_on_a_gpu() -> Diagnosis:
    wrong = Equivalence(status="different", max_abs_error=7.07, relative_error=1.0, tolerance=0.2, reference="float64")
    finding = Finding(code="LD402", rule="outputs-differ", severity="error", configuration="inductor", message="")
    subject = a_subject(mode="training", device="cuda")
    trials = a_builtin("eager"), a_builtin("inductor", equivalence=wrong, traced=TRACED)
    return msgspec.structs.replace(a_record(findings=(finding,), subject=subject), trials=trials)


def training_on_a_gpu() -> Diagnosis:
    names = ("void cudnn::ops::nchwToNhwcKernel<float>", "sm90_xmma_fprop")
    trials = a_builtin("inductor", *names, traced=TRACED), a_builtin("inductor-layout-opt-off", "sm90_xmma_fprop")
    subject = a_subject(mode="training", device="cuda")
    return msgspec.structs.replace(a_record(subject=subject, recommendation=None), trials=trials)


def test_scripts_are_written_as_reviewed(update_golden: bool) -> None:
    """A recommendation on a CPU stands with the golden stories."""
    said = {
        "training on a GPU": script_of(training_on_a_gpu()),
        "a default with wrong gradients": script_of(wrong_on_a_gpu()),
    }
    reviewed.check("reproducers_report", said, update=update_golden)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("inductor-layout-opt-on", "('inductor', 'preserve', 'preserve', {'layout_optimization': True}, {})"),
        ("inductor-freezing", "('inductor', 'preserve', 'preserve', {}, {'freezing': True})"),
        ("eager-channels-last", "('eager', 'channels_last', 'channels_last', {}, {})"),
    ],
)
def test_a_script_applies_its_configuration(name: str, line: str) -> None:
    assert f"    '{name}': {line},\n" in script_of(with_trials(name))


def test_the_default_is_compared_with_the_recommended_else_with_what_converts_least() -> None:
    def second(record: Diagnosis) -> str:
        return script_of(record).split(" against ")[0].removeprefix("# ")

    assert second(a_record()) == "inductor-channels-last"
    cured = msgspec.structs.replace(
        a_record().trials[-1].configuration,
        name="inductor-channels-last+flat-conv3d",
        cures=(Cure(name="flat-conv3d"),),
    )
    advised = a_record(recommendation=a_recommendation(cured.name))
    trials = (*advised.trials, a_builtin("eager-channels-last", configuration=cured))
    assert second(msgspec.structs.replace(advised, trials=trials)) == "inductor-channels-last"
    # Nothing is recommended: the fewest conversions, and of as many the fastest.
    ratios = a_ratio("eager", 1.5), a_ratio("inductor-freezing", 0.9), a_ratio("inductor-channels-last", 1.01)
    equal = with_trials("eager", "inductor-freezing", comparison=a_comparison(*ratios))
    assert second(equal) == "eager"
    converting = a_builtin("eager", kernels=kernels(a_conversion()))
    assert second(msgspec.structs.replace(equal, trials=(*equal.trials[::2], converting))) == "inductor-freezing"


def test_a_finding_about_a_third_configuration_is_not_what_the_script_shows() -> None:
    """BiFPN: "LD205: inductor-freezing against inductor", where no input is channels_last."""
    for evidence, start in (("inductor-channels-last", "# LD205 "), ("eager", "# inductor-channels-last against")):
        finding = a_finding("LD205", evidence=(evidence,))
        trials = ("eager", "inductor-channels-last")
        advice = a_recommendation("inductor-channels-last")
        assert script_of(with_trials(*trials, findings=(finding,), recommendation=advice)).startswith(start)


def without_text(**changes: object) -> Diagnosis:
    return msgspec.structs.replace(a_record(**changes), trials=(a_builtin("eager"), a_builtin("inductor")))


def test_a_model_that_torch_cannot_print_comes_from_its_file() -> None:
    """The name of a file is all that the script takes of it from the record."""
    record = without_text(subject=a_subject(name="my.model.py:build", inputs=(an_input(contiguous((1, 3, 8, 8))),)))
    script = script_of(record)

    assert "Path(__file__).with_name('my.model.py')" in script
    assert "getattr(file, 'build' or " in script
    assert "    ((1, 3, 8, 8), 'float32'),\n" in script
    assert build_reproducer(record).file == "my.model.py"
    in_pieces = msgspec.structs.replace(
        record, trials=(a_builtin("eager"), a_builtin("inductor", traced=TRACED, graph_break_reasons=("print",)))
    )
    assert script_of(in_pieces) == script
    for name in ("../x.py", "x.py'", "timm:x.py", "x.py:a b", "m.py (decoder)"):
        assert not build_reproducer(without_text(subject=a_subject(name=name))).is_runnable
    function = a_subject(name="m.py:call", model=None)
    assert not build_reproducer(without_text(subject=function)).is_runnable


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (a_trace(recorded()), "a recorded trace does not hold the operations of the model"),
        (
            a_record(subject=a_subject(target="cuda:90")),
            "the graphs were lowered for a GPU that this machine does not have, so nothing ran",
        ),
        (a_record(subject=a_subject(device="mps")), "the model ran on neither a CPU nor a GPU"),
        (with_trials(), "a script needs two configurations that it can apply, and fewer ran"),
        (
            without_text(subject=a_subject(name="timm:resnet18")),
            "torch cannot print the model's operations, and the model is in no Python file that a script can load",
        ),
    ],
)
def test_a_record_without_a_reproducer_says_why(record: Diagnosis, reason: str) -> None:
    reproducer = build_reproducer(record)
    assert (reproducer.is_runnable, reproducer.reason) == (False, reason)
    assert reproducer.script == f'raise SystemExit("no reproducer: {reason}")\n'


def test_a_ratio_that_is_inconclusive_is_not_held_against_the_script() -> None:
    ratio = a_ratio("inductor-channels-last", 1.0, 0.05)
    script = script_of(a_record(comparison=a_comparison(ratio, fastest=("inductor", ratio.name))))

    assert "\nreproduced = same\n" in script
    assert ", recorded no certain ratio" in script


def test_conversions_that_were_not_recorded_are_not_called_as_recorded() -> None:
    trials = tuple(msgspec.structs.replace(trial, kernels=None) for trial in a_record().trials)
    for comparison, judged in ((None, "None"), (a_record().comparison, 'same and found["kept"][2] >= 1')):
        script = script_of(msgspec.structs.replace(a_record(comparison=comparison), trials=trials))
        assert f"\nreproduced = {judged}\n" in script
        assert '\nverdict = f"conversions not recorded; ' in script


def test_what_was_run_is_handed_out_with_what_it_printed() -> None:
    run = a_record(reproduction=Reproduction(printed="verdict: reproduced\n\x1b[1m", reproduced=True))
    assert render_reproducer(run).endswith(
        "\n# Output of this script before the report was written:\n# verdict: reproduced\n# \\x1b[1m\n"
    )


def test_a_saved_or_redacted_record_gives_the_same_text() -> None:
    record = a_record()
    assert script_of(from_json(to_json(record))) == script_of(redact(record)) == script_of(record)


HOSTILE = '"""\n); import os; os.system("x") #'


def test_hostile_names_everywhere_change_comments_and_strings_only() -> None:
    finding = Finding(code="LD101\n", rule=HOSTILE, severity="error", configuration="inductor", message=HOSTILE)
    hostile = a_record(
        findings=(finding,),
        environment=an_environment(torch=HOSTILE, device_name=HOSTILE),
        layoutdoctor_version=HOSTILE,
        subject=a_subject(name=HOSTILE, model=HOSTILE),
        reproduction=Reproduction(printed=HOSTILE, reproduced=True),
    )
    assert ast.dump(ast.parse(render_reproducer(hostile))) == ast.dump(ast.parse(script_of(a_record())))

    base = a_record()
    named = msgspec.structs.replace(
        base.trials[-1].configuration, name=HOSTILE, inductor_options={HOSTILE: HOSTILE, "max_autotune": True}
    )
    trials = base.trials[1], a_builtin("inductor-channels-last", "reorder", configuration=named)
    script = script_of(a_record(recommendation=None, comparison=None, trials=trials))
    parts = list(ast.walk(ast.parse(script)))
    assert {HOSTILE, "max_autotune"} < {part.value for part in parts if isinstance(part, ast.Constant)}
    assert "system" not in {part.attr for part in parts if isinstance(part, ast.Attribute)}


def test_a_text_that_is_none_of_torch_reaches_no_script() -> None:
    text = "def forward(self, w0, w1, x0):\n    import os\n    return (x0,)"
    hostile = TracedModel(text=text, weights=TRACED.weights, inputs=TRACED.inputs)
    trials = a_builtin("eager"), a_builtin("inductor", traced=hostile)
    record = msgspec.structs.replace(a_record(), trials=trials)
    unnamed = msgspec.structs.replace(record, subject=a_subject(name="Model"))
    assert "import" not in build_reproducer(unnamed).script
    assert "return (x0,)" not in script_of(record)  # it takes the model from model.py
