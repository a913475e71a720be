"""BayesFlow: a workflow in a block."""

from __future__ import annotations

import bayesflow
import keras
import numpy as np

import overlap_train
from scripts.clients.case import Run


def _data(rows: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(rows, 2)).astype("float32")
    return {"theta": theta, "x": theta + 0.1 * rng.normal(size=(rows, 2)).astype("float32")}


def _workflow() -> bayesflow.BasicWorkflow:
    keras.utils.set_random_seed(5)
    return bayesflow.BasicWorkflow(
        inference_network=bayesflow.networks.CouplingFlow(depth=2, subnet_kwargs={"widths": (16,)}),
        inference_variables=["theta"],
        inference_conditions=["x"],
    )


# Both datasets shuffle with NumPy's global generator when an epoch ends.
IN_STEP = "on_epoch_end"
TRAINING, VALIDATION = _data(256, 0), _data(64, 1)


def _values(workflow: bayesflow.BasicWorkflow, history: keras.callbacks.History) -> dict[str, object]:
    weights = {f"weight {n}": np.asarray(w) for n, w in enumerate(workflow.approximator.variables)}
    return {**history.history, **weights}


def stock() -> Run:
    workflow = _workflow()
    history = workflow.fit_offline(TRAINING, epochs=3, batch_size=32, validation_data=VALIDATION, verbose=0)
    return Run(_values(workflow, history))


def ours() -> Run:
    workflow = _workflow()
    with overlap_train.routed() as routing:
        history = workflow.fit_offline(
            TRAINING, epochs=3, batch_size=32, validation_data=VALIDATION, verbose=0
        )
    return Run(_values(workflow, history), routing.trainer)
