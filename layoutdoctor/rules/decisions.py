"""Looks up Inductor's decisions about the layouts of convolutions, and describes convolutions in words."""

from __future__ import annotations

from collections.abc import Sequence

from layoutdoctor.diagnosis import Convolution, Decision, Diagnosis, Graph, Trial
from layoutdoctor.diagnosis.configurations import FORCED
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import Times
from layoutdoctor.rules.evidence import CHANNELS_LAST_CONFIGURATIONS
from layoutdoctor.words import joined, phrase, shape_words

WAYS_AROUND = (FORCED, "inductor-channels-last")
UNCOUNTED = "only-backward-convolutions"  # before torch 2.15, Inductor did not count backward convolutions


def leaves_out_backward(graphs: Sequence[Graph]) -> bool:
    """Whether layout optimization is on in the forward, and Inductor did not count the backward's convolutions."""
    is_uncounted = any(card.rule == UNCOUNTED for card in evidence.cards_of(graphs))
    return is_uncounted and is_applied_in_forward(graphs)


def is_applied_in_forward(graphs: Sequence[Graph]) -> bool:
    """Whether layout optimization is on in a forward graph of a training step that has convolutions."""
    cards = evidence.cards_of(graph for graph in graphs if graph.direction == "forward")
    return any(card.applied and card.convolution_count for card in cards)


def convolution_words(convolution: Convolution) -> str:
    """Names a convolution, with its known facts: ``"d2.0 (192 -> 64, 3x3)"``, ``"stem (64x16x3x3, 4 groups)"``."""
    shape, groups = convolution.weight_shape or (), convolution.groups or 1
    sizes = shape_words(shape)
    if len(shape) > 2 and convolution.is_transposed is not None and isinstance(shape[1], int):
        second = shape[1] * groups
        given, made = (shape[0], second) if convolution.is_transposed else (second, shape[0])
        sizes = f"{given} -> {made}, {shape_words(shape[2:])}"
    known = joined((sizes, f"{groups} groups" if groups != 1 else None), ", ")
    return f"{convolution.module or convolution.node}{phrase(' ({})', known)}"


def is_one_dimensional(decision: Decision) -> bool:
    """Whether a decision lists convolutions, and all of them are 1-D."""
    return bool(decision.convolutions) and all(convolution.rank == 1 for convolution in decision.convolutions)


def leaves_layouts_to_inductor(trial: Trial) -> bool:
    """Whether a configuration leaves layout optimization on, keeps the model's own format, and freezes no weights."""
    own = trial.configuration
    is_free = own.layout_optimization in ("default", "on", "forced")
    return is_free and own.model_format == "preserve" and not own.freezes


def are_products(diagnosis: Diagnosis, trial: Trial, convolutions: Sequence[Convolution]) -> bool:
    """Whether LD508 has better advice: all convolutions are matrix products, and channels-last is not advisable."""
    products = [convolution for convolution, _ in evidence.matrix_products(trial)]
    is_every = bool(convolutions) and all(convolution in products for convolution in convolutions)
    return is_every and Times(diagnosis).fastest(CHANNELS_LAST_CONFIGURATIONS) is None
