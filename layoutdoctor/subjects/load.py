"""Loads a target, as written on the command line, as a model with example inputs."""

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from layoutdoctor.errors import LayoutDoctorError, SubjectError, UsageError, first_line
from layoutdoctor.files.writing import opened
from layoutdoctor.measure.environment import why_no_gpu
from layoutdoctor.measure.memory import out_of_memory
from layoutdoctor.state.switches import seed_all
from layoutdoctor.subjects.copies import input_tensors, with_dynamo_marks
from layoutdoctor.subjects.inputs import make_inputs, parse_dtype, parse_input
from layoutdoctor.subjects.recorded_inputs import as_called, part_with_inputs
from layoutdoctor.subjects.subject import LoadedSubject, owned_module, split_example_input, unwrap
from layoutdoctor.subjects.zoo import ZOOS, load_from_zoo
from layoutdoctor.words import TARGET_FORMS

_SEED = 0
_numbers = itertools.count()
_INPUT_NAMES = ("get_inputs", "example_input", "example_inputs")
_MODEL_NAMES = ("Model", "get_module", "get_model", "model")
_AN_EXPORT = "expected what torch.export.save wrote"
_MOST_CHARACTERS = 300
_OTHER_RANK = re.compile(r"required rank \d tensor to use channels_last")
_HOW_TO_GIVE_INPUTS = "define get_inputs(), or give --input 'f32[8,3,224,224]'"


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
    Loads the target of ``python -m layoutdoctor TARGET``: a model with example inputs.

    Args:
        target: ``model.py``, ``model.py:attr``, ``package.module:attr``, ``timm:NAME``, ``torchvision:NAME``,
            ``transformers:NAME``, ``diffusers:CLASS`` or an exported program ``model.pt2``.
        inputs: Example inputs in the form ``f32[8,3,224,224]:channels_last``; they replace the inputs that come with
            the model.
        device: Device for model and inputs; None leaves them where they are.
        dtype: Dtype for the floating-point tensors of model and inputs; None leaves their dtypes unchanged.
        module: Path of an inner module to diagnose instead. The model runs once to record the inner module's inputs.
        config: Options, each in the form ``key=value``, for a model of timm, torchvision, transformers or diffusers.

    Raises:
        UsageError: The target, an input, the device, the dtype, an option or the path of the module is wrong.
        SubjectError: The model or its inputs cannot be made, or the model does not run or call the module.
    """
    specs = [parse_input(spec) for spec in inputs]
    wanted_dtype = _floating_dtype(dtype)
    wanted_device = _available_device(device)
    name = Path(target).name if ".py" in target or target.endswith(".pt2") else target
    found = _find(target, name, config, needs_input=not specs)
    model, notes, compiled = unwrap(found.model)
    args, kwargs = make_inputs(specs) if specs else _given_inputs(found, name)
    subject = LoadedSubject(name, model, args, kwargs, found.notes + notes, found.source, compiled)
    subject = _moved(subject, wanted_device, wanted_dtype)
    return subject if module is None else _part_of(subject, module)


def _part_of(subject: LoadedSubject, path: str) -> LoadedSubject:
    part, recorded = part_with_inputs(subject.model, subject.args, subject.kwargs, path)
    model, notes = as_called(part, recorded)
    return replace(
        subject,
        name=f"{subject.name} ({path})",
        model=model,
        args=recorded.args,
        kwargs=recorded.kwargs,
        notes=(*subject.notes, *notes),
    )


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
    if device.type == "cuda" and (problem := why_no_gpu(device)):
        raise UsageError(f"cannot use --device {name!r}: {problem}")
    return device


def _moved(subject: LoadedSubject, device: torch.device | None, dtype: torch.dtype | None) -> LoadedSubject:
    if device is None and dtype is None:
        return subject

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        moved = leaf.detach().to(device=device, dtype=dtype if leaf.is_floating_point() else None)
        return with_dynamo_marks(moved.requires_grad_(leaf.requires_grad), leaf)

    try:
        owned_module(subject).to(device=device, dtype=dtype)
        args, kwargs = pytree.tree_map(move, (subject.args, subject.kwargs))
    except Exception as error:  # each backend has its own exceptions for a missing device
        shortage = out_of_memory(error)
        advice = "; end other programs there, or use a smaller dtype (--dtype bf16)" if shortage else ""
        raise SubjectError(
            f"cannot move {subject.name} to {device or dtype}: {shortage or first_line(error)}{advice}"
        ) from error
    return replace(subject, args=args, kwargs=kwargs)


class _Found(NamedTuple):
    """A model with its example input, if it has one, and the path of the user's file as ``source``."""

    model: Any
    example_input: Any
    kwargs: Mapping[str, Any] = types.MappingProxyType({})
    notes: tuple[str, ...] = ()
    source: str | None = None


def _find(target: str, name: str, config: Sequence[str], *, needs_input: bool) -> _Found:
    before, _, after = target.partition(":")
    if before in ZOOS and after:
        with users_code(target, Path.cwd(), None, "build"):
            model, example_input, notes = load_from_zoo(before, after, needs_input=needs_input, config=config)
        return _Found(model, example_input, notes=notes)
    if config:
        raise UsageError(f"cannot use --config {config[0]!r} with {target!r}: only models of {', '.join(ZOOS)} take it")
    if target.endswith(".pt2"):
        return _find_exported(Path(target))
    if target.endswith(".py") or ".py:" in target:
        stem, _, attribute = target.partition(".py:") if ".py:" in target else (target[:-3], "", "")
        path = Path(f"{stem}.py").absolute()
        _check_there(path)
        path = path.resolve()
        with users_code(name, path.parent, str(path), "load"):
            return _in_module(execute_file(path), attribute, path.name)._replace(source=str(path))
    if not after or not all(part.isidentifier() for part in before.split(".")):
        what = ""
        with contextlib.suppress(OSError):
            path = Path(target)
            what = " it is a folder," if path.is_dir() else " its name does not end in .py," if path.is_file() else ""
        raise UsageError(f"cannot load {target!r}:{what} expected {TARGET_FORMS}")
    with users_code(target, Path.cwd(), None, "load"):
        module = _imported(before)
        return _in_module(module, after, before)._replace(source=module.__file__)


# ---------------------------------------------------------------------------------------------- the user's code
@contextlib.contextmanager
def users_code(name: str, folder: Path, file: str | None, doing: str) -> Iterator[None]:
    """
    A block in which the user's code is loaded and runs.

    Random numbers are seeded, ``folder`` is on ``sys.path``, ``sys.argv`` names the file, and prints go to standard
    error. An exception or a call of ``sys.exit`` becomes a SubjectError with a message of one line.

    Args:
        file: The user's file; the error names the last line of this file in the traceback. None if it is not known.
        doing: A verb for the error, such as ``"load"``.
    """
    path, argv = list(sys.path), list(sys.argv)
    sys.path.insert(0, str(folder))
    sys.argv = [file or name]
    try:
        seed_all(_SEED)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (LayoutDoctorError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # some code derives its exceptions from BaseException
        raise SubjectError(f"cannot {doing} {name}: {_what_happened(error, name, file)}") from error
    finally:
        sys.path[:] = path
        sys.argv[:] = argv


def _what_happened(error: BaseException, name: str, file: str | None) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    place = f" ({Path(str(file)).name}:{lines[-1]})" if lines else ""
    if isinstance(error, SystemExit):
        called = f"it called sys.exit({error.code if error.code is not None else ''}){place}"
        return f"{called}; move the script's statements under `if __name__ == '__main__':`"
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return f"it imports {error.name!r}, which is not installed{place}; install the package that has it"
    if isinstance(error, ImportError) and "relative import" in str(error) and file is not None:
        path = f"{Path(file).parent.name}.{Path(file).stem}"
        return f"{first_line(error)}{place}; name it as part of its package, from the folder above: {path}:NAME"
    if isinstance(error, RuntimeError) and _OTHER_RANK.match(str(error)):
        return f"{first_line(error)}{place}; leave that line out: each configuration converts each tensor by its rank"
    advice = "fix this error first" if file is not None else f"see whether {name.partition(':')[0]} works by itself"
    return f"{first_line(error)}{place}; {advice}"


def _check_there(path: Path) -> None:
    cannot = f"cannot load {str(path)!r}:"
    try:
        opened(path).close()
    except IsADirectoryError as error:
        raise UsageError(f"{cannot} it is a folder, expected a Python file such as model.py") from error
    except FileNotFoundError as error:
        near = sorted(other.name for other in path.parent.glob("*.py"))[:6]
        hint = f"; Python files in that folder: {', '.join(near)}" if near else "; give the path of the model file"
        raise UsageError(f"{cannot} there is no such file{hint}") from error
    except OSError as error:
        raise UsageError(f"{cannot} {error.strerror}; give the path of the model file") from error


def execute_file(path: Path) -> types.ModuleType:
    """Runs a Python file as a module with a private name, which dataclasses and pickle find in ``sys.modules``."""
    module = types.ModuleType(f"_layoutdoctor_subject_{next(_numbers)}_{path.stem}")
    module.__file__ = str(path)
    module.__package__ = ""  # in no package, so a relative import is an error
    sys.modules[module.__name__] = module
    exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    return module


def _imported(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"cannot load {name!r}: there is no module {error.name!r}; expected {TARGET_FORMS}"
            ) from error
        raise


# ---------------------------------------------------------------------------------------------- exported programs
def _find_exported(path: Path) -> _Found:
    """Loads an exported program: its module and its example inputs. Loading may run code from the file."""
    try:
        if not path.exists():
            raise UsageError(f"cannot load {str(path)!r}: there is no such file")
        if not path.is_file():
            raise UsageError(f"cannot load {str(path)!r}: it is no file, {_AN_EXPORT}")
        if not zipfile.is_zipfile(path):
            raise SubjectError(f"cannot load {path.name}: it is no zip archive; {_AN_EXPORT}")
        with users_code(path.name, path.parent, None, "load"):
            program = _load_exported(path)
            model, notes, _ = unwrap(program)
    except OSError as error:
        raise UsageError(f"cannot load {str(path)!r}: {error.strerror or error}; give a readable file") from error
    args, kwargs = program.example_inputs or ((), {})
    return _Found(model, args, kwargs, notes)


def _load_exported(path: Path) -> torch.export.ExportedProgram:
    """Loads an exported program. If this fails, the error has the first reason, which torch itself only logs."""
    reasons: list[BaseException] = []

    def keep_reason(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            reasons.append(record.exc_info[1])
        return False

    logger = logging.getLogger("torch.export")
    logger.addFilter(keep_reason)
    try:
        return torch.export.load(path)
    except Exception as error:  # torch raises several types for a file that it cannot read
        reason = first_line(next(iter(reasons), error))
        shortened = textwrap.shorten(reason, _MOST_CHARACTERS, placeholder=" ...").rstrip(".")
        raise SubjectError(f"cannot load {path.name}: {shortened}; {_AN_EXPORT}") from error
    finally:
        logger.removeFilter(keep_reason)


# ---------------------------------------------------------------------------------------------- models in a module
def _in_module(module: Any, attribute: str, name: str) -> _Found:
    """Finds the model in a Python module: the named attribute, else the first one of ``_MODEL_NAMES``."""
    attribute = attribute or next((convention for convention in _MODEL_NAMES if hasattr(module, convention)), "")
    if not attribute:
        raise SubjectError(
            f"cannot find a model in {name}: looked for {', '.join(_MODEL_NAMES)}, found {_listed(module)}; "
            f"name it, as in {name}:{_likely_model(module)}"
        )
    value = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            close = difflib.get_close_matches(part, _public_names(value), n=3)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"it has {_listed(value)}"
            raise UsageError(f"cannot find {attribute!r} in {name}: there is no {part!r}; {hint}")
        value = getattr(value, part)
    offered = next((one for one in _INPUT_NAMES if hasattr(module, one)), None)
    model, *inputs = _model_of(module, value, f"{name}:{attribute}")
    if not inputs:
        given = None if offered is None else getattr(module, offered)
        inputs = [given() if inspect.isroutine(given) else given]
    return _Found(model, inputs[0])


def _public_names(namespace: Any) -> list[str]:
    """Names the public classes, functions and objects of a module, without imported modules."""
    return sorted(
        name
        for name, value in getattr(namespace, "__dict__", {}).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    )


def _listed(namespace: Any) -> str:
    names = _public_names(namespace)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "nothing"


def _likely_model(module: Any) -> str:
    """Names the last nn.Module (class or instance) of a file, because it likely contains the others; else ``attr``."""
    for name, value in reversed(vars(module).items()):
        defined_here = isinstance(value, type) and value.__module__ == module.__name__ and issubclass(value, nn.Module)
        if not name.startswith("_") and (defined_here or isinstance(value, nn.Module)):
            return name
    return "attr"


def _model_of(module: Any, value: Any, name: str) -> tuple[Any, ...]:
    """
    Returns the model of an attribute, and its inputs if a function returned both.

    A class is instantiated. A function without required parameters is called. Any other value is the model itself.
    """
    if isinstance(value, type):
        return (_build(module, value, name),)
    if isinstance(value, nn.Module) or not inspect.isroutine(value) or _has_required_parameters(value):
        return (value,)
    built = value()
    if isinstance(built, (tuple, list)) and len(built) == 2 and callable(built[0]):
        return tuple(built)
    if not callable(built):
        raise SubjectError(
            f"cannot use what {name}() returned: got {type(built).__name__}, expected an nn.Module or (model, inputs)"
        )
    return (built,)


def _build(module: Any, model_class: type, name: str) -> Any:
    """Builds an instance of a class, with the arguments of KernelBench's ``get_init_inputs`` if it is defined."""
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
        pass  # a class without a signature
    return model_class(*args, **kwargs)


def _has_required_parameters(function: Any) -> bool:
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return True
    return False


def _given_inputs(found: _Found, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if found.example_input is None:
        raise SubjectError(
            f"cannot run {name} without inputs: looked for {', '.join(_INPUT_NAMES)}; {_HOW_TO_GIVE_INPUTS}"
        )
    try:
        args, kwargs = split_example_input(found.example_input)
    except UsageError as error:
        raise SubjectError(f"cannot use the inputs of {name}: {error}") from error
    kwargs.update(found.kwargs)
    if not input_tensors(args, kwargs):
        raise SubjectError(
            f"cannot use the inputs of {name}: got no tensor in {type(found.example_input).__name__}, "
            f"expected at least one; {_HOW_TO_GIVE_INPUTS}"
        )
    return args, kwargs
