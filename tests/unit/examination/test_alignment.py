from __future__ import annotations

from typing import TYPE_CHECKING

from builders import a_graph, a_node, a_placeholder

from layoutdoctor.examination.graphs.join import align_eager
from layoutdoctor.examination.kernels.host import HostOperation, operation_tree
from layoutdoctor.recording.operations import Operation, ProfiledIteration

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import FxNode, Graph


def tree(*nested: str) -> list[HostOperation]:
    """Operations one after the other; ``a > b > c`` runs b inside of a, and c inside of b."""
    operations = []
    for number, chain in enumerate(nested):
        for depth, name in enumerate(chain.split(" > ")):
            operations.append(Operation(name, number + depth * 0.1, 0.9 - depth * 0.2, "1"))
    return operation_tree(ProfiledIteration(operations))


def graph(*targets: str) -> Graph:
    return a_graph(name="eager", nodes=tuple(a_node(f"n{number}", target) for number, target in enumerate(targets)))


def joined(entries: list[HostOperation]) -> dict[str, str]:
    return {entry.name: entry.node.name for entry in entries if entry.node is not None}


def called(graph: Graph) -> list[str | None]:
    return [node.called for node in graph.nodes]


def test_equal_sequences_are_matched_one_by_one_and_nodes_learn_what_was_called() -> None:
    entries = tree("aten::contiguous > aten::clone > aten::copy_", "aten::conv2d > aten::convolution", "aten::relu")
    found = align_eager(entries, graph("aten.clone.default", "aten.convolution.default", "aten.relu.default"))

    assert called(found) == ["contiguous", "conv2d", "relu"]
    assert joined(entries) == {"aten::clone": "n0", "aten::convolution": "n1", "aten::relu": "n2"}
    assert {entry.graph for entry in entries if entry.node is not None} == {"eager"}


def test_what_runs_inside_a_recorded_operation_is_not_matched_itself() -> None:
    entries = tree("aten::clone > aten::copy_", "aten::copy_")
    align_eager(entries, graph("aten.clone.default", "aten.copy_.default"))

    assert [entry.node.name if entry.node else None for entry in entries] == ["n0", None, "n1"]


def test_operations_that_were_recorded_in_one_iteration_only_are_passed_over() -> None:
    entries = tree("aten::relu", "aten::add", "aten::mul")
    found = align_eager(entries, graph("aten.relu.default", "aten.clone.default", "aten.mul.Tensor"))

    assert called(found) == ["relu", None, "mul"]
    assert joined(entries) == {"aten::relu": "n0", "aten::mul": "n2"}


def test_arguments_and_parts_of_results_ran_nothing() -> None:
    other: tuple[FxNode, ...] = (a_placeholder("x"), a_node("part", "getitem"))
    nodes = (*other, a_node("n0", "aten.relu.default"))
    found = align_eager(tree("aten::relu"), a_graph(name="eager", nodes=nodes))

    assert called(found) == [None, None, "relu"]
