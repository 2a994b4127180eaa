"""What of a GPU the occupancy model does not look at: refused where it is changed, because the answer would not be."""

from __future__ import annotations

from collections.abc import Iterable

from abstim.gpu.config import Gpu
from functional.errors import InputError
from precharacterize.table import UNITS

UNREAD = frozenset(
    {"two_level_active_warps", "posted_stores", "crossbar_output_queues", "l2_reply_sectors", "l1i_mshrs",
     "const_mshrs", "l1d_mshrs", "l1d_mshr_merges", "l1d_miss_queue", "inject_queue_flits", "crossbar_queue_flits",
     "l2_mshrs", "l2_mshr_merges", "l2_miss_queue", "l2_dirty_ways", "l2_queue", "dram_bank_groups", "dram_queue",
     "dram_requests", "dram_two_commands", "dram_burst_bytes", "dram_burst_cycles", "dram_group_burst_cycles",
     "dram_row_to_row_cycles", "dram_row_active_cycles", "dram_row_cycle_cycles", "dram_read_cycles",
     "dram_write_cycles", "dram_write_to_read_cycles", "dram_write_recovery_cycles", "dram_read_to_precharge_cycles",
     "l1_miss_extra_cycles", "l1i_miss_extra_cycles"}
    | {f"{kind}_port_width" for kind in UNITS}
)  # fmt: skip
SET = "--set"


def refuse_unread(keys: Iterable[str], option: str) -> None:
    """Raises InputError for the first of some keys that this model does not look at. `option`: who names it."""
    for key in keys:
        if key in UNREAD:
            raise InputError(f"{option} {key}: the occupancy model does not look at it; use --model detailed")


def refuse_set(gpu: Gpu) -> None:
    """The same of the keys that a user has set."""
    refuse_unread((key for key, setting in gpu.settings.items() if setting.source.startswith(SET)), SET)
