"""Read the pickle inside a legacy packed `.npy` without running any of it.

A pickle is a program for a small stack machine that may call any function by name. This machine knows the few steps
that numpy writes for a list of dicts of number lists, and names stay names: `numpy.dtype` and its like are understood,
never looked up, and any other name is an error. Runs of numbers are decoded by numpy, and a row is handed on as soon as
its dict is complete, so that memory does not grow with the file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from skill_run.errors import InputError
from skill_run.pack.reader import MAX_ROW_TOKENS
from skill_run.report.safe import clip, printable

# One row: its columns as arrays, or, where a column holds no plain numbers, the word for what it holds.
Row = Mapping[str, "NDArray[Any] | str"]

MAX_STACK: Final = 2**18
MAX_MEMO: Final = 2**24
MAX_TEXT: Final = 2**16
MAX_KEYS: Final = 64
_NEWEST_PROTOCOL: Final = 5
_WINDOW: Final = 4096
_SHOWN: Final = 80

_ARRAY_MODULES: Final = ("numpy._core.multiarray", "numpy.core.multiarray")
_NAMES: Final = frozenset(
    {
        *((module, name) for module in _ARRAY_MODULES for name in ("_reconstruct", "scalar")),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("collections", "OrderedDict"),
        ("_codecs", "encode"),
        *((module, name) for module in ("builtins", "__builtin__") for name in ("list", "dict")),
    }
)
_DTYPE: Final = re.compile(r"b1|[iu][1248]|f[248]|O8?")


@dataclass(frozen=True, slots=True)
class _Name:
    module: str
    name: str


class _Spent:
    """What is left in the memo of a row that was handed on."""


@dataclass(slots=True)
class _Dtype:
    code: str
    order: str = "="


@dataclass(slots=True)
class _List:
    """A list of numbers or of rows. odd: the type of the first item that is neither."""

    parts: list[NDArray[Any]] = field(default_factory=list)
    loose: list[int | float] = field(default_factory=list)
    size: int = 0
    rows: int = 0
    odd: str = ""


@dataclass(slots=True)
class _Dict:
    """A row in the making. born: the memo's size when it was made; spent: it was handed on."""

    born: int
    items: dict[str, Any] = field(default_factory=dict)
    spent: bool = False


@dataclass(slots=True)
class _Array:
    """An array in the making; values: numbers, or for an object array the list inside it."""

    values: NDArray[Any] | _List | None = None


_TRUE: Final = 0x88
_FALSE: Final = 0x89
_FRAME: Final = b"\x95"
_SIZES: Final = np.zeros(256, dtype=np.int64)
_SIZES[[ord("K"), ord("M"), ord("J")]] = (2, 3, 5)


def decode_integers(window: NDArray[np.uint8]) -> tuple[NDArray[np.int64], int]:
    """Return the numbers of the integer steps that a window starts with, and how many bytes these steps take.

    A step takes 2, 3 or 5 bytes, so where one starts depends on all before it: the list of starts is doubled until it
    reaches the first byte that is no integer step, or one that the window cuts.
    """
    end = window.size
    places = np.arange(end + 1)
    after = places[:-1] + _SIZES[window]
    jump = places.copy()
    jump[:-1] = np.where(after <= end, after, places[:-1])
    starts = places[:1]
    while jump[starts[-1]] != starts[-1]:
        starts = np.concatenate([starts, jump[starts]])
        jump = jump[jump]
    taken = int(starts[-1])
    starts = starts[starts < taken]
    padded = np.concatenate([window, np.zeros(4, dtype=np.uint8)]).astype(np.int64)
    size = _SIZES[window[starts]]
    numbers = padded[starts + 1]
    numbers += np.where(size > 2, padded[starts + 2] << 8, 0)
    high = (padded[starts + 3] << 16) + (padded[starts + 4] << 24)
    numbers = np.where(size == 5, (numbers + high).astype(np.uint32).view(np.int32), numbers)
    return numbers.astype(np.int64), taken


def _decode_truths(window: NDArray[np.uint8]) -> tuple[NDArray[Any], int]:
    other = np.flatnonzero((window != _TRUE) & (window != _FALSE))
    taken = int(other[0]) if other.size else window.size
    return window[:taken] == _TRUE, taken


def _decode_floats(window: NDArray[np.uint8]) -> tuple[NDArray[Any], int]:
    steps = window[: window.size // 9 * 9].reshape(-1, 9)
    other = np.flatnonzero(steps[:, 0] != ord("G"))
    taken = int(other[0]) if other.size else len(steps)
    return steps[:taken, 1:].copy().view(">f8").reshape(-1).astype(np.float64), 9 * taken


class Machine:
    """The stack machine over one pickle. name: of the file, for messages; at: where the pickle starts in `data`."""

    def __init__(self, data: bytes | mmap, at: int, name: str) -> None:
        self._data = data
        self._at = at
        self._name = name
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []
        self._row: Row | None = None
        self.emitted = 0

    def rows(self) -> Iterator[Row]:
        """Yield the rows in the order of the file; InputError at the first step that a packed file does not hold."""
        while (code := self._take(1)[0]) != _STOP:
            step = _STEPS.get(code)
            if step is None:
                self._refuse(f"holds the pickle step {code:#04x} at byte {self._at - 1}")
            step(self)
            if len(self._stack) > MAX_STACK or len(self._memo) > MAX_MEMO:
                self._refuse("is nested or shared too much")
            if self._row is not None:
                yield self._row
                self._row = None
        self._finish()

    def _finish(self) -> None:
        top = self._stack[-1] if self._stack else None
        inside = top.values if isinstance(top, _Array) else top
        if not isinstance(inside, _List) or inside.odd or inside.size or inside.loose or inside.rows != self.emitted:
            self._refuse("does not hold a list of packed rows")

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(f"{self._name} {what}, which no packed file does, so it is not read; nothing in it was run")

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise InputError(f"{self._name} ends in the middle of its rows (byte {len(self._data)}): it is truncated")
        found = self._data[self._at : end]
        self._at = end
        return found

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _text(self, length: int) -> str:
        if length > MAX_TEXT:
            self._refuse(f"claims a text of {length} bytes")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError:
            self._refuse("holds text that is not UTF-8")

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at, self._at + MAX_TEXT)
        if end < 0:
            self._refuse("holds a name without an end")
        text = self._text(end - self._at)
        self._at = end + 1
        return text

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            self._refuse("takes more from its stack than is there")
        return self._stack.pop()

    def _top(self) -> Any:
        if not self._stack:
            self._refuse("takes more from its stack than is there")
        return self._stack[-1]

    def _since_mark(self) -> list[Any]:
        if not self._marks:
            self._refuse("ends a group that was not begun")
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    # Steps that push a plain value.

    def push(self, value: Any) -> None:
        """Push a value."""
        self._stack.append(value)

    def protocol(self) -> None:
        """Check the protocol number."""
        if (found := self._take(1)[0]) > _NEWEST_PROTOCOL:
            self._refuse(f"is written in pickle protocol {found}")

    def skip(self, count: int) -> None:
        """Pass over bytes that only help a reader to buffer."""
        self._take(count)

    def long(self) -> None:
        """Push an integer of 1 to 255 bytes, of which 8 are enough for any number here."""
        length = self._take(1)[0]
        if length > 9:
            self._refuse("holds a number beyond 64 bits")
        self.push(int.from_bytes(self._take(length), "little", signed=True))

    def raw(self, length: int) -> None:
        """Push bytes, which are the contents of a number array."""
        if length > 8 * MAX_ROW_TOKENS:
            self._refuse(f"claims {length} bytes in one piece")
        self.push(self._take(length))

    # Steps that build.

    def mark(self) -> None:
        """Begin a group; a run of numbers that ends in an append goes to its list as one array."""
        target = self._stack[-1] if self._stack else None
        if isinstance(target, _List):
            numbers, after = self._run(self._at)
            if numbers is not None and self._data[after : after + 1] == b"e":
                self._extend(target, numbers)
                self._at = after + 1
                return
        self._marks.append(len(self._stack))
        if len(self._marks) > MAX_STACK:
            self._refuse("is nested or shared too much")

    def _run(self, at: int) -> tuple[NDArray[Any] | None, int]:
        """Return the numbers of one kind that start at a byte, and the byte after them; None when there are none."""
        first = self._data[at : at + 1]
        if first in (bytes([_TRUE]), bytes([_FALSE])):
            decode, step = _decode_truths, 1
        elif first == b"G":
            decode, step = _decode_floats, 9
        elif first in (b"K", b"M", b"J"):
            decode, step = decode_integers, 5
        else:
            return None, at
        found: list[NDArray[Any]] = []
        count = 0
        while True:
            window = np.frombuffer(self._data[at : at + _WINDOW], np.uint8)
            numbers, taken = decode(window)
            found.append(numbers)
            count += numbers.size
            at += taken
            self._check_size(count)
            # Where less than one step of a window is left, it may only have been cut; a frame may start anywhere.
            cut = taken and taken + step > _WINDOW
            if self._data[at : at + 1] == _FRAME:
                at += 9
            elif not cut:
                break
        return np.concatenate(found), at

    def _check_size(self, tokens: int) -> None:
        if tokens > MAX_ROW_TOKENS:
            raise InputError(f"{self._name} claims more than {MAX_ROW_TOKENS} tokens in one row; no pack has that many")

    def _extend(self, target: _List, numbers: NDArray[Any]) -> None:
        self._flush(target)
        target.parts.append(numbers)
        target.size += numbers.size
        self._check_size(target.size)

    def _flush(self, target: _List) -> None:
        if target.loose:
            try:
                target.parts.append(np.asarray(target.loose))
            except OverflowError:
                self._refuse("holds a number beyond 64 bits")
            if target.parts[-1].dtype == object or target.parts[-1].dtype == np.uint64:
                self._refuse("holds a number beyond 63 bits")
            target.size += len(target.loose)
            target.loose.clear()

    def _append(self, target: Any, items: list[Any]) -> None:
        if not isinstance(target, _List):
            self._refuse("appends to what is no list")
        for item in items:
            if isinstance(item, int | float):
                target.loose.append(item)
            elif isinstance(item, _Dict) and item.spent:
                target.rows += 1
            else:
                target.odd = target.odd or _word(item)
        if len(target.loose) >= _WINDOW:
            self._flush(target)
        self._check_size(target.size)

    def append(self) -> None:
        """Append one item."""
        item = self._pop()
        self._append(self._top(), [item])

    def appends(self) -> None:
        """Append a group."""
        items = self._since_mark()
        self._append(self._top(), items)

    def set_items(self, items: list[Any]) -> None:
        """Complete a dict, which is a row, and hand it on."""
        target = self._top()
        if not isinstance(target, _Dict) or target.spent or len(items) % 2 or len(items) > 2 * MAX_KEYS:
            self._refuse("fills what is no packed row")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                self._refuse("has a row whose keys are not text")
            target.items[key] = value
        self._row = {key: self._column(value) for key, value in target.items.items()}
        self.emitted += 1
        target.items = {}
        target.spent = True
        for index in range(target.born, len(self._memo)):
            if isinstance(self._memo[index], _List | _Array | _Dict | bytes):
                self._memo[index] = _Spent

    def _column(self, value: Any) -> NDArray[Any] | str:
        if isinstance(value, _Array) and value.values is not None:
            value = value.values
        if isinstance(value, np.ndarray):
            return value
        if not isinstance(value, _List):
            return _word(value)
        self._flush(value)
        if value.odd or value.rows:
            return value.odd or "dict"
        return np.concatenate(value.parts) if value.parts else np.empty(0, dtype=np.int64)

    def group(self, count: int | None) -> None:
        """Make a tuple of the last items, or of a group."""
        items = self._since_mark() if count is None else [self._pop() for _ in range(count)][::-1]
        self.push(tuple(items))

    # Memo.

    def memoize(self) -> None:
        """Remember the top under the next number."""
        self._memo.append(self._top())

    def put(self, index: int) -> None:
        """Remember the top under a number, which writers count up one by one."""
        if index > len(self._memo):
            self._refuse("numbers its shared values with gaps")
        if index == len(self._memo):
            self._memo.append(None)
        self._memo[index] = self._top()

    def get(self, index: int) -> None:
        """Push a remembered value."""
        if index >= len(self._memo) or self._memo[index] is _Spent:
            self._refuse("uses one list in two rows")
        self.push(self._memo[index])

    # Names, and what they stand for.

    def name(self, module: Any, name: Any) -> None:
        """Push a name, if packed files use it."""
        if not (isinstance(module, str) and isinstance(name, str)):
            self._refuse("has a name that is not text")
        if (module, name) not in _NAMES:
            self._refuse(f"asks for {printable(clip(f'{module}.{name}', _SHOWN))}")
        self.push(_Name(module, name))

    def stack_name(self) -> None:
        """Push a name whose parts are on the stack."""
        name = self._pop()
        self.name(self._pop(), name)

    def call(self) -> None:
        """Do what a call of one of the known names would do."""
        arguments, called = self._pop(), self._pop()
        if not isinstance(called, _Name) or not isinstance(arguments, tuple):
            self._refuse("calls what is no function")
        handler = _CALLS.get(called.name)
        made = handler(self, arguments) if handler is not None else None
        if made is None:
            self._refuse(f"calls {called.module}.{called.name} in a strange way")
        self.push(made)

    def reconstruct(self, arguments: tuple[Any, ...]) -> Any:
        """An empty array that a state will fill."""
        shaped = len(arguments) == 3 and arguments[0] == _Name("numpy", "ndarray") and arguments[1] == (0,)
        return _Array() if shaped else None

    def dtype(self, arguments: tuple[Any, ...]) -> Any:
        """A number type or the object type."""
        code = arguments[0] if arguments else None
        return _Dtype(code) if isinstance(code, str) and _DTYPE.fullmatch(code) else None

    def scalar(self, arguments: tuple[Any, ...]) -> Any:
        """A single number of a number type."""
        if len(arguments) != 2 or not isinstance(arguments[0], _Dtype):
            return None
        values = self._values(arguments[0], arguments[1], 1)
        return values[0].item() if values is not None else None

    def encode(self, arguments: tuple[Any, ...]) -> Any:
        """Bytes that an old protocol wrote as text."""
        if len(arguments) != 2 or not isinstance(arguments[0], str) or arguments[1] not in ("latin1", "latin-1"):
            return None
        try:
            return arguments[0].encode("latin-1")
        except UnicodeEncodeError:
            return None

    def container(self, arguments: tuple[Any, ...]) -> Any:
        """An empty dict."""
        return None if arguments else _Dict(len(self._memo))

    def listing(self, arguments: tuple[Any, ...]) -> Any:
        """An empty list."""
        return None if arguments else _List()

    def build(self) -> None:
        """Give an array or a number type its state."""
        state, target = self._pop(), self._top()
        done = False
        if isinstance(state, tuple) and isinstance(target, _Dtype) and len(state) >= 2:
            done = state[1] in ("<", ">", "|", "=")
            target.order = state[1] if done else "="
        elif isinstance(state, tuple) and isinstance(target, _Array) and len(state) == 5:
            target.values = self._contents(state)
            done = target.values is not None
        if not done:
            self._refuse("sets the state of something")

    def _contents(self, state: tuple[Any, ...]) -> NDArray[Any] | _List | None:
        _, shape, dtype, _, data = state
        counted = isinstance(shape, tuple) and len(shape) == 1 and isinstance(shape[0], int)
        if not counted or not isinstance(dtype, _Dtype):
            return None
        if dtype.code.startswith("O"):
            if not isinstance(data, _List) or data.rows != shape[0] or data.odd:
                self._refuse("does not hold a list of packed rows")
            return data
        return self._values(dtype, data, shape[0])

    def _values(self, dtype: _Dtype, data: Any, count: int) -> NDArray[Any] | None:
        if dtype.code.startswith("O") or not isinstance(data, bytes):
            return None
        form = np.dtype((">" if dtype.order == ">" else "<") + dtype.code)
        if not 0 <= count <= MAX_ROW_TOKENS or len(data) != count * form.itemsize:
            return None
        if dtype.code == "b1":
            return np.asarray(np.frombuffer(data, np.uint8) != 0)
        return np.frombuffer(data, form).astype(form.newbyteorder("="))


def _word(value: Any) -> str:
    known = {_List: "list", _Dict: "dict", _Array: "array", _Name: "function", _Dtype: "dtype", type(None): "null"}
    return known.get(type(value), type(value).__name__)


_CALLS: Final[dict[str, Callable[[Machine, tuple[Any, ...]], Any]]] = {
    "_reconstruct": Machine.reconstruct,
    "scalar": Machine.scalar,
    "dtype": Machine.dtype,
    "encode": Machine.encode,
    "OrderedDict": Machine.container,
    "dict": Machine.container,
    "list": Machine.listing,
}
_STOP: Final = ord(".")
_STEPS: Final[dict[int, Callable[[Machine], None]]] = {
    0x80: Machine.protocol,
    _FRAME[0]: lambda machine: machine.skip(8),
    ord("K"): lambda machine: machine.push(machine._number("<B")),
    ord("M"): lambda machine: machine.push(machine._number("<H")),
    ord("J"): lambda machine: machine.push(machine._number("<i")),
    ord("G"): lambda machine: machine.push(machine._number(">d")),
    0x8A: Machine.long,
    _TRUE: lambda machine: machine.push(True),
    _FALSE: lambda machine: machine.push(False),
    ord("N"): lambda machine: machine.push(None),
    0x8C: lambda machine: machine.push(machine._text(machine._number("<B"))),
    ord("X"): lambda machine: machine.push(machine._text(machine._number("<I"))),
    0x8D: lambda machine: machine.push(machine._text(machine._number("<Q"))),
    ord("C"): lambda machine: machine.raw(machine._number("<B")),
    ord("B"): lambda machine: machine.raw(machine._number("<I")),
    0x8E: lambda machine: machine.raw(machine._number("<Q")),
    ord("("): Machine.mark,
    ord("]"): lambda machine: machine.push(_List()),
    ord("}"): lambda machine: machine.push(_Dict(len(machine._memo))),
    ord(")"): lambda machine: machine.push(()),
    0x85: lambda machine: machine.group(1),
    0x86: lambda machine: machine.group(2),
    0x87: lambda machine: machine.group(3),
    ord("t"): lambda machine: machine.group(None),
    ord("a"): Machine.append,
    ord("e"): Machine.appends,
    ord("s"): lambda machine: machine.set_items([machine._pop(), machine._pop()][::-1]),
    ord("u"): lambda machine: machine.set_items(machine._since_mark()),
    0x94: Machine.memoize,
    ord("q"): lambda machine: machine.put(machine._number("<B")),
    ord("r"): lambda machine: machine.put(machine._number("<I")),
    ord("h"): lambda machine: machine.get(machine._number("<B")),
    ord("j"): lambda machine: machine.get(machine._number("<I")),
    ord("c"): lambda machine: machine.name(machine._line(), machine._line()),
    0x93: Machine.stack_name,
    ord("R"): Machine.call,
    ord("b"): Machine.build,
}
