"""
Inductor's FX-graph cache beside a capture, with our own record of each graph that it keeps.

What is lowered is saved under Inductor's own key, for processes that compile the same later. A later capture takes it
from there where the record of the graph is there as well; else it is lowered again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from layoutdoctor._version import __version__
from layoutdoctor.capture.compat import inductor_config, private
from layoutdoctor.capture.fx_graph import fx_nodes, output_node
from layoutdoctor.capture.inductor_graph import code_fingerprint, kernel_sources
from layoutdoctor.diagnosis.records import Graph
from layoutdoctor.diagnosis.writing import replacing
from layoutdoctor.errors import UnsupportedTorchError
from layoutdoctor.recording.saved import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.capture.session import CompileCapture

_CODECACHE = "torch._inductor.codecache"


@contextlib.contextmanager
def cached_graphs(capture: CompileCapture) -> Iterator[None]:
    """
    A block in which the FX-graph cache saves what it does not have, and gives only what the capture can be told of.

    Where this torch's cache cannot be made to find nothing, it is off. Whatever goes wrong with a record of ours, the
    graph is lowered.

    Source:
        ``FxGraphCache`` (torch/_inductor/codecache.py): ``prepare_key`` returns a key and more, or None, and what else
        is known of it; ``_lookup_graph`` returns a ``CompiledFxGraph`` or None, and the like; for each miss an entry is
        written, named by its content, which differs from compile to compile; torch 2.7 to 2.15.
    """
    names = ("prepare_key", "_lookup_graph", "_write_to_local_cache", "_get_tmp_dir_for_key")
    try:
        prepare_key, look_up, write, folder = (private(f"{_CODECACHE}.FxGraphCache.{name}") for name in names)
        records = _Records(folder)
    except UnsupportedTorchError:
        with inductor_config().patch(fx_graph_cache=False):
            yield
        return

    @functools.wraps(prepare_key)
    def noting_key(gm: Any, *args: Any, **keywords: Any) -> Any:
        result = prepare_key(gm, *args, **keywords)
        records.begin(gm, result)
        return result

    @functools.wraps(look_up)
    def finding_known(*args: Any, **keywords: Any) -> Any:
        graph = records.load()
        found = (None, {}) if graph is None else look_up(*args, **keywords)
        module = None if graph is None else _module_of(found, graph)
        if graph is None or module is None:
            return None, {}
        capture.add_known(graph, module)
        return found

    @functools.wraps(write)
    def writing_new(key: str, content: bytes) -> None:
        if not Path(folder(key)).is_dir():
            write(key, content)

    owner = importlib.import_module(_CODECACHE).FxGraphCache
    wraps: tuple[Callable[..., Any], ...] = (noting_key, finding_known, writing_new)
    with contextlib.ExitStack() as stack:
        for name, wrap in zip(names, wraps, strict=False):
            stack.enter_context(mock.patch.object(owner, name, staticmethod(wrap)))
        stack.enter_context(mock.patch.object(capture, "on_lowered", records.keep))
        yield


class _Records:
    """
    Records of graphs, one file each: of the graph that is compiled now.

    Args:
        folder: Where Inductor keeps the graphs of a key: ours are beside its folder of all keys.
    """

    def __init__(self, folder: Callable[[str], str]) -> None:
        self._folder = folder
        self._graph_module: Any = None
        self._path: Path | None = None

    def begin(self, graph_module: Any, prepared: Any) -> None:
        """Notes which graph is compiled now; it changes on its way through the compiler."""
        self._graph_module = self._path = None
        with contextlib.suppress(Exception):
            (key, *_), *_ = prepared
            name = f"{key}-{_fingerprint(graph_module)}"
            self._graph_module, self._path = graph_module, Path(self._folder(key)).parents[2] / "layoutdoctor" / name

    def load(self) -> Graph | None:
        """The record of this graph; None where there is none that can be read."""
        with contextlib.suppress(Exception):
            found = unpack(self._path.read_bytes(), Graph) if self._path is not None else None
            return found if isinstance(found, Graph) else None
        return None

    def keep(self, graph_module: Any, graph: Graph) -> None:
        """Writes the record of a graph that was lowered, if it is this one and all of it was read."""
        is_whole = graph.hook_failure is None and graph.code_fingerprint is not None
        if self._path is not None and graph_module is self._graph_module and is_whole:
            with contextlib.suppress(Exception):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(self._path) as stream:
                    stream.write(pack(graph))


def _fingerprint(graph_module: Any) -> str:
    """What a record says and Inductor's key does not: lines, modules, calls; and by what the decision is explained."""
    outputs: Any = output_node(graph_module)
    onednn = torch.backends.mkldnn
    others = (outputs.meta.get("user_visible_output_idxs"), onednn.enabled, onednn.is_available(), _who_records())
    return hashlib.sha256(pack(fx_nodes(graph_module)) + repr(others).encode()).hexdigest()


@functools.cache
def _who_records() -> str:
    """A hash of our own code: what another version recorded may say something else."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return hashlib.sha256(b"".join([__version__.encode(), *(file.read_bytes() for file in files)])).hexdigest()


def loaded_code() -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """
    The generated modules of this process, each by its code's fingerprint, with the names of its kernels.

    Raises:
        UnsupportedTorchError: This torch does not say.
    """
    for module in private(f"{_CODECACHE}.PyCodeCache.modules"):
        source = Path(module.__file__).read_text(encoding="utf-8")
        yield code_fingerprint(source), tuple(kernel_sources(source)), module


def _module_of(found: Any, graph: Graph) -> Any:
    """
    The generated module of a graph from the cache; None where there is none, or its code is not that of our record.

    Source:
        ``CompiledFxGraph.source_code`` and ``current_callable``, which is the module's ``call``
        (torch/_inductor/output_code.py); ``PyCodeCache.modules``, a list; torch 2.7 to 2.15.
    """
    with contextlib.suppress(Exception):
        compiled = found[0]
        if compiled is not None and code_fingerprint(compiled.source_code) == graph.code_fingerprint:
            call = getattr(compiled.current_callable, "__func__", compiled.current_callable)
            modules = reversed(private(f"{_CODECACHE}.PyCodeCache.modules"))
            return next((module for module in modules if vars(module) is call.__globals__), None)
    return None
