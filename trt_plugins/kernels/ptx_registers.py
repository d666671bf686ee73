"""Finds branches and addresses of a kernel's PTX that depend on registers which some path has not written.

A value that CUDA code loads under a condition and uses without it becomes such a register: the compiler has no value
for it on the other path. Arithmetic on it does no harm where the result is not used. A branch does, even where both of
its sides are harmless: the assembler may assume that its condition is equal in all lanes of a warp. Then the warp
splits and is not joined again, and its second part computes addresses from registers that the first has overwritten.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hybridge.trt_plugins.kernels.ptx_code import Instruction, PtxCode

_ADDRESS = re.compile(r"\[([^\]]*)\]")
# Where an operand decides what lanes do together.
_TOGETHER = ("vote.", "match.", "bar.", "barrier.", "brx.", "elect.")
# Their results come from memory, whatever the address was.
_FROM_MEMORY = ("ld.", "ldmatrix.", "atom.", "ldu.", "tex.")


@dataclass(frozen=True)
class UnsetUse:
    """``instruction`` branches on ``registers``, or addresses memory with them, which some path has left unset."""

    registers: tuple[str, ...]
    instruction: str


def unset_uses(ptx: str, entry: str) -> tuple[UnsetUse, ...]:
    """The branches and addresses of kernel ``entry`` that may depend on an unset register, in the order of the code.

    Conditions are not compared with each other: a register that is written under a condition counts as unset, even
    where it is used under the same one. EngineError when the PTX cannot be read.
    """
    code = PtxCode(ptx, entry)
    found = []
    for instruction, unset in zip(code.instructions, _unset(code), strict=True):
        if names := _deciding(instruction) & unset:
            found.append(UnsetUse(tuple(sorted(names)), instruction.text))
    return tuple(found)


def _deciding(instruction: Instruction) -> frozenset[str]:
    """The registers that decide where the instruction goes on, whether it runs, and which memory it touches."""
    if instruction.operation.startswith(_TOGETHER):
        return instruction.reads
    names = {instruction.guard[0]} if instruction.guard is not None else set()
    for operand in instruction.operands:
        for address in _ADDRESS.findall(operand):
            names |= {name for name in instruction.reads if re.search(rf"{re.escape(name)}(?!\w)", address)}
    return frozenset(names)


def _unset(code: PtxCode) -> list[frozenset[str]]:
    """For every instruction the registers that it reads and that some path left unset, or computed from such ones."""
    instructions = code.instructions
    bits = {name: 1 << i for i, name in enumerate(sorted({name for i in instructions for name in i.reads | i.writes}))}
    reads = [sum(bits[name] for name in i.reads) for i in instructions]
    writes = [sum(bits[name] for name in i.writes) for i in instructions]
    before: list[int | None] = [None] * len(instructions)
    waiting = [0] if instructions else []
    if waiting:
        before[0] = sum(bits.values())
    while waiting:
        place = waiting.pop()
        instruction, left = instructions[place], before[place] or 0
        if left & reads[place] and not instruction.operation.startswith(_FROM_MEMORY):
            left |= writes[place]
        elif instruction.guard is None:  # with a guard the register may keep its value
            left &= ~writes[place]
        for follower in code.followers(place):
            known = before[follower]
            if known is None or left & ~known:
                before[follower] = left | (known or 0)
                waiting.append(follower)
    return [
        frozenset(name for name in instruction.reads if (unset or 0) & bits[name])
        for instruction, unset in zip(instructions, before, strict=True)
    ]
