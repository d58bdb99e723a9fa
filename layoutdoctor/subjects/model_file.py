"""A user's Python file, executed once: its folder importable meanwhile, its weights reproducible, failures in words."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
import traceback
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutdoctor.errors import LayoutDoctorError, SubjectError, UsageError, first_line
from layoutdoctor.state.randomness import seeded

if TYPE_CHECKING:
    from collections.abc import Iterator

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
                "package.module:attr, timm:NAME, torchvision:NAME or transformers:NAME"
            ) from error
        raise


@contextlib.contextmanager
def users_code(name: str, folder: Path, file: str | None, doing: str) -> Iterator[None]:
    """
    A block in which the user's code runs while it is loaded.

    Random numbers are seeded and put back, ``folder`` is on ``sys.path``, ``sys.argv`` names the file, what the code
    prints goes to standard error, and an exception becomes one line.

    Args:
        name: What to call the target in an error.
        file: The user's file, whose last line in the traceback is named; None where it is not known.
        doing: What the block does, such as ``"load"``.

    Raises:
        SubjectError: The user's code raised, or called ``sys.exit``.
    """
    path, argv = list(sys.path), list(sys.argv)
    sys.path.insert(0, str(folder))
    sys.argv = [file or name]
    try:
        with seeded(_SEED), contextlib.redirect_stdout(sys.stderr):
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


def _failure_message(error: BaseException, name: str, file: str | None, doing: str) -> str:
    place = _place(error, file)
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        package = error.name.partition(".")[0]
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
