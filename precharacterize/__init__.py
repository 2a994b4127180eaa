"""The cost of a basic block on one contention-free SP: program + pipeline latencies in, latency table out."""

from precharacterize.build import characterize
from precharacterize.table import LatencyTable, Operation, PipelineParameters

__all__ = ["LatencyTable", "Operation", "PipelineParameters", "characterize"]
