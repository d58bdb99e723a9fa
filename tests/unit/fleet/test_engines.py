"""Pools and clusters: the same result to the bit, also where a worker is killed, and one line where it cannot be."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import signal
import sys
import tempfile
import zipfile
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from layoutdoctor.diagnosis.saved import to_json
from layoutdoctor.errors import UsageError
from layoutdoctor.fleet import engines
from layoutdoctor.fleet.scanning import scan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.scan import Scan, ScannedRows

TRACES = Path(__file__).parents[2] / "traces"
SMALL = ("a100_alexnet", "h100_vit_patch_embed", "h100_bert_control", "mi300_graph_replay_control")
_IDS = ("External id", "external id", "correlation", "Ev Idx")

pytestmark = pytest.mark.thorough


def shifted(trace: dict[str, Any], by: int, rank: int) -> dict[str, Any]:
    """The same run as another process would have recorded it."""
    events = []
    for event in trace["traceEvents"]:
        arguments = event.get("args", {})
        moved = {key: value + by for key, value in arguments.items() if key in _IDS and isinstance(value, int)}
        events.append({**event, "args": {**arguments, **moved}} if moved else event)
    return {**trace, "traceEvents": events, "distributedInfo": {"rank": rank}}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 of them, of 16 ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    for name in SMALL:
        trace = json.loads(gzip.decompress((TRACES / f"{name}.json.gz").read_bytes()))
        for rank in range(16):
            path = folder / f"{name}.{rank}.json"
            path.write_text(json.dumps(shifted(trace, 1_000_000 * rank, rank)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def expected(traces: Path) -> Scan:
    found = scan(traces)
    assert len(found.files) == 64
    assert {file.rank for file in found.files} == set(range(16))
    assert found.totals["kernel"]["nchwToNhwcKernel"].count == 16 * (12 + 2)
    return found


def test_a_pool_of_processes_gives_the_same(traces: Path, expected: Scan) -> None:
    assert to_json(scan(traces, jobs=2)) == to_json(expected)


def test_a_killed_process_of_the_pool_leaves_no_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    for name in ("a.zip", "b.zip"):
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("trace.json", b"no trace" * 10_000_000)
    killed: list[int] = []

    def listen(found: ScannedRows, total: int) -> None:
        for child in () if killed else psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):  # another child may end meanwhile
                if "spawn_main" in " ".join(child.cmdline()):
                    child.kill()
                    killed.append(child.pid)

    found = scan(tmp_path / "a.zip", tmp_path / "b.zip", jobs=2, listener=listen)

    assert killed  # the second process may not have begun yet
    assert len(found.failed) == 2
    assert list((tmp_path / "copies").iterdir()) == []


def test_a_scan_that_is_interrupted_ends_its_processes_and_removes_their_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    (tmp_path / "a.json").write_bytes(b"no trace")
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"{number}.json", b"no trace" * 10_000_000)

    def interrupt(found: ScannedRows, total: int) -> None:
        raise KeyboardInterrupt

    before = psutil.Process().children()
    with pytest.raises(KeyboardInterrupt):
        scan(tmp_path / "a.json", tmp_path / "b.zip", jobs=2, listener=interrupt)

    left = [child for child in psutil.Process().children() if child not in before]
    assert not [child for child in left if "spawn_main" in " ".join(child.cmdline())]
    assert list((tmp_path / "copies").iterdir()) == []


def killing(pids: list[int], after: int) -> Any:
    """A listener that kills a process once some files are done."""
    done: list[str] = []

    def listen(found: ScannedRows, total: int) -> None:
        done.append(found.file.name)
        if len(done) == after:
            os.kill(pids[0], signal.SIGKILL)

    return listen


def test_a_file_that_kills_its_process_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool stands for processes that a file which is too large for the memory ends."""
    for name in SMALL:
        (tmp_path / f"{name}.json.gz").symlink_to(TRACES / f"{name}.json.gz")

    class Pool(Executor):
        def __init__(self, *args: object, **options: object) -> None:
            self.is_broken = False

        def submit(self, function: Any, work: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[override]
            future: Future[Any] = Future()
            self.is_broken = self.is_broken or "vit" in work.name
            if self.is_broken:
                future.set_exception(BrokenExecutor("killed"))
            else:
                future.set_result(function(work))
            return future

    monkeypatch.setattr(engines, "ProcessPoolExecutor", Pool)

    found = scan(tmp_path, jobs=2)

    assert [file.name for file in found.failed] == ["h100_vit_patch_embed.json.gz"]
    assert "killed twice" in str(found.failed[0].failure)
    assert len(found.examined) == 3


def test_an_executor_that_breaks_leaves_a_row_for_every_file(traces: Path) -> None:
    class Broken(Executor):
        def submit(self, *args: Any, **options: Any) -> Any:
            raise BrokenExecutor("gone")

    found = scan(traces, executor=Broken())

    assert len(found.failed) == 64
    assert {file.failure for file in found.failed} == {"the executor broke before this file was examined"}


# ---------------------------------------------------------------------------------------------- Dask
@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two worker processes with a thread each."""
    distributed = pytest.importorskip("distributed")
    before = dict(os.environ)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as started:
        yield started
    os.environ.clear()  # its nannies leave OMP_NUM_THREADS=1 and the like to all that start later
    os.environ.update(before)


@pytest.mark.filterwarnings("ignore")  # what a cluster says as it starts and ends is its own
@pytest.mark.xdist_group("dask")
@pytest.mark.slow
class TestDask:
    def test_a_cluster_gives_the_same(self, cluster: Any, traces: Path, expected: Scan) -> None:
        assert to_json(scan(traces, scheduler=cluster.scheduler_address)) == to_json(expected)

    def test_a_worker_that_is_killed_in_the_middle_costs_nothing_in_any_order(
        self, cluster: Any, traces: Path, expected: Scan
    ) -> None:
        files = sorted(traces.iterdir())
        random.Random(3).shuffle(files)
        listen = killing([worker.pid for worker in cluster.workers.values()], 5)

        found = scan(*files, scheduler=cluster.scheduler_address, listener=listen)

        assert to_json(found) == to_json(expected)

    def test_workers_of_another_version_are_refused(
        self, cluster: Any, traces: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engines, "__version__", "9.9")

        with pytest.raises(
            UsageError, match=r"2 of 2 workers have layoutdoctor [\d.]+, this is 9\.9; install the same"
        ):
            scan(traces, scheduler=cluster.scheduler_address)

    def test_a_scheduler_that_is_not_there_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engines, "_CONNECT_SECONDS", 1)

        with pytest.raises(UsageError, match=r"cannot reach a Dask scheduler at 'tcp://127\.0\.0\.1:1': "):
            scan(TRACES / "a100_alexnet.json.gz", scheduler="tcp://127.0.0.1:1")

    def test_an_address_that_is_none_is_one_line_without_the_password(self) -> None:
        pytest.importorskip("distributed")
        with pytest.raises(UsageError) as caught:
            scan(TRACES / "a100_alexnet.json.gz", scheduler="tcp://bob:hunter2@127.0.0.1:1")

        assert str(caught.value).startswith(
            "cannot reach a Dask scheduler at 'tcp://127.0.0.1:1': ValueError: invalid address '127.0.0.1:1'"
        )

    def test_a_scheduler_without_workers_is_one_line(self) -> None:
        distributed = pytest.importorskip("distributed")
        with (
            distributed.LocalCluster(n_workers=0, processes=True, dashboard_address=None) as empty,
            pytest.raises(UsageError, match="the scheduler has no workers; start some with dask worker"),
        ):
            scan(TRACES / "a100_alexnet.json.gz", scheduler=empty.scheduler_address)


def test_without_dask_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)

    with pytest.raises(UsageError, match=r"Dask is not installed; pip install 'layoutdoctor\[fleet\]'"):
        scan(TRACES / "a100_alexnet.json.gz", scheduler="tcp://127.0.0.1:1")
