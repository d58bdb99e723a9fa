"""Inductor's FX-graph cache beside a capture: what is lowered is saved, for processes that compile the same later."""

from __future__ import annotations

import contextlib
import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from layoutdoctor.capture.compat import inductor_config, private
from layoutdoctor.errors import UnsupportedTorchError

if TYPE_CHECKING:
    from collections.abc import Iterator

_CACHE = "torch._inductor.codecache.FxGraphCache"


@contextlib.contextmanager
def saved_graphs() -> Iterator[None]:
    """
    A block in which the FX-graph cache finds nothing, so that every graph is lowered, and saves what it does not have.

    Where this torch's cache cannot be made to find nothing, it is off.

    Source:
        ``FxGraphCache`` (torch/_inductor/codecache.py): ``_lookup_graph`` returns a graph or None, and what else is
        known of it; for each miss an entry is written, named by its content, which differs from compile to compile;
        torch 2.7 to 2.15.
    """
    try:
        private(f"{_CACHE}._lookup_graph")
        original, folder = private(f"{_CACHE}._write_to_local_cache"), private(f"{_CACHE}._get_tmp_dir_for_key")
    except UnsupportedTorchError:
        with inductor_config().patch(fx_graph_cache=False):
            yield
        return

    @functools.wraps(original)
    def write(key: str, content: bytes) -> None:
        if not Path(folder(key)).is_dir():
            original(key, content)

    owner: Any = importlib.import_module("torch._inductor.codecache").FxGraphCache
    found_nothing: Any = staticmethod(lambda *_, **__: (None, {}))
    with mock.patch.multiple(owner, _lookup_graph=found_nothing, _write_to_local_cache=staticmethod(write)):
        yield
