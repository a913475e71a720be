"""A callback that ends a fit as if its process had been killed, for what resumes."""

import keras


class Killed(BaseException):
    """Ends a fit without any clearing up of ours being asked for."""


def kill():
    raise Killed


class Kills(keras.callbacks.Callback):
    """Ends the fit behind one of its steps, or at the end of an epoch; remembers nothing."""

    overlap_safe = True

    def __init__(self, step=None, how=kill, *, epoch=None):
        super().__init__()
        self._step, self._how, self._epoch, self._steps = step, how, epoch, 0

    def get_state(self):
        return {}

    def set_state(self, state):
        pass

    def on_train_batch_end(self, batch, logs=None):
        self._steps += 1
        if self._steps == self._step:
            self._how()

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self._epoch:
            self._how()
