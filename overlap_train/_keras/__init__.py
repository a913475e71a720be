"""The only door to Keras's private API, used where nothing public serves.

    names         where Keras keeps its private names     routes      where a call of `fit` goes
    data          what `fit` and `evaluate` are given     metrics     metrics and logs
    data_sources  the workers of a `PyDataset`            optimizers  what they keep and do
    models        what a model is                         training    what `fit` goes by
    graphs        the graph of a functional model         evaluation  a validation by Keras
    copies        copying a model                         replicas    training in parts
    callers       who calls `fit`                         randomness  the random generators
    forks         where TensorFlow may not run            tracebacks  lines that are shown

Each module is imported by name and says which private names it leans on. `names` finds them, and refuses a
Keras that lacks one; `tests/keras` fails, name by name, when a new Keras moves one.
"""
