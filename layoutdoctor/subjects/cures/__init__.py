"""The cures: changes of a model by public means that may make it faster, one a file, all of them in one tuple."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.errors import UsageError
from layoutdoctor.subjects.cures.autocast_dtype import AUTOCAST_DTYPE
from layoutdoctor.subjects.cures.calls import VIEW_AS_RESHAPE, WITHOUT_CONTIGUOUS
from layoutdoctor.subjects.cures.dense_batch_norm import DENSE_BATCH_NORM
from layoutdoctor.subjects.cures.flat_conv3d import FLAT_CONV3D
from layoutdoctor.subjects.cures.restored_format import RESTORED_FORMAT

if TYPE_CHECKING:
    from torch import nn

    from layoutdoctor.diagnosis.subject import Configuration
    from layoutdoctor.subjects.cures.cure import KnownCure, Seen
    from layoutdoctor.workers.messages import Proposal

ALL_CURES: tuple[KnownCure, ...] = (
    FLAT_CONV3D,
    AUTOCAST_DTYPE,
    DENSE_BATCH_NORM,
    WITHOUT_CONTIGUOUS,
    RESTORED_FORMAT,
    VIEW_AS_RESHAPE,
)


def propose(seen: Seen) -> tuple[Proposal, ...]:
    """The cures that may help a model, as far as a trial of it shows."""
    able = (cure for cure in ALL_CURES if cure.mends_a_failure == (seen.failure is not None))
    return tuple(proposal for cure in able if (proposal := cure.propose(seen)) is not None)


def apply_cures(module: nn.Module, configuration: Configuration) -> None:
    """
    Changes a model as a configuration's cures say, in place.

    Raises:
        UsageError: A cure is not known, or the model lacks a module that it changes.
    """
    by_name = {cure.name: cure for cure in ALL_CURES}
    for cure in configuration.cures:
        if cure.name not in by_name:
            raise UsageError(
                f"cannot apply the cure {cure.name!r} of {configuration.name!r}: expected one of "
                f"{', '.join(sorted(by_name))}; it may be of a newer layoutdoctor"
            )
        missing = sorted(set(cure.modules) - {name for name, _ in module.named_modules()})
        if missing:
            raise UsageError(
                f"cannot apply {configuration.name!r} to {type(module).__name__}: it has no module {missing[0]!r}; "
                "give the model that was diagnosed"
            )
        by_name[cure.name].apply(module, cure)
