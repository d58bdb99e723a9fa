"""``examine_trace`` from the file to the findings, on recorded files and small ones written here."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from layoutdoctor.diagnosis.saved import from_json, to_json
from layoutdoctor.recording.reading import RECORDED
from layoutdoctor.rules import ALL_RULES, run_rules
from layoutdoctor.run.recorded import examine_trace

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

TESTS = Path(__file__).parents[1]
TRACES = TESTS / "traces"
PATCH_EMBED, WAN = TRACES / "h100_vit_patch_embed.json.gz", TRACES / "h100_wan21_kernel_summary.csv"
SCHEMA: dict[str, Any] = json.loads((TESTS / "diagnosis.schema.json").read_text(encoding="utf-8"))
VERBOSE = (
    "onednn_verbose,v1,info,oneDNN v3.7.1 (commit 8d263e6)\n"
    "onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with Intel DL Boost\n"
    "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:blk,undef,src:f32::blocked:abcd::f0 "
    "dst:f32::blocked:aBcd16b::f0,,,4x32x8x8,0.5\n"
)


@pytest.fixture(scope="module")
def patch_embed() -> Diagnosis:
    return examine_trace(PATCH_EMBED)


def a_file(folder: Path, *events: dict[str, Any], **document: Any) -> Path:
    path = folder / "t.json"
    path.write_text(json.dumps({**document, "traceEvents": list(events)}), encoding="utf-8")
    return path


def a_kernel(number: int, **changes: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10 * number, "dur": 5, **changes}


def test_the_patch_embedding_is_wrapped_in_three_conversions(patch_embed: Diagnosis) -> None:
    (trial,) = patch_embed.trials
    assert trial.kernels is not None
    assert (trial.kernels.count, trial.kernels.conversion_count) == (154, 3)
    assert round((trial.kernels.conversion_seconds or 0) * 1e9) == 23_072
    assert [(c.direction, c.tensor, c.module, c.confidence) for c in trial.kernels.conversions] == [
        ("to_channels_last", "activation", "Conv2d_0", "shapes"),
        ("to_channels_last", "weight", "Conv2d_0", "shapes"),
        ("to_contiguous", "activation", "Conv2d_0", "shapes"),
    ]
    sizes = [c.source.shape for c in trial.kernels.conversions if c.source is not None]
    assert sizes == [(4, 3, 224, 224), (768, 3, 16, 16), (4, 768, 14, 14)]
    assert trial.redundant_pairs == ()


def test_the_run_is_described(patch_embed: Diagnosis) -> None:
    subject, environment = patch_embed.subject, patch_embed.environment
    assert (subject.name, subject.mode, subject.device) == (PATCH_EMBED.name, "trace", "cuda")
    assert (environment.torch, environment.cuda, environment.device_name) == (None, "12.4", "NVIDIA H100 80GB HBM3")
    (trial,) = patch_embed.trials
    assert (trial.configuration, trial.status, trial.measurement, trial.equivalence) == (RECORDED, "ok", None, None)
    assert (patch_embed.comparison, patch_embed.recommendation) == (None, None)


def test_rules_are_run_all_or_some(patch_embed: Diagnosis) -> None:
    chosen = [rule for rule in ALL_RULES if rule.code == "LD101"]
    assert examine_trace(PATCH_EMBED, rules=chosen).findings == ()
    assert "LD103" in {finding.code for finding in patch_embed.findings}
    assert patch_embed.findings == run_rules(patch_embed)


@pytest.mark.parametrize("path", [PATCH_EMBED, WAN])
def test_what_is_saved_keeps_the_contract(path: Path) -> None:
    diagnosis = examine_trace(path)
    text = to_json(diagnosis)

    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(text))
    assert from_json(text) == diagnosis


def test_a_table_of_totals_is_examined_as_far_as_it_goes() -> None:
    (trial,) = examine_trace(WAN).trials

    assert trial.kernels is not None
    assert trial.kernels.conversion_count == 13_128
    assert round((trial.kernels.conversion_seconds or 0) * 1e9) == 246_753_245
    share = (trial.kernels.conversion_seconds or 0) / (trial.kernels.convolution_seconds or 1)
    assert round(share, 3) == 0.266
    assert (trial.graphs, trial.redundant_pairs) == ((), ())


def test_a_log_of_onednn_is_examined(tmp_path: Path) -> None:
    path = tmp_path / "onednn.log"
    path.write_text(VERBOSE, encoding="utf-8")

    diagnosis = examine_trace(path)

    (trial,) = diagnosis.trials
    assert trial.kernels is not None
    assert trial.kernels.conversion_count == 1
    assert (diagnosis.subject.device, diagnosis.environment.onednn_isa) == ("cpu", "Intel AVX-512 with Intel DL Boost")
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(to_json(diagnosis)))


def test_what_could_not_be_read_is_a_note(tmp_path: Path) -> None:
    path = a_file(tmp_path, a_kernel(0), a_kernel(1, ts="soon"), a_kernel(2, dur=None))

    diagnosis = examine_trace(path)

    assert diagnosis.trials[0].kernels is not None
    assert diagnosis.trials[0].kernels.not_understood_count == 2
    assert any(note.startswith("events that could not be read") for note in diagnosis.subject.notes)


def test_a_file_that_was_cut_is_examined_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = gzip.decompress(PATCH_EMBED.read_bytes())
    path = tmp_path / "cut.json"
    path.write_bytes(whole[: len(whole) * 2 // 3])

    diagnosis = examine_trace(path)

    assert any("ends before its document does" in note for note in diagnosis.subject.notes)
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(to_json(diagnosis)))


@pytest.mark.parametrize(
    "document",
    [
        {"deviceProperties": [{"id": [0], "name": {}}]},
        {"deviceProperties": 5, "cuda_runtime_version": 10**30},
        {"metadata": [], "with_stack": {"a": [1] * 1000}},
    ],
)
def test_strange_fields_beside_the_events_do_no_harm(tmp_path: Path, document: dict[str, Any]) -> None:
    assert examine_trace(a_file(tmp_path, a_kernel(0), **document)).environment.device_name is None
