"""What all tests share: the flag that rewrites golden files, and what is left to the long sweeps."""

from __future__ import annotations

import pytest

SHARING = {"browser", "compile", "faults", "isolation", "notebooks", "security"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the reports of today into tests/golden; review the difference",
    )


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


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
