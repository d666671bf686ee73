"""Compiler and assembler report of a kernel: registers, shared memory, stack, spills, unset registers."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PROPERTIES = re.compile(
    r"Function properties for (\w+)\s.*?(\d+) bytes stack frame, (\d+) bytes spill stores", re.DOTALL
)
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class ResourceReport:
    """Per thread: registers; stack_bytes and spill_bytes (stored) of local memory. Per block: static shared_bytes.

    unset_use: the first instruction of the PTX that branches on a register, or addresses memory with one, that some
    path has not written (ptx_registers.py); "" if there is none, None where the PTX was not examined.
    """

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int
    unset_use: str | None = None

    @property
    def fault(self) -> str | None:
        """Why the behaviour of the kernel is undefined, or not known to be defined; None where it is."""
        if self.unset_use is None:
            return "expected PTX from the compiler, found none: registers that are used unset cannot be found"
        if not self.unset_use:
            return None
        return f"{self.unset_use} depends on a register that some path does not set: set its variable on every path"

    @property
    def problem(self) -> str | None:
        """Why the kernel is slower than it has to be, or None."""
        if self.spill_bytes:
            return f"spills {self.spill_bytes} bytes per thread"
        if self.stack_bytes:
            return f"keeps {self.stack_bytes} bytes per thread in local memory"
        return None


def report_from_log(log: str, entry: str) -> ResourceReport | None:
    """The report of kernel ``entry`` in the log of ``ptxas -v``, None when the log has none."""
    for block in log.split("Compiling entry function")[1:]:
        properties = next((match for match in _PROPERTIES.finditer(block) if match[1] == entry), None)
        registers = _REGISTERS.search(block)
        if properties is not None and registers is not None:
            shared = _SHARED.search(block)
            stack, spilled = (int(number) for number in properties.groups()[1:])
            return ResourceReport(int(registers[1]), int(shared[1]) if shared else 0, stack, spilled)
    return None
