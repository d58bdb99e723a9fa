"""LD508: convolutions that are matrix products."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdoctor.diagnosis import Diagnosis, Finding
from layoutdoctor.examination.counts import sum_of_known
from layoutdoctor.examination.graphs.products import LEAST_WORK_SHARE
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.base import Rule
from layoutdoctor.words import count_of, joined, listing, shape_words


def convolutions_as_products(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding, if the products take enough time; without times, if an image has several pixels."""
    for trial, found in evidence.first_showing(evidence.own_trials(diagnosis), evidence.matrix_products):
        names = [
            f"{c.module or c.node} {shape_words((c.weight_shape or ())[2:])} of {shape_words(image)}"
            for c, image in found
        ]
        nodes = {convolution.node for convolution, _ in found}
        seconds = sum_of_known(kernel.seconds for kernel in trial.kernel_summary.kernels if kernel.node in nodes)
        share = evidence.share_of_kernels(trial, seconds)
        has_patches = any(set(image) != {1} for _, image in found)
        if not has_patches if share is None else share < LEAST_WORK_SHARE:
            return
        count = f"{len(found)} of {count_of(len(evidence.forward_convolutions(trial)), 'convolution')}"
        message = f"matrix product, as no two patches overlap: {count} ({listing(names)})"
        yield LD508.finding(
            trial.name,
            joined((message, wording.cost_words(trial, seconds)), ", "),
            "write torch.nn.functional.linear(patches, conv.weight.flatten(1), conv.bias); the default configurations "
            "try this on modules",
            seconds=seconds,
            evidence=sorted(nodes),
            at=found[0][0],
        )


LD508 = Rule("LD508", "convolution-is-matrix-product", convolutions_as_products)
