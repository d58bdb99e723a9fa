"""What a saved diagnosis holds packed or once: large graphs, shared kernel lists; whole again when it is loaded."""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING

import msgspec
import pytest
from builders import a_buffer, a_diagnosis, a_graph, a_kernel, a_node, a_trial, recorded
from loops import for_each

from layoutdoctor.diagnosis import saved
from layoutdoctor.diagnosis.saved import MOST_PLAIN_ENTRIES, from_json, to_json
from layoutdoctor.errors import RecordError

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Diagnosis, Kernel, KernelSummary


def of_nodes(count: int) -> Diagnosis:
    nodes = tuple(a_node(f"node_{number}", "aten.relu.default", ()) for number in range(count))
    return a_diagnosis(a_trial(graphs=(a_graph(nodes=nodes, buffers=(a_buffer("buf0"),)),)))


def first_graph(data: bytes) -> dict[str, object]:
    graph: dict[str, object] = json.loads(data)["trials"][0]["graphs"][0]
    return graph


def test_a_large_graph_is_packed_and_comes_back_whole() -> None:
    small, large = of_nodes(MOST_PLAIN_ENTRIES - 1), of_nodes(MOST_PLAIN_ENTRIES)
    plain, packed = first_graph(to_json(small)), first_graph(to_json(large))

    assert (len(plain["nodes"]), plain["packed"]) == (MOST_PLAIN_ENTRIES - 1, None)  # type: ignore[arg-type]
    assert (packed["nodes"], packed["buffers"]) == ([], [])
    parts = json.loads(zlib.decompress(base64.b64decode(str(packed["packed"]))))
    assert (len(parts["nodes"]), len(parts["buffers"])) == (MOST_PLAIN_ENTRIES, 1)
    assert len(to_json(large)) < len(to_json(small))
    for diagnosis in (small, large):
        assert from_json(to_json(diagnosis)) == diagnosis


def wrapped(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@for_each(
    ("packed", "words"),
    [
        ("no base64!", "cannot be unpacked"),
        (base64.b64encode(b"no zlib").decode(), "cannot be unpacked"),
        (wrapped(b"[]"), "cannot be unpacked"),
        (wrapped(b'{"nodes": 1, "buffers": []}'), "cannot be unpacked"),
        (base64.b64encode(zlib.compress(b"[]" * 999)[:-9]).decode(), "is cut off or holds more than"),
        (wrapped(b" " * 5_000), "is cut off or holds more than 1.00 KiB"),
        (wrapped(b'{"nodes": [{"name": "a", "op": "o", "target": "t", "inputs": ["b"]}, {"name": "b", "op": "o", '
                 b'"target": "t"}], "buffers": []}'), "expected nodes that stand before this one"),
    ],
)  # fmt: skip
def test_damaged_or_huge_ones_are_refused_in_a_sentence(packed: str, words: str) -> None:
    diagnosis = of_nodes(1)
    (trial,) = diagnosis.trials
    graph = msgspec.structs.replace(trial.graphs[0], nodes=(), buffers=(), packed=packed)
    data = msgspec.json.encode(
        msgspec.structs.replace(diagnosis, trials=(msgspec.structs.replace(trial, graphs=(graph,)),))
    )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved, "MOST_UNPACKED_BYTES", 1024)
        with pytest.raises(RecordError, match=r"^cannot read d\.json: ") as caught:
            from_json(data, "d.json")
    assert words in str(caught.value)
    assert str(caught.value).endswith("; it was changed after it was saved: diagnose again")


def of_kernels(count: int) -> Diagnosis:
    kernels = tuple(a_kernel("convolution", seconds=number * 1e-6) for number in range(count))
    return a_diagnosis(a_trial(kernels=listing(*kernels)))


def listed_in(data: bytes) -> dict[str, object]:
    kernels: dict[str, object] = json.loads(data)["trials"][0]["kernels"]
    return kernels


def test_a_long_kernel_list_is_packed_and_comes_back_whole() -> None:
    small, large = of_kernels(MOST_PLAIN_ENTRIES), of_kernels(MOST_PLAIN_ENTRIES + 1)
    plain, packed = listed_in(to_json(small)), listed_in(to_json(large))

    assert (len(plain["kernels"]), plain["packed"]) == (MOST_PLAIN_ENTRIES, None)  # type: ignore[arg-type]
    assert (packed["kernels"], packed["count"]) == ([], MOST_PLAIN_ENTRIES + 1)
    parts = json.loads(zlib.decompress(base64.b64decode(str(packed["packed"]))))
    assert len(parts["kernels"]) == MOST_PLAIN_ENTRIES + 1
    for diagnosis in (small, large):
        assert from_json(to_json(diagnosis)) == diagnosis


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
