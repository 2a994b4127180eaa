"""How little is enough: what of a program to simulate, and how to extrapolate. Imports no other package of the project.

Over launches: make a `Profile`, `method.select(profile)`, simulate `selection.units`, `selection.estimate(cycles)`.
Inside a launch: `method.launch(simulator, ...)` with a `protocol.Simulator`. Both give an `Estimate`."""

from sampling.baselines import FirstInstructions, Full, RandomUnits, Systematic
from sampling.estimate import Estimate, Part
from sampling.photon import Photon
from sampling.pka import Pkp, Pks, TwoLevel
from sampling.protocol import Functional, LaunchShape, Observation, Simulator, WarpProfile
from sampling.selection import Profile, SamplingError, Selection
from sampling.sieve import Sieve
from sampling.simpoint import SimPoint
from sampling.stem import Stem
from sampling.tbpoint import InterLaunch, IntraLaunch

__all__ = [
    "Estimate", "FirstInstructions", "Full", "Functional", "InterLaunch", "IntraLaunch", "LaunchShape", "Observation",
    "Part", "Photon", "Pkp", "Pks", "Profile", "RandomUnits", "SamplingError", "Selection", "Sieve", "SimPoint",
    "Simulator", "Stem", "Systematic", "TwoLevel", "WarpProfile",
]  # fmt: skip
