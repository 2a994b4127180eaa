"""Control flow of machine code, and the assembler's own subroutines: what an instruction of the PTX calls, always or on
its slow path, and a way through that."""

from collections.abc import Iterator, Mapping, Sequence

from functional.programs.program import Program
from precharacterize.machine_code.assemble import MachineInstruction
from precharacterize.machine_code.timing_classes import ends_block, falls_through

Code = list[MachineInstruction]
_MOST_WAYS = 1 << 12  # through a subroutine


def cut(code: Sequence[MachineInstruction]) -> list[Code]:
    """Blocks: instructions without a branch among them."""
    blocks: list[Code] = []
    for k, instruction in enumerate(code):
        if k == 0 or instruction.label or ends_block(code[k - 1]):
            blocks.append([])
        blocks[-1].append(instruction)
    return blocks


def calls_subroutine(instruction: MachineInstruction) -> bool:
    """Does it call what is no function of the program?"""
    return instruction.name == "CALL" and instruction.target.startswith("$__internal_")


def successors(blocks: list[Code], n: int, labels: Mapping[str, int]) -> list[int]:
    """Numbers of the blocks of functions that may follow block `n`; `labels`: of those that have one."""
    last = blocks[n][-1]
    if last.name == "BRX":
        return list(range(len(blocks)))  # a table of targets that is not in the code
    jumps = last.name in ("BRA", "CALL") and ends_block(last) and last.target in labels and not calls_subroutine(last)
    return ([labels[last.target]] if jumps else []) + ([n + 1] if falls_through(last) else [])


def is_slow(block: Code, at_line: Mapping[int, int], program: Program) -> bool:
    """Does a block call the slow path of a PTX instruction, as it does for rare operands alone?"""
    last = block[-1]
    if last.name != "CALL" or last.guard:
        return False
    made_of = {at_line[i.line] for i in block if i.line in at_line}
    return "slowpath" in last.target or (len(made_of) <= 1 and made_of <= program.slow_paths.keys())


def slow_paths_of(code: Sequence[MachineInstruction], program: Program) -> dict[int, Code]:
    """Position of a PTX instruction -> machine code executed where lanes take its slow path."""
    at_line = {i.line: i.index for i in program.instructions}
    blocks = cut(code)
    labels = {block[0].label: n for n, block in enumerate(blocks) if block[0].label}
    found: dict[int, Code] = {}
    for block in (block for block in blocks if is_slow(block, at_line, program)):
        of_ptx = [at_line[i.line] for i in block if i.line in at_line]
        if of_ptx and of_ptx[-1] in program.slow_paths:
            found.setdefault(of_ptx[-1], block + way_through(blocks, labels, block[-1]))
    return found


def way_through(blocks: list[Code], labels: Mapping[str, int], call: MachineInstruction) -> Code:
    """What is executed of the subroutine that an instruction calls, if it does: the way whose length is nearest to the
    mean, each branch being as likely as not."""
    if not calls_subroutine(call) or call.target not in labels:
        return []
    ways = [(share, way, sum(len(blocks[n]) for n in way)) for share, way in _ways(blocks, labels, labels[call.target])]
    mean = sum(share * length for share, _, length in ways) / sum(share for share, _, _ in ways)
    _, way, _ = min(ways, key=lambda each: abs(each[2] - mean))
    return [instruction for n in way for instruction in blocks[n]]


def _ways(blocks: list[Code], labels: Mapping[str, int], entry: int) -> Iterator[tuple[float, list[int]]]:
    """Ways from a block to where control returns, and how likely each is; none goes twice through a block."""
    left, count = [(1.0, [entry])], 0
    while left and count < _MOST_WAYS:
        share, way = left.pop()
        following = [n for n in successors(blocks, way[-1], labels) if n not in way]
        left += [(share / len(following), [*way, n]) for n in following]
        if not following:
            count += 1
            yield share, way
