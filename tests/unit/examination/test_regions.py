from __future__ import annotations

import itertools
from typing import Any

import networkx as nx
from builders import blocked, channels_last, contiguous
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import for_each

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.examination.graphs.regions import same_format, shortest_ways

IMAGE = (2, 8, 6, 6)
PLAIN, LAST = contiguous(IMAGE), channels_last(IMAGE)


@for_each(
    ("one", "other", "same"),
    [
        (PLAIN, PLAIN, True),
        (PLAIN, LAST, False),
        (LAST, strided_layout(IMAGE, (576, 1, 96, 16)), True),
        (contiguous((2, 8, 1, 1)), channels_last((2, 8, 1, 1)), True),
        (PLAIN, contiguous((4, 16, 3, 3)), True),
        (blocked(IMAGE), blocked((4, 16, 3, 3)), True),
        (blocked(IMAGE), blocked(IMAGE, "aBcd8b"), False),
        (blocked(IMAGE), PLAIN, False),
        (strided_layout(IMAGE, (288, 6, 48, 1)), strided_layout(IMAGE, (288, 6, 48, 1)), True),
        (strided_layout(IMAGE, (288, 6, 48, 1)), PLAIN, False),
    ],
)
def test_layouts_of_one_format_are_the_same_whatever_their_size(one: Any, other: Any, same: bool) -> None:
    assert same_format(one, other) is same
    assert same_format(other, one) is same


COUNT = 7
NAMES = st.sampled_from([str(number) for number in range(COUNT)])


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.tuples(NAMES, NAMES), max_size=14),
    st.lists(NAMES, max_size=4, unique=True),
    st.lists(NAMES, max_size=4),
)
def test_every_way_is_found_once_the_shortest_first(
    edges: list[tuple[str, str]], starts: list[str], ends: list[str]
) -> None:
    graph: nx.DiGraph = nx.DiGraph(edges)
    graph.add_nodes_from(str(number) for number in range(COUNT))
    positions: dict[str, list[int]] = {}
    for position, name in enumerate(ends):
        positions.setdefault(name, []).append(position)
    found = shortest_ways(graph.successors, [[name] for name in starts], positions)
    expected = [
        (nx.shortest_path_length(graph, start, end), one, other)
        for one, start in enumerate(starts)
        for other, end in enumerate(ends)
        if nx.has_path(graph, start, end)
    ]

    assert [(len(way) - 1, one, other) for one, other, way in found] == sorted(expected)
    assert all((way[0], way[-1]) == (starts[one], ends[other]) for one, other, way in found)
    assert all(graph.has_edge(*edge) for _, _, way in found for edge in itertools.pairwise(way))
