"""DRAM channels: the time of a read, banks, open rows, what is written back (docs/timing-rules.md, rule 11)."""

from __future__ import annotations

from abstim.engine.address_map import bank_of, row_of
from abstim.engine.rules import SECTORS, UNITS_A_CYCLE_LOG2
from abstim.engine.servers import serve
from functional.disk.compile import jit


@jit
def activate(m, bank, row):
    """Cycles to open a row of a bank: 0 if it is open."""
    if bank.open_row == row + 1:
        return 0
    bank.open_row = row + 1
    return m.activate_cycles


@jit
def read(shared, channel, local, time):
    """A sector of line `local` of a channel is asked for at `time`; returns when it has left DRAM.

    A channel serves its banks in turn: behind what waits for other banks a read waits one turn for each that waits
    for its own, and no longer than if the channel served all in order.
    """
    m = shared.machine
    bank = shared.banks[channel * m.dram_banks + bank_of(m, local)]
    opening = activate(m, bank, row_of(m, local))
    turn = (m.dram_banks * m.dram_sector_units) >> UNITS_A_CYCLE_LOG2
    in_turn = max(time, bank.served) + opening + turn
    in_order = serve(shared.channels, channel, time + opening, m.dram_sector_units)
    bank.served = min(in_order, in_turn)
    return bank.served + m.dram_cycles


@jit
def write_back(shared, channel, sectors, time):
    """Dirty sectors of a line that leaves L2 take the channel's time; returns how many there are."""
    count = 0
    for j in range(SECTORS):
        if (sectors >> j) & 1:
            count += 1
            serve(shared.channels, channel, time, shared.machine.dram_sector_units)
    return count
