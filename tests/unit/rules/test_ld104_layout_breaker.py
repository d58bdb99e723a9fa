from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_breaker,
    a_comparison,
    a_conversion,
    a_graph,
    a_location,
    a_node,
    a_ratio,
    a_subject,
    a_trial,
    channels_last,
    contiguous,
    finder,
    kernels,
)

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.rules.regions import LD104

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Conversion, LayoutBreaker, Trial

findings = finder(LD104.check)

NODE = a_node("convolution", "aten.convolution.default")


def out(id: str, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {"owner": "framework", "graph": "eager", "source": channels_last(), "target": contiguous()}
    return a_conversion(id, **{**fields, "direction": "to_contiguous", **changes})


def back(id: str, **changes: Any) -> Conversion:
    return out(id, **{"direction": "to_channels_last", "source": contiguous(), "target": channels_last(), **changes})


PAID = (out("e0"), back("e1"), out("e2"), back("e3"), out("e4"))
NORMS = (
    a_breaker("instance_norm", conversions=("e0", "e1")),
    a_breaker("instance_norm_1", module="net.4", conversions=("e2", "e3"), seconds=2e-3),
    a_breaker("instance_norm_2", module="net.7", conversions=("e4",), seconds=1e-3),
)


def a_broken_trial(
    *breakers: LayoutBreaker,
    name: str = "eager-channels-last",
    conversions: tuple[Conversion, ...] = PAID,
    **changes: Any,
) -> Trial:
    graph = a_graph(name="eager", nodes=(NODE,), breakers=breakers, conversions=conversions)
    return a_trial(name, **{"graphs": (graph,), "kernels": kernels(seconds=25e-3), **changes})


def test_what_is_no_finding() -> None:
    # A trial without breakers has no finding.
    assert findings(a_trial(), a_broken_trial()) == []

    # The models own calls are left to their own rule.
    own = a_breaker("clone", op="contiguous")
    by_owner = a_breaker("clone_1", op="reshape", conversions=("e0",))
    called = out("e0", owner="user", node="clone_1")
    assert findings(a_broken_trial(own, by_owner, conversions=(called,))) == []

    # Other compiled configurations are not looked at.
    assert findings(a_trial(), a_broken_trial(*NORMS, name="inductor-channels-last")) == []

    # A value that was not channels last has lost nothing.
    permuted = strided_layout((4, 32, 32, 64), (65536, 32, 1, 1024))
    assert findings(a_broken_trial(a_breaker("layer_norm", op="layer_norm", source=permuted))) == []


def test_which_facts_it_gives(told: Told) -> None:
    # What the baseline shows is not told of eager again.
    shuffle = a_breaker("view", op="channel_shuffle", module=None, location=a_location(16))
    main = a_broken_trial(shuffle, name="inductor")
    eager = a_broken_trial(a_breaker("channel_shuffle", op="channel_shuffle", module=None, location=a_location(16)))
    assert [f.configuration for f in findings(eager, main)] == ["inductor"]
    told(
        "Each kind of operation is a finding",
        findings(a_broken_trial(NORMS[0], a_breaker("bmm", op="bmm", module="attention"))),
    )

    # Without a measured share or without a run it is a note.
    for changes in ({"kernels": None}, {"is_static": True}):
        assert [f.severity for f in findings(a_broken_trial(*NORMS, **changes))] == ["note"]


def test_what_it_says(told: Told) -> None:
    told("Three norms are one finding with places reason and price", findings(a_trial(), a_broken_trial(*NORMS)))
    paid = (out("e0", seconds=None), back("e1", seconds=None, fused=True))
    told("Without times the bytes are the price", findings(a_broken_trial(NORMS[0], conversions=paid)))

    paid = tuple(out(f"e{i}", seconds_source="estimated") for i in range(2))
    told("An estimated price says so", findings(a_broken_trial(NORMS[0], conversions=paid)))
    told("Without the conversions the breakers own price is told", findings(a_broken_trial(NORMS[1], conversions=())))
    for paid in (
        (back("e0", fused=True),),
        (out("e0", fused=True), back("e1", fused=True)),
        (out("e0"), back("e1", direction="to_blocked")),
    ):
        told("What the neighbours pay is said by direction", findings(a_broken_trial(NORMS[0], conversions=paid)))


def test_what_it_suggests(told: Told) -> None:
    shuffles = tuple(
        a_breaker(f"view_{i}", op="channel_shuffle", module=None, location=a_location(i), reason="") for i in (16, 17)
    )
    told(
        "Operations without a module are calls with their lines",
        findings(a_broken_trial(*shuffles, name="inductor", conversions=())),
    )
    main = a_trial(graphs=(a_graph(nodes=(NODE,)),))
    told(
        "A measured configuration without the breaker is named",
        findings(main, a_broken_trial(*NORMS), comparison=a_comparison(a_ratio("eager-channels-last", 0.5))),
    )

    comparison = a_comparison(a_ratio("eager-channels-last", 0.5))
    told(
        "A configuration whose graphs were not captured is no cure",
        findings(a_trial(), a_broken_trial(*NORMS), comparison=comparison),
    )
    for op in ("aten::_unsafe_view", "bmm", "native_channel_shuffle", "avg_pool3d", "conv3d"):
        told("Each kind has its advice", findings(a_broken_trial(a_breaker(op=op))))
    # What oneDNN leaves to ATen says nothing of a GPU.
    (on_a_gpu,) = findings(a_broken_trial(a_breaker(op="conv3d")), subject=a_subject(target="cuda:90"))
    assert "outside the library" not in str(on_a_gpu.suggestion)
