"""MLflow: autologging goes on when a `Trainer` trains, and the run takes its accounts and its timeline."""

from __future__ import annotations

from pathlib import Path

import mlflow

from overlap_train import Trainer
from overlap_train.monitoring import save_timeline
from scripts.clients.case import ARGUMENTS, Run, X, Y, build

mlflow.set_tracking_uri(f"sqlite:///{Path.cwd()}/mlflow.db")


def _logged() -> dict[str, list[float]]:
    """Returns what the last run has logged of each metric."""
    (run,) = mlflow.search_runs(output_format="list", max_results=1)
    client = mlflow.MlflowClient()
    return {name: [m.value for m in client.get_metric_history(run.info.run_id, name)] for name in ARE_LOGGED}


ARE_LOGGED = ("loss", "val_loss", "accuracy", "val_accuracy")


def _require_accounts(trainer: Trainer) -> None:
    """Reads back what the last run has of the trainer's time."""
    (run,) = mlflow.search_runs(output_format="list", max_results=1)
    client = mlflow.MlflowClient()
    logged = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "account/hidden_s")}
    assert logged == {account.epoch: account.hidden_s for account in trainer.accounts}
    assert "timeline.png" in [file.path for file in client.list_artifacts(run.info.run_id)]


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
    with mlflow.start_run(run_id=mlflow.last_active_run().info.run_id):
        for account in trainer.accounts:
            mlflow.log_metrics({"account/hidden_s": account.hidden_s}, step=account.epoch)
        mlflow.log_artifact(save_timeline("timeline.png", trainer.recorder.spans()))
    _require_accounts(trainer)
    return Run({**Run.of(model).values, **{f"logged {n}": v for n, v in _logged().items()}}, trainer)
