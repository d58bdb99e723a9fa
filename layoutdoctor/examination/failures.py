"""What the failure of a configuration says, beyond its text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Failure

# Of ATen, and of the Python reference that runs while torch.compile traces; torch 2.7 to 2.13.
_REFUSALS = ("view size is not compatible", "Cannot view a tensor with shape")


def is_refused_view(text: str | None) -> bool:
    """Whether an error says that ``.view`` met strides that it cannot express."""
    return text is not None and any(words in text for words in _REFUSALS)


def refuses_view(failure: Failure | None) -> bool:
    """The same of a failure that was recorded."""
    return failure is not None and (is_refused_view(failure.message) or is_refused_view(failure.log))
