"""TBPoint (Huang, Nai, Kim, Lee, IPDPS 2014): representative launches, homogeneous regions inside them."""

from sampling.tbpoint.inter import InterLaunch
from sampling.tbpoint.intra import IntraLaunch
from sampling.tbpoint.regions import Region, identify
from sampling.tbpoint.tbpoint import TBPoint

__all__ = ["InterLaunch", "IntraLaunch", "Region", "TBPoint", "identify"]
