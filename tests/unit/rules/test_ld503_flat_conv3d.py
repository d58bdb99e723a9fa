from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import Told, a_convolution, a_decision, a_diagnosis, a_graph, a_location, a_trial

from layoutdoctor.rules.source import LD503

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Convolution, Finding


def a_flat_one(node: str = "convolution", **changes: Any) -> Convolution:
    fields: dict[str, Any] = {
        "rank": 3,
        "weight_shape": (16, 16, 1, 3, 3),
        "stride": (1, 2, 2),
        "padding": (0, 1, 1),
        "dilation": (1, 1, 1),
        "is_transposed": False,
        "channels_last": False,
    }
    return a_convolution(node, **{**fields, **changes})


THICK = a_flat_one("convolution_2", weight_shape=(16, 16, 3, 3, 3), padding=(1, 1, 1))


def findings(*convolutions: Convolution, **changes: Any) -> list[Finding]:
    return list(LD503.check(a_diagnosis(a_trial(graphs=(a_graph(a_decision(*convolutions), **changes),)))))


def test_what_it_says(told: Told) -> None:
    flat = (
        a_flat_one(location=a_location(4), module="a"),
        a_flat_one("convolution_1", module=None, weight_shape=(8, 16, 1, 5, 5)),
    )
    told("Convolutions that leave the depth alone are a note with the code to write", findings(*flat, THICK))

    # The configurations have the same convolutions so one finding does.
    graphs = (a_graph(a_decision(a_flat_one())),)
    static = a_trial("inductor", graphs=graphs, is_static=True, kernels=None, measurement=None)
    found = list(LD503.check(a_diagnosis(a_trial("eager"), static, a_trial("inductor-layout-opt-off", graphs=graphs))))

    assert [(f.configuration, f.message) for f in found] == [
        (
            "inductor",
            "1 of 1 convolution is a Conv3d with a kernel of 1 in depth, which a Conv2d on each frame computes as "
            "well: body.0.0 (1x3x3)",
        )
    ]


def test_what_is_no_finding() -> None:
    # What mixes frames or is not known is no finding.
    for changes in (
        {"weight_shape": (16, 16, 3, 3, 3)},
        {"stride": (2, 1, 1)},
        {"padding": (1, 1, 1)},
        {"weight_shape": (16, 16, 1, 1, 1)},
        {"is_transposed": True},
        {"is_backward": True},
        {"rank": 2, "weight_shape": (16, 16, 1, 3)},
        {"stride": None},
        {"padding": None},
        {"weight_shape": None},
        {"weight_shape": (16, 16, "s0", 3, 3)},
    ):
        assert findings(a_flat_one(**changes)) == []

    # The backward graph repeats nothing.
    assert findings(a_flat_one(), direction="backward") == []
