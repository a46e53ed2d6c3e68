"""Walks the opcodes of a pickle as data: nothing is imported, called or built but plain values.

Opcodes come from `pickletools.genops`. Globals outside of a short list become opaque values and are named.
What torch writes: pytorch/pytorch torch/serialization.py (persistent ids) and torch/_utils.py (rebuild
functions).
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

import msgspec

MAX_OPCODES = 1_000_000
MAX_COPIED_BYTES = 64 << 20
"""Bytes that calls may copy: the memo lets a small pickle pass one large value to many calls."""

MAX_RANK = 64


class Storage(msgspec.Struct, frozen=True):
    """A storage that a persistent id names; `word` is None where its element type is untyped."""

    key: str
    word: str | None
    numel: int


class Tensor(msgspec.Struct, frozen=True):
    """A tensor over a storage; offset and strides count elements."""

    word: str
    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Opaque(msgspec.Struct):
    """A value that only its own code could build; `state` is what the pickle would give it."""

    label: str
    state: Any = None


class Global(msgspec.Struct, frozen=True):
    """A name that the pickle asks for."""

    module: str
    name: str

    @property
    def label(self) -> str:
        """The dotted name."""
        return f"{self.module}.{self.name}"


class Walk(msgspec.Struct):
    """What a walk gave: the value, the globals outside of the list with their counts, and why it stopped."""

    value: Any = None
    foreign: dict[str, int] = msgspec.field(default_factory=dict)
    error: str | None = None
    position: int = 0
    over_limit: bool = False


class PickleFaultError(Exception):
    """The opcodes cannot be followed."""


DTYPE_WORDS: dict[str, str] = {
    "float32": "F32", "float": "F32", "float64": "F64", "double": "F64", "float16": "F16", "half": "F16",
    "bfloat16": "BF16", "int64": "I64", "long": "I64", "int32": "I32", "int": "I32", "int16": "I16",
    "short": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "bool": "BOOL", "complex64": "C64", "complex128": "C128", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0", "float4_e2m1fn_x2": "F4",
}  # fmt: skip
"""safetensors word by torch dtype name."""

STORAGE_WORDS: dict[str, str | None] = {
    "FloatStorage": "F32", "DoubleStorage": "F64", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
    "ByteStorage": "U8", "BoolStorage": "BOOL", "ComplexFloatStorage": "C64",
    "ComplexDoubleStorage": "C128", "UntypedStorage": None, "TypedStorage": None,
}  # fmt: skip
"""safetensors word by torch storage class."""

_MARK: Any = object()


def walk_pickle(data: bytes) -> Walk:
    """The value of a pickle as plain data; never raises."""
    machine = _Machine()
    walk = machine.walk
    try:
        for count, (opcode, argument, position) in enumerate(pickletools.genops(data)):
            walk.position = position or 0
            if count >= MAX_OPCODES:
                walk.over_limit = True
                walk.error = f"more than {MAX_OPCODES} opcodes"
                break
            if opcode.name == "STOP":
                break
            machine.step(opcode.name, argument)
    except PickleFaultError as error:
        walk.error = str(error)
    except (
        ValueError, IndexError, TypeError, KeyError, OverflowError, AttributeError, RecursionError
    ) as error:  # fmt: skip
        # pickletools raises these over malformed arguments, the machine over a short stack.
        walk.error = " ".join(str(error).split())[:200] or type(error).__name__
    stack = [value for value in machine.stack if value is not _MARK]
    if walk.error is None:
        walk.value = stack[-1] if stack else None
    else:
        walk.value = _unfinished(stack)
    return walk


def _unfinished(stack: list[Any]) -> dict[Any, Any]:
    """What an interrupted walk had on its stack: dictionaries, and values that follow a name."""
    tree: dict[Any, Any] = {}
    for place, value in enumerate(stack):
        if isinstance(value, str) and place + 1 < len(stack):
            following = stack[place + 1]
            if isinstance(following, Tensor | dict):
                tree[value] = following
        elif isinstance(value, dict) and (place == 0 or not isinstance(stack[place - 1], str)):
            tree.update(value)
    return tree


class _Machine:
    """The stack machine of pickle protocols 0 to 5, over plain values."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.copied = 0
        self.walk = Walk()

    def step(self, name: str, argument: Any) -> None:
        """Runs one opcode."""
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            self.stack.append(argument)
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name in _IGNORED:
            return
        else:
            handler: Callable[[Any], None] | None = getattr(self, f"_op_{name.lower()}", None)
            if handler is None:
                raise PickleFaultError(f"opcode {name} is not followed")
            handler(argument)

    def _marked(self) -> list[Any]:
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _MARK:
                items = self.stack[at + 1 :]
                del self.stack[at:]
                return items
        raise PickleFaultError("a mark is missing")

    def _op_mark(self, _: Any) -> None:
        self.stack.append(_MARK)

    def _op_pop(self, _: Any) -> None:
        self.stack.pop()

    def _op_pop_mark(self, _: Any) -> None:
        self._marked()

    def _op_dup(self, _: Any) -> None:
        self.stack.append(self.stack[-1])

    def _op_memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _op_put(self, argument: Any) -> None:
        self.memo[int(argument)] = self.stack[-1]

    _op_binput = _op_put
    _op_long_binput = _op_put

    def _op_get(self, argument: Any) -> None:
        self.stack.append(self.memo[int(argument)])

    _op_binget = _op_get
    _op_long_binget = _op_get

    def _op_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self._marked()))

    def _op_tuple1(self, _: Any) -> None:
        self._last_as_tuple(1)

    def _op_tuple2(self, _: Any) -> None:
        self._last_as_tuple(2)

    def _op_tuple3(self, _: Any) -> None:
        self._last_as_tuple(3)

    def _last_as_tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise PickleFaultError("the stack is too short for a tuple")
        items = tuple(self.stack[-count:])
        self.stack[-count:] = [items]

    def _op_list(self, _: Any) -> None:
        self.stack.append(self._marked())

    def _op_dict(self, _: Any) -> None:
        target: dict[Any, Any] = {}
        _set_items(target, self._marked())
        self.stack.append(target)

    def _op_frozenset(self, _: Any) -> None:
        self.stack.append(self._marked())

    def _op_append(self, _: Any) -> None:
        item = self.stack.pop()
        _extend(self.stack[-1], [item])

    def _op_appends(self, _: Any) -> None:
        items = self._marked()
        _extend(self.stack[-1], items)

    _op_additems = _op_appends

    def _op_setitem(self, _: Any) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        _set_items(self.stack[-1], [key, value])

    def _op_setitems(self, _: Any) -> None:
        items = self._marked()
        _set_items(self.stack[-1], items)

    def _op_global(self, argument: Any) -> None:
        module, _, name = str(argument).partition(" ")
        self.stack.append(self._resolve(Global(module, name)))

    def _op_stack_global(self, _: Any) -> None:
        name = self.stack.pop()
        module = self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise PickleFaultError("a global is named by something that is no text")
        self.stack.append(self._resolve(Global(module, name)))

    def _op_reduce(self, _: Any) -> None:
        arguments = self.stack.pop()
        function = self.stack.pop()
        self.stack.append(self._call(function, arguments))

    _op_newobj = _op_reduce

    def _op_newobj_ex(self, _: Any) -> None:
        self.stack.pop()
        self._op_reduce(None)

    def _op_inst(self, argument: Any) -> None:
        module, _, name = str(argument).partition(" ")
        arguments = tuple(self._marked())
        self.stack.append(self._call(self._resolve(Global(module, name)), arguments))

    def _op_obj(self, _: Any) -> None:
        items = self._marked()
        self.stack.append(self._call(items[0], tuple(items[1:])))

    def _op_build(self, _: Any) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, Opaque):
            target.state = state

    def _op_binpersid(self, _: Any) -> None:
        self.stack.append(self._persistent(self.stack.pop()))

    def _op_persid(self, argument: Any) -> None:
        self.stack.append(self._persistent(argument))

    def _op_ext1(self, argument: Any) -> None:
        self.stack.append(self._foreign(f"extension code {argument}"))

    _op_ext2 = _op_ext1
    _op_ext4 = _op_ext1

    def _op_next_buffer(self, _: Any) -> None:
        self.stack.append(Opaque("out-of-band buffer"))

    def _foreign(self, label: str) -> Opaque:
        self.walk.foreign[label] = self.walk.foreign.get(label, 0) + 1
        return Opaque(label)

    def _resolve(self, name: Global) -> Any:
        """A global from the list, or an opaque value."""
        if name.module == "torch" and name.name in DTYPE_WORDS:
            return f"torch.{name.name}"
        if name.label in _CALLS or _storage_class(name):
            return name
        return self._foreign(name.label)

    def _call(self, function: Any, arguments: Any) -> Any:
        if isinstance(function, Opaque):
            return Opaque(function.label, arguments if isinstance(arguments, tuple) else None)
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise PickleFaultError("something is called that is no global")
        if function.label == _FROM_TYPE and len(arguments) > 2:
            inner, _, arguments = arguments[:3]
            if not isinstance(inner, Global) or inner.label == _FROM_TYPE:
                return Opaque(_FROM_TYPE, arguments)
            return self._call(inner, arguments)
        build = _CALLS.get(function.label)
        if build is None:
            return Opaque(function.label)
        for argument in arguments[:16]:
            if isinstance(argument, str | bytes):
                self.copied += len(argument)
            elif isinstance(argument, list | tuple | dict):
                self.copied += len(argument) * 64
        if self.copied > MAX_COPIED_BYTES:
            raise PickleFaultError(f"calls copy more than {MAX_COPIED_BYTES} bytes")
        return build(*arguments[:16])

    def _persistent(self, value: Any) -> Any:
        """A storage, from ('storage', class, key, location, numel)."""
        if not isinstance(value, tuple) or len(value) < 5 or value[0] != "storage":
            return self._foreign("persistent id")
        _, kind, key, _, numel = value[:5]
        word = STORAGE_WORDS.get(kind.name) if isinstance(kind, Global) else None
        if not isinstance(key, str | int) or not isinstance(numel, int):
            raise PickleFaultError("a storage has no key or no length")
        return Storage(str(key), word, numel)


def _storage_class(name: Global) -> bool:
    return name.module in ("torch", "torch.storage", "torch.cuda") and name.name in STORAGE_WORDS


def _extend(target: Any, items: list[Any]) -> None:
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, Opaque):
        if not isinstance(target.state, list):
            target.state = []
        target.state.extend(items)
    else:
        raise PickleFaultError("items are added to something that is no list")


def _set_items(target: Any, items: list[Any]) -> None:
    if isinstance(target, Opaque):
        if not isinstance(target.state, dict):
            target.state = {}
        target = target.state
    if not isinstance(target, dict) or len(items) % 2:
        raise PickleFaultError("items are set on something that is no dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        target[_key(key)] = value


def _key(key: Any) -> str | int | float | None:
    """A key that can be hashed and shown, short where it is no text."""
    if isinstance(key, str | float | bool | None):
        return key
    if isinstance(key, int):
        return key if key.bit_length() <= 64 else f"<integer of {key.bit_length()} bits>"
    if isinstance(key, bytes) and len(key) <= 256:
        return key.decode("utf-8", errors="backslashreplace")
    return f"<{type(key).__name__}>"


def _ordered_dict(pairs: Any = None, *_: Any) -> dict[Any, Any]:
    target: dict[Any, Any] = {}
    if isinstance(pairs, list | tuple):
        for pair in pairs:
            if isinstance(pair, list | tuple) and len(pair) == 2:
                _set_items(target, list(pair))
    elif isinstance(pairs, dict):
        target.update(pairs)
    return target


def _whole_tuple(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_RANK:
        raise PickleFaultError(f"a shape is no tuple of at most {MAX_RANK} lengths")
    if any(not isinstance(extent, int) or not 0 <= extent < 1 << 63 for extent in value):
        raise PickleFaultError("a shape or a stride holds something else than lengths")
    return tuple(value)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Tensor:
    if not isinstance(storage, Storage) or not isinstance(offset, int) or offset < 0:
        raise PickleFaultError("a tensor is built over something that is no storage")
    lengths, steps = _whole_tuple(shape), _whole_tuple(strides)
    if len(lengths) != len(steps):
        raise PickleFaultError("a tensor has another number of strides than of lengths")
    return Tensor(storage.word or "U8", storage, offset, lengths, steps)


def _tensor_v3(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Tensor:
    plain = _tensor(storage, offset, shape, strides)
    dtype = rest[2] if len(rest) > 2 and isinstance(rest[2], str) else ""
    word = DTYPE_WORDS.get(dtype.removeprefix("torch."))
    if word is None:
        raise PickleFaultError("a tensor has no known dtype")
    return Tensor(word, plain.storage, plain.offset, plain.shape, plain.strides)


def _first(value: Any, *_: Any) -> Any:
    return value


def _encode(text: Any, *_: Any) -> bytes:
    return str(text).encode("latin-1", errors="replace")


def _as_list(items: Any = (), *_: Any) -> list[Any]:
    return list(items) if isinstance(items, list | tuple) else []


def _as_bytes(value: Any = b"", *_: Any) -> bytes:
    if isinstance(value, str):
        return _encode(value)
    return value if isinstance(value, bytes) else b""


_BUILTINS: dict[str, Callable[..., Any]] = {
    "set": _as_list,
    "frozenset": _as_list,
    "list": _as_list,
    "tuple": _as_list,
    "dict": _ordered_dict,
    "bytes": _as_bytes,
    "bytearray": _as_bytes,
}
_FROM_TYPE = "torch._tensor._rebuild_from_type_v2"
_CALLS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered_dict,
    "torch.Size": _as_list,
    "torch.device": _first,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    _FROM_TYPE: _first,
    "torch.Tensor": _first,
    "torch.nn.parameter.Parameter": _first,
    "torch.serialization._get_layout": _first,
    "_codecs.encode": _encode,
    **{f"builtins.{name}": call for name, call in _BUILTINS.items()},
    **{f"__builtin__.{name}": call for name, call in _BUILTINS.items()},
}
"""Everything that a pickle may call; each gives a plain value."""

_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": list,
}
_LITERALS = frozenset(
    (
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING",
        "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
        "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
    )
)  # fmt: skip
_IGNORED = frozenset(("PROTO", "FRAME", "READONLY_BUFFER"))
