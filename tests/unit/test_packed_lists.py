"""What a saved diagnosis holds packed or once: long lists, those of the same code; whole again when it is loaded."""

from __future__ import annotations

import base64
import json
import lzma
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from builders import a_buffer, a_diagnosis, a_graph, a_kernel, a_node, a_trial, recorded
from loops import for_each

from layoutdoctor.diagnosis import saved
from layoutdoctor.diagnosis.saved import from_json, to_json
from layoutdoctor.errors import RecordError

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Diagnosis, Kernel, KernelSummary


def of_entries(nodes: int, kernels: int) -> Diagnosis:
    """Two trials, the second of which ran no kernels; one buffer in each."""
    chain = tuple(a_node(f"node_{number}", "aten.relu.default", ()) for number in range(nodes))
    graphs = (a_graph(nodes=chain, buffers=(a_buffer("buf0"),)),)
    ran = listing(*(a_kernel("convolution", seconds=number * 1e-6) for number in range(kernels)))
    return a_diagnosis(
        a_trial(graphs=graphs, kernels=ran), a_trial("eager", graphs=(a_graph(name="empty"), *graphs), kernels=None)
    )


def lists_in(data: bytes) -> list[list[int]]:
    """The lengths of the lists that stand in their own fields, of each trial."""
    trials = json.loads(data)["trials"]
    graphs = [[len(graph[field]) for graph in trial["graphs"] for field in ("nodes", "buffers")] for trial in trials]
    return [
        [*own, len((trial["kernels"] or {"kernels": ()})["kernels"])] for own, trial in zip(graphs, trials, strict=True)
    ]


def test_long_lists_are_packed_together_and_come_back_whole() -> None:
    small, large = of_entries(400, 198), of_entries(400, 199)  # with two buffers 1,000 and 1,001
    plain, packed = to_json(small), to_json(large)

    assert (lists_in(plain), json.loads(plain)["packed"]) == ([[400, 1, 198], [0, 0, 400, 1, 0]], None)
    assert lists_in(packed) == [[0, 0, 0], [0, 0, 0, 0, 0]]
    parts = json.loads(lzma.decompress(base64.b64decode(json.loads(packed)["packed"])))
    assert [len(trial["kernels"]) for trial in parts] == [199, 0]
    assert [[len(graph["nodes"]) for graph in trial["graphs"]] for trial in parts] == [[400], [0, 400]]
    assert len(packed) < len(plain) / 4
    for diagnosis in (small, large):
        assert from_json(to_json(diagnosis)) == diagnosis


def test_without_xz_nothing_is_packed_and_what_is_cannot_be_read() -> None:
    diagnosis = of_entries(1_000, 0)
    packed = to_json(diagnosis)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "lzma", None)

        assert from_json(to_json(diagnosis)) == diagnosis
        with pytest.raises(RecordError, match=r"and this Python was built without lzma; read it elsewhere$"):
            from_json(packed)


def test_what_could_not_be_unpacked_stands_there_plain() -> None:
    diagnosis = of_entries(1_000, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved, "MOST_UNPACKED_BYTES", 1024)

        data = to_json(diagnosis)
        assert json.loads(data)["packed"] is None
        assert from_json(data) == diagnosis


def wrapped(data: bytes) -> str:
    return base64.b64encode(lzma.compress(data)).decode()


@for_each(
    ("packed", "words"),
    [
        ("no base64!", "cannot be unpacked"),
        (base64.b64encode(b"no xz").decode(), "cannot be unpacked"),
        (wrapped(b"{}"), "cannot be unpacked"),
        (wrapped(b'[{"graphs": [{"nodes": 1}]}]'), "cannot be unpacked"),
        (wrapped(b"[]"), "cannot be unpacked"),  # of no trial
        (wrapped(b'[{"graphs": []}]'), "cannot be unpacked"),
        (base64.b64encode(lzma.compress(b"[]" * 999)[:-9]).decode(), "is cut off or holds more than"),
        (wrapped(b" " * 5_000), "is cut off or holds more than 1.00 KiB"),
        (wrapped(b'[{"graphs": [{"nodes": [{"name": "a", "op": "o", "target": "t", "inputs": ["b"]}, {"name": "b", '
                 b'"op": "o", "target": "t"}]}]}]'), "expected nodes that stand before this one"),
    ],
)  # fmt: skip
def test_damaged_or_huge_ones_are_refused_in_a_sentence(packed: str, words: str) -> None:
    data = msgspec.json.encode(msgspec.structs.replace(a_diagnosis(a_trial(graphs=(a_graph(),))), packed=packed))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved, "MOST_UNPACKED_BYTES", 1024)
        with pytest.raises(RecordError, match=r"^cannot read d\.json: ") as caught:
            from_json(data, "d.json")
    assert words in str(caught.value)
    assert str(caught.value).endswith("; it was changed after it was saved: diagnose again")


def listing(*kernels: Kernel) -> KernelSummary:
    return recorded(count=len(kernels), kernels=kernels)


def test_trials_of_the_same_code_share_one_kernel_list_in_the_file() -> None:
    listed, other = (a_kernel("convolution"), a_kernel("relu")), (a_kernel("relu"), a_kernel("convolution"))
    diagnosis = a_diagnosis(
        a_trial(kernels=listing(*listed)),
        a_trial("inductor-layout-opt-on", status="same_as", same_as="inductor", kernels=listing(*listed)),
        a_trial("inductor-layout-opt-off", status="same_as", same_as="inductor", kernels=listing(*other)),
        a_trial("chained", status="same_as", same_as="inductor-layout-opt-on", kernels=listing(*listed)),
    )

    data = to_json(diagnosis)

    written = [trial["kernels"] for trial in json.loads(data)["trials"]]
    assert [(kernels["count"], len(kernels["kernels"])) for kernels in written] == [(2, 2), (2, 0), (2, 2), (2, 2)]
    assert from_json(data) == diagnosis
