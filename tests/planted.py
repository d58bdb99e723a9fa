"""What a test changes in the processes that work on a model: it travels with the model."""

from __future__ import annotations

from typing import Any


class Planted:
    """
    An attribute of a model that runs a line of code in each process that rebuilds the model.

    Args:
        code: Such as ``"import torch; torch.relu = None"``.
    """

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> Any:
        return plant, (self.code,)

    def __deepcopy__(self, memo: Any) -> Planted:
        return self


def plant(code: str) -> Planted:
    """Runs the code; called by pickle."""
    exec(code, {})
    return Planted(code)
