from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import networkx as nx
from builders import a_conversion, blocked, channels_last, contiguous
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import for_each

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.examination.graphs.regions import Region, same_format, shortest_ways

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Conversion


IMAGE = (2, 8, 6, 6)
PLAIN, LAST = contiguous(IMAGE), channels_last(IMAGE)


def out(name: str, **changes: Any) -> Conversion:
    return a_conversion(name, **{"source": LAST, "target": PLAIN, "bytes_moved": 100, **changes})


def back(name: str, **changes: Any) -> Conversion:
    return a_conversion(name, **{"source": PLAIN, "target": LAST, "bytes_moved": 100, **changes})


@for_each(
    ("leaving", "entering", "pinned", "foreign", "count"),
    [
        (1, 1, 0, 0, 1),
        (2, 1, 0, 0, 1),
        (2, 3, 0, 0, 2),
        (2, 2, 1, 0, 1),
        (2, 2, 0, 2, 0),
        (1, 1, 3, 0, 0),
        (0, 2, 0, 0, 0),
    ],
)
def test_as_many_pairs_go_as_both_balances_allow(
    leaving: int, entering: int, pinned: int, foreign: int, count: int
) -> None:
    region = Region(
        leaving={f"v{n}": out(f"out {n}") for n in range(leaving)},
        entering=[("v0", back(f"back {n}")) for n in range(entering)],
        pinned={f"p{n}" for n in range(pinned)},
        foreign={f"f{n}" for n in range(foreign)},
    )

    assert region.removable_pair_count() == count


def test_a_region_in_one_layout_and_the_bytes_it_saves() -> None:
    other = strided_layout(IMAGE, (288, 6, 48, 1))
    leaving = {"a": out("0"), "b": out("1"), "c": out("2", source=other), "d": out("3", source=None)}

    assert Region(leaving=leaving).layouts() == [LAST, other]

    other = strided_layout(IMAGE, (288, 6, 48, 1))
    ours, theirs = out("0"), out("1", source=other)
    wanted, unwanted = back("2"), back("3", target=other)
    region = Region({"a", "b", "c"}, {"a": ours, "b": theirs}, [("a", wanted), ("c", unwanted)], {"x"}, {"y"})

    assert region.in_layout(LAST) == Region({"a", "b", "c"}, {"a": ours}, [("a", wanted)], {"x", "c"}, {"y", "b"})

    region = Region(leaving={"a": out("0")}, entering=[("a", back("1", bytes_moved=70))], pinned={"p"}, foreign={"f"})

    assert region.saved_bytes({"p": 30, "f": 20}.get) == 100 + 70 - 30 - 20


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


GRAPH = {"a": ["m"], "b": ["n"], "m": ["n", "x"], "n": ["o"], "o": ["y"], "x": ["y"], "y": ["a"]}


def test_what_is_not_wanted_any_more_is_not_looked_for() -> None:
    used: set[int] = set()
    found = shortest_ways(
        lambda name: GRAPH.get(name, []), [["a"], ["b"]], {"n": [0], "y": [1]}, lambda n: n not in used
    )
    first = next(found)
    used.add(first[0])

    assert (first[0], first[1]) == (1, 0)
    assert [start for start, _, _ in found] == [0, 0]


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
