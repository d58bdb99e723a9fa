from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from layoutdoctor.errors import TraceError
from layoutdoctor.examination.graphs.buffers import Flow
from layoutdoctor.fleet.scanning import scan
from layoutdoctor.recording.kernels_text import read_kernel
from layoutdoctor.reports.sections.scanned import build_scan_view
from layoutdoctor.reports.text import render_text
from layoutdoctor.run.recorded import compare, examine_trace

LOGS = Path(__file__).parent.parent.parent / "traces" / "torch_trace"


INFERENCE = [
    ("graph 0", "to_channels_last", "activation", 12, "a", False, "entry"),
    ("graph 0", "to_channels_last", "weight", 12, "a", False, None),
    ("graph 0", "to_channels_last", "activation", 14, "b", False, "interior"),
    ("graph 0", "to_channels_last", "weight", 14, "b", False, None),
    ("graph 0", "to_contiguous", "activation", 14, "b", False, "exit"),
]
TRAINING = [
    ("graph 0", "to_channels_last", "weight", 12, "a", False, None),
    ("graph 0", "to_channels_last", "activation", 12, "a", False, "entry"),
    ("graph 0", "to_channels_last", "weight", 14, "b", False, None),
    ("graph 0", "to_channels_last", "activation", 13, None, False, "interior"),
    ("graph 0", "to_contiguous", "activation", 14, "b", False, "exit"),
    ("graph 1", "to_channels_last", "gradient", 14, "b", False, "entry"),
]


def conversions(name: str) -> list[Any]:
    (trial,) = examine_trace(LOGS / f"{name}.log").trials
    return [
        (c.graph, c.direction, c.tensor, None if c.location is None else c.location.line, c.module, c.fused, c.role)
        for graph in trial.graphs
        for c in graph.conversions
    ]


def test_the_conversions_of_an_inference_are_those_of_its_capture() -> None:
    assert conversions("inference") == INFERENCE


def test_the_conversions_of_a_training_step_are_those_of_its_capture() -> None:
    assert conversions("training") == TRAINING


def test_the_decision_is_derived_from_graph_and_strides() -> None:
    (trial,) = examine_trace(LOGS / "training.log").trials
    cards = [graph.decision for graph in trial.graphs]

    assert [(card.applied, card.rule, card.channels_last_convolution_count) for card in cards if card is not None] == [
        (True, "cpu-onednn", 2),
        (False, "only-backward-convolutions", 0),
    ]
    assert cards[0] is not None
    assert [(c.module, c.class_, c.location and c.location.line) for c in cards[0].convolutions] == [
        ("a", "small", 12),
        ("b", "small", 14),
    ]


def test_a_report_counts_graphs_and_conversions_and_claims_no_time() -> None:
    lines = render_text(examine_trace(LOGS / "inference.log")).splitlines()

    assert lines[:2] == [
        "inference.log · TORCH_TRACE log · CPU · torch 2.13.0+cpu",
        "1 graph, 5 conversions per call in compiled code; no times were recorded",
    ]


def test_a_log_that_is_cut_anywhere_gives_what_it_holds(tmp_path: Path) -> None:
    whole = (LOGS / "training.log").read_bytes()
    seen = set()
    for size in range(1000, len(whole), 4001):
        path = tmp_path / "cut.log"
        path.write_bytes(whole[:size])
        try:
            diagnosis = examine_trace(path)
        except TraceError as error:
            seen.add(str(error))
        else:
            seen.update(diagnosis.subject.notes)
            seen.add(len(diagnosis.trials[0].graphs))

    assert seen == {
        "cannot examine 'cut.log': the TORCH_TRACE log has no graph that Inductor compiled; record a run in which the "
        "model is compiled, with TORCHINDUCTOR_FORCE_DISABLE_CACHES=1",
        "the log ends before the code of a graph, or Inductor failed to generate it",
        "graph 0 is cut off or damaged in the log",
        "graph 1 is cut off or damaged in the log",
        *(0, 1, 2),
    }


def test_graphs_of_several_compiles_may_come_between_each_other(tmp_path: Path) -> None:
    """Two frames, whose records alternate: each code belongs to the graph of its own compile."""
    records = (LOGS / "inference.log").read_text().split("\nV")
    records = [records[0], *(f"V{record}" for record in records[1:])]
    path = tmp_path / "two.log"
    others = [record.replace('"frame_id": 0', '"frame_id": 1') for record in records]
    path.write_text("\n".join(text for pair in zip(records, others, strict=True) for text in pair))

    (trial,) = examine_trace(path).trials

    assert [len(graph.conversions) for graph in trial.graphs] == [5, 5]
    assert trial.graphs[0].conversions[0].location == trial.graphs[1].conversions[0].location


def test_damage_in_one_graph_costs_only_that_graph(tmp_path: Path) -> None:
    path = tmp_path / "damaged.log"
    path.write_text((LOGS / "training.log").read_text().replace("buf1 = empty_strided_cpu(", "buf1 = empty(", 1))

    diagnosis = examine_trace(path)

    assert diagnosis.subject.notes == ("graph 0 is cut off or damaged in the log",)
    assert [bool(Flow(graph).buffers) for graph in diagnosis.trials[0].graphs] == [False, True]


@pytest.mark.parametrize(
    "record",
    [
        '{"artifact": {"name": ["torch_version"]}}',
        '{"artifact": {"name": "describe_source"}}',
        '{"describe_source": 3}',
        '{"torch_version": 1, "frame_id": [1], "rank": {}}',
        '{"a": ' * 100_000,
    ],
)
def test_a_record_of_another_form_costs_nothing_else(tmp_path: Path, record: str) -> None:
    path = tmp_path / "strange.log"
    path.write_text((LOGS / "inference.log").read_text() + f"V1127 01:30:05.067000 1 torch/x.py:1] {record}\n")

    (trial,) = examine_trace(path).trials

    assert [len(graph.conversions) for graph in trial.graphs] == [5]


TRITON = """
@triton.jit
def triton_poi_fused_0(in_ptr0, in_ptr1, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 6
    xnumel = 256
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    x2 = xindex
    y3 = yindex
    y0 = (yindex % 3)
    y1 = yindex // 3
    tmp0 = tl.load(in_ptr0 + (x2 + 256*y3), xmask & ymask)
    {lines}
"""
STORE = "tl.store(out_ptr0 + (y0 + 3*x2 + 768*y1), tmp1, xmask & ymask)"
WALK = (("x1", 1), ("y1", 256), ("y3", 768))


@pytest.mark.parametrize(
    ("lines", "reads", "operations"),
    [
        (f"tmp1 = tmp0; {STORE}", [("in_ptr0", WALK, False)], ()),
        (f"tmp1 = tmp0.to(tl.float32); {STORE}", [("in_ptr0", WALK, False)], ("to_dtype",)),
        (
            f"tmp1 = tl.load(in_ptr1 + (tmp0), None); {STORE}",
            [("in_ptr1", None, False), ("in_ptr0", WALK, False)],
            ("indirect",),
        ),
        (f"tmp1 = tl.load(in_ptr1 + (y0), xmask & tmp0, other=0.0); {STORE}", [("in_ptr1", (("y1", 1),), True)], ()),
        (f"tmp1 = tmp0 + 1; {STORE}", [("in_ptr0", WALK, False)], ("add",)),
    ],
)
def test_a_triton_kernel_is_followed_from_its_store_to_its_loads(
    lines: str, reads: list[Any], operations: tuple[str, ...]
) -> None:
    kernel = read_kernel(TRITON.format(lines=lines))

    (store,) = kernel.stores
    assert store.steps == {"y1": 1, "x1": 3, "y3": 768}
    assert [(read.pointer, read.steps, read.is_masked) for read in store.reads] == reads
    assert store.operations == operations
    assert kernel.counts == {"x1": 256, "y1": 3, "y3": 2}


def test_a_kernel_of_another_kind_is_not_read() -> None:
    assert read_kernel("template<typename T> void gemm() {}").stores == []
    with pytest.raises(SyntaxError):
        read_kernel("@triton.jit\ndef broken(")


def test_logs_are_scanned_and_compared_as_compiled_graphs(tmp_path: Path) -> None:
    for name in ("inference", "training"):
        (tmp_path / f"dedicated_log_torch_trace_{name}.log").write_bytes((LOGS / f"{name}.log").read_bytes())
    found = compare(*sorted(tmp_path.iterdir()))  # inference, training

    assert str(found).splitlines()[4].startswith("recorded: removed conversions: 1 to channels_last, activation 2x8x16")
    headline = "11 conversions in compiled code of 2 files; no kernel was recorded, so no time."
    assert build_scan_view(scan(tmp_path), in_full=False).headline == headline
