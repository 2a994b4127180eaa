"""Photon (Liu, Sun, Carlson, MICRO 2023): online, at the levels of kernels, warps and basic blocks."""

from sampling.photon.bbv import Analysis, analyse
from sampling.photon.block_sampling import BlockSampling
from sampling.photon.kernel_sampling import KernelSampling
from sampling.photon.photon import Photon
from sampling.photon.warp_sampling import WarpSampling

__all__ = ["Analysis", "BlockSampling", "KernelSampling", "Photon", "WarpSampling", "analyse"]
