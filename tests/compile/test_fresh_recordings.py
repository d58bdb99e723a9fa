"""
The long sweep: every casebook model and example through the command, to a report, a valid JSON and recordings.

What is kept in tests/recordings is recorded again, and says the same; models in a mode that nothing is kept of run too,
in the quick configurations.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from kept_recordings import BY_TIME, REORDERS, diagnosed, in_graphs, reorders
from recordings.record import ROOT, SETS, Set, record

import layoutdoctor
from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.run.recorded import diagnose_recordings

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.trial import Trial

pytestmark = [pytest.mark.compile, pytest.mark.slow]

SCHEMA = json.loads((ROOT / "tests" / "diagnosis.schema.json").read_text(encoding="utf-8"))
MODELS = sorted({wanted.model for wanted in SETS.values() if ":" not in wanted.model})
KEPT = {(wanted.model, wanted.mode) for wanted in SETS.values() if wanted.lower_for is None}
IN_EACH_MODE = [Set(model, mode, "quick") for model in MODELS for mode in ("inference", "training")]
OTHERS = [wanted for wanted in IN_EACH_MODE if (wanted.model, wanted.mode) not in KEPT]

COUNTED = """
import ast, runpy, sys, torch
names = runpy.run_path(sys.argv[1])
training, channels_last = sys.argv[2] == "training", sys.argv[4] == "channels_last"
options = ast.literal_eval(sys.argv[3])
model = names["Model"](*names["get_init_inputs"]()).train(training)
inputs = names["get_inputs"]()
formats = {4: torch.channels_last, 5: torch.channels_last_3d}
if channels_last:
    for p in model.parameters():
        if p.dim() in formats:
            p.data = p.data.to(memory_format=formats[p.dim()])
    inputs = [x.to(memory_format=formats[x.dim()]) for x in inputs]
run = model if options is None else torch.compile(model, options=options)
def step():
    if training:
        run(*inputs).sum().backward()
    else:
        with torch.no_grad():
            run(*inputs)
step()
step()
print("BEGIN", flush=True)
step()
print("END", flush=True)
"""


def run_command(wanted: Set, folder: Path) -> Diagnosis:
    """Runs ``python -m layoutdoctor`` on a model to a report, a JSON and recordings; they hold no failure."""
    saved, kept = folder / "d.json", folder / "recordings"
    words = [str(ROOT / wanted.model), "--mode", wanted.mode, "--configurations", wanted.configurations]
    words += [word for text in wanted.inputs for word in ("--input", text)]
    words += ["--target", wanted.lower_for] if wanted.lower_for is not None else []
    words += ["--budget", "1", "-q", "--output", str(saved), "--save-recordings", str(kept)]
    result = subprocess.run(
        [sys.executable, "-m", "layoutdoctor", *words],
        cwd=folder,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert " · torch " in result.stdout.splitlines()[0]
    assert "Traceback" not in result.stdout + result.stderr
    jsonschema.validate(json.loads(saved.read_text(encoding="utf-8")), SCHEMA)
    diagnosis = layoutdoctor.load(saved)
    assert len(list(kept.iterdir())) == len(diagnosis.trials)
    for trial in diagnosis.trials:
        assert trial.status in ("ok", "same_as") or (compiled_nothing(diagnosis) and trial.failure is None), (
            trial.failure
        )
        assert all(graph.hook_failure is None for graph in trial.graphs)
        is_all_views = wanted.model.endswith("Tokens")
        assert trial.kernels is None or trial.kernels.count > 0 or is_all_views
    return diagnosis


def compiled_nothing(diagnosis: Diagnosis) -> bool:
    """As of a model without a convolution."""
    return all(trial.status == "skipped" for trial in diagnosis.trials)


def line_of(conversion: Conversion) -> str | None:
    """Without the folder, which the command shortens where it stands elsewhere."""
    place = conversion.location
    return None if place is None else f"{Path(place.file).name}:{place.line}"


def facts_of(trial: Trial, *, with_library: bool) -> dict[str, Any]:
    """What does not rest on times; what oneDNN converts rests on the instruction set."""
    library = trial.kernels.conversions if trial.kernels is not None and with_library else ()
    conversions = [(c.owner, c.direction, c.tensor, c.op, c.module, line_of(c)) for c in (*in_graphs(trial), *library)]
    decisions = [(g.direction, g.decision and (g.decision.applied, g.decision.rule)) for g in trial.graphs]
    pairs = [p for p in trial.redundant_pairs if with_library or p.evidence == "graph"]
    return {
        "status": (trial.status, trial.same_as),
        "decisions": decisions,
        "channels_last": [g.decision and g.decision.channels_last_convolution_count for g in trial.graphs],
        "conversions": sorted(map(repr, conversions)),
        "pairs": sorted(repr((p.evidence, p.kind, p.between, p.module, p.tensor_shape)) for p in pairs),
        "breakers": [(b.op, b.module, b.reason) for g in trial.graphs for b in g.breakers],
    }


def count_reorders(wanted: Set, name: str) -> int:
    """Reorder lines between the marks, in a process that prints oneDNN's log from its start and has no layoutdoctor."""
    (configuration,) = choose_configurations(name)
    is_eager = configuration.backend == "eager"
    options = None if is_eager else {"layout_optimization": configuration.layout_optimization != "off"}
    command = [sys.executable, "-c", COUNTED, str(ROOT / wanted.model), wanted.mode, repr(options)]
    environment = {**os.environ, "ONEDNN_VERBOSE": "1"}
    result = subprocess.run(
        [*command, str(configuration.input_format)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    inside = result.stdout.split("BEGIN\n")[1].split("END\n")[0]
    return sum(",exec,cpu,reorder," in line for line in inside.splitlines())


@pytest.mark.parametrize("name", SETS)
def test_a_fresh_recording_examines_the_same(name: str, tmp_path: Path) -> None:
    wanted, before = SETS[name], diagnosed(name)
    is_in_words = wanted.dynamic_dimension is None
    fresh = run_command(wanted, tmp_path) if is_in_words else diagnose_recordings(record(wanted))
    if compiled_nothing(fresh):
        return  # the recording was made without the command
    is_same_library = fresh.environment.onednn_isa == before.environment.onednn_isa

    assert [trial.name for trial in fresh.trials] == [trial.name for trial in before.trials]
    for trial, old in zip(fresh.trials, before.trials, strict=True):
        facts, expected = (facts_of(item, with_library=is_same_library) for item in (trial, old))
        assert facts == expected, trial.name
    if is_same_library:
        codes = ({(f.code, f.configuration) for f in d.findings if f.code not in BY_TIME} for d in (fresh, before))
        assert next(codes) == next(codes)
    for recorded, configuration, _ in REORDERS:
        if recorded == name:
            assert len(reorders(fresh, configuration)) == count_reorders(wanted, configuration), configuration


@pytest.mark.parametrize("wanted", OTHERS, ids=lambda wanted: wanted.name)
def test_every_other_model_runs_to_a_report(wanted: Set, tmp_path: Path) -> None:
    run_command(wanted, tmp_path)
