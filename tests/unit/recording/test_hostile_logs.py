"""Logs of TORCH_TRACE that cost other readers time that grows with the square, or came through Windows or a mail."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import time
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from layoutdoctor.recording.reading import read_trace
from layoutdoctor.recording.torch_trace import TorchTrace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CODE = "# AOT ID: ['0_inference']\ndef call(self, args):\n    arg0_1, = args\n    return (arg0_1, )\n"
HEAD = 'class <lambda>(torch.nn.Module):\n    def forward(self, arg0_1: "f32[1, 3, 4, 4][48, 16, 4, 1]cpu"):\n'
PLACE = "        # File: /x.py:3 in forward, code: return self.b(x)\n"
LINE = (
    '        relu: "f32[1, 3, 4, 4][48, 16, 4, 1]cpu" = torch.ops.aten.relu.default(arg0_1);  arg0_1 = None\n'
    "        return (relu,)\n"
)


def record(name: str, payload: str, **fields: object) -> str:
    digest = hashlib.md5(payload.encode(), usedforsecurity=False).hexdigest()
    head = {name: fields, "frame_id": 0, "frame_compile_id": 0, "rank": 0, "has_payload": digest}
    lines = "".join(f"\t{line}\n" for line in payload.split("\n"))
    return f"V1128 05:00:00.000000 1 torch/_inductor/x.py:1] {json.dumps(head)}\n{lines}"


def log(graph: str, **more: str) -> str:
    others = "".join(record(name, payload) for name, payload in more.items())
    return record("inductor_post_grad_graph", graph) + others + record("inductor_output_code", CODE, filename="/x.py")


def read(path: Path, data: bytes) -> TorchTrace:
    path.write_bytes(data)
    found = read_trace(path)
    assert isinstance(found, TorchTrace)
    return found


@pytest.mark.parametrize(
    "made",
    [
        lambda n: log(HEAD.partition("arg0_1")[0] + "a" * n),
        lambda n: log(HEAD.partition("arg0_1")[0] + 'a: "' * (n // 4)),
        lambda n: log(f"{HEAD}        # File: {':1 in ' * (n // 6)}\n{LINE}"),
        lambda n: log(f"{HEAD}        # File: {':' + '1' * n}, code: \n{LINE}"),
        lambda n: log(f"{HEAD}{PLACE}{chr(10) * n}{LINE}"),
        lambda n: log(HEAD + LINE, aot_forward_graph_fw_metadata="mutated_inp_runtime_indices=[" * (n // 29)),
        lambda n: log(HEAD + LINE, fx_graph_runnable="torch._inductor.config." * (n // 23)),
        lambda n: log(HEAD + LINE) + f"V1128 05:00:00.000000 1 {'x] ' * (n // 3)}\n",
    ],
    ids=["one word", "open quotes", "places", "digits", "blank lines", "indices", "settings", "prefix"],
)
def test_time_grows_with_the_length_and_not_with_its_square(made: Callable[[int], str], tmp_path: Path) -> None:
    def seconds(length: int) -> float:
        data = made(length).encode()
        begin = time.process_time()
        read(tmp_path / "made.log", data)
        return time.process_time() - begin

    seconds(1000)
    assert min(seconds(200_000) for _ in range(2)) < 3.5 * min(seconds(100_000) for _ in range(2)) + 0.1


@pytest.mark.parametrize(
    "changed",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: codecs.BOM_UTF8 + text.encode(),
        lambda text: text.encode("utf-16"),
        lambda text: text.replace("\n", "\r\n").encode("utf-16"),
        lambda text: gzip.compress(text.encode()),
    ],
    ids=["CRLF", "byte order mark", "UTF-16", "UTF-16 with CRLF", "gzip"],
)
def test_a_log_that_came_another_way_is_the_same(changed: Callable[[str], bytes], tmp_path: Path) -> None:
    plain = log(HEAD + PLACE + LINE)
    expected = read(tmp_path / "plain.log", plain.encode())

    found = read(tmp_path / "other.log", changed(plain))

    assert [node.name for node in expected.graphs[0].nodes] == ["arg0_1", "relu"]
    location = expected.graphs[0].nodes[1].location
    assert location is not None
    assert (location.file, location.line, location.code) == ("/x.py", 3, "return self.b(x)")
    assert (found.graphs, found.problems) == (expected.graphs, [])


def test_a_place_may_hold_the_words_that_part_it(tmp_path: Path) -> None:
    place = "        # File: /a in b/c:4/x.py:30 in forward, code: y = f(x), code: 3\n"
    location = read(tmp_path / "a.log", log(HEAD + place + LINE).encode()).graphs[0].nodes[1].location
    assert location is not None
    assert (location.file, location.line, location.code) == ("/a in b/c:4/x.py", 30, "y = f(x), code: 3")


def test_memory_does_not_grow_with_what_nobody_asked_for(tmp_path: Path) -> None:
    other = record("artifact", "x" * 79 + "\n" + "y" * 100_000)
    path = tmp_path / "large.log"
    path.write_bytes(gzip.compress((other * 200 + log(HEAD + LINE)).encode()))
    tracemalloc.start()
    try:
        found = read_trace(path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(found, TorchTrace)
    assert len(found.graphs) == 1
    assert most < 4_000_000
