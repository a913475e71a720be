"""The only door to Keras's private API, used where nothing public serves.

    names         where Keras keeps its private names     optimizers  what they keep and do
    data          what `fit` and `evaluate` are given     training    what `fit` goes by, how it validates
    data_sources  the workers of a `PyDataset`            replicas    training in parts
    models        what a model is                         randomness  the random generators
    copies        copying a model                         threads     settings of threads, and forks
    routes        where a call of `fit` goes              tracebacks  the user's lines
    metrics       losses, metrics and logs

Each module is imported by name and says which private names it leans on. `names` finds them, and refuses a
Keras that lacks one; `tests/keras` fails, name by name, when a new Keras moves one.
"""
