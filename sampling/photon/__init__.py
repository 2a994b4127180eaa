"""Photon (Liu, Sun, Carlson, MICRO 2023): kernel, warp and basic-block sampling together, switching by itself."""

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field, replace

from sampling.estimate import Estimate, combine, exact
from sampling.launch_in_progress import Run
from sampling.photon.analysis import FEWEST, Analysis, KernelSampling, KnownLaunch, analyse
from sampling.photon.warps import BlockPrediction, BlockSampling, BlockTimes, Detector, WarpSampling
from sampling.protocol import Functional, Simulator

__all__ = ["Analysis", "BlockSampling", "KernelSampling", "Photon", "WarpSampling", "analyse"]


@dataclass(eq=False)
class Photon:
    """Levels may be switched off by None. A launch in which nothing becomes stable is simulated in full.

    The object remembers the launches it has seen: kernel sampling predicts later ones from them. `analysis_share`: of
    the warps, executed functionally before anything else. `pays`: share of a launch's thread blocks; nothing is
    watched beyond it, nor once it is clear that skipping cannot begin before it, nor where a launch of the kernel with
    as many thread blocks was watched in vain: watching costs as much as timing. Not in the paper; 1 watches every
    launch to its end."""

    kernel: KernelSampling | None = field(default_factory=KernelSampling)
    warp: WarpSampling | None = field(default_factory=WarpSampling)
    block: BlockSampling | None = field(default_factory=BlockSampling)
    analysis_share: float = 0.01
    dimensions: int = 16
    request_tolerance: float = 0.1
    pays: float = 1 / 3
    in_vain: dict[str, int] = field(default_factory=dict)  # thread blocks of the largest such launch, by kernel
    name = "Photon"

    def program(
        self, launches: Iterable[tuple[Simulator, Functional]], analyses: MutableMapping[int, Analysis] | None = None
    ) -> Estimate:
        """All launches of a program, in order. `analyses` of launches by number, kept from earlier runs, on whatever
        GPU, are used; those made anew are added."""
        estimates, instructions, sources = [], [], []
        kept = {} if analyses is None else analyses
        for number, (simulator, functional) in enumerate(launches):
            estimate, weight, match, analysis = self._launch(simulator, functional, kept.get(number))
            if number not in kept:
                kept[number] = analysis
            estimates.append(estimate)
            instructions.append(weight)
            sources.append(number if match is None else match)
        return combine(self.name, estimates, instructions, sources)

    def launch(self, simulator: Simulator, functional: Functional, analysis: Analysis | None = None) -> Estimate:
        """One launch. `analysis`: one kept from an earlier run, on whatever GPU; nothing is executed for it then."""
        return self._launch(simulator, functional, analysis)[0]

    def _launch(
        self, simulator: Simulator, functional: Functional, analysis: Analysis | None
    ) -> tuple[Estimate, float, KnownLaunch | None, Analysis]:
        """Estimate, instructions, which known launch it is or was predicted from: they share their error; analysis."""
        shape = simulator.shape
        known = analysis or analyse(functional, shape, self.analysis_share, self.dimensions)
        if self.kernel is not None and (match := self.kernel.match(known, shape)) is not None:
            estimate = self.kernel.predict(known, shape, match)
            return estimate, sum(part.instructions for part in estimate.parts), match, known
        analysed = 0.0 if analysis is not None else known.instructions
        estimate = replace(self._inside(simulator, functional, known, analysed), method=self.name)
        instructions = sum(part.instructions for part in estimate.parts)
        if self.kernel is not None:
            found = KnownLaunch(analysis=known, shape=shape, instructions=instructions, estimate=estimate)
            self.kernel.remember(found)
            return estimate, instructions, found, known
        return estimate, instructions, None, known

    def _inside(self, simulator: Simulator, functional: Functional, analysis: Analysis, analysed: float) -> Estimate:
        run = Run(simulator)
        warp = self.warp if self.warp is not None and self.warp.possible(analysis) else None
        detector = Detector(warp) if warp else None
        times = BlockTimes(self.block, functional) if self.block is not None else None
        most = self.pays * run.shape.thread_blocks
        if self.pays < 1.0 and self.in_vain.get(run.shape.kernel, 0) >= run.shape.thread_blocks:
            run.forget()
        while len(run.remaining) and run.watched:
            run.step()
            seen = run.steady()
            if warp is not None and detector is not None:
                detector.add(seen.warp_issue_cycles, seen.warp_retire_cycles)
                if detector.stable and self._may_skip(run, analysis):
                    left = analysis.instructions_from(run.dispatched, run.shape.thread_blocks)
                    return warp.predict(run, detector, left, analysed)
            if max(run.earliest_skip(), run.dispatched) > most:
                run.forget()
                break
            if times is not None:
                times.watch(seen)
                if times.ready(analysis) and self._may_skip(run, analysis):
                    return BlockPrediction(run, times, analysis, analysed).finish(warp, detector)
        if run.shape.kernel:
            self.in_vain[run.shape.kernel] = max(self.in_vain.get(run.shape.kernel, 0), run.shape.thread_blocks)
        if len(run.remaining):
            run.step(run.remaining)
        total = run.finish()
        return exact(self.name, total, run.whole(total))

    def _may_skip(self, run: Run, analysis: Analysis) -> bool:
        """Not within the last wave either: a launch that drains is not steady (not in the paper)."""
        retired = max(run.dispatched - run.shape.wave_blocks, 1)
        wave = round(run.shape.wave_blocks * len(analysis.thread_blocks) / run.shape.thread_blocks)
        return (
            len(run.remaining) >= run.shape.wave_blocks
            and run.settled
            and analysis.resembles(retired, run.dispatched, self.request_tolerance, max(wave, FEWEST))
        )
