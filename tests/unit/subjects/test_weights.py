from __future__ import annotations

import copy
import gc
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from loops import for_each
from torch import nn
from torch.nn.utils import parametrizations

from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS
from layoutdoctor.measure import memory
from layoutdoctor.measure.memory import Need
from layoutdoctor.run.rehearsal import check_runs
from layoutdoctor.subjects.copies import copy_model
from layoutdoctor.subjects.prepare import prepare
from layoutdoctor.subjects.subject import subject_from_python
from layoutdoctor.subjects.weights import (
    SMALLEST_SHARED_BUFFER,
    SharedTensors,
    refuse_unless_it_fits,
    same_memory,
    same_values,
    weights_of,
)

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Mode
    from layoutdoctor.subjects.prepare import PreparedModel
    from layoutdoctor.subjects.subject import LoadedSubject

BY_NAME = {configuration.name: configuration for configuration in BUILTIN_CONFIGURATIONS}
EAGER, CHANNELS_LAST = BY_NAME["eager"], BY_NAME["eager-channels-last"]
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def a_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5))


def prepared_pair(
    subject: LoadedSubject, names: tuple[str, str] = ("eager", "eager-channels-last"), mode: Mode = "inference"
) -> tuple[PreparedModel, PreparedModel]:
    shared = check_runs(subject, mode).shared
    one, other = (prepare(subject, BY_NAME[name], mode, shared) for name in names)
    return one, other


def parameters_of(prepared: PreparedModel) -> dict[str, nn.Parameter]:
    assert prepared.module is not None
    return dict(prepared.module.named_parameters())


def memories(*prepared: PreparedModel | nn.Module) -> dict[str, set[int]]:
    """Of each parameter by its name: where its copies lie."""
    found: dict[str, set[int]] = {}
    for item in prepared:
        module = item if isinstance(item, nn.Module) else item.module
        assert module is not None
        for name, parameter in module.named_parameters():
            found.setdefault(name, set()).add(parameter.untyped_storage().data_ptr())
    return found


def test_configurations_share_the_memory_of_what_has_the_same_strides_but_not_the_parameters() -> None:
    model = a_net()
    subject = subject_from_python(model, X)
    one, other = prepared_pair(subject, ("eager", "inductor"))
    assert {len(places) for places in memories(one, other).values()} == {1}
    assert all(parameters_of(one)[name] is not parameters_of(other)[name] for name in parameters_of(one))
    one.run(X).sum().backward()
    assert all(parameter.grad is not None for parameter in parameters_of(one).values())
    assert all(parameter.grad is None for parameter in parameters_of(other).values())

    one, other = prepared_pair(subject, ("eager", "inductor"), "training")
    one.run(X)
    assert [int(p.module[1].num_batches_tracked) for p in (one, other)] == [1, 0]  # type: ignore[index]

    one, other = prepared_pair(subject)
    shared = {name: len(places) for name, places in memories(one, other).items()}
    assert shared == {**dict.fromkeys(parameters_of(one), 1), "0.weight": 2}
    assert parameters_of(other)["0.weight"].is_contiguous(memory_format=torch.channels_last)
    assert parameters_of(one)["0.weight"].is_contiguous()
    assert all(len(places) > shared[name] for name, places in memories(one, other, model).items())  # not the caller's
    assert torch.allclose(one.run(*one.args), other.run(*other.args), atol=1e-5)


def test_a_model_of_our_own_serves_its_own_format_and_stays_as_it_is() -> None:
    model = a_net()
    model(X).sum().backward()
    before = {name: (p.detach().clone(), p.stride(), p.grad) for name, p in model.named_parameters()}
    subject = replace(subject_from_python(model, X), is_ours=True)

    one, other = prepared_pair(subject, mode="training")

    assert {name: len(places) for name, places in memories(one, other, model).items() if len(places) > 1} == {
        "0.weight": 2
    }
    one.run(X).sum().backward()
    other.run(X).sum().backward()
    for name, parameter in model.named_parameters():
        values, strides, gradient = before[name]
        assert torch.equal(parameter, values)
        assert parameter.stride() == strides
        assert parameter.grad is gradient


class WithTable(nn.Module):
    """A large buffer, written to or not."""

    def __init__(self, *, writes: bool) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(SMALLEST_SHARED_BUFFER // 4))
        self.register_buffer("part", self.table[: SMALLEST_SHARED_BUFFER // 8])
        self.writes = writes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.writes:
            self.table += 1
        return x + self.table[0]


def test_a_large_buffer_is_shared_where_the_model_only_reads_it() -> None:
    for writes, places in ((False, 1), (True, 2)):
        one, other = prepared_pair(subject_from_python(WithTable(writes=writes), X), ("eager", "inductor"))

        assert len({p.module.table.data_ptr() for p in (one, other) if p.module is not None}) == places
        for prepared in (one, other):
            assert prepared.run(X)[0, 0, 0, 0] == X[0, 0, 0, 0] + (1 if writes else 0)


class Rescaling(nn.Linear):
    """Changes its own weight, in one of the ways there are."""

    def __init__(self, how: str) -> None:
        super().__init__(2, 2)
        self.how = how

    def train(self, mode: bool = True) -> Rescaling:
        if self.how == "on eval" and not mode:
            self.weight.data += 1  # as adapters do that merge themselves into the weight
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "in place":
            with torch.no_grad():
                self.weight.mul_(2)
        elif self.how == "by way of data":
            self.weight.data.mul_(2)
        elif self.how == "other memory":
            self.weight.data = self.weight.data * 2
        elif self.how == "freezing":
            self.weight.requires_grad_(False)
        return super().forward(x)


@for_each("how", ["in place", "by way of data", "other memory", "on eval", "freezing"])
def test_weights_that_the_model_changes_are_copied_for_each_configuration_and_told(how: str) -> None:
    model = Rescaling(how)
    before = model.weight.detach().clone()
    subject = replace(subject_from_python(model, torch.ones(1, 2)), is_ours=True)
    rehearsal = check_runs(subject, "inference")

    assert [tensor is model.weight for tensor in rehearsal.shared.changed] == [True]
    (note,) = rehearsal.notes
    assert note.startswith("the model changes 1 of its weights in place: every configuration has a copy of its own")
    outputs = []
    for _ in range(2):
        prepared = prepare(subject, EAGER, "inference", rehearsal.shared)
        assert len(memories(prepared, model)["weight"]) == 2
        assert len(memories(prepared, model)["bias"]) == 1
        outputs.append(prepared.run(*prepared.args).detach())
    assert torch.equal(*outputs)
    assert torch.equal(model.weight, before)
    assert model.weight.requires_grad


def test_values_are_compared_where_they_can_be() -> None:
    one = torch.tensor([1.0, float("nan")])

    assert same_values(one, one.clone())
    assert not same_values(one, torch.tensor([1.0, 2.0]))
    assert not same_values(one, one[:1])
    assert not same_values(one, one.double())
    assert same_values(torch.eye(2).to_sparse(), torch.zeros(2, 2).to_sparse())  # nobody knows


class Special(nn.Parameter):
    """A parameter class of the user's own."""


class Forgetful(nn.Linear):
    """Copies itself without looking at what was copied already."""

    def __deepcopy__(self, memo: Any) -> Forgetful:
        made = Forgetful(self.in_features, self.out_features)
        made.load_state_dict(copy.deepcopy(self.state_dict()))
        return made


def models() -> dict[str, tuple[Any, torch.Tensor]]:
    tied = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    tied[1].weight = tied[0].weight
    special = nn.Linear(4, 4)
    special.weight = Special(torch.randn(4, 4))
    old_norm = nn.Linear(4, 4)
    old_norm.scaled = old_norm.weight * 2
    net = nn.Linear(4, 4)
    table = torch.randn(600, 600)
    x = torch.randn(2, 4)
    frozen = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    frozen[0].requires_grad_(False)
    return {
        "tied": (tied, x),
        "special parameter": (special, x),
        "result of autograd": (old_norm, x),
        "forgetful copy": (Forgetful(4, 4), x),
        "parametrized": (parametrizations.weight_norm(nn.Linear(4, 4)), x),
        "recurrent": (nn.LSTM(4, 4), x),
        "frozen part": (frozen, x),
        "function of a module": (lambda x: net(x), x),
        "function of a tensor": (lambda x: x @ table[:4, :4], x),
        "function of neither": (torch.relu, x),
    }


@for_each("name", models())
def test_models_of_all_kinds_run_on_shared_weights_as_on_copies(name: str) -> None:
    torch.manual_seed(0)
    model, x = models()[name]
    subject = subject_from_python(model, x)

    one, other = prepared_pair(subject, ("eager", "inductor"))

    expected = prepare(subject, EAGER, "inference")
    results = [prepared.run(*prepared.args) for prepared in (one, other, expected)]
    results = [result[0] if isinstance(result, tuple) else result for result in results]
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[2])
    if one.module is not None:
        pairs = zip(one.module.parameters(), expected.module.parameters(), strict=True)  # type: ignore[union-attr]
        for ours, theirs in pairs:
            assert type(ours) is type(theirs)
            assert (ours.stride(), ours.requires_grad) == (theirs.stride(), theirs.requires_grad)
        assert {len(places) for places in memories(one, other).values()} == {1}
    if name == "tied":
        assert one.module[0].weight is one.module[1].weight  # type: ignore[index]


def test_a_parameter_class_that_cannot_be_made_anew_is_copied() -> None:
    class Demanding(nn.Parameter):
        def __new__(cls, data: torch.Tensor, requires_grad: bool, name: str) -> Demanding:
            del name
            return torch.Tensor._make_subclass(cls, data, requires_grad)  # type: ignore[no-any-return]

        def __deepcopy__(self, memo: Any) -> Demanding:
            return Demanding(self.detach().clone(), self.requires_grad, "copy")

    model = nn.Linear(2, 2)
    model.weight = Demanding(torch.ones(2, 2), True, "weight")
    assert same_memory(model.weight) is None
    one, other = prepared_pair(subject_from_python(model, torch.ones(1, 2)), ("eager", "inductor"))

    assert {name: len(places) for name, places in memories(one, other).items()} == {"weight": 2, "bias": 1}
    assert type(parameters_of(one)["weight"]) is Demanding


def test_a_part_of_a_larger_memory_is_copied_even_where_the_model_is_ours() -> None:
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(torch.randn(8, 4)[::2])
    subject = replace(subject_from_python(model, torch.randn(2, 4)), is_ours=True)

    prepared = prepare(subject, EAGER, "inference", check_runs(subject, "inference").shared)

    assert {name: len(places) for name, places in memories(prepared, model).items()} == {"weight": 2, "bias": 1}
    assert parameters_of(prepared)["weight"].stride() == (8, 1)


def test_weights_are_listed_without_a_copy() -> None:
    net = nn.Linear(4, 4)
    net.weight.grad = torch.ones(4, 4)
    table = torch.randn(3)

    assert [tensor is own for tensor, own in zip(weights_of(net), net.parameters(), strict=True)] == [True, True]
    listed = weights_of(lambda x: net(x) + table)
    assert {id(tensor) for tensor in listed} == {id(net.weight), id(net.bias), id(table)}
    assert net.weight.grad is not None


def test_inputs_lie_once_for_each_format_and_are_tensors_of_each_configuration() -> None:
    x = X.clone().requires_grad_(True)
    subject = subject_from_python(a_net(), {"input": x})
    shared = check_runs(subject, "training").shared
    names = ("eager", "inductor", "eager-channels-last", "inductor-channels-last")
    inputs = {name: prepare(subject, BY_NAME[name], "training", shared).kwargs["input"] for name in names}

    places = {name: tensor.data_ptr() for name, tensor in inputs.items()}
    assert places["eager"] == places["inductor"] != x.data_ptr()
    assert places["eager-channels-last"] == places["inductor-channels-last"] not in (places["eager"], x.data_ptr())
    assert inputs["eager"] is not inputs["inductor"]
    assert all(tensor.requires_grad and tensor.is_leaf for tensor in inputs.values())
    inputs["eager"].sum().backward()
    assert inputs["inductor"].grad is None


def test_inputs_that_the_model_changes_are_copied_and_one_given_twice_stays_one() -> None:
    for model in (nn.ReLU(inplace=True), lambda x: x.data.mul_(2) + 0):
        one, other = prepared_pair(subject_from_python(model, X), ("eager", "inductor"))
        assert len({X.data_ptr(), one.args[0].data_ptr(), other.args[0].data_ptr()}) == 3

    subject = subject_from_python(lambda x, again, cache: x + 1, (X, [X, 3], SimpleNamespace()))
    one, other = prepared_pair(subject, ("eager", "inductor"))
    assert one.args[0] is one.args[1][0]
    assert len({id(one.args[2]), id(other.args[2]), id(subject.args[2])}) == 3


def test_loss_weights_lie_once_for_each_layout() -> None:
    subject = subject_from_python(nn.Conv2d(3, 4, 3), X)
    shared = check_runs(subject, "training").shared
    steps = []
    for name in ("eager", "inductor", "eager-channels-last"):
        prepared = prepare(subject, BY_NAME[name], "training", shared)
        steps.append(prepared.step("training", fresh_inputs=False))
        steps[-1]()

    (first, *_), (second, *_), (third, *_) = (step._weights or () for step in steps)

    assert first is second
    assert third is not first
    assert torch.equal(first, third)


def test_a_configuration_that_cannot_be_copied_leaves_no_copy() -> None:
    model = a_net()
    shared = SharedTensors(originals=weights_of(model))
    asked: list[torch.Tensor] = []

    def raise_at_the_third(original: torch.Tensor) -> torch.Tensor | None:
        asked.append(original)
        if len(asked) == 3:
            raise RuntimeError("can't allocate memory")
        return shared.weights("preserve")(original)

    with pytest.raises(RuntimeError), shared.all_or_nothing():
        copy_model(model, raise_at_the_third)

    gc.collect()
    assert shared.need("preserve").total == sum(4 * tensor.numel() for tensor in weights_of(model)) + 4  # one int64


def test_the_need_is_what_is_not_there_yet() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Linear(4, 4, bias=False))
    shared = SharedTensors(originals=weights_of(model), activation_bytes=1000)

    assert shared.need("preserve").parts == (("weights", 432 + 64), ("activations of one iteration", 1000))
    copy_model(model, shared.weights("preserve"))
    assert shared.need("preserve").parts[0] == ("weights", 0)
    assert shared.need("channels_last").parts[0] == ("weights in channels_last", 432)
    assert replace(shared, is_ours=True).need("channels_last").parts[0] == ("weights in channels_last", 432)
    assert replace(shared, is_ours=True).need("preserve").parts[0] == ("weights", 0)
    assert replace(shared, changed=[model[1].weight]).need("preserve").parts[0][1] >= 64


def test_frozen_weights_need_room_for_their_constants_though_the_weights_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = subject_from_python(nn.Conv2d(3, 4, 3, bias=False), torch.ones(1, 3, 5, 5))
    shared = SharedTensors(originals=weights_of(subject.model))
    prepare(subject, BY_NAME["inductor"], "inference", shared)
    monkeypatch.setattr(memory, "available_memory", lambda device: 431)

    prepare(subject, BY_NAME["inductor-layout-opt-off"], "inference", shared)
    with pytest.raises(Exception, match=r"^cannot run inductor-freezing: it needs 432 B .* of constants of frozen"):
        prepare(subject, BY_NAME["inductor-freezing"], "inference", shared)


def test_a_subject_that_does_not_fit_is_refused_with_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda device: 3 << 30)
    weights = [torch.empty(1 << 30, dtype=torch.int8, device="meta").expand(2, -1)]
    on_host = [torch.empty(1, dtype=torch.int8).expand(2 << 30)]

    refuse_unless_it_fits("Net", [("weights", on_host)])
    with pytest.raises(
        Exception, match=r"^cannot diagnose Net: on cpu it needs at least 3\.50 GiB beside what is in use "
    ):
        refuse_unless_it_fits("Net", [("weights", on_host)], Need((("activations", 3 << 29),)))
    with pytest.raises(
        Exception, match=r"on meta it needs at least 4\.00 GiB .*\(2\.00 GiB of weights, 2\.00 GiB of inp"
    ):
        refuse_unless_it_fits("Net", [("weights", weights), ("inputs", weights)])
