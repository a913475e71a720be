"""Optuna: its pruning callback ends a trial where it would under Keras."""

from __future__ import annotations

from collections.abc import Callable

import keras
import optuna
from optuna_integration import KerasPruningCallback

from overlap_train import Trainer
from scripts.clients.case import ARGUMENTS, Run, X, Y, build


def _study(fit: Callable[..., keras.callbacks.History]) -> optuna.Study:
    def objective(trial: optuna.Trial) -> float:
        model = build()
        model.optimizer.learning_rate = trial.suggest_float("rate", 1e-5, 1e-1, log=True)
        return fit(model, trial).history["val_loss"][-1]

    pruner = optuna.pruners.MedianPruner(n_startup_trials=2)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1), pruner=pruner)
    study.optimize(objective, n_trials=6)
    return study


def _values(study: optuna.Study) -> dict[str, float]:
    ends = {f"epochs of trial {t.number}": len(t.intermediate_values) for t in study.trials}
    return {**ends, "value": study.best_value, "rate": study.best_params["rate"]}


def stock() -> Run:
    def fit(model: keras.Model, trial: optuna.Trial) -> keras.callbacks.History:
        return model.fit(X, Y, callbacks=[KerasPruningCallback(trial, "val_loss")], **ARGUMENTS)

    return Run(_values(_study(fit)))


def ours() -> Run:
    trainers = []

    def fit(model: keras.Model, trial: optuna.Trial) -> keras.callbacks.History:
        trainer = Trainer(model)
        history = trainer.fit(X, Y, callbacks=[KerasPruningCallback(trial, "val_loss")], **ARGUMENTS)
        trainers.append(trainer)
        return history

    return Run(_values(_study(fit)), trainers[0])
