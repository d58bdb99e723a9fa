"""Convolutions by the cost of their layout: the time of each and of its conversions, in two configurations."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.layout import Size
from layoutdoctor.diagnosis.record import Count, Record, Seconds
from layoutdoctor.diagnosis.subject import SourceLocation
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.costs import all_conversions_of, sum_of_known
from layoutdoctor.examination.graphs.layout_agnostic import convolves
from layoutdoctor.words import distinct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.graph import FxNode
    from layoutdoctor.diagnosis.kernel import Kernel
    from layoutdoctor.diagnosis.trial import Trial


class Spent(Record, frozen=True, kw_only=True):
    """
    A convolution in one configuration.

    Attributes:
        seconds: Of its own kernels; None if they were not recorded or have no times.
        conversion_seconds: Of the conversions of what it reads and returns; None if one has no time.
        implementations: The library's code that it ran.
    """

    seconds: Seconds | None
    conversion_seconds: Seconds | None
    conversion_count: Count
    implementations: tuple[str, ...]

    @property
    def whole(self) -> float | None:
        """Seconds of the convolution and of its conversions."""
        return None if self.seconds is None else self.seconds + (self.conversion_seconds or 0.0)


class Ranked(Record, frozen=True, kw_only=True):
    """
    The convolutions of one module and line, the forward or the backward ones.

    Attributes:
        shape: Of the result of the first one; in the backward, of its first gradient.
        first: In the configuration that is ranked.
        second: In the other one; None if it is not found there.
    """

    module: str | None
    location: SourceLocation | None
    backward: bool
    count: Count
    shape: tuple[Size, ...] | None
    first: Spent
    second: Spent | None

    @property
    def loss(self) -> float:
        """Seconds by which the first is slower; if the second has no time, the first's conversion seconds."""
        whole = self.first.whole or 0.0
        if self.second is None or self.second.whole is None:
            return self.first.conversion_seconds or 0.0
        return whole - self.second.whole


_Key = tuple[str | None, str | None, bool]


def rank(diagnosis: Diagnosis, first: str | None = None, second: str | None = None) -> tuple[str, str, list[Ranked]]:
    """
    The convolutions of two configurations, the most costly difference first.

    Args:
        first: The configuration to rank; None for the baseline.
        second: The other configuration; None for the recommended one, else the fastest measured one.

    Raises:
        UsageError: The diagnosis has no such configuration, or the first one has no graph with a convolution.
    """
    comparison, advice = diagnosis.comparison, diagnosis.recommendation
    first = first or (comparison.baseline if comparison is not None else diagnosis.trials[0].name)
    if second is None:
        ratios = () if comparison is None else sorted(comparison.ratios, key=lambda ratio: -ratio.median)
        advised = [] if advice is None or advice.configuration is None else [advice.configuration]
        wanted = [*advised, *(ratio.name for ratio in ratios), *(trial.name for trial in diagnosis.trials)]
        second = next((name for name in wanted if name != first), first)
    rows, others = (_by_place(diagnosis.trial(diagnosis.trial(name).same_as or name)) for name in (first, second))
    if not rows:
        raise UsageError(f"cannot rank the convolutions of {first!r}: no graph of it with a convolution was recorded")
    ranked = [
        Ranked(
            module=module,
            location=nodes[0].location,
            backward=backward,
            count=len(nodes),
            shape=nodes[0].layout.shape if nodes[0].layout is not None else None,
            first=spent,
            second=others[module, line, backward][1] if (module, line, backward) in others else None,
        )
        for (module, line, backward), (nodes, spent) in rows.items()
    ]
    return first, second, sorted(ranked, key=lambda one: -one.loss)


def _by_place(trial: Trial) -> Mapping[_Key, tuple[list[FxNode], Spent]]:
    """The convolutions of each module and line; graphs that did not run (compiled again later) are left out."""
    kernels: dict[tuple[str | None, str | None], list[Kernel]] = defaultdict(list)
    for kernel in trial.kernels.kernels if trial.kernels is not None else ():
        if kernel.node is not None and "reorder" not in kernel.name:
            kernels[kernel.graph, kernel.node].append(kernel)
    conversions: dict[tuple[str | None, str], list[Conversion]] = defaultdict(list)
    for conversion in all_conversions_of(trial):
        for name in distinct((conversion.node, *conversion.required_by)):
            conversions[conversion.graph, name].append(conversion)
    ran = {graph for graph, _ in kernels}
    found: dict[_Key, list[tuple[str, FxNode]]] = defaultdict(list)
    for graph in trial.graphs:
        if ran and graph.name not in ran:
            continue
        for node in graph.nodes:
            if node.op == "call_function" and convolves(node.target):
                line = str(node.location) if node.location is not None else None
                backward = graph.direction == "backward" or "backward" in node.target
                found[node.module, line, backward].append((graph.name, node))
    return {key: ([node for _, node in places], _spent(places, kernels, conversions)) for key, places in found.items()}


def _spent(
    places: Sequence[tuple[str, FxNode]],
    kernels: Mapping[tuple[str | None, str | None], list[Kernel]],
    conversions: Mapping[tuple[str | None, str], list[Conversion]],
) -> Spent:
    own = [kernel for graph, node in places for kernel in kernels.get((graph, node.name), ())]
    converted = {one.id: one for graph, node in places for one in conversions.get((graph, node.name), ())}
    ids = {(one.kernel, one.seconds) for one in converted.values()}
    own = [kernel for kernel in own if (kernel.name, kernel.seconds) not in ids]
    return Spent(
        seconds=sum_of_known(kernel.seconds for kernel in own),
        conversion_seconds=sum_of_known(one.seconds for one in converted.values()) if converted else 0.0,
        conversion_count=len(converted),
        implementations=tuple(distinct(kernel.implementation for kernel in own)),
    )
