"""Sweeps over design points: what to vary, which points to time, what came out.

explore(["hotspot"], sweep_of(load_gpu("gtx480"), ["sm_count=8:64:8"])).table()"""

from abstim.study.explore.result import Exploration
from abstim.study.explore.sweep import Sweep, explore, sweep_of

__all__ = ["Exploration", "Sweep", "explore", "sweep_of"]
