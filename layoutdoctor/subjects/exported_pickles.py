"""
What ``torch.save`` wrote, looked at without unpickling it: which classes and functions its pickle names.

Faces ``exported``; imports ``archives`` only. The list below is of what is made of tensors and plain values;
whatever else a pickle names would be imported and called while it is read.

Source:
    ``pickletools``, and torch/_weights_only_unpickler.py (torch 2.7 to 2.13), which reads no more than this.
"""

from __future__ import annotations

import io
import pickletools
import re
from typing import TYPE_CHECKING

from layoutdoctor.archives import DamagedFileError, ForbiddenPartError, open_archive

if TYPE_CHECKING:
    from layoutdoctor.archives import Archive

_PICKLE_PART = "data.pkl"
_OTHER_PARTS = re.compile(
    r"data/\d+|version|byteorder|\.data/(version|serialization_id)|\.format_version|\.storage_alignment"
)
_TORCHSCRIPT_PARTS = re.compile(r"code/.*|constants\.pkl|constants/.*")
_MOST_PICKLE_BYTES = 64 << 20

_GLOBALS = frozenset(
    f"{module} {name}"
    for module, names in {
        "collections": "OrderedDict Counter",
        "_codecs": "encode",
        "builtins": "set bytearray complex",
        "__builtin__": "set bytearray complex",  # what Python 3 writes for protocol 2
        "torch.nn.parameter": "Parameter",
        "torch.serialization": "_get_layout",
        "torch._tensor": "_rebuild_from_type_v2",
        "torch.storage": "UntypedStorage TypedStorage",
        "torch._utils": "_rebuild_parameter _rebuild_parameter_with_state _rebuild_qtensor _rebuild_tensor "
        "_rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_sparse_tensor _rebuild_meta_tensor_no_storage "
        "_rebuild_nested_tensor _rebuild_device_tensor_from_numpy _rebuild_device_tensor_from_cpu_tensor",
        "torch": "Tensor Size device per_tensor_affine per_tensor_symmetric per_channel_affine per_channel_symmetric "
        "per_channel_affine_float_qparams BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage "
        "ComplexFloatStorage DoubleStorage FloatStorage HalfStorage IntStorage LongStorage ShortStorage "
        "QInt8Storage QInt32Storage QUInt8Storage QUInt2x4Storage QUInt4x2Storage",
    }.items()
    for name in names.split()
)
_DTYPE = re.compile(
    r"torch (b?float|u?int|q?u?int|complex|bool|bits|half|double|long|short|cfloat|cdouble)\d*(x\d+)?"
    r"(_e\dm\d(fn|fnuz|fnu)?(_x2)?)?"
)
_OPCODES = frozenset(
    "APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPERSID BINPUT BINUNICODE BUILD EMPTY_DICT EMPTY_LIST "
    "EMPTY_SET EMPTY_TUPLE GLOBAL LONG1 LONG_BINGET LONG_BINPUT MARK NEWFALSE NEWOBJ NEWTRUE NONE PROTO REDUCE SETITEM "
    "SETITEMS SHORT_BINSTRING STOP TUPLE TUPLE1 TUPLE2 TUPLE3".split()
)
_TEXT = re.compile(r"[^'\"\\\x00-\x1f\x7f-\x9f\u2028\u2029]*")


def is_plain(text: str) -> bool:
    """
    Whether a text can stand between quotes in Python code and stay a text: torch writes such code from names.

    Args:
        text: Any.
    """
    return _TEXT.fullmatch(text) is not None


def check_saved_tensors(data: bytes, part: str) -> None:
    """
    Checks that reading what ``torch.save`` wrote calls nothing but what makes tensors and plain containers.

    Args:
        data: The bytes; none at all are nothing that was saved.
        part: Where they stand, for messages.

    Raises:
        DamagedFileError: They are not what ``torch.save`` writes.
        ForbiddenPartError: Reading them could run code.
    """
    if not data:
        return
    if not data.startswith(b"PK"):
        raise ForbiddenPartError(f"a pickle without the archive that torch.save writes, in {part!r}")
    archive = open_archive(io.BytesIO(data), len(data))
    if _PICKLE_PART not in archive.names:
        raise DamagedFileError(f"its part {part!r} is not what torch.save writes")
    for name in archive.names:
        if _TORCHSCRIPT_PARTS.fullmatch(name):
            raise ForbiddenPartError(f"TorchScript, in {part!r}")
        if name != _PICKLE_PART and not _OTHER_PARTS.fullmatch(name):
            raise ForbiddenPartError(f"an unknown part {name[:200]!r}, in {part!r}")
    archive.check_sums()
    _check_pickle(archive, part)


def _check_pickle(archive: Archive, part: str) -> None:
    try:
        for opcode, argument, _ in pickletools.genops(archive.read(_PICKLE_PART, _MOST_PICKLE_BYTES)):
            _check_step(opcode.name, argument, part)
    except ForbiddenPartError:
        raise
    except (ValueError, UnicodeError, IndexError, OverflowError, MemoryError) as error:
        raise DamagedFileError(f"the pickle in its part {part!r} is damaged") from error


def _check_step(opcode: str, argument: object, part: str) -> None:
    if opcode not in _OPCODES:
        raise ForbiddenPartError(f"a pickle that does more than make tensors ({opcode}), in {part!r}")
    if opcode == "GLOBAL" and argument not in _GLOBALS and not _DTYPE.fullmatch(str(argument)):
        raise ForbiddenPartError(f"a pickle that calls {str(argument).replace(' ', '.')[:200]!r}, in {part!r}")
    if isinstance(argument, str) and not is_plain(argument):
        raise ForbiddenPartError(f"a pickle with quotes or control characters in a name or text, in {part!r}")
