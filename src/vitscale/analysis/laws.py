"""Amdahl's, Gustafson's and the Universal Scalability Law, fitted to a series with honest intervals, or refused.

In: runs' rates by world size. Out: Fit. Each law is linear in its unknowns once the right side is chosen, so a few
Gauss-Newton steps on logs fit it. An interval is the wider of two: from the scatter about the curve, which sees what
the law does not explain, and from the repeats of each world size, which lets noise grow with it (Satterthwaite).
docs/analysis.md has formulas, sources and measured coverage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vitscale.analysis.statistics import ALPHA, t_quantile
from vitscale.analysis.summary import Fit, Interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Points = Sequence[tuple[int, Sequence[float]]]
Law = Literal["amdahl", "gustafson", "usl"]
_MISFIT = 0.1  # a curve that is off by more than this at some world size, beyond noise, is no description
_CURVE = 60


@dataclass(frozen=True)
class _Form:
    """side: 1 if the rate is linear in the unknowns, -1 if the time per image is. basis: functions of world size."""

    side: int
    basis: tuple[Callable[[float], float], ...]
    parameters: Callable[[Array], dict[str, float]]
    bounds: dict[str, tuple[float, float]]


_FORMS: dict[Law, _Form] = {
    # T(N) = a + b/N, p = b / (a + b)
    "amdahl": _Form(
        -1, (lambda n: 1.0, lambda n: 1 / n), lambda u: {"p": float(u[1] / (u[0] + u[1]))}, {"p": (0.0, 1.0)}
    ),
    # X(N) = a + b N, p = b / (a + b)
    "gustafson": _Form(
        1, (lambda n: 1.0, lambda n: n), lambda u: {"p": float(u[1] / (u[0] + u[1]))}, {"p": (0.0, 1.0)}
    ),
    # T(N) = a + b/N + c N, sigma = (a + c) / (a + b + c), kappa = c / (a + b + c)
    "usl": _Form(
        -1,
        (lambda n: 1.0, lambda n: 1 / n, lambda n: n),
        lambda u: {"sigma": float((u[0] + u[2]) / u.sum()), "kappa": float(u[2] / u.sum())},
        {"sigma": (0.0, 1.0), "kappa": (0.0, math.inf)},
    ),
}

# Where the full law's estimate is below zero, the rest is fitted again without it.
_WITHOUT: dict[str, _Form] = {
    "sigma": _Form(-1, (lambda n: 1 / n, lambda n: n - 1), lambda u: {"sigma": 0.0, "kappa": float(u[1] / u[0])}, {}),
    "kappa": _Form(
        -1, (lambda n: 1.0, lambda n: 1 / n), lambda u: {"sigma": float(u[0] / (u[0] + u[1])), "kappa": 0.0}, {}
    ),
}


def fit(law: Law, points: Points) -> Fit:
    """Fit one law to the rates of each world size, smallest first; or say why not."""
    form = _FORMS[law]
    needed = len(form.basis) + 1
    if len(points) < needed:
        have = f"{len(points)} world size{'s' if len(points) > 1 else ''}"
        return Fit(law, refused=f"{have}; the law has {needed - 1} unknowns, so it takes {needed} to test it")
    fitted = _Fitted(form, points)
    if fitted.misfit() > _MISFIT and fitted.lack_of_fit():
        doubt = "more than repeats differ" if fitted.repeated else "and nothing ran twice to say whether that is noise"
        return Fit(law, refused=f"the points leave its curve by up to {fitted.misfit():.0%}, {doubt}")
    intervals = fitted.intervals()
    best = {name: interval.value for name, interval in intervals.items()}
    if law == "usl" and min(best.values()) < 0:
        reduced = _Fitted(_WITHOUT[min(best, key=lambda name: best[name])], points)
        best = reduced.parameters()
        intervals = {name: _union(interval, reduced.intervals()[name]) for name, interval in intervals.items()}
    return _bounded(law, form, points, intervals, best)


def _union(a: Interval, b: Interval) -> Interval:
    return Interval(
        a.value, min(x for x in (a.low, b.low) if x is not None), max(x for x in a[1:] + b[1:] if x is not None)
    )


def _bounded(law: Law, form: _Form, points: Points, raw: dict[str, Interval], best: dict[str, float]) -> Fit:
    """Keep the estimates within what the law allows; refuse where the whole interval is outside, or says nothing."""
    clipped = {}
    for name, (low, high) in form.bounds.items():
        _, a, b = raw[name]
        assert a is not None
        assert b is not None
        if name != "kappa" and (b < low or a > high):
            return Fit(law, refused="the speed-up is above linear, beyond noise; the law has no room for that")
        value, a, b = (min(max(x, low), high) for x in (best[name], a, b))
        clipped[name] = Interval(value, min(a, value), max(b, value))
    if all(clipped[name][1:] == bound for name, bound in form.bounds.items()):
        return Fit(law, refused="the points are too noisy: every value from 0 to 1 would do")
    values = {name: interval.value for name, interval in clipped.items()}
    start, end = points[0][0], points[-1][0]
    sizes = [start + (end - start) * i / (_CURVE - 1) for i in range(_CURVE)]
    return Fit(
        law,
        clipped,
        tuple((n, _speedup(law, values, n) / _speedup(law, values, start)) for n in sizes),
        max_speedup=1 / (1 - values["p"]) if law == "amdahl" and values["p"] < 1 else None,
        best_world_size=_peak(clipped) if law == "usl" else None,
    )


def _speedup(law: Law, values: dict[str, float], n: float) -> float:
    """Speed-up at n devices beside one."""
    if law == "amdahl":
        return 1 / (1 - values["p"] + values["p"] / n)
    if law == "gustafson":
        return 1 - values["p"] + values["p"] * n
    return n / (1 + values["sigma"] * (n - 1) + values["kappa"] * n * (n - 1))


def _peak(parameters: dict[str, Interval]) -> float | None:
    """Where the Universal Scalability Law turns down, if the points show that it does."""
    sigma, kappa = parameters["sigma"], parameters["kappa"]
    return math.sqrt((1 - sigma.value) / kappa.value) if kappa.low else None


class _Fitted:
    """Least squares on logs: residuals and influences of the runs on the unknowns."""

    def __init__(self, form: _Form, points: Points) -> None:
        import numpy as np

        self.form = form
        sizes = [(n, rate) for n, rates in points for rate in rates]
        groups = np.repeat(np.arange(len(points)), [len(rates) for _, rates in points])
        self.groups = [np.flatnonzero(groups == i) for i in range(len(points))]
        target = np.array([rate for _, rate in sizes], dtype=float) ** form.side
        self.basis = np.array([[f(n) for f in form.basis] for n, _ in sizes])
        self.unknowns = np.linalg.lstsq(self.basis / target[:, None], np.ones(len(target)), rcond=None)[0]
        for _ in range(20):
            model = self._model()
            slope = self.basis / model[:, None]
            step = np.linalg.lstsq(slope, np.log(target) - np.log(model), rcond=None)[0]
            self.unknowns = self.unknowns + step
        model = self._model()
        self.slope = self.basis / model[:, None]
        self.residuals = np.log(target) - np.log(model)

    def _model(self) -> Array:
        """The fitted side; a step that made it negative somewhere is pulled back to where it can be logged."""
        import numpy as np

        model: Array = self.basis @ self.unknowns
        return np.maximum(model, 1e-3 * float(np.abs(model).max()))

    def misfit(self) -> float:
        """The largest distance between curve and mean at a world size, relative."""
        return max(abs(math.expm1(float(self.residuals[members].mean()))) for members in self.groups)

    def lack_of_fit(self) -> bool:
        """Whether the means leave the curve by more than repeats differ (F-test); True where nothing ran twice."""
        from scipy.special import fdtrc

        between, df_between, within, df_within = self._squares()
        if not df_within:
            return True
        return bool(within == 0 or fdtrc(df_between, df_within, between / df_between / (within / df_within)) < ALPHA)

    @property
    def repeated(self) -> bool:
        """Whether any world size ran more than once."""
        return len(self.residuals) > len(self.groups)

    def parameters(self) -> dict[str, float]:
        """The law's parameters, not yet within bounds."""
        return self.form.parameters(self.unknowns)

    def intervals(self) -> dict[str, Interval]:
        """Every parameter with its interval, not yet within bounds."""
        import numpy as np

        gradients = self._gradients()
        values = self.parameters()
        influence = np.linalg.pinv(self.slope)
        result = {}
        for name, gradient in gradients.items():
            weights = gradient @ influence
            reach = max(self._reach_by_scatter(weights), self._reach_by_repeats(weights))
            result[name] = Interval(values[name], values[name] - reach, values[name] + reach)
        return result

    def _gradients(self) -> dict[str, Array]:
        """Of the parameters by the unknowns, by central differences: the parameters are smooth ratios."""
        import numpy as np

        steps = 1e-6 * np.maximum(np.abs(self.unknowns), 1e-6 * np.abs(self.unknowns).max())
        columns = []
        for i, step in enumerate(steps):
            shift = np.zeros_like(self.unknowns)
            shift[i] = step
            up, down = self.form.parameters(self.unknowns + shift), self.form.parameters(self.unknowns - shift)
            columns.append({name: (up[name] - down[name]) / (2 * step) for name in up})
        return {name: np.array([column[name] for column in columns]) for name in columns[0]}

    def _squares(self) -> tuple[float, int, float, int]:
        """Sums of squares and degrees of freedom: of means about the curve, and of runs about their mean."""
        parts = [self.residuals[members] for members in self.groups]
        between = sum(len(part) * float(part.mean()) ** 2 for part in parts)
        within = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
        return between, len(parts) - len(self.form.basis), within, len(self.residuals) - len(parts)

    def _reach_by_scatter(self, weights: Array) -> float:
        """Half the interval if noise is even. Where the curve misses beyond noise, only the misses count."""
        between, df_between, within, df_within = self._squares()
        if df_within and not self.lack_of_fit():
            variance, df = (between + within) / (df_between + df_within), df_between + df_within
        else:
            variance, df = between / df_between, df_between
        # One run each: nobody can see whether noise is even, so the level is 97.5 %.
        tail = ALPHA / 2 if df_within else ALPHA / 4
        return t_quantile(1 - tail, df) * math.sqrt(float(weights @ weights) * variance)

    def _reach_by_repeats(self, weights: Array) -> float:
        """Half the interval if each world size has its own noise; 0 where one of them ran once."""
        if any(len(members) < 2 for members in self.groups):
            return 0.0
        variances = [
            float((weights[members] ** 2).sum() * self.residuals[members].var(ddof=1)) for members in self.groups
        ]
        total = sum(variances)
        if total == 0:
            return 0.0
        pairs = zip(variances, self.groups, strict=True)
        df = total**2 / sum(part**2 / (len(members) - 1) for part, members in pairs)
        return t_quantile(1 - ALPHA / 2, df) * math.sqrt(total)
