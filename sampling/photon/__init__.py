"""Photon (Liu, Sun, Carlson, MICRO 2023): online, at the levels of kernels, warps and basic blocks."""

from sampling.photon.analysis import Analysis, KernelSampling, analyse
from sampling.photon.photon import Photon
from sampling.photon.warps import BlockSampling, WarpSampling

__all__ = ["Analysis", "BlockSampling", "KernelSampling", "Photon", "WarpSampling", "analyse"]
