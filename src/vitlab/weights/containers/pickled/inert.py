"""A pickle as a description: what it would call is written down, and nothing is called.

Python's own unpickler imports and calls whatever a file names. This one has no way to do so: a name
is a `Global`, a call is a `Made` with its arguments, and both are plain records that the reader of
a format looks into. (Opcodes are decoded by the standard library's `pickletools`, which is made
for looking at pickles that are not trusted.)
"""

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LARGEST = 2_000_000  # opcodes of a pickle that is read


@dataclass(frozen=True)
class Global:
    """A name that a pickle would import: `torch.Size`."""

    name: str


@dataclass(eq=False)
class Made:
    """An object that a pickle would make.

    Attributes:
        by: what it would call
        args: with these arguments
        state: what it would give the object afterwards
        items: what it would put into the object, as into a dictionary
    """

    by: object
    args: object
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name of what it would call, if it is one."""
        return self.by.name if isinstance(self.by, Global) else ""


@dataclass(frozen=True, eq=False)
class Outside:
    """Something outside of the pickle, by its identity: the numbers of a tensor."""

    identity: object


def described(raw: bytes) -> Any:
    """Return what a pickle holds, with `Global`, `Made` and `Outside` for all that is not plain.

    Raises:
        ValueError: it is damaged, too large, or uses an opcode that no checkpoint needs; other
            exceptions likewise.
    """
    machine = _Machine()
    for count, (opcode, arg, _) in enumerate(pickletools.genops(io.BytesIO(raw))):
        if count == LARGEST:
            raise ValueError(f"a pickle with more than {LARGEST:,} operations")
        if opcode.name == "STOP":
            return machine.stack.pop()
        machine.step(opcode.name, arg)
    raise ValueError("a pickle without an end")


EMPTY: dict[str, Callable[[], object]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": set,
}  # fmt: skip
LITERALS = (
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
)  # fmt: skip
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass
class _Machine:
    """The stack of a pickle, its marks and its memory."""

    stack: list[Any] = field(default_factory=list)
    marks: list[list[Any]] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def step(self, name: str, arg: Any) -> None:
        """Follow one opcode."""
        stack = self.stack
        if name in EMPTY:
            stack.append(EMPTY[name]())
        elif name in LITERALS:
            stack.append(arg)
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if name == "MEMOIZE" else arg] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[arg])
        elif name == "GLOBAL":
            stack.append(Global(".".join(arg.split(" ", 1))))
        elif name == "STACK_GLOBAL":
            last, module = stack.pop(), stack.pop()
            stack.append(Global(f"{module}.{last}"))
        elif name == "MARK":
            self.marks.append(stack)
            self.stack = []
        elif name in TUPLES:
            stack[-TUPLES[name] :] = [tuple(stack[-TUPLES[name] :])]
        elif name not in ("PROTO", "FRAME"):
            self._collect(name)

    def _collect(self, name: str) -> None:
        """Follow an opcode that puts values together."""
        if name in ("TUPLE", "APPENDS", "SETITEMS"):
            values, self.stack = self.stack, self.marks.pop()
        elif name in ("SETITEM", "APPEND", "REDUCE", "NEWOBJ", "BUILD", "BINPERSID"):
            count = 2 if name in ("SETITEM", "REDUCE", "NEWOBJ") else 1
            values = self.stack[-count:]
            del self.stack[-count:]
        else:
            raise ValueError(f"a pickle with the unusual operation {name}")
        match name:
            case "TUPLE":
                self.stack.append(tuple(values))
            case "REDUCE" | "NEWOBJ":
                self.stack.append(Made(*values))
            case "BINPERSID":
                self.stack.append(Outside(values[0]))
            case "BUILD" if isinstance(self.stack[-1], Made):
                self.stack[-1].state = values[0]
            case "APPEND" | "APPENDS" if isinstance(self.stack[-1], list):
                self.stack[-1].extend(values)
            case "SETITEM" | "SETITEMS" if isinstance(self.stack[-1], dict):
                self.stack[-1].update(zip(values[::2], values[1::2], strict=True))
            case "SETITEM" | "SETITEMS" if isinstance(self.stack[-1], Made):
                self.stack[-1].items.update(zip(values[::2], values[1::2], strict=True))
            case _ if not isinstance(self.stack[-1], Made):  # a list's items are of no use
                raise ValueError("a pickle that fills something other than a list or dictionary")
