"""Photon (Liu, Sun, Carlson, MICRO 2023): kernel, warp and basic-block sampling together, switching by itself."""

import math
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field, replace

import numpy as np

from sampling.arrays import Float64, Int64
from sampling.estimate import Estimate, around, combine, exact
from sampling.launch_in_progress import Run, dispatch, finish
from sampling.photon.analysis import FEWEST, Analysis, KernelSampling, KnownLaunch, analyse
from sampling.protocol import BlockCode, Functional, Observation, Simulator
from sampling.statistics import batch_means, slope_of

PerClass = Float64[np.ndarray, " class"]


@dataclass(frozen=True)
class StabilityRule:
    """|1 - slope| < delta for retire over issue time of the last n, and the means of the last n and 2n within delta."""

    window: int
    delta: float = 0.03


class Detector:
    """The last 2n executions of one kind, fed in order of retirement."""

    def __init__(self, rule: StabilityRule) -> None:
        self.rule = rule
        self.issue: Float64[np.ndarray, " kept"] = np.empty(0)
        self.retire: Float64[np.ndarray, " kept"] = np.empty(0)

    def add(self, issue: Float64[np.ndarray, " new"], retire: Float64[np.ndarray, " new"]) -> None:
        """Append executions; only the last 2n are kept."""
        kept = 2 * self.rule.window
        self.issue = np.concatenate([self.issue, issue])[-kept:]
        self.retire = np.concatenate([self.retire, retire])[-kept:]

    @property
    def durations(self) -> Float64[np.ndarray, " at_most_n"]:
        """Cycles of the last n executions."""
        last = self.rule.window
        return self.retire[-last:] - self.issue[-last:]

    @property
    def slope(self) -> float:
        """Of the last n executions; infinite with fewer."""
        if len(self.issue) < self.rule.window:
            return float("inf")
        return slope_of(self.issue[-self.rule.window :], self.retire[-self.rule.window :])

    @property
    def drift(self) -> float:
        """Relative difference between the mean times of the last n and the last 2n executions; infinite with fewer."""
        if len(self.issue) < 2 * self.rule.window:
            return float("inf")
        longer = float((self.retire - self.issue).mean())
        return abs(float(self.durations.mean()) - longer) / longer if longer else 0.0

    @property
    def stable(self) -> bool:
        """Both conditions of the rule: the second guards against a local optimum of the first."""
        return abs(1.0 - self.slope) < self.rule.delta and self.drift < self.rule.delta


@dataclass(frozen=True)
class WarpSampling(StabilityRule):
    """Only where one type of warp is more than 95 % of them; n = 1024, delta = 3 %.

    A slot frees when a thread block's last warp retires, so the times of whole blocks, not of single warps, are carried
    on. What is skipped is not executed at all. The interval holds the error of the mean time, how far the last n
    warps and the n before them are apart, a trend within delta, and the spread of the last blocks to finish."""

    window: int = 1024
    dominance: float = 0.95
    seed: int = 0
    name = "warp"

    def possible(self, analysis: Analysis) -> bool:
        """Whether one type of warp dominates."""
        return bool(analysis.type_shares[0] > self.dominance)

    def predict(self, run: Run, detector: Detector, instructions_left: float, analysed: float) -> Estimate:
        """The launch's cycles, if everything not dispatched behaves as the last n warps. `instructions_left`: warp
        instructions of that; `analysed`: of what was executed for the analysis."""
        observed = run.retired(max(self.window // run.shape.warps_per_block, 1))[1]
        free = run.free_cycles(np.full(len(run.seen.resident_blocks), observed.mean()))
        return self.extrapolate(run, observed, free, len(run.remaining), detector.drift, instructions_left, analysed)

    def extrapolate(
        self, run: Run, observed: Float64[np.ndarray, " n"], free: Float64[np.ndarray, " slot"], count: int,
        drift: float, instructions_left: float, analysed: float,
    ) -> Estimate:  # fmt: skip
        """Cycles when `count` more thread blocks take times like those observed, from slots that free as given."""
        ends = finish(free, observed, count, np.random.default_rng(self.seed))
        total = float(ends.mean())
        now = run.seen.clock_cycles
        mean, error, degrees = batch_means(observed)
        unseen = self.delta / math.sqrt(3.0)  # uniform: what the rule of stability lets pass
        relative = math.hypot(error / mean if mean else 0.0, 2 * drift if math.isfinite(drift) else 0.0, unseen)
        spread = math.hypot((total - now) * relative, float(ends.std(ddof=1)))
        done = run.detailed_share(instructions_left)
        executed = done + analysed * done / run.seen.dispatched_instructions
        return around(
            self.name, total, spread, degrees, basis="sampled", detailed_fraction=done,
            functional_fraction=min(executed, 1.0), parts=run.parts(self.name, total, instructions_left),
        )  # fmt: skip


DEFAULT_LATENCY_CYCLES = 20.0  # of a class that nobody gives an initial value: about an ALU pipeline


def interval_cycles(code: BlockCode, latency_cycles: PerClass, initial_cycles: PerClass | None = None) -> float:
    """Cycles from a block's first issue to the next block's, for a warp alone. One issue a cycle; an instruction waits
    for the results of its sources. A class without an observed latency (NaN) takes its initial value, that of the cache
    or ALU it uses (`initial_cycles`)."""
    retire: list[float] = []
    issue = -1.0
    for kind, sources in zip(code.classes.tolist(), code.sources, strict=True):
        issue = max([issue + 1.0, *(retire[source] for source in sources)])
        retire.append(issue + _latency(kind, latency_cycles, initial_cycles))
    return issue + 1.0


def _latency(kind: int, observed: np.ndarray, initial: np.ndarray | None) -> float:
    for table in (observed, initial):
        if table is not None and kind < len(table) and not math.isnan(table[kind]):
            return float(table[kind])
    return DEFAULT_LATENCY_CYCLES


@dataclass(frozen=True)
class BlockSampling(StabilityRule):
    """n = 2048, delta = 3 %; on once blocks with more than 95 % of the instructions are stable. Blocks that never
    became stable take their mean so far; those never seen, the interval model over the latencies observed ("rare basic
    blocks")."""

    window: int = 2048
    stable_rate: float = 0.95
    name = "basic block"


class BlockTimes:
    """The basic blocks of one launch as they are observed."""

    def __init__(self, method: BlockSampling, functional: Functional) -> None:
        self.method, self.functional = method, functional
        self.detectors = [Detector(method) for _ in functional.block_instructions]
        self.latency_cycles: PerClass = np.empty(0)
        self.initial_cycles: PerClass = np.empty(0)

    def watch(self, seen: Observation) -> None:
        """Feed the basic blocks that retired."""
        order = np.argsort(seen.basic_blocks, kind="stable")
        kinds, starts = np.unique(seen.basic_blocks[order], return_index=True)
        for kind, rows in zip(kinds.astype(int).tolist(), np.split(order, starts[1:]), strict=False):
            self.detectors[kind].add(seen.basic_block_issue_cycles[rows], seen.basic_block_retire_cycles[rows])
        if len(seen.class_latency_cycles):
            self.latency_cycles, self.initial_cycles = seen.class_latency_cycles, seen.initial_latency_cycles

    def ready(self, analysis: Analysis) -> bool:
        """Whether to switch to basic-block sampling: by the share of analysed instructions that lies in stable ones."""
        stable = np.array([detector.stable for detector in self.detectors])
        return float(analysis.block_shares[stable].sum()) > self.method.stable_rate

    def cycles(self) -> tuple[Float64[np.ndarray, " basic_block"], Float64[np.ndarray, " basic_block"]]:
        """Predicted cycles of every block and their relative error (drift between the last n and 2n included)."""
        found = [self._block(number, detector) for number, detector in enumerate(self.detectors)]
        return np.array([cycles for cycles, _ in found]), np.array([error for _, error in found])

    def _block(self, number: int, detector: Detector) -> tuple[float, float]:
        if len(detector.durations) == 0:
            return interval_cycles(self.functional.code(number), self.latency_cycles, self.initial_cycles), 1.0
        mean, error, _ = batch_means(detector.durations)
        drift = detector.drift if math.isfinite(detector.drift) else 0.0
        return mean, math.hypot(error / mean, drift) if mean else 0.0


_FEWEST_BLOCKS = 256  # executed at once


class BlockPrediction:
    """Warps' times are sums of their basic blocks' times; a thread block takes as long as its slowest warp.

    The slowest of several noisy warps is slower than their mean times say. So predicted thread blocks are multiplied
    with ratios, observed over predicted, drawn from the last wave simulated in detail, with a chance in proportion to
    what was predicted: long blocks, whose ratio may differ, are most of the work. The interval holds the errors of
    the blocks' mean times, of the ratios' mean and its change over two waves, and the last block's spread."""

    def __init__(self, run: Run, times: BlockTimes, analysis: Analysis, analysed: float, seed: int = 0) -> None:
        self.run, self.functional = run, times.functional
        self.analysis, self.analysed, self.delta = analysis, analysed, times.method.delta
        self.executed = 0.0  # warp instructions of the thread blocks predicted so far, counted
        self.cycles, self.errors = times.cycles()
        self.rng = np.random.default_rng(seed)
        blocks, observed = run.retired(2 * run.shape.wave_blocks)
        predicted = self.warp_cycles(blocks).max(1, initial=1.0)
        ratios, wave = observed / predicted, run.shape.wave_blocks
        self.ratios = ratios[-wave:] if len(ratios) else np.ones(1)
        self.shares = predicted[-wave:] / predicted[-wave:].sum() if len(ratios) else np.ones(1)
        self.drift = abs(float(self.ratios.mean()) - float(ratios.mean())) if len(ratios) else 0.0
        self.mean_cycles = float(observed.mean()) if len(observed) else 0.0
        self.free = run.free_cycles(self._block_cycles(self.warp_cycles(run.seen.resident_blocks)))

    def warp_cycles(self, thread_blocks: Int64[np.ndarray, " tb"]) -> Float64[np.ndarray, "tb warp"]:
        """Predicted cycles of every warp of some thread blocks, which are executed for it."""
        if len(thread_blocks) == 0:
            return np.empty((0, self.run.shape.warps_per_block))
        return self._cycles_of(self.functional.profile(np.asarray(thread_blocks)).counts, len(thread_blocks))

    def _cycles_of(self, counts: Int64[np.ndarray, "warp block"], thread_blocks: int) -> Float64[np.ndarray, "tb warp"]:
        return np.maximum(counts @ self.cycles, 1.0).reshape(thread_blocks, -1)

    def _block_cycles(self, warps: Float64[np.ndarray, "tb warp"]) -> Float64[np.ndarray, " tb"]:
        return warps.max(1, initial=0.0) * self.rng.choice(self.ratios, len(warps), p=self.shares)

    def finish(self, warp: WarpSampling | None, detector: Detector | None) -> Estimate:
        """Execute and predict chunk by chunk; hand over once the warp detector is content with predicted warps."""
        remaining, chunk = self.run.remaining, max(self.run.chunk, _FEWEST_BLOCKS)
        predicted: list[np.ndarray] = []
        for start in range(0, len(remaining), chunk):
            blocks = remaining[start : start + chunk]
            counts = self.functional.profile(blocks).counts
            self.executed += float((counts @ self.functional.block_instructions).sum())
            warps = self._cycles_of(counts, len(blocks))
            predicted.append(self._block_cycles(warps))
            starts, self.free = dispatch(self.free, predicted[-1])
            left = len(remaining) - start - len(warps)
            if warp is None or detector is None or left == 0:
                continue
            scaled = warps * (predicted[-1] / warps.max(1))[:, None]
            detector.add(np.repeat(starts, warps.shape[1]), (starts[:, None] + scaled).ravel())
            if detector.stable:
                last = np.concatenate(predicted)[-max(warp.window // self.run.shape.warps_per_block, 1) :]
                total = self.run.shape.thread_blocks
                unseen = self.executed + self.analysis.instructions_from(total - left, total)
                rest = warp.extrapolate(self.run, last, self.free, left, detector.drift, unseen, 0.0)
                return self._estimate(rest.total, rest.standard_error, unseen, "basic block, then warp")
        return self._estimate(float(self.free.max()), 0.0, self.executed, "basic block")

    def _estimate(self, total: float, error: float, left: float, how: str) -> Estimate:
        run, now = self.run, self.run.seen.clock_cycles
        mean, ratio_error, degrees = batch_means(self.ratios)
        unseen = self.delta / math.sqrt(3.0)
        relative = math.hypot(self._block_error(), (ratio_error + self.drift) / mean, unseen)
        last = float(self.ratios.std()) * self.mean_cycles
        spread = math.sqrt(((total - now) * relative) ** 2 + error**2 + last**2)
        done = run.seen.dispatched_instructions
        executed = (done + self.analysed + self.executed) / (done + left)
        return around(
            "basic block", total, spread, degrees, basis="sampled", detailed_fraction=run.detailed_share(left),
            functional_fraction=min(executed, 1.0), parts=run.parts(how, total, left),
        )  # fmt: skip

    def _block_error(self) -> float:
        """Relative error of a warp's time from those of its basic blocks' times."""
        blocks, _ = self.run.retired(2 * self.run.shape.wave_blocks)
        if len(blocks) == 0:
            return 1.0
        work = self.functional.profile(blocks).counts.sum(0) * self.cycles
        return float(np.linalg.norm(work * self.errors) / work.sum()) if work.sum() else 0.0


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
