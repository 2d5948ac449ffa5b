"""Verilog that linters pass, and a wrapper of a component with its memories.

Yosys writes operands of any width, registers with a value in their declaration, and wires of which some bits lead
nowhere. All three are legal, and linters warn of each: here operands are extended with zeros (no component has a
negative number), values at the start stand in ``initial``, and bits that lead nowhere are gathered in one wire whose
name says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from microarch.rtl import Memory, ports_of

# Passes of Yosys before Verilog is written: operators whose two sides have widths of their own become selections,
# vectors of which bits are never written (of shifts, and the last word that the PDU gathers) become bits, and vectors
# are cut where their parts are written apart (signs that are extended).
PASSES = (
    "proc -norom", "flatten", "opt_expr", "opt_clean -purge", "pmuxtree",
    "techmap t:$shr t:$shl t:$shiftx t:$shift", "splitnets w:*techmap* w:gathered",
    "simplemap t:$logic_not t:$logic_and t:$logic_or", "opt -purge", "splitnets -driver", "opt_clean -purge",
)  # fmt: skip
# Ports whose names are words of C++, to which Verilator translates: their names in Verilog.
RENAMED = {"set": "set_index"}

_NAME = r"(?:\\\S+ |[A-Za-z_]\w*)"
_PART = rf"{_NAME}(?:\s?\[\d+(?::\d+)?\])?|\d+'h[0-9a-f]+"
_OPERAND = rf"{_PART}|\{{[^{{}}]*\}}"
_BINARY = re.compile(rf"^(  assign ({_OPERAND})\s?= )({_OPERAND})\s? ([-+*&|^]|[<>=!]=|[<>]) ({_OPERAND})\s?;$", re.M)
_DECLARED = re.compile(rf"^  (input|output|wire|reg) (?:signed )?(?:\[(\d+):(\d+)\] )?({_NAME})\s?;$", re.M)
_VALUE = re.compile(rf"^(  reg (?:signed )?(?:\[\d+:\d+\] )?({_NAME})\s?) = ([^;]+);$", re.M)


def rename_ports(text: str) -> str:
    """Verilog, or the name of a port, with the names of RENAMED."""
    return re.sub(rf"\b({'|'.join(RENAMED)})\b", lambda found: RENAMED[found[0]], text)


def lint_free(text: str) -> str:
    """What Yosys wrote after ``PASSES``, as linters want it."""
    text = _VALUE.sub(r"\1;\n  initial \2 = \3;", text)
    bits = bits_of(text)

    def extended(found: re.Match) -> str:
        head, left, one, operator, other = found.groups()
        sizes = [_width(each, bits) for each in (one, other)]
        if operator == "<" and one == f"{max(sizes)}'h{2 ** max(sizes) - 1:x}":
            return f"{head}1'h0;"
        most = max(*sizes, 0 if operator in ("<", ">", "<=", ">=", "==", "!=") else _width(left, bits))
        both = zip((one, other), sizes, strict=True)
        sides = [each if most == n else f"{{ {most - n}'h0, {each} }}" for each, n in both]
        return f"{head}{sides[0]} {operator} {sides[1]};"

    text = _BINARY.sub(extended, text)
    unused = list(_unused(text, bits))
    if unused:
        nowhere = f"  wire unused_bits = &{{ 1'b0, {', '.join(unused)} }};\n"
        text = re.sub(r"^endmodule", nowhere + "endmodule", text, flags=re.M)
    return text


def bits_of(text: str) -> dict[str, range]:
    """Indices of the bits of every declared signal."""
    found = _DECLARED.findall(text)
    return {name.strip(): range(int(low or 0), int(high or 0) + 1) for _, high, low, name in found}


def _width(operand: str, bits: dict[str, range]) -> int:
    if operand.startswith("{"):
        return sum(_width(each.strip(), bits) for each in operand[1:-1].split(","))
    if (constant := re.match(r"(\d+)'h", operand)) is not None:
        return int(constant[1])
    part = re.search(r"\s?\[(\d+)(?::(\d+))?\]$", operand)
    if part is None:
        return len(bits[operand.strip()])
    return 1 if part[2] is None else int(part[1]) - int(part[2]) + 1


def _unused(text: str, bits: dict[str, range]) -> Iterator[str]:
    """Bits of signals that nothing reads, as slices."""
    read: dict[str, set[int]] = {name: set() for name in bits}
    outputs = {name.strip() for kind, _, _, name in _DECLARED.findall(text) if kind == "output"}
    for line in text.splitlines():
        if _DECLARED.match(line) or line.startswith(("module", "  initial")):
            continue
        assigned = re.match(rf"^\s*(?:assign |always .*|if \(.*\) |else )*(?:{_OPERAND})\s? <?= (.*);$", line)
        for name, high, low in re.findall(rf"({_NAME})(?:\s?\[(\d+)(?::(\d+))?\])?", assigned[1] if assigned else line):
            if (name := name.strip()) in read:
                each = range(int(low or high), int(high) + 1) if high else bits[name]
                read[name].update(each)
    for name, seen in read.items():
        left = [] if name in outputs else sorted(set(bits[name]) - seen)
        shown = name + " " * name.startswith("\\")
        if len(left) == len(bits[name]):
            yield shown
        elif left:
            yield from (f"{shown}[{bit}]" for bit in left)


def with_memories(block: str, component: Any) -> str | None:
    """A wrapper of a component with its memory as an array: what is read comes in the cycle of its address, and what is
    written is there in the next one. ``load`` writes a word of it from outside. None for a component without memories.
    """
    memories: list[Memory] = getattr(component, "memories", [])
    if not memories:
        return None
    (memory,) = memories
    ports = ports_of(component)
    address = [name for name in memory.address if name in ports]
    apart = len(memory.data) > 1  # each port has an address of its own
    ways = [address[i : i + 1] if apart else address for i in range(len(memory.data))]
    at_bits = max(sum(len(ports[name]) for name in ways[0]), 1)
    at = [f"{{ {', '.join(each)} }}" if each else "1'b0" for each in ways]
    given, word = {id(each) for each in component.inputs}, memory.port_bits
    outer = ["clk", "rst", "load", "load_at", "load_word", *(name for name in ports if name not in memory.data)]
    lines = ["input clk", "input rst", "input load"]
    lines += [f"input [{at_bits - 1}:0] load_at", f"input [{word - 1}:0] load_word"]
    for name, signal in ports.items():
        kind = "wire" if name in memory.data else "input" if id(signal) in given else "output"
        lines.append(f"{kind} [{len(signal) - 1}:0] {name}" if len(signal) > 1 else f"{kind} {name}")
    lines += [f"reg [{word - 1}:0] words [0:{2**at_bits - 1}]", "integer each"]
    lines += [f"assign {name} = words[{place}]" for name, place in zip(memory.data, at, strict=True)]
    lines.append(f"initial for (each = 0; each < {2**at_bits}; each = each + 1) words[each] = {word}'h0")
    writes = []
    if apart:
        writes = [f"if (state) words[{place}] <= {name}" for name, place in zip(memory.written, at, strict=True)]
    elif memory.written:
        enabled, stored = memory.written
        n = len(ports[enabled])
        part = word // n
        for way in range(n):
            enable = f"{enabled}[{way}]" if n > 1 else enabled
            of_word = f"[{(way + 1) * part - 1}:{way * part}]" if n > 1 else ""
            writes.append(f"if ({enable}) words[{at[0]}]{of_word} <= {stored}")
    body = "".join(f"    {each};\n" for each in ["if (load) words[load_at] <= load_word", *writes])
    declared = "".join(f"  {each};\n" for each in lines)
    connected = ", ".join(f".{name}({name})" for name in ["clk", "rst", *ports])
    return (
        f"// {block} with its memory {memory.name} as an array: to simulate, or to put a macro in its place.\n"
        f"module {block}_with_memory({', '.join(outer)});\n{declared}  always @(posedge clk) begin\n{body}  end\n"
        f"  {block} core ({connected});\nendmodule\n"
    )
