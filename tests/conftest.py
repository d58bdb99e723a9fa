"""What all tests share: the flag that rewrites golden files, and what ``make test`` leaves out."""

from __future__ import annotations

import gc
import os
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

# Every graph is lowered, by the code of today and with what a test has changed of it: none is found that an earlier run
# has lowered. Children inherit it; what is about the cache turns it on.
os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT", "0")

SHARING = {"browser", "compile", "notebooks", "security"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the reports of today into tests/golden; review the difference",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """
    What the tests import is no garbage, and no search for garbage looks at it again.

    A million objects of torch's: a search among them takes up to a second, and each diagnosis asks for several.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    What compiles is left to ``make test-all``, but for the smoke set: one model of each kind.

    Where tests of a file share what was compiled or started, all of them go to one worker.
    """
    for item in items:
        if item.path.parent.name in SHARING:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        if item.get_closest_marker("compile") and not item.get_closest_marker("smoke"):
            item.add_marker(pytest.mark.slow)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Makes a case's id: a file's name, a record's name or code, or how the value begins; equal in every process."""
    if val is None or isinstance(val, (bool, int, float, bytes, bytearray, set, frozenset)) or callable(val):
        return None
    name = val if isinstance(val, str) else getattr(val, "name", None) or getattr(val, "code", None)
    shown = repr(val)[:30] if name is None else str(name)[:60]
    text = re.sub(r"[^\w.:/=<>+-]+", " ", shown, flags=re.ASCII).strip()
    return None if not text or " at 0x" in shown or "frozenset" in text else text


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
