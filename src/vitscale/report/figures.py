"""All figures of a report, in the order in which they are read. What each shows is in the modules that it calls."""

from __future__ import annotations

from vitscale.analysis.summary import Summary
from vitscale.report import attribution_figures, case_figures, learning_figures, scaling_figures
from vitscale.report.figure import Figure


def figures(summary: Summary) -> list[Figure]:
    """The figures that this study's records allow; none is drawn empty."""
    return [
        *scaling_figures.scaling(summary),
        *case_figures.throughput(summary),
        *attribution_figures.attribution(summary),
        *case_figures.batches(summary),
        *learning_figures.learning(summary),
    ]
