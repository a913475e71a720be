"""A PyDataset that shuffles its rows behind each epoch, with weights for its classes."""

import keras
import numpy as np


class Rows(keras.utils.PyDataset):
    def __init__(self, x, y, *, shuffle):
        super().__init__()
        self.x, self.y, self.shuffle = x, y, shuffle
        self.order = np.arange(len(x))

    def __len__(self):
        return len(self.x) // 16

    def __getitem__(self, index):
        rows = self.order[index * 16 : index * 16 + 16]
        return self.x[rows], self.y[rows]

    def on_epoch_end(self):
        if self.shuffle:
            np.random.shuffle(self.order)


keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(256, 7)).astype("float32")
y = (x[:, 0] > 0.8).astype("int64")
train, held_out = Rows(x[:192], y[:192], shuffle=True), Rows(x[192:], y[192:], shuffle=False)
model = keras.Sequential([keras.Input((7,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(2, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
model.fit(train, epochs=4, validation_data=held_out, class_weight={0: 1.0, 1: 4.0}, verbose=2)
