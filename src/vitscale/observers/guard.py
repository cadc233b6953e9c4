"""Guarded: an observer whose failure must not end a run, because a service or a network is not the run's business."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vitscale.launch.failure import first_line

if TYPE_CHECKING:
    from vitscale.trainer import Observer


class Guarded:
    """Passes everything on until the observer fails; says so once and is silent from then on."""

    def __init__(self, name: str, observer: Observer) -> None:
        self._name = name
        self._observer: Observer | None = observer

    def start(self, info: dict[str, Any]) -> None:
        """Pass on."""
        self._try(lambda observer: observer.start(info))

    def metrics(self, row: dict[str, Any]) -> None:
        """Pass on."""
        self._try(lambda observer: observer.metrics(row))

    def event(self, row: dict[str, Any]) -> None:
        """Pass on."""
        self._try(lambda observer: observer.event(row))

    def close(self) -> None:
        """Pass on."""
        self._try(lambda observer: observer.close())

    def _try(self, call: Callable[[Observer], None]) -> None:
        if self._observer is None:
            return
        try:
            call(self._observer)
        except Exception as error:
            self._observer = None
            print(f"{self._name} gets no more rows: {first_line(error)}; training goes on", file=sys.stderr, flush=True)
