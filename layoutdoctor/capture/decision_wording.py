"""
Why Inductor's layout heuristic decided as it did, in sentences: one for each of its rules.

Faces the decision card; imports records only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.records import Convolution

SMALL_CHANNELS = 64
"""``decide_layout_opt``: up to this many input and output channels a convolution counts as small."""

NODES_PER_CONVOLUTION = 300
"""``decide_layout_opt``: from this many FX nodes a convolution on, too few convolutions for a switch."""


@dataclass(frozen=True)
class DecisionFacts:
    """
    What an explanation may mention.

    Attributes:
        applied: Whether channels-last was chosen.
        convolutions: Those of the graph, forward and backward.
        counted: How many of them this torch decides by.
        deciding: Names of the nodes that vetoed.
        node_count: FX nodes of the graph.
    """

    applied: bool
    convolutions: tuple[Convolution, ...]
    counted: int
    deciding: tuple[str, ...]
    node_count: int


def explain_decision(rule: str, log: Sequence[str], facts: DecisionFacts) -> str:
    """
    The rule that decided about a graph, in a sentence.

    Args:
        rule: Our name of it.
        log: What torch logged while it decided.
        facts: About the graph.
    """
    count = facts.counted
    plural = "" if count == 1 else "s"
    which = _names(facts.convolutions, facts.deciding)
    texts = {
        "config-off": "layout_optimization is switched off for this compile",
        "forced": "force_layout_optimization is set, so Inductor asks no further",
        "no-convolution": "the graph has no convolution, so there is nothing to optimize",
        "only-backward-convolutions": (
            f"the graph has {len(facts.convolutions)} convolution_backward and no convolution; this torch counts "
            "only the latter, so it is lowered without layout optimization, whatever the forward was (pytorch #189239)"
        ),
        "cpu-onednn": (
            f"all {count} convolution{plural} run on a CPU with oneDNN, where Inductor always chooses channels-last"
            if count != 1
            else "the convolution runs on a CPU with oneDNN, where Inductor always chooses channels-last"
        ),
        "few-convolutions": (
            f"{count} convolution{plural} among {facts.node_count} FX nodes: Inductor skips graphs with at least "
            f"{NODES_PER_CONVOLUTION} nodes per convolution"
        ),
        "dynamic-shape": f"a convolution has symbolic sizes{which}: Inductor skips dynamic shapes (pytorch #102670)",
        "weighted-flops": _flops_text(facts.applied, log),
        "grouped-convolution": (
            f"a grouped convolution has more than one channel per group{which}; "
            "in training Inductor skips the whole graph for it"
        ),
        "smaller-out-channels": (
            "the first dimension of a weight is at most half its second, with a kernel larger than 1 (few output for "
            f"many input channels, the reverse where transposed){which}; in training Inductor skips the whole graph "
            "for it"
        ),
        "small-channels": (
            f"all convolutions have at most {SMALL_CHANNELS} input and output channels; "
            "in training Inductor skips such graphs"
        ),
        "no-veto": f"no rule speaks against it for {count} convolution{plural} in training",
        "set-from-outside": "the decision was made before this graph was lowered (freezing passes it in)",
    }
    return texts.get(rule, "torch did not say how it decided")


def _names(convolutions: tuple[Convolution, ...], deciding: tuple[str, ...]) -> str:
    named = [
        f"{c.module or c.node} {list(c.weight_shape)}" if c.weight_shape else (c.module or c.node)
        for c in convolutions
        if c.node in deciding
    ]
    if not named:
        return ""
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return f" ({', '.join(named[:3])}{more})"


def _flops_text(applied: bool, log: Sequence[str]) -> str:
    numbers = re.findall(r"(default|channels last): (\d+)", " ".join(log))
    figures = f" ({', '.join(f'{name} {int(value):,}' for name, value in numbers)} weighted flops)" if numbers else ""
    outcome = "predict no slowdown" if applied else "predict a slowdown"
    return f"in inference Inductor weighs each convolution's flops by its class; the weighted flops {outcome}{figures}"
