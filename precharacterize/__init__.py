"""What a basic block costs on one contention-free SP: program + pipeline latencies in, latency table out."""

from precharacterize.build import characterize
from precharacterize.parameters import Operation, PipelineParameters
from precharacterize.table import LatencyTable

__all__ = ["LatencyTable", "Operation", "PipelineParameters", "characterize"]
