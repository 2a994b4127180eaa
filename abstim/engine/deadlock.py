"""The error of a launch whose warps all wait for what nothing can bring: who waits, and for what."""

import numpy as np

from abstim.engine.state import PHASE_RING, State
from functional.arrays import UInt32
from functional.traces.line_record import PHASES, barrier_of, count_of, is_phase, line_of, phase_of
from precharacterize.table import BARRIERS

MOST_NAMED = 4  # waits that the error lists


def deadlock(state: State, records: UInt32[np.ndarray, " record"]) -> str:
    """One line about the first thread block that is left, for an InputError. `records`: of its trace."""
    left = np.flatnonzero((state.record.blocks["sm"] >= 0) & (state.record.blocks["retire_cycle"] < 0))
    block = int(left[state.sm["follows"][state.record.blocks["sm"][left]] == 0][0])  # one on an SM that is run
    sm = state.sm[state.record.blocks["sm"][block]]
    slot = int(np.flatnonzero((sm["block_position"] == block) & (sm["block_live"] > 0))[0])
    waits = _waits(state, sm, slot, records)
    named = [f"{_warps(warps)} at {place}" for place, warps in waits.items()]
    more = f", and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    return (
        f"deadlock in the detailed model: {_many(len(left), 'thread block')} wait for what nothing brings; of number "
        f"{block}: {'; '.join(named[:MOST_NAMED])}{more} (docs/deviations.md); "
        "--model analytic times it"
    )


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _waits(state: State, sm: np.ndarray, slot: int, records: np.ndarray) -> dict[str, list[int]]:
    """Warps of a slot, numbered within their thread block, by what they wait for."""
    found, slots = dict[str, list[int]](), int(sm["block_slots"][slot])
    for w in range(slots.bit_length()):
        if int(sm["running"]) & slots & 1 << w:
            found.setdefault(_place(state, sm, w, slot, records), []).append(w - (slots & -slots).bit_length() + 1)
    return found


def _place(state: State, sm: np.ndarray, w: int, slot: int, records: np.ndarray) -> str:
    if int(sm["at_phase"]) >> w & 1:
        return _phase(state, int(sm["number"]), slot, int(line_of(int(records[_waiting(sm, w, records)]))))
    if int(sm["held"]) >> w & 1:
        number = int(sm["waits_at"][w])
        row = state.barriers[sm["number"], slot, number]
        needed = int(row["needed"]) or int(sm["block_running"][slot])
        return f"barrier {number % BARRIERS} ({int(row['arrived'])} of {needed} warps came)"
    if int(sm["wanting"]) >> w & 1:
        return f"{int(sm['registers_wanted'][w] - sm['registers'][w])} registers more"
    if int(sm["awaiting"]) >> w & 1:
        return "the end of the kernel before"
    return "a copy that is not complete" if int(sm["copying"]) >> w & 1 else "an operand"


def _waiting(sm: np.ndarray, w: int, records: np.ndarray) -> int:
    """The record, of an access at `mbarrier`s, that says what for."""
    k = int(sm["phase_record"][w])
    while not (is_phase(line_of(int(records[k]))) and count_of(line_of(int(records[k])))):
        k += 1
    return k


def _phase(state: State, sm: int, slot: int, line: int) -> str:
    row = state.phases[sm, slot, barrier_of(line) * PHASE_RING + phase_of(line) % PHASE_RING]
    came = int(row["arrived"]) if int(row["tag"]) == phase_of(line) % PHASES + 1 else 0
    return f"mbarrier {barrier_of(line)} (phase {phase_of(line)}: {came} of {_many(count_of(line), 'arrival')})"


def _warps(warps: list[int]) -> str:
    runs = np.split(np.array(warps), np.flatnonzero(np.diff(warps) > 1) + 1)
    names = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"warp{'s' if len(warps) > 1 else ''} {', '.join(names)}"
