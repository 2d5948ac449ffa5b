"""Pickles as data: a stack machine for the opcodes that plain values and tensors need. Nothing in a file is executed.

``pickle`` itself calls what a file names. Here a name is only looked up in a table of the reader's own functions, the
only things that are called; objects, methods, extensions and every other opcode are refused. Keys of dictionaries are
text or numbers, so that no hostile nesting is ever hashed.
"""

import pickletools
from collections.abc import Callable, Mapping
from typing import Any


class RefusedPickle(ValueError):
    """A pickle that holds more than plain values, is truncated, or contradicts itself."""


def plain_values(
    content: bytes, callables: Mapping[str, Callable[..., Any]], names: Mapping[str, Any], persistent: Callable
) -> Any:
    """What a pickle holds: None, booleans, numbers, text, lists, tuples, dictionaries, and results of ``callables``.

    callables: ``module name`` → function to call with the arguments that the file gives. names: ``module name`` → a
    value that is passed on and never called. persistent: value of a persistent id. Raises RefusedPickle.
    """
    machine = _Machine(callables, names, persistent)
    try:
        for opcode, argument, _ in pickletools.genops(content):
            machine.step(opcode.name, argument)
        return machine.result()
    except RefusedPickle:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise RefusedPickle(f"damaged pickle ({type(error).__name__}: {error})") from None


class _Mark:
    """Separates the items of an open list, tuple or dictionary."""


_MARK = _Mark()
_PUSHES_ARGUMENT = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = {"PROTO", "FRAME", "STOP"}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}


class _Machine:
    def __init__(self, callables, names, persistent) -> None:
        self._callables, self._names, self._persistent = callables, names, persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def step(self, opcode: str, argument: Any) -> None:
        stack = self._stack
        if opcode in _PUSHES_ARGUMENT:
            stack.append(argument)
        elif opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode])
        elif opcode in _EMPTY:
            stack.append(_EMPTY[opcode]())
        elif opcode in _TUPLES:
            count = _TUPLES[opcode]
            if len(stack) < count:
                raise RefusedPickle("damaged pickle: a tuple of more items than there are")
            stack[-count:] = [tuple(stack[-count:])]
        elif opcode in _PUTS:
            self._memo[argument] = stack[-1]
        elif opcode in _GETS:
            stack.append(self._memo[argument])
        elif opcode not in _IGNORED:
            act = getattr(self, f"_{opcode.lower()}", None)
            if act is None:
                raise RefusedPickle(f"opcode {opcode} is none of plain values and tensors")
            act(argument)

    def result(self) -> Any:
        if len(self._stack) != 1 or self._stack[0] is _MARK:
            raise RefusedPickle("damaged pickle: it does not end with one value")
        return self._stack[0]

    def _mark(self, _) -> None:
        self._stack.append(_MARK)

    def _memoize(self, _) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _since_mark(self) -> list[Any]:
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise RefusedPickle("damaged pickle: the start of a list is missing")
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _tuple(self, _) -> None:
        self._stack.append(tuple(self._since_mark()))

    def _list(self, _) -> None:
        self._stack.append(self._since_mark())

    def _dict(self, _) -> None:
        items = self._since_mark()
        self._stack.append({})
        self._set(items)

    def _append(self, _) -> None:
        item = self._stack.pop()
        self._extend([item])

    def _appends(self, _) -> None:
        self._extend(self._since_mark())

    def _extend(self, items: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise RefusedPickle(f"damaged pickle: appends to {type(self._stack[-1]).__name__}")
        self._stack[-1].extend(items)

    def _setitem(self, _) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def _setitems(self, _) -> None:
        self._set(self._since_mark())

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise RefusedPickle(f"damaged pickle: sets items of {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (str, int, float, bool, bytes):
                raise RefusedPickle(f"a key is {type(key).__name__}; expected text or a number")
            target[key] = value

    def _global(self, argument: str) -> None:
        self._push_named(argument)

    def _stack_global(self, _) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._push_named(f"{module} {name}")

    def _push_named(self, name: str) -> None:
        if name in self._callables:
            self._stack.append(self._callables[name])
        elif name in self._names:
            self._stack.append(self._names[name])
        else:
            raise RefusedPickle(f"names {name.replace(' ', '.')!r}, which is no tensor and no plain value")

    def _reduce(self, _) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if type(arguments) is not tuple or not any(function is known for known in self._callables.values()):
            raise RefusedPickle("calls something that is no tensor")
        self._stack.append(function(*arguments))

    def _binpersid(self, _) -> None:
        self._stack.append(self._persistent(self._stack.pop()))
