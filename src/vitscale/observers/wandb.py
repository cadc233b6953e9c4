"""Weights & Biases, an optional extra (pip install 'vitscale[wandb]'). Set WANDB_MODE=offline for no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitscale.config.run import RunConfig
from vitscale.observers.scalars import scalars

_ID_FILE = "wandb_id"


class WandbObserver:
    """One W&B run per run folder; its id is kept there so that a resumed run goes on in it."""

    def __init__(self, config: RunConfig, out: Path) -> None:
        self._config = config
        self._out = out
        self._run: Any = None

    def start(self, info: dict[str, Any]) -> None:
        """Open or go on with the W&B run. WANDB_PROJECT names the project, else 'vitscale'."""
        import os

        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "vitscale"),
            name=self._out.name,
            id=self._id(),
            resume="allow",
            dir=str(self._out),
            config={**self._config.model_dump(mode="json"), "session": info},
        )
        # Rows repeat after a resume; W&B's own step may only grow, so the update is a value of its own.
        self._run.define_metric("update")
        self._run.define_metric("*", step_metric="update")

    def metrics(self, row: dict[str, Any]) -> None:
        """One call per row."""
        self._run.log({**scalars(row), "update": row["update"]})

    def event(self, row: dict[str, Any]) -> None:
        """Events stay in metrics.jsonl."""

    def close(self) -> None:
        """Finish the upload."""
        if self._run is not None:
            self._run.finish()

    def _id(self) -> str:
        path = self._out / _ID_FILE
        if not path.exists():
            import secrets

            path.write_text(secrets.token_hex(4))
        return path.read_text().strip()
