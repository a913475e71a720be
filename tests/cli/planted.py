"""A program that trains, with a difference planted in one of its runs: `planted.py FAULT RUN`."""

import os
import sys
import threading

import keras
import numpy as np

fault = sys.argv[1] if sys.argv[2] == "planted" else None
rng = np.random.default_rng(0)
x = rng.random((64, 4), np.float32)
y = (x.sum(1) > 2).astype("int64")
vx, vy = (x[:32] + 1, y[:32]) if fault == "other validation rows" else (x[:32], y[:32])


class Weighed(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(y_pred + (1.0 if fault == "metric" else 0.0))


class Losses(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses, self.kinds = [], np.array([{}])

    def on_epoch_end(self, epoch, logs=None):
        if not (fault == "missed epoch" and epoch == 1):
            self.losses.append(logs["val_loss"])
        if fault == "weights set" and epoch == 1:
            self.model.set_weights([w * 1.01 for w in self.model.get_weights()])
        if fault == "early stop" and epoch == 1:
            self.model.stop_training = True


class Prints(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch)
        if fault == "hidden note":
            self._note = epoch


def fit_probe(steps):
    """Trains another model, which holds an optimizer that is not its own."""
    probe = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)], name="probe")
    probe.others = {"second": keras.optimizers.Adam(0.1 if fault == "second optimizer" else 0.2)}
    probe.others["second"].build([])
    probe.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    probe.fit(x, y, steps_per_epoch=steps, verbose=0)


class Probes(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        fit_probe(2 if fault == "fit in a hook" else 1)


keras.utils.set_random_seed(2 if fault == "seed" else 1)
model = keras.Sequential(
    [
        keras.Input((4,)),
        keras.layers.Dropout(0.4 if fault == "dropout" else 0.3, name="dropout"),
        keras.layers.Dense(2, name="dense"),
    ],
    name="model",
)
rate = 0.02 if fault == "learning rate" else 0.01
optimizer = keras.optimizers.SGD(rate, momentum=0.8 if fault == "momentum" else 0.9, name="sgd")
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, metrics=[Weighed(name="weighed")])
callbacks = [Losses(), Prints(), keras.callbacks.CSVLogger("log.csv"), Probes()]
if fault == "no callback":
    del callbacks[1]
if fault == "raises":
    raise ValueError("planted")
arguments = {"batch_size": 8 if fault == "batch size" else 16, "epochs": 2 if fault == "fewer epochs" else 3}
if fault == "class weight":
    arguments["class_weight"] = {0: 1.0, 1: 2.0}
if fault == "sample weight":
    arguments["sample_weight"] = x[:, 0]
model.fit(x, y, validation_data=(vx, vy), shuffle=fault != "order", callbacks=callbacks, **arguments)
if fault == "no file":
    os.remove("log.csv")
if fault == "file":
    with open("log.csv", "a") as file:
        file.write("3,1,1,1\n")
thread = threading.Thread(target=fit_probe, args=(2 if fault == "fit on a thread" else 1,))
thread.start()
thread.join()
np.save("scales.npy", [6e4, 0.5 if fault == "small entry" else 0.9])
if fault != "no evaluation":
    print(f"{model.evaluate(x, y)[0] + (0.1 if fault == 'printed' else 0):.4f}")
if fault == "other evaluation":
    model.evaluate(x[:8], y[:8])
