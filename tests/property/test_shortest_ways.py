"""Ways through a region, found one by one, against all of them as networkx finds them."""

from __future__ import annotations

import itertools

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutdoctor.examination.graphs.regions import shortest_ways

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
    found = list(shortest_ways(graph.successors, [[name] for name in starts], positions, lambda _: True))
    expected = [
        (nx.shortest_path_length(graph, start, end), one, other)
        for one, start in enumerate(starts)
        for other, end in enumerate(ends)
        if nx.has_path(graph, start, end)
    ]

    assert [(len(way) - 1, one, other) for one, other, way in found] == sorted(expected)
    assert all((way[0], way[-1]) == (starts[one], ends[other]) for one, other, way in found)
    assert all(graph.has_edge(*edge) for _, _, way in found for edge in itertools.pairwise(way))
