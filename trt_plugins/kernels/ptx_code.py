"""The instructions of a kernel's PTX: which registers each reads and writes, and which instructions may follow it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hybridge.artifact.errors import EngineError

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TOKEN = re.compile(r"\s*(?:(?P<brace>[{}])|(?P<label>[\w$]+)\s*:(?!:)|(?P<statement>[^;]*);)")
_DECLARATION = re.compile(r"\.reg\s+\.\w+\s+(.+)", re.DOTALL)
_TARGETS = re.compile(r"\.branchtargets\s+(.+)", re.DOTALL)
_INSTRUCTION = re.compile(r"(?:@(?P<negated>!?)(?P<guard>\S+)\s+)?(?P<operation>[\w.:]+)\s*(?P<operands>.*)", re.DOTALL)
_OPERAND = re.compile(r"(?:\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,{\[(])+")
_NAME = re.compile(r"%?[A-Za-z_$][\w$]*")
# Numbered registers of the compiler, unlike those of the hardware (%tid.x), which are always set.
_COMPILERS = re.compile(r"%[a-z]+\d+$")
_WITHOUT_RESULT = frozenset(
    (
        "st", "bra", "brx", "bar", "barrier", "red", "cp", "mbarrier", "fence", "membar", "prefetch", "prefetchu",
        "ret", "exit", "trap", "stmatrix", "setmaxnreg", "griddepcontrol", "nanosleep", "discard", "applypriority",
        "call", "wgmma", "pmevent", "brkpt",
    )
)  # fmt: skip
# wgmma.mma_async reads its sums only where a predicate of it says so: they count as a result.
_WITH_RESULT = (
    "mbarrier.try_wait",
    "mbarrier.test_wait",
    "barrier.cta.red",
    "barrier.red",
    "bar.red",
    "wgmma.mma_async",
)


@dataclass(frozen=True)
class Instruction:
    """reads, writes: registers. operands: as in the text, with unique names of registers.

    guard: the predicate, and its value, under which alone the instruction runs. target: the label, or the table of
    labels, that it jumps to. falls_through: whether the next instruction may follow.
    """

    text: str
    operation: str
    operands: tuple[str, ...]
    reads: frozenset[str]
    writes: frozenset[str]
    guard: tuple[str, bool] | None
    target: str | None
    falls_through: bool


class PtxCode:
    """The instructions of kernel ``entry``. EngineError when the PTX has no such kernel or cannot be read."""

    def __init__(self, ptx: str, entry: str) -> None:
        self.instructions: list[Instruction] = []
        self._labels: dict[str, int] = {}
        self._tables: dict[str, list[str]] = {}
        label = ""
        for name, statement, scopes in _statements(_body(ptx, entry)):
            if name is not None:
                label = name
                self._labels[name] = len(self.instructions)
            elif (targets := _TARGETS.match(statement)) is not None:
                self._tables[label] = _NAME.findall(targets[1])
            elif not statement.startswith("."):
                self.instructions.append(_decoded(statement, scopes))

    def followers(self, place: int) -> list[int]:
        """The instructions that may come after instruction ``place``: the next one first, where it may."""
        instruction = self.instructions[place]
        followers = [place + 1] if instruction.falls_through and place + 1 < len(self.instructions) else []
        return followers + self.targets(place)

    def targets(self, place: int) -> list[int]:
        """The instructions that instruction ``place`` jumps to."""
        target = self.instructions[place].target
        found = []
        for label in [] if target is None else self._tables.get(target, [target]):
            if label not in self._labels:
                raise EngineError(f"expected the label {label} in the PTX, found none: {self.instructions[place].text}")
            if self._labels[label] < len(self.instructions):
                found.append(self._labels[label])
        return found


def _body(ptx: str, entry: str) -> str:
    """The text between the braces of the kernel."""
    text = _COMMENT.sub("", ptx)
    start = re.search(rf"\.entry\s+{re.escape(entry)}\s*\([^)]*\)[^{{]*\{{", text)
    if start is None:
        raise EngineError(f"expected PTX with the kernel {entry}, found none: name an entry point of that PTX")
    depth = 1
    for brace in re.finditer(r"[{}]", text[start.end() :]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[start.end() : start.end() + brace.start()]
    raise EngineError(f"expected a closing brace of the kernel {entry}, found none: the PTX is cut short")


def _statements(body: str) -> Iterator[tuple[str | None, str, Sequence[dict[str, str]]]]:
    """Labels and statements, with the registers that the braces around them (of inline assembly) declare."""
    scopes: list[dict[str, str]] = []
    position = opened = 0
    while (token := _TOKEN.match(body, position)) is not None:
        position = token.end()
        if token["brace"] == "{":
            opened += 1
            scopes.append({})
        elif token["brace"] == "}":
            scopes.pop()
        elif token["label"] is not None:
            yield token["label"], "", scopes
        elif scopes and (declared := _DECLARATION.match(token["statement"].strip())) is not None:
            scopes[-1].update({name: f"{name}@{opened}" for name in _NAME.findall(declared[1])})
        elif token["statement"].strip():
            yield None, token["statement"].strip(), scopes
    if body[position:].strip():
        raise EngineError(f"expected a statement of PTX, found {body[position:].strip()[:80]!r}")


def _decoded(statement: str, scopes: Sequence[dict[str, str]]) -> Instruction:
    match = _INSTRUCTION.fullmatch(statement)
    if match is None:
        raise EngineError(f"expected a PTX instruction, found {statement!r}")

    def renamed(text: str) -> str:
        return _NAME.sub(lambda name: next((s[name[0]] for s in reversed(scopes) if name[0] in s), name[0]), text)

    local = {unique for scope in scopes for unique in scope.values()}

    def registers(text: str) -> set[str]:
        return {name for name in re.findall(r"[%\w$@]+", text) if name in local or _COMPILERS.match(name)}

    operation, kind = match["operation"], match["operation"].split(".")[0]
    operands = tuple(renamed(operand.strip()) for operand in _OPERAND.findall(match["operands"]))
    results = int(kind not in _WITHOUT_RESULT or operation.startswith(_WITH_RESULT))
    guard = (renamed(match["guard"]), not match["negated"]) if match["guard"] else None
    read = " ".join(operand for i, operand in enumerate(operands) if i >= results or "[" in operand)
    return Instruction(
        " ".join(statement.split()),
        operation,
        operands,
        frozenset(registers(read) | ({guard[0]} if guard else set())),
        frozenset(registers(" ".join(operand for operand in operands[:results] if "[" not in operand))),
        guard,
        operands[-1] if kind in ("bra", "brx") else None,
        guard is not None or kind not in ("bra", "brx", "ret", "exit", "trap"),
    )
