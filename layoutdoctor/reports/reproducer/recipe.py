"""
The model as the user's own file, module, exported program or zoo has it: lines that load it again, with torch alone.

Names of a record reach the script as string literals, or where they are identifiers.
"""

from __future__ import annotations

import ast
import keyword
import re
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.reports.reproducer.program import CannotWriteError, sizes
from layoutdoctor.reports.reproducer.script import ModelSource

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import InputTensor, Recipe, Subject

_FILE = re.compile(r"[\w][\w .+-]{0,120}\.(py|pt2)", re.ASCII)
_PATH = re.compile(r"[\w][\w.]{0,200}", re.ASCII)
_ZOO_NAME = re.compile(r"[\w][\w./-]{0,120}", re.ASCII)
_FLOATING = re.compile(r"(b?float|complex)\d{1,3}", re.ASCII)
_DTYPE = re.compile(r"[a-z][a-z0-9_]{0,20}", re.ASCII)
_TOKENS = 100
"""Random integers are smaller than this: indices of any embedding that is no toy."""


def source_of_recipe(subject: Subject) -> ModelSource:
    """
    How a script comes by the model that a command was given.

    Raises:
        CannotWriteError: There is no recipe, or it cannot be written down.
    """
    recipe = subject.recipe
    if recipe is None:
        raise CannotWriteError("the model was handed over as an object, which no script can load")
    if not subject.inputs:
        raise CannotWriteError("the record does not say which tensor is the model's input")
    what, imports, lines = _MODELS[recipe.kind](recipe)
    if recipe.module is not None:
        if not _PATH.fullmatch(recipe.module):
            raise CannotWriteError("the path of the module cannot be written into a script")
        what = f"{what.partition(',')[0]}: its module {recipe.module}, with random inputs of the recorded shapes"
        lines = [*lines, f'model = model.get_submodule("{recipe.module}")']
    inputs = _inputs(recipe, subject)
    moved = _moved(recipe, subject)
    mode = [] if recipe.kind == "exported" else [f"model.{'train' if subject.mode == 'training' else 'eval'}()"]
    if subject.model is None:
        mode, moved = [], [line for line in moved if not line.startswith("model")]
    return ModelSource(
        what=what,
        imports=(*imports, *(("inspect",) if recipe.inputs is not None and not recipe.has_random_inputs else ())),
        lines=(*lines, *inputs, *moved, *mode),
        arguments="*args, **kwargs",
        input_ranks=frozenset(len(tensor.shape) for tensor in subject.inputs),
        weight_ranks=frozenset((4, 5)) if subject.model is not None else frozenset(),
        has_many_outputs=True,
        is_users=True,
    )


_Model = tuple[str, tuple[str, ...], list[str]]


def _from_file(recipe: Recipe) -> _Model:
    lines = [
        *_beside(recipe),
        'spec = importlib.util.spec_from_file_location("diagnosed", path)',
        'source = sys.modules["diagnosed"] = importlib.util.module_from_spec(spec)',
        "spec.loader.exec_module(source)",
        *_made(recipe),
    ]
    what = f"The model of {recipe.source}, which has to lie beside this script"
    return what, ("importlib.util", "from pathlib import Path"), lines


def _beside(recipe: Recipe) -> list[str]:
    """What makes ``path`` that of the user's file, beside the script."""
    if not _FILE.fullmatch(recipe.source):
        raise CannotWriteError("the name of the model's file cannot be written into a script")
    return [
        f'path = Path(__file__).with_name("{recipe.source}")',
        "if not path.exists():",
        '    sys.exit(f"{path} is not there: put the file of the model beside this script")',
    ]


def _from_module(recipe: Recipe) -> _Model:
    name = _identifiers(recipe.source)
    return f"The model of {name}, which has to be importable", (), [f"import {name} as source", *_made(recipe)]


def _from_zoo(recipe: Recipe) -> _Model:
    name = recipe.attribute
    if not _ZOO_NAME.fullmatch(name) or not recipe.source.isidentifier():
        raise CannotWriteError("the name of the model cannot be written into a script")
    what = f"{recipe.source}'s {name}, with random weights"
    config = ", ".join(_keyword(one) for one in recipe.config)
    more = f", {config}" if config else ""
    if recipe.source == "timm":
        return what, (), ["import timm", f'model = timm.create_model("{name}", pretrained=False{more})']
    if recipe.source == "torchvision":
        lines = [
            "import torchvision",
            f'builder = torchvision.models.get_model_builder("{name}")',
            'backbone = "weights_backbone" in inspect.signature(builder).parameters',
            'model = builder(weights=None, **({"weights_backbone": None} if backbone else {})' + f"{more})",
        ]
        return what, ("inspect",), lines
    if recipe.source == "diffusers":
        return what, (), ["import diffusers", f"model = diffusers.{_identifiers(name)}({config})"]
    if recipe.source != "transformers":
        raise CannotWriteError("the model comes from a package that no script is written for")
    chosen = f"transformers.{_identifiers(name)}"
    is_model = recipe.made_by == "call"
    made = (
        f"{chosen}({chosen}.config_class({config}))"
        if is_model
        else f"transformers.AutoModel.from_config({chosen}({config}))"
    )
    return what, (), ["import transformers", f"model = {made}"]


def _keyword(text: str) -> str:
    """An argument as a record has it; nothing but a literal is written."""
    key, _, value = text.partition("=")
    try:
        return f"{_identifiers(key)}={ast.literal_eval(value)!r}"
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise CannotWriteError("what the model was built with cannot be written into a script") from None


def _from_export(recipe: Recipe) -> _Model:
    lines = [*_beside(recipe), "source = torch.export.load(path)", "model = source.module()"]
    what = f"The program of {recipe.source}, which has to lie beside this script"
    return what, ("from pathlib import Path",), lines


_MODELS = {"file": _from_file, "module": _from_module, "zoo": _from_zoo, "exported": _from_export}


def _made(recipe: Recipe) -> list[str]:
    """What makes the model of what the source holds."""
    held = f"source.{_identifiers(recipe.attribute)}"
    if recipe.made_by == "call_with_init_inputs":
        return [
            "given = source.get_init_inputs()",
            f"model = {held}(**given) if isinstance(given, dict) else {held}(*given)",
        ]
    if recipe.made_by == "call_for_both":
        return [f"model, inputs = {held}()"]
    return [f"model = {held}" + ("()" if recipe.made_by == "call" else "")]


def _inputs(recipe: Recipe, subject: Subject) -> list[str]:
    """What makes ``args`` and ``kwargs``."""
    if recipe.kind == "exported" and not recipe.has_random_inputs:
        return ["args, kwargs = source.example_inputs"]
    if not recipe.has_random_inputs:
        held = f"source.{_identifiers(recipe.inputs)}" if recipe.inputs is not None else ""
        lines = [f"inputs = {held}() if inspect.isroutine({held}) else {held}"] if held else []
        return [
            *lines,
            "kwargs = dict(inputs) if isinstance(inputs, dict) else {}",
            "args = [] if kwargs else [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)",
        ]
    made = [_random(tensor) for tensor in subject.inputs]
    if all(tensor.name is not None and tensor.name.isidentifier() for tensor in subject.inputs):
        pairs = ", ".join(f'"{tensor.name}": {code}' for tensor, code in zip(subject.inputs, made, strict=True))
        return ["args = []", f"kwargs = {{{pairs}}}"]
    return [f"args = [{', '.join(made)}]", "kwargs = {}"]


def _random(tensor: InputTensor) -> str:
    shape = ", ".join(map(str, sizes(tensor.shape)))
    if not _DTYPE.fullmatch(tensor.dtype):
        raise CannotWriteError("an input of the model has a dtype that cannot be written into a script")
    is_floating = _FLOATING.fullmatch(tensor.dtype) is not None
    limit = 2 if tensor.dtype == "bool" else _TOKENS
    code = f"torch.randn({shape})" if is_floating else f"torch.randint({limit}, ({shape},))"
    wanted = [] if tensor.dtype == ("float32" if is_floating else "int64") else [f"torch.{tensor.dtype}"]
    last = CHANNELS_LAST_BY_RANK.get(len(tensor.shape))
    if last is not None and tensor.memory_formats == (last,):
        wanted.append(f"memory_format=torch.{last}")
    return f"{code}.to({', '.join(wanted)})" if wanted else code


def _moved(recipe: Recipe, subject: Subject) -> list[str]:
    """What brings model and inputs to the device and dtype that the command named."""
    if recipe.dtype is not None and not _DTYPE.fullmatch(recipe.dtype):
        raise CannotWriteError("a dtype cannot be written into a script")
    device = '"cuda"' if subject.device == "cuda" else '"cpu"'
    if recipe.dtype is None:
        if subject.device != "cuda":
            return []
        given = f"x.to({device}) if isinstance(x, torch.Tensor) else x"
        model = f"model.to({device})"
    else:
        given = f"x.to({device}, torch.{recipe.dtype}) if isinstance(x, torch.Tensor) and x.is_floating_point() else x"
        model = f"model.to({device}, torch.{recipe.dtype})"
    lines = [f"args = [{given} for x in args]", f"kwargs = {{name: {given} for name, x in kwargs.items()}}"]
    return [f"model = {model}", *lines]


def _identifiers(name: str) -> str:
    """
    A name with dots that can stand in Python.

    Raises:
        CannotWriteError: It cannot.
    """
    parts = name.split(".")
    if not all(part.isidentifier() and part.isascii() and not keyword.iskeyword(part) for part in parts):
        raise CannotWriteError("a name in the model's file cannot be written into a script")
    return name
