"""Tests over many cases of one kind: one test for all of them, and sweeps of which a usual run takes a few cases."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Test = Callable[..., None]
IS_SWEEP = "SWEEP" in os.environ
"""Whether tests run over all cases of a sweep, as ``.ci/sweep`` asks; that takes hours."""


def for_each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """
    Takes what ``pytest.mark.parametrize`` takes and makes one test: it runs over all cases and names each that failed.

    Fixtures are the same for all cases. Where a case is to be skipped, the test says so after all others ran.
    """
    wanted = (names,) if isinstance(names, str) else names
    rows = [{names: case} if isinstance(names, str) else dict(zip(names, case, strict=True)) for case in cases]
    if not rows:
        raise ValueError(f"no case for {names}")

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def over_all(**fixtures: Any) -> None:
            failed: list[str] = []
            first: BaseException | None = None
            skipped: pytest.skip.Exception | None = None
            for row in rows:
                try:
                    test(**row, **fixtures)
                except pytest.skip.Exception as skip:
                    skipped = skip
                except (Exception, pytest.fail.Exception) as error:
                    first = first or error
                    failed.append(f"{', '.join(f'{k}={v!r:.200}' for k, v in row.items())}: {error!s:.2000}")
            if failed:
                raise AssertionError(f"{len(failed)} of {len(rows)} failed:\n" + "\n".join(failed)) from first
            if skipped is not None:
                raise skipped

        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in wanted]
        over_all.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return over_all

    return decorate
