"""How fast abstim itself is: by stage, beside the reference's speed, and beside an earlier result."""

from abstim.study.bench.rate import FIGURES, STAGES, Against, BenchResult, Rate
from abstim.study.bench.rounds import bench, design_points, read_rows

__all__ = ["FIGURES", "STAGES", "Against", "BenchResult", "Rate", "bench", "design_points", "read_rows"]
