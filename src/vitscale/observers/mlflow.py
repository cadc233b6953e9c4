"""MLflow, an optional extra (pip install 'vitscale[mlflow]'). MLFLOW_TRACKING_URI says where to; else RUN/mlflow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vitscale.config.run import RunConfig
from vitscale.observers.scalars import scalars

_ID_FILE = "mlflow_id"
_MAX_VALUE = 500  # MLflow's oldest servers refuse longer parameter values


class MlflowObserver:
    """One MLflow run per run folder; its id is kept there so that a resumed run goes on in it."""

    def __init__(self, config: RunConfig, out: Path) -> None:
        self._config = config
        self._out = out
        self._started = False

    def start(self, info: dict[str, Any]) -> None:
        """Open or go on with the MLflow run; the config's values are its parameters."""
        if "MLFLOW_TRACKING_URI" not in os.environ:
            # MLflow's default would be a data base in the current folder; newer versions ask consent for a folder.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        import mlflow

        if "MLFLOW_TRACKING_URI" not in os.environ:
            mlflow.set_tracking_uri((self._out / "mlflow").absolute().as_uri())
        path = self._out / _ID_FILE
        known = path.read_text().strip() if path.exists() else None
        if known is None:
            mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "vitscale"))
        run = mlflow.start_run(run_id=known, run_name=None if known else self._out.name)
        self._started = True
        if known is None:
            path.write_text(run.info.run_id)
            mlflow.log_params(flat(self._config.model_dump(mode="json")))

    def metrics(self, row: dict[str, Any]) -> None:
        """One call per row."""
        import mlflow

        mlflow.log_metrics(scalars(row), step=row["update"])

    def event(self, row: dict[str, Any]) -> None:
        """Events stay in metrics.jsonl."""

    def close(self) -> None:
        """End the MLflow run."""
        if self._started:
            import mlflow

            mlflow.end_run()


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return dotted keys and values as text."""
    values: dict[str, str] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            values |= flat(value, f"{prefix}{name}.")
        else:
            values[prefix + name] = str(value)[:_MAX_VALUE]
    return values
