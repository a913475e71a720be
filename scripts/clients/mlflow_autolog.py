"""MLflow: autologging goes on when a `Trainer` trains."""

from __future__ import annotations

from pathlib import Path

import mlflow

from overlap_train import Trainer
from scripts.clients.case import ARGUMENTS, Run, X, Y, build

mlflow.set_tracking_uri(f"sqlite:///{Path.cwd()}/mlflow.db")


def _logged() -> dict[str, list[float]]:
    """Returns what the last run has logged of each metric."""
    (run,) = mlflow.search_runs(output_format="list", max_results=1)
    client = mlflow.MlflowClient()
    return {name: [m.value for m in client.get_metric_history(run.info.run_id, name)] for name in ARE_LOGGED}


ARE_LOGGED = ("loss", "val_loss", "accuracy", "val_accuracy")


def stock() -> Run:
    mlflow.keras.autolog(log_models=False)
    model = build()
    model.fit(X, Y, **ARGUMENTS)
    return Run({**Run.of(model).values, **{f"logged {n}": v for n, v in _logged().items()}})


def ours() -> Run:
    mlflow.keras.autolog(log_models=False)
    model = build()
    trainer = Trainer(model)
    trainer.fit(X, Y, **ARGUMENTS)
    return Run({**Run.of(model).values, **{f"logged {n}": v for n, v in _logged().items()}}, trainer)
