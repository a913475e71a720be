"""A small program for each library that uses Keras: `PROGRAMS`, by name.

Each is called with `Keras` in the place of `overlap_train`, and then with that. It returns the numbers that
have to be the same, and the `Trainer` or the `Routing` by which it has trained. It imports its library by
itself, as that may not be installed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

Values = Mapping[str, Any]
PROGRAMS: dict[str, Callable[[Any], tuple[Values, Any]]] = {}
IN_STEP = {
    # A task prepares the validation data in an `evaluate` of its own, which is called as Keras calls it.
    "keras_hub_task": "evaluate of its own",
}
"""What the reason says of those that cannot overlap."""


class Keras:
    """Keras in the place of `overlap_train`: a trainer is its model, and neither routes nor resumes."""

    routed = contextlib.nullcontext

    class Trainer:
        def __init__(self, model: keras.Model) -> None:
            self._model, self.evaluate = model, model.evaluate

        def fit(self, *data: Any, resume: Any = None, **arguments: Any) -> Any:
            return self._model.fit(*data, **arguments)


def _arrays(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 8)).astype("float32")
    return x, (x[:, 0] + 0.3 * rng.normal(size=rows) > 0).astype("int32")


X, Y = _arrays(256, 0)
VALIDATION = _arrays(96, 1)
ARGUMENTS: dict[str, Any] = {"epochs": 4, "batch_size": 32, "verbose": 0, "validation_data": VALIDATION}


def compiled(model: keras.Model) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def build() -> keras.Model:
    """Returns a small classifier, compiled, always with the same weights."""
    keras.utils.set_random_seed(5)
    hidden = [keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.2)]
    layers = [keras.Input((8,)), *hidden, keras.layers.Dense(2)]
    return compiled(keras.Sequential(layers, name="classifier"))


def of_model(model: keras.Model, history: keras.callbacks.History | None = None) -> dict[str, Any]:
    """Returns the history and the weights of a model that has been trained."""
    weights = {f"weight {n}": np.asarray(w) for n, w in enumerate(model.variables)}
    return {**(history or model.history).history, **weights}


def program(function: Callable[[Any], tuple[Values, Any]]) -> Callable[[Any], tuple[Values, Any]]:
    PROGRAMS[function.__name__] = function
    return function


def trains(make: Callable[[], keras.Model] = build) -> Callable[[Callable[[Any], Values | None]], None]:
    """Enters a program that calls `fit` of a trainer of one model, and returns further numbers or None."""

    def enter(train: Callable[[Any], Values | None]) -> None:
        def whole(overlap_train: Any) -> tuple[Values, Any]:
            model = make()
            trainer = overlap_train.Trainer(model)
            more = train(trainer)
            return {**of_model(model), **(more or {})}, trainer

        PROGRAMS[train.__name__] = whole

    return enter


def resumes(train: Callable[[Any, int, Any], None]) -> None:
    """Enters a program that trains to an epoch, which a rollback precedes; the second call goes on."""

    def whole(overlap_train: Any) -> tuple[Values, Any]:
        for epochs in (2, 4):
            model = build()
            trainer = overlap_train.Trainer(model)
            # Changes the training at its second epoch, so that one is trained again.
            plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0)
            train(trainer, epochs, [plateau])
        return of_model(model), trainer

    PROGRAMS[train.__name__] = whole


# Loggers and other callbacks.


@trains()
def wandb_logger(trainer: Any) -> None:
    import wandb
    from wandb.integration.keras import WandbMetricsLogger

    wandb.init(project="clients")
    trainer.fit(X, Y, callbacks=[WandbMetricsLogger()], **ARGUMENTS)
    wandb.finish()


@program
def mlflow_autolog(overlap_train: Any) -> tuple[Values, Any]:
    """Autologging goes on when a `Trainer` trains, and the run takes its accounts and its timeline."""
    import mlflow

    from overlap_train.monitoring import save_timeline

    def logged(name: str) -> list[Any]:
        (run,) = mlflow.search_runs(output_format="list", max_results=1)
        return mlflow.MlflowClient().get_metric_history(run.info.run_id, name)

    mlflow.set_tracking_uri(f"sqlite:///{Path.cwd()}/mlflow.db")
    mlflow.keras.autolog(log_models=False)
    model = build()
    trainer = overlap_train.Trainer(model)
    trainer.fit(X, Y, **ARGUMENTS)
    if overlap_train is not Keras:
        with mlflow.start_run(run_id=mlflow.last_active_run().info.run_id):
            for account in trainer.accounts:
                mlflow.log_metrics({"account/hidden_s": account.hidden_s}, step=account.epoch)
            mlflow.log_artifact(save_timeline("timeline.png", trainer.recorder.spans()))
        read_back = {metric.step: metric.value for metric in logged("account/hidden_s")}
        assert read_back == {account.epoch: account.hidden_s for account in trainer.accounts}
        (run,) = mlflow.search_runs(output_format="list", max_results=1)
        files = mlflow.MlflowClient().list_artifacts(run.info.run_id)
        assert "timeline.png" in [file.path for file in files]
    names = ("loss", "val_loss", "accuracy", "val_accuracy")
    values = {f"logged {name}": [metric.value for metric in logged(name)] for name in names}
    return {**of_model(model), **values}, trainer


@trains()
def comet_logger(trainer: Any) -> None:
    """Its callback counts the batches and logs some of them."""
    import comet_ml

    options = {"display_summary_level": 0, "log_code": False}
    experiment = comet_ml.OfflineExperiment(project_name="clients", **options)
    trainer.fit(X, Y, callbacks=[experiment.get_callback("keras")], **ARGUMENTS)
    experiment.end()


@trains()
def clearml_task(trainer: Any) -> None:
    """An offline task records what TensorBoard is told."""
    # ClearML forks a reporter while a thread of its own begins Git. Where the fork comes first, it holds
    # the pipe for which that thread waits, and `close` waits for ever, with or without us.
    Path("clearml.conf").write_text("sdk.development.report_use_subprocess: false\n")
    os.environ["CLEARML_CONFIG_FILE"] = str(Path("clearml.conf").resolve())
    from clearml import Task  # reads that file

    Task.set_offline(True)
    task = Task.init("clients", "training", auto_resource_monitoring=False)
    trainer.fit(X, Y, callbacks=[keras.callbacks.TensorBoard("logs")], **ARGUMENTS)
    task.close()


@trains()
def hparams_callback(trainer: Any) -> None:
    from tensorboard.plugins.hparams import api

    settings = api.KerasCallback("logs", {"rate": 0.01})
    trainer.fit(X, Y, callbacks=[keras.callbacks.TensorBoard("logs"), settings], **ARGUMENTS)


@trains()
def dvclive_logger(trainer: Any) -> None:
    from dvclive.keras import DVCLiveCallback

    trainer.fit(X, Y, callbacks=[DVCLiveCallback(save_dvc_exp=False)], **ARGUMENTS)


@trains()
def codecarbon_tracker(trainer: Any) -> None:
    from codecarbon import OfflineEmissionsTracker

    tracker = OfflineEmissionsTracker(country_iso_code="FRA", save_to_file=False, log_level="error")
    with tracker:
        trainer.fit(X, Y, **ARGUMENTS)


@trains()
def tqdm_bars(trainer: Any) -> None:
    from tqdm.keras import TqdmCallback

    trainer.fit(X, Y, callbacks=[TqdmCallback()], **ARGUMENTS)


@trains()
def orbax_checkpoint(trainer: Any) -> Values:
    """The checkpoint callback of Keras writes what each epoch's validation has seen."""
    name = "stock" if isinstance(trainer, Keras.Trainer) else "ours"
    checkpoint = keras.callbacks.OrbaxCheckpoint(Path.cwd() / name, monitor="val_loss", save_best_only=True)
    trainer.fit(X, Y, callbacks=[checkpoint], **ARGUMENTS)
    return {"steps": sorted(int(path.name) for path in Path(name).iterdir() if path.name.isdigit())}


# Libraries that search and wrap.


@program
def optuna_pruning(overlap_train: Any) -> tuple[Values, Any]:
    """The pruning callback ends a trial where it would under Keras."""
    import optuna
    from optuna_integration import KerasPruningCallback

    trainers = []

    def objective(trial: optuna.Trial) -> float:
        model = build()
        model.optimizer.learning_rate = trial.suggest_float("rate", 1e-5, 1e-1, log=True)
        trainer = overlap_train.Trainer(model)
        trainers.append(trainer)
        history = trainer.fit(X, Y, callbacks=[KerasPruningCallback(trial, "val_loss")], **ARGUMENTS)
        return history.history["val_loss"][-1]

    pruner = optuna.pruners.MedianPruner(n_startup_trials=2)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1), pruner=pruner)
    study.optimize(objective, n_trials=6)
    ends = {f"epochs of trial {t.number}": len(t.intermediate_values) for t in study.trials}
    return {**ends, "value": study.best_value, "rate": study.best_params["rate"]}, trainers[0]


@program
def keras_tuner_search(overlap_train: Any) -> tuple[Values, Any]:
    import keras_tuner

    def tuned(parameters: keras_tuner.HyperParameters) -> keras.Model:
        model = build()
        model.optimizer.learning_rate = parameters.Float("rate", 1e-3, 1e-1, sampling="log")
        return model

    options = {"max_trials": 3, "seed": 1, "directory": overlap_train.__name__}
    tuner = keras_tuner.RandomSearch(tuned, "val_loss", **options)
    with overlap_train.routed() as routing:
        tuner.search(X, Y, **ARGUMENTS)
    scores = {f"score {n}": trial.score for n, trial in enumerate(tuner.oracle.get_best_trials(3))}
    weights = {f"weight {n}": w for n, w in enumerate(tuner.get_best_models()[0].get_weights())}
    return {**scores, **weights}, routing


@program
def scikeras_classifier(overlap_train: Any) -> tuple[Values, Any]:
    from scikeras.wrappers import KerasClassifier

    arguments = {"epochs": 4, "batch_size": 32, "verbose": 0, "fit__validation_data": VALIDATION}
    estimator = KerasClassifier(build, **arguments)
    with overlap_train.routed() as routing:
        estimator.fit(X, Y)
    return {**of_model(estimator.model_), "predictions": estimator.predict_proba(X)}, routing


@program
def keras_wrappers(overlap_train: Any) -> tuple[Values, Any]:
    """The wrappers of Keras for scikit-learn."""
    from sklearn.model_selection import cross_val_score

    def model(X: Any, y: Any) -> keras.Model:
        made = build()
        made.compile(keras.optimizers.Adam(0.01), "mse")  # the wrapper makes one-hot labels
        return made

    arguments = {"epochs": 4, "batch_size": 32, "verbose": 0, "validation_split": 0.25}
    estimator = keras.wrappers.SKLearnClassifier(model, fit_kwargs=arguments)
    with overlap_train.routed() as routing:
        scores = cross_val_score(estimator, X, Y, cv=3)
    return {"scores": scores}, routing


@program
def bayesflow_workflow(overlap_train: Any) -> tuple[Values, Any]:
    import bayesflow

    def data(rows: int, seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        theta = rng.normal(size=(rows, 2)).astype("float32")
        return {"theta": theta, "x": theta + 0.1 * rng.normal(size=(rows, 2)).astype("float32")}

    TRAINING, VALIDATION = data(256, 0), data(64, 1)
    keras.utils.set_random_seed(5)
    workflow = bayesflow.BasicWorkflow(
        inference_network=bayesflow.networks.CouplingFlow(depth=2, subnet_kwargs={"widths": (16,)}),
        inference_variables=["theta"],
        inference_conditions=["x"],
    )
    with overlap_train.routed() as routing:
        history = workflow.fit_offline(
            TRAINING, epochs=3, batch_size=32, validation_data=VALIDATION, verbose=0
        )
    return of_model(workflow.approximator, history), routing


# Models and layers.


def _task() -> keras.Model:
    import keras_hub

    keras.utils.set_random_seed(5)
    sizes = {"vocabulary_size": 40, "num_layers": 1, "num_heads": 2, "hidden_dim": 16}
    backbone = keras_hub.models.BertBackbone(**sizes, intermediate_dim=32, max_sequence_length=12)
    task = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None, dropout=0.1)
    return compiled(task)


@trains(_task)
def keras_hub_task(trainer: Any) -> None:
    """A task's own `fit` prepares the data."""

    def data(rows: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        tokens = np.random.default_rng(seed).integers(1, 40, size=(rows, 12)).astype("int32")
        kinds = {"segment_ids": np.zeros_like(tokens), "padding_mask": np.ones_like(tokens)}
        return {"token_ids": tokens, **kinds}, (tokens[:, 0] > 20).astype("int32")

    X, Y = data(128, 0)
    DATA = {**ARGUMENTS, "validation_data": data(64, 1)}
    trainer.fit(X, Y, **DATA)


def _crossed() -> keras.Model:
    import keras_rs

    keras.utils.set_random_seed(5)
    inputs = keras.Input((8,))
    crossed = keras_rs.layers.FeatureCross()(inputs, inputs)
    crossed = keras_rs.layers.FeatureCross(projection_dim=4)(inputs, crossed)
    return compiled(keras.Model(inputs, keras.layers.Dense(2)(crossed)))


@trains(_crossed)
def keras_rs_layers(trainer: Any) -> None:
    trainer.fit(X, Y, **ARGUMENTS)


def _with_lora() -> keras.Model:
    model = build()
    model.layers[0].enable_lora(rank=2)
    model.compile(keras.optimizers.Adam(0.01), model.loss, metrics=["accuracy"])
    return model


@trains(_with_lora)
def lora(trainer: Any) -> None:
    """Low-rank updates of frozen weights."""
    trainer.fit(X, Y, **ARGUMENTS)


def _quantized() -> keras.Model:
    model = build()
    model.fit(X, Y, epochs=1, verbose=0)
    model.quantize("int8")
    model.compile(keras.optimizers.SGD(0.01), model.loss, metrics=["accuracy"])
    return model


@trains(_quantized)
def quantization(trainer: Any) -> Values:
    """A trained model in int8, whose other weights are trained on and which is evaluated."""
    trainer.fit(X, Y, **ARGUMENTS)
    return {"evaluated": trainer.evaluate(*VALIDATION, verbose=0)}


# Data.


@resumes
def hugging_face_datasets(trainer: Any, epochs: int, callbacks: Any) -> None:
    """Tables as training and validation data."""
    import datasets

    def batches(x: np.ndarray, y: np.ndarray, shuffle: bool = False) -> Any:
        keras.utils.set_random_seed(3)
        table = datasets.Dataset.from_dict({"x": x.tolist(), "y": y.tolist()})
        return table.to_tf_dataset(columns="x", label_cols="y", batch_size=32, shuffle=shuffle)

    data, validation = batches(X, Y, shuffle=True), batches(*VALIDATION)
    arguments = {"epochs": epochs, "verbose": 0}
    trainer.fit(data, validation_data=validation, callbacks=callbacks, resume="run", **arguments)


@resumes
def hugging_face_stream(trainer: Any, epochs: int, callbacks: Any) -> None:
    """A stream of rows, as a generator of batches."""
    import datasets

    def batches(stream):
        for batch in stream.with_format("numpy").iter(32):
            yield batch["x"], batch["y"]

    table = datasets.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist()})
    stream = table.to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=64).repeat(None)
    steps = {"epochs": epochs, "steps_per_epoch": 8, "validation_data": VALIDATION, "verbose": 0}
    trainer.fit(batches(stream), callbacks=callbacks, resume="run", **steps)


@resumes
def grain_loader(trainer: Any, epochs: int, callbacks: Any) -> None:
    """Grain's datasets as training and validation data."""
    import grain

    def dataset(x: np.ndarray, y: np.ndarray, seed: int | None = None) -> grain.MapDataset:
        rows = grain.MapDataset.source(list(zip(x, y, strict=True)))
        return (rows if seed is None else rows.shuffle(seed)).batch(32).repeat().to_iter_dataset()

    # Keras 3.15 makes a step too many in each pass over data whose length it does not know.
    STEPS = {"epochs": 4, "steps_per_epoch": 8, "validation_steps": 3, "verbose": 0}
    data, validation, arguments = dataset(X, Y, 3), dataset(*VALIDATION), STEPS | {"epochs": epochs}
    trainer.fit(data, validation_data=validation, callbacks=callbacks, resume="run", **arguments)
