"""A target as written on the command line becomes a model with example inputs."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import itertools
import logging
import re
import sys
import textwrap
import traceback
import types
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import torch
from torch import nn
from torch.utils import _pytree as pytree

from layoutdoctor.diagnosis.records import MadeBy, Recipe
from layoutdoctor.errors import LayoutDoctorError, SubjectError, UsageError, first_line
from layoutdoctor.measure.gpu import why_no_gpu
from layoutdoctor.measure.memory import out_of_memory
from layoutdoctor.state.switches import seed_all
from layoutdoctor.subjects.copies import copy_module, input_tensors
from layoutdoctor.subjects.inputs import InputSpec, make_inputs, parse_dtype, parse_input
from layoutdoctor.subjects.recorded_inputs import as_called, part_with_inputs
from layoutdoctor.subjects.subject import LoadedSubject, split_example_input, unwrap
from layoutdoctor.subjects.zoo import ZOOS, load_from_zoo
from layoutdoctor.words import TARGET_FORMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.workers.messages import Request

_SEED = 0
_numbers = itertools.count()


def execute_file(path: Path) -> types.ModuleType:
    """
    Runs a Python file, within ``users_code``, as a module of a private name, registered so that dataclasses and pickle
    find it.

    Raises:
        UsageError: There is no such file.
        SubjectError: It is no valid Python, or it raised.
    """
    source = _read(path)
    module = types.ModuleType(f"_layoutdoctor_subject_{next(_numbers)}_{path.stem}")
    module.__file__ = str(path)
    module.__package__ = ""  # part of none, so that a relative import is an error and not a guess
    try:
        code = compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = f" on line {line}" if line is not None else ""
        raise SubjectError(
            f"cannot load {path.name}: {type(error).__name__}{place}: {getattr(error, 'msg', error)}; "
            f"see whether `python {path.name}` runs"
        ) from error
    sys.modules[module.__name__] = module
    try:
        exec(code, module.__dict__)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def _read(path: Path) -> str:
    if path.is_dir():
        raise UsageError(f"cannot load {str(path)!r}: it is a folder, expected a Python file such as model.py")
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = sorted(other.name for other in path.parent.glob("*.py"))[:6] if path.parent.is_dir() else []
        hint = f"; Python files in that folder: {', '.join(near)}" if near else "; give the path of the model file"
        raise UsageError(f"cannot load {str(path)!r}: there is no such file{hint}") from None
    except UnicodeDecodeError as error:
        raise SubjectError(f"cannot load {path.name}: it is not UTF-8 text, expected a Python file") from error
    except OSError as error:
        raise UsageError(f"cannot load {str(path)!r}: {error.strerror or error}; give a readable file") from error


def import_module(name: str) -> types.ModuleType:
    """
    Imports a module by its dotted name, within ``users_code``; the current folder is importable, as for ``python -m``.

    Raises:
        UsageError: There is no module of that name.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"cannot load {name!r}: there is no module {error.name!r}; expected model.py, model.py:attr, "
                "package.module:attr, timm:NAME, torchvision:NAME, transformers:NAME or diffusers:CLASS"
            ) from error
        raise


@contextlib.contextmanager
def users_code(name: str, folder: Path, file: str | None, doing: str) -> Iterator[None]:
    """
    A block in which the user's code runs while it is loaded.

    Random numbers are seeded, ``folder`` is on ``sys.path``, ``sys.argv`` names the file, what the code
    prints goes to standard error, and an exception becomes one line.

    Args:
        file: The user's file, whose last line in the traceback is named; None where it is not known.
        doing: What the block does, such as ``"load"``.

    Raises:
        SubjectError: The user's code raised, or called ``sys.exit``.
    """
    path, argv = list(sys.path), list(sys.argv)
    sys.path.insert(0, str(folder))
    sys.argv = [file or name]
    try:
        seed_all(_SEED)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except LayoutDoctorError:
        raise
    except SystemExit as error:
        raise SubjectError(
            f"cannot {doing} {name}: it called sys.exit({error.code if error.code is not None else ''})"
            f"{_place(error, file)}; put what is a script under `if __name__ == '__main__':`"
        ) from error
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # some code derives its exceptions from this one
        raise SubjectError(_failure_message(error, name, file, doing)) from error
    finally:
        sys.path[:] = path
        sys.argv[:] = argv


_NAMES_AT_PIP = {
    "Crypto": "pycryptodome",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "git": "GitPython",
    "google": "protobuf",
    "ignite": "pytorch-ignite",
    "pl_bolts": "lightning-bolts",
    "pytorch_lightning": "pytorch-lightning",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Packages that are installed under another name than they are imported by."""


def _failure_message(error: BaseException, name: str, file: str | None, doing: str) -> str:
    place = _place(error, file)
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        package = error.name.partition(".")[0]
        package = _NAMES_AT_PIP.get(package, package)
        return f"cannot {doing} {name}: it imports {error.name!r}, which is not installed{place}; pip install {package}"
    if isinstance(error, ImportError) and "relative import" in str(error) and file is not None:
        folder, stem = Path(file).parent.name, Path(file).stem
        advice = f"name it as part of its package, from the folder above: {folder}.{stem}:NAME"
        return f"cannot {doing} {name}: {first_line(error)}{place}; {advice}"
    advice = "mend it there first" if file is not None else f"see whether {name.partition(':')[0]} works by itself"
    return f"cannot {doing} {name}: {first_line(error)}{place}; {advice}"


def _place(error: BaseException, file: str | None) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" ({Path(str(file)).name}:{lines[-1]})" if lines else ""


def public_names(namespace: Any) -> list[str]:
    """What a user may name in a module: classes, functions and objects of its own, sorted."""
    return sorted(
        name
        for name, value in vars(namespace).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    )


_INPUT_NAMES = ("get_inputs", "example_input", "example_inputs")
_MODEL_NAMES = ("Model", "get_module", "get_model", "model")
_AN_EXPORT = "expected what torch.export.save wrote"
_PROGRAM = re.compile(r"(^|/)models/[^/]+\.json$|^serialized_exported_program\.json$")
_MOST_CHARACTERS = 300
_HOW_TO_GIVE_INPUTS = "define get_inputs(), or give --input 'f32[8,3,224,224]'"


@dataclass(frozen=True)
class _Found:
    """A model as found, its inputs where it came with some (``kwargs`` beside the example input), and where from."""

    model: Any
    example_input: Any = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    source: str | None = None
    is_shared: bool = False
    recipe: Recipe | None = None


def load_target(
    target: str,
    *,
    inputs: Sequence[str] = (),
    device: str | None = None,
    dtype: str | None = None,
    module: str | None = None,
    config: Sequence[str] = (),
) -> LoadedSubject:
    """
    Loads what ``python -m layoutdoctor TARGET`` names.

    Args:
        target: ``model.py``, ``model.py:attr``, ``package.module:attr``, ``timm:NAME``, ``torchvision:NAME``,
            ``transformers:NAME``, ``diffusers:CLASS`` or an exported program ``model.pt2``.
        inputs: Each as in ``f32[8,3,224,224]:channels_last``; they replace the inputs that come with the model.
        device: Where model and inputs go; they stay where they are where None.
        dtype: Given to the floating-point tensors of model and inputs.
        module: The path of the module inside the model that is the subject, with what it gets when the model runs once.
        config: What a zoo's model is built with, each as in ``key=value``.

    Raises:
        UsageError: The target, an input, the device or the dtype is not understood, or there is no such module.
        SubjectError: The model cannot be loaded.
    """
    specs = [parse_input(spec) for spec in inputs]
    wanted_dtype = _floating_dtype(dtype)
    wanted_device = _available_device(device)
    found = _find(target, specs, config)
    model, notes = unwrap(found.model)
    if specs:
        args, kwargs = make_inputs(specs)
    else:
        args, kwargs = _given_inputs(found, target)
    recipe = found.recipe
    if recipe is not None:
        offered = None if specs else recipe.inputs
        is_random = bool(specs) or recipe.kind == "zoo"
        dtype_name = None if wanted_dtype is None else str(wanted_dtype).removeprefix("torch.")
        recipe = msgspec.structs.replace(recipe, inputs=offered, has_random_inputs=is_random, dtype=dtype_name)
    subject = LoadedSubject(
        _name(target), model, args, kwargs, found.notes + notes, found.source, not found.is_shared, recipe
    )
    moved = _moved(subject, wanted_device, wanted_dtype, is_shared=found.is_shared)
    return moved if module is None else _part_of(moved, module)


def load_requested(request: Request) -> LoadedSubject:
    """The same of what a command was asked for."""
    target, inputs = request.target or "", request.inputs
    return load_target(
        target,
        inputs=inputs,
        device=request.device,
        dtype=request.dtype,
        module=request.module,
        config=request.config,
    )


def _part_of(subject: LoadedSubject, path: str) -> LoadedSubject:
    part, recorded = part_with_inputs(subject.model, subject.args, subject.kwargs, path)
    model, notes = as_called(part, recorded)
    recipe = subject.recipe
    if recipe is not None:
        recipe = msgspec.structs.replace(recipe, module=path, has_random_inputs=True)
    return replace(
        subject,
        name=f"{subject.name} ({path})",
        model=model,
        args=recorded.args,
        kwargs=recorded.kwargs,
        notes=(*subject.notes, *notes),
        recipe=recipe,
    )


def _name(target: str) -> str:
    """The target without folders."""
    return Path(target).name if ".py" in target or target.endswith(".pt2") else target


def _floating_dtype(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    dtype = parse_dtype(name)
    if not dtype.is_floating_point:
        raise UsageError(f"cannot use --dtype {name}: expected a floating-point dtype: bf16, f16, f32 or f64")
    return dtype


def _available_device(name: str | None) -> torch.device | None:
    if name is None:
        return None
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"cannot use --device {name!r}: expected cpu, cuda or cuda:0") from error
    if device.type == "meta":
        raise UsageError("cannot use --device 'meta': it holds no data and runs nothing; expected cpu, cuda or cuda:0")
    problem = why_no_gpu(device) if device.type == "cuda" else None
    if problem is not None:
        raise UsageError(f"cannot use --device {name!r}: {problem}")
    return device


def _find(target: str, specs: Sequence[InputSpec], config: Sequence[str]) -> _Found:
    zoo, colon, name = target.partition(":")
    if colon and zoo in ZOOS:
        with users_code(target, Path.cwd(), None, "build"):
            made = load_from_zoo(zoo, name, needs_input=not specs, config=config)
        named = getattr(sys.modules[zoo], name, None)
        made_by: MadeBy = "call" if isinstance(named, type) and issubclass(named, nn.Module) else "is"
        again = Recipe(kind="zoo", source=zoo, attribute=name, made_by=made_by, config=made.config)
        return _Found(made.model, made.example_input, notes=made.notes, recipe=again)
    if config:
        raise UsageError(f"cannot use --config {config[0]!r} with {target!r}: only models of {', '.join(ZOOS)} take it")
    if target.endswith(".pt2"):
        return _find_exported(Path(target))
    if target.endswith(".py") or ".py:" in target:
        path_text, _, attribute = target.partition(".py:") if ".py:" in target else (target[:-3], "", "")
        path = Path(f"{path_text}.py").resolve()
        with users_code(_name(target), path.parent, str(path), "load"):
            module = execute_file(path)
            found = _from_module(module, attribute, path.name)
            return replace(found, source=str(path), recipe=_recipe(found, "file", path.name))
    module_name, _, attribute = target.partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        what = _what_it_is(target)
        raise UsageError(f"cannot load {target!r}:{what} expected {TARGET_FORMS}")
    with users_code(target, Path.cwd(), None, "load"):
        module = import_module(module_name)
        found = _from_module(module, attribute, module_name)
        recipe = _recipe(found, "module", module_name)
        return replace(found, source=module.__file__, is_shared=True, recipe=recipe)


def _recipe(found: _Found, kind: Literal["file", "module"], source: str) -> Recipe | None:
    return None if found.recipe is None else msgspec.structs.replace(found.recipe, kind=kind, source=source)


def _what_it_is(target: str) -> str:
    """What a target is that is no model file, in words with a comma; empty where nothing is known of it."""
    path = Path(target)
    if target and path.is_dir():
        return " it is a folder,"
    if target and path.is_file():
        return " its name does not end in .py,"
    return ""


def _find_exported(path: Path) -> _Found:
    """The module of an exported program, with the inputs that it was exported with; what the file says is run."""
    with users_code(path.name, path.parent, None, "load"):
        try:
            _check_archive(path)
            program = _load_exported(path)
            model, notes = unwrap(program)
        except LayoutDoctorError:
            raise
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"cannot load {str(path)!r}: {reason}; give a readable file") from error
        except Exception as error:  # whatever torch raises on a file that it cannot read
            shortened = textwrap.shorten(first_line(error), _MOST_CHARACTERS, placeholder=" ...").rstrip(".")
            raise SubjectError(f"cannot load {path.name}: {shortened}; {_AN_EXPORT}") from error
    args, kwargs = program.example_inputs or ((), {})
    return _Found(model, args, kwargs, notes, recipe=Recipe(kind="exported", source=path.name))


def _check_archive(path: Path) -> None:
    """Refuses what torch would wait for, or call by another name; torch looks at no check sum of a weight."""
    if not path.exists():
        raise UsageError(f"cannot load {str(path)!r}: there is no such file")
    if not path.is_file():
        raise UsageError(f"cannot load {str(path)!r}: it is no file, {_AN_EXPORT}")
    if not zipfile.is_zipfile(path):
        raise SubjectError(f"cannot load {path.name}: it is no zip archive; {_AN_EXPORT}")
    with zipfile.ZipFile(path) as archive:
        if not any(_PROGRAM.search(name) for name in archive.namelist()):
            raise SubjectError(f"cannot load {path.name}: it holds no whole exported program; {_AN_EXPORT}")
        damaged = archive.testzip()
    if damaged is not None:
        raise SubjectError(f"cannot load {path.name}: its part {damaged!r} is damaged; {_AN_EXPORT}")


def _load_exported(path: Path) -> torch.export.ExportedProgram:
    """What torch loads; on failure the first reason, which torch only logs while it tries an older format."""
    reasons: list[BaseException] = []

    def keep_reason(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            reasons.append(record.exc_info[1])
        return False

    logger = logging.getLogger("torch.export")
    logger.addFilter(keep_reason)
    try:
        return torch.export.load(path)
    except Exception as error:
        if reasons:
            raise reasons[0] from error
        raise
    finally:
        logger.removeFilter(keep_reason)


def _from_module(module: Any, attribute: str, name: str) -> _Found:
    """The model that a module holds, by the conventions, or by the attribute named."""
    if attribute:
        return _from_attribute(module, attribute, name)
    for convention in _MODEL_NAMES:
        if hasattr(module, convention):
            return _from_value(module, getattr(module, convention), name, convention)
    names = public_names(module)
    raise SubjectError(
        f"cannot find a model in {name}: looked for {', '.join(_MODEL_NAMES)}, found {_listed(names)}; "
        f"name it, as in {name}:{_likely_model(module)}"
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") if names else "nothing"


def _likely_model(module: Any) -> str:
    """The last class or instance of nn.Module of the file itself, as it is made of those before it; else ``attr``."""
    for name, value in reversed(vars(module).items()):
        defined_here = isinstance(value, type) and value.__module__ == module.__name__ and issubclass(value, nn.Module)
        if not name.startswith("_") and (defined_here or isinstance(value, nn.Module)):
            return name
    return "attr"


def _from_attribute(module: Any, attribute: str, name: str) -> _Found:
    value = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            names = public_names(value) if hasattr(value, "__dict__") else []
            close = difflib.get_close_matches(part, names, n=3)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"it has {_listed(names)}"
            raise UsageError(f"cannot find {attribute!r} in {name}: there is no {part!r}; {hint}")
        value = getattr(value, part)
    return _from_value(module, value, name, attribute)


def _from_value(module: Any, value: Any, source: str, attribute: str) -> _Found:
    """A model from a class (built), a module, a function that builds one, or a function that is one."""
    name = f"{source}:{attribute}"

    def found(model: Any, made_by: MadeBy) -> _Found:
        offered = next((one for one in _INPUT_NAMES if hasattr(module, one)), None)
        recipe = Recipe(kind="module", source=source, attribute=attribute, made_by=made_by, inputs=offered)
        return _Found(model, _module_inputs(module), recipe=recipe)

    if isinstance(value, type):
        takes_arguments = hasattr(module, "get_init_inputs")
        return found(_build(module, value, name), "call_with_init_inputs" if takes_arguments else "call")
    if isinstance(value, nn.Module) or not inspect.isroutine(value) or _has_required_parameters(value):
        return found(value, "is")
    built = value()
    if isinstance(built, (tuple, list)) and len(built) == 2 and callable(built[0]):
        recipe = Recipe(kind="module", source=source, attribute=attribute, made_by="call_for_both")
        return _Found(built[0], built[1], recipe=recipe)
    if not callable(built):
        raise SubjectError(
            f"cannot use what {name}() returned: got {type(built).__name__}, expected an nn.Module or (model, inputs)"
        )
    return found(built, "call")


def _build(module: Any, model_class: type, name: str) -> Any:
    """An instance, with the arguments of KernelBench's ``get_init_inputs`` where that is defined."""
    given = module.get_init_inputs() if hasattr(module, "get_init_inputs") else []
    args, kwargs = ((), dict(given)) if isinstance(given, Mapping) else (tuple(given), {})
    try:
        inspect.signature(model_class).bind(*args, **kwargs)
    except TypeError as error:
        raise SubjectError(
            f"cannot build {name}: {error}; define get_init_inputs() returning its arguments, "
            "or a function get_model() that builds it"
        ) from error
    except ValueError:
        pass  # a class without a signature: building it will tell
    return model_class(*args, **kwargs)


def _has_required_parameters(function: Any) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return True
    return any(parameter.kind in kinds and parameter.default is parameter.empty for parameter in parameters)


def _module_inputs(module: Any) -> Any:
    """What the module offers as inputs; None where it offers none."""
    for name in _INPUT_NAMES:
        if hasattr(module, name):
            value = getattr(module, name)
            return value() if inspect.isroutine(value) else value
    return None


def _given_inputs(found: _Found, target: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if found.example_input is None:
        raise SubjectError(
            f"cannot run {_name(target)} without inputs: looked for {', '.join(_INPUT_NAMES)}; {_HOW_TO_GIVE_INPUTS}"
        )
    try:
        args, kwargs = split_example_input(found.example_input)
    except UsageError as error:
        raise SubjectError(f"cannot use the inputs of {_name(target)}: {error}") from error
    kwargs.update(found.kwargs)
    if not input_tensors(args, kwargs):
        raise SubjectError(
            f"cannot use the inputs of {_name(target)}: got no tensor in {type(found.example_input).__name__}, "
            f"expected at least one; {_HOW_TO_GIVE_INPUTS}"
        )
    return args, kwargs


def _moved(
    subject: LoadedSubject, device: torch.device | None, dtype: torch.dtype | None, *, is_shared: bool
) -> LoadedSubject:
    """The subject on a device and in a dtype; a model that an imported module keeps is copied first."""
    if device is None and dtype is None:
        return subject
    model = copy_module(subject.model) if is_shared and isinstance(subject.model, nn.Module) else subject.model

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        moved = leaf.detach().to(device=device, dtype=dtype if leaf.is_floating_point() else None)
        return moved.requires_grad_(leaf.requires_grad)

    try:
        if isinstance(model, nn.Module):
            model = model.to(device=device, dtype=dtype)
        args, kwargs = pytree.tree_map(move, (subject.args, subject.kwargs))
    except Exception as error:  # each backend has exceptions of its own for "not here"
        shortage = out_of_memory(error)
        advice = "; end other programs there, or use a smaller dtype (--dtype bf16)" if shortage else ""
        raise SubjectError(
            f"cannot move {subject.name} to {device or dtype}: {shortage or first_line(error)}{advice}"
        ) from error
    return replace(subject, model=model, args=args, kwargs=kwargs)
