"""PKA (Baddouh et al., MICRO 2021): principal kernels, two-level profiling, and projection inside a launch."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sampling.arrays import Float64, Int64
from sampling.estimate import Estimate, around, exact
from sampling.launch_in_progress import Run, dispatch_equal
from sampling.nsight import LightProfile
from sampling.protocol import Simulator
from sampling.selection import MODEL_ERROR, Profile, SamplingError, Selection, first_of_each, profiled_spread
from sampling.statistics import batch_means, numbered


@dataclass(frozen=True)
class Pks:
    """K = 1..20, the first whose projection of the profiled cycles is within 5 %; the first launch of each cluster.

    A cluster's cycles are its representative's times its number of launches. Where no K is within the error, the best
    one is taken. Without profiled cycles the warp instructions stand for them. `variance`: share of it that the kept
    principal components explain. `measured = False` (not in the paper): nobody has measured the profile's cycles, so
    the projection must meet the error for each of the twelve characteristics too, and kernels share no cluster. The
    interval assumes that the projection is as good on the simulated GPU as on the profiled one (within `error`, or what
    was reached), and that a representative differs from its cluster by MODEL_ERROR and as profiled cycles do."""

    error: float = 0.05
    most_clusters: int = 20
    variance: float = 0.9995
    measured: bool = True
    seed: int = 0
    name = "PKS"

    def select(self, profile: Profile) -> Selection:
        """One launch a cluster. Raises SamplingError if the profile has no features."""
        cycles = np.asarray(profile.instructions if profile.cycles is None else profile.cycles, float)
        features = profile.need("features", self.name)
        points = principal(features, self.variance)
        if self.measured:
            strata = self.sweep(points, cycles[:, None], np.zeros(len(profile), np.int64))
        else:
            strata = self.sweep(points, np.column_stack([cycles, features]), profile.need("kernels", self.name))
        apart = max(self.error, projection_error(strata, cycles[:, None]))
        return Selection(
            method=self.name,
            units=first_of_each(strata),
            strata=strata,
            size=np.ones(len(profile)),
            instructions=np.asarray(profile.instructions, float),
            spread=np.hypot(MODEL_ERROR, profiled_spread(cycles, np.ones(len(profile)), strata)),
            bias=apart / (1.0 - min(apart, 0.9)),  # of the truth; a bias is of the estimate, which may be the smaller
        )

    def sweep(
        self, points: Float64[np.ndarray, "launch d"], reference: Float64[np.ndarray, "launch quantity"],
        kernels: Int64[np.ndarray, " launch"],
    ) -> Int64[np.ndarray, " launch"]:  # fmt: skip
        """Labels of the smallest K within the error, numbered by first appearance; kernels are kept apart."""
        from sklearn.cluster import KMeans

        distinct, inverse, weight = np.unique(points.round(9), axis=0, return_inverse=True, return_counts=True)
        best = (np.inf, np.zeros(len(points), np.int64))
        for k in range(1, min(self.most_clusters, len(distinct)) + 1):
            model = KMeans(k, n_init=1, random_state=self.seed).fit(distinct, sample_weight=weight)
            strata = numbered((model.labels_[inverse.reshape(-1)].astype(np.int64) + k * kernels).tolist())
            apart = projection_error(strata, reference)
            if apart < best[0]:
                best = (apart, strata)
            if apart <= self.error:
                break
        return best[1]


def principal(features: Float64[np.ndarray, "launch f"], variance: float) -> Float64[np.ndarray, "launch d"]:
    """Standardised features on the principal components that explain this share of their variance."""
    deviation = features.std(0)
    standard = (features - features.mean(0)) / np.where(deviation == 0, 1, deviation)
    _, singular, rows = np.linalg.svd(standard, full_matrices=False)
    power = singular**2
    if power.sum() == 0:
        return np.zeros((len(features), 1))
    kept = int(np.searchsorted(np.cumsum(power) / power.sum(), variance)) + 1
    return standard @ rows[:kept].T


def projection_error(strata: Int64[np.ndarray, " launch"], reference: Float64[np.ndarray, "launch quantity"]) -> float:
    """Relative error of the totals when every cluster is its first launch times its size; the largest of them."""
    first = np.unique(strata, return_index=True)[1]
    totals = reference.sum(0)
    projected = np.bincount(strata) @ reference[first]
    return float(np.abs(projected / np.where(totals == 0, 1, totals) - (totals != 0)).max())


CLASSIFIERS = ("sgd", "gaussian_nb", "mlp")


@dataclass(frozen=True)
class TwoLevel:
    """Groups from PKS on the first j launches; every later launch joins the group a classifier gives it. `classifier`:
    stochastic gradient descent, Gaussian naive Bayes or multi-layer perceptron, or "best": the one that labels a
    held-out quarter of the detailed launches best."""

    pks: Pks = field(default_factory=Pks)
    classifier: str = "best"
    seed: int = 0
    name = "PKS, two-level"

    def select(self, detailed: Profile, light: LightProfile, instructions: Float64[np.ndarray, " launch"]) -> Selection:
        """`detailed` holds the first launches of `light`; `instructions` (of all, may be approximate) weigh them."""
        first = self.pks.select(detailed)
        strata = np.concatenate([first.strata, self.classify(light, first.strata)])
        work = np.asarray(instructions, float)
        return replace(first, method=self.name, strata=strata, size=np.ones(len(strata)), instructions=work)

    def classify(self, light: LightProfile, groups: Int64[np.ndarray, " detailed"]) -> Int64[np.ndarray, " rest"]:
        """The groups of the launches after the detailed ones."""
        if len(groups) > len(light.names):
            many = f"{len(groups)} detailed launches, but only {len(light.names)} in all"
            raise SamplingError(f"two-level profiling: {many}")
        columns, count = light.columns(), len(groups)
        if count == len(columns):
            return np.empty(0, np.int64)
        if len(np.unique(groups)) == 1 or bool((columns[:count] == columns[0]).all()):  # nothing to tell them by
            return np.full(len(columns) - count, np.bincount(groups).argmax())
        mean, deviation = columns[:count].mean(0), columns[:count].std(0)
        columns = (columns - mean) / np.where(deviation == 0, 1, deviation)
        model = _model(self._chosen(columns[:count], groups), self.seed).fit(columns[:count], groups)
        return np.asarray(model.predict(columns[count:]), np.int64)

    def _chosen(self, columns: np.ndarray, groups: np.ndarray) -> str:
        if self.classifier != "best":
            return self.classifier
        order = np.random.default_rng(self.seed).permutation(len(groups))
        held, kept = np.split(order, [max(1, len(order) // 4)])
        if len(np.unique(groups[kept])) < 2 or bool((columns[kept] == columns[kept][0]).all()):
            return CLASSIFIERS[0]
        scores = [
            np.mean(_model(name, self.seed).fit(columns[kept], groups[kept]).predict(columns[held]) == groups[held])
            for name in CLASSIFIERS
        ]
        return CLASSIFIERS[int(np.argmax(scores))]


def _model(name: str, seed: int) -> Any:
    from sklearn.linear_model import SGDClassifier
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neural_network import MLPClassifier

    models = {
        "sgd": SGDClassifier(random_state=seed),
        "gaussian_nb": GaussianNB(var_smoothing=1e-3),  # indicator columns have no variance within a group
        "mlp": MLPClassifier((32,), solver="lbfgs", max_iter=2000, random_state=seed),
    }
    if name not in models:
        raise SamplingError(f"no classifier {name!r}; there are {', '.join(models)} and best")
    return models[name]


LOOKS = 8  # at a launch smaller than a wave, while a window passes


@dataclass(frozen=True)
class Pkp:
    """Rolling window of 3,000 cycles, s = 0.25, and at least a wave of thread blocks finished.

    s bounds the deviation of IPC in the window over its mean there, so that it does not depend on how wide the GPU is.
    Launches smaller than a wave need not finish one; but only `in_flight = False` stops them early. Cycles left are
    linear in the thread blocks not yet finished, and so is any statistic that grows with work. Those in flight count
    with what is left of them: each block takes the mean time of the last wave, on the slot that frees first.
    `in_flight = False`, the text, takes cycles so far x blocks / finished blocks, which is too long by what is in
    flight. The interval holds the errors of the mean time (its change over two waves included) and of IPC in the
    window, and the spread of the last block to finish."""

    window_cycles: int = 3000
    s: float = 0.25
    in_flight: bool = True
    name = "PKP"

    def launch(self, simulator: Simulator) -> Estimate:
        """One launch, and every other statistic that the simulator counts."""
        run = Run(simulator)
        ipc: Float64[np.ndarray, " window"] = np.empty(0)
        width, told = simulator.shape.window_cycles, 0
        kept = max(2, self.window_cycles // width)
        goes_on = not self.in_flight and run.shape.thread_blocks < run.shape.wave_blocks  # and may stop on its way
        while len(run.remaining) or (goes_on and run.finished < run.shape.thread_blocks):
            seen = run.step() if len(run.remaining) else run.advance(self.window_cycles // LOOKS)
            ipc = np.concatenate([ipc, seen.window_instructions])[-kept:]
            told += len(seen.window_instructions)
            current = told * width + self.window_cycles >= seen.clock_cycles  # a simulator may stop counting windows
            if self._enough(run) and len(ipc) == kept and current and self.quasi_stable(ipc):
                return self._project(run, ipc)
        total = run.finish()
        return exact(self.name, total, run.whole(total), dict(run.seen.counters))

    def _enough(self, run: Run) -> bool:
        """The one-wave rule; and, not in the paper, a wave on warm caches to project from and one to project: a launch
        that drains is not steady."""
        wave = run.shape.wave_blocks
        if run.shape.thread_blocks < wave:
            return 0 < run.finished < run.shape.thread_blocks
        steady = run.settled and len(run.remaining) >= wave
        return run.finished > wave and (steady or not self.in_flight)

    def quasi_stable(self, ipc: Float64[np.ndarray, " window"]) -> bool:
        """Whether the deviation of IPC over the window is below s of its mean."""
        mean = float(ipc.mean())
        return mean > 0 and float(ipc.std()) < self.s * mean

    def _project(self, run: Run, ipc: Float64[np.ndarray, " window"]) -> Estimate:
        now, whole, finished = run.seen.clock_cycles, run.shape.thread_blocks, run.finished
        cycles = run.retired(run.shape.wave_blocks)[1]
        if len(cycles) == 0:  # on cold caches, which the text does not ask about
            cycles = np.array([now])
        mean, error, degrees = batch_means(cycles)
        left = self.cycles_left(run, finished, mean)
        before = run.retired(2 * run.shape.wave_blocks)[1]
        drift = abs(float(before.mean()) / mean - 1.0) if len(before) else 0.0
        relative = np.hypot(error / mean + drift, float(ipc.std() / ipc.mean()) / np.sqrt(len(ipc)))
        spread = float(np.hypot(left * relative, cycles.std()))
        # as many warp instructions a thread block as those dispatched have
        unseen = run.seen.dispatched_instructions * len(run.remaining) / run.dispatched
        share = run.detailed_share(unseen)
        done = now / (now + left) if self.in_flight else finished / whole
        return around(
            self.name, now + left, spread, degrees, basis="sampled", detailed_fraction=share, functional_fraction=share,
            parts=run.parts("projection", now + left, unseen),
            counters={name: value / done for name, value in run.seen.counters.items()},
        )  # fmt: skip

    def cycles_left(self, run: Run, finished: int, mean_cycles: float) -> float:
        """Until the launch ends, if thread blocks go on taking their mean time."""
        now, whole = run.seen.clock_cycles, run.shape.thread_blocks
        if not self.in_flight:
            return now * (whole / finished - 1.0)
        free = run.free_cycles(np.full(len(run.seen.resident_blocks), mean_cycles))
        return float(dispatch_equal(free, mean_cycles, len(run.remaining)).max()) - now
