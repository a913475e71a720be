"""The only door to Keras's private API, used where nothing public serves.

    data        what `fit` and `evaluate` are given        training    what `fit` goes by
    models      what a model is                            evaluation  how Keras validates
    methods     whose code a method is                     optimizers  what they keep
    losses      how a batch comes to its loss              replicas    training in parts
    metrics     metrics and logs                           copies      copying a model
    routes      where a call of `fit` goes                 names         where Keras keeps its private names

Each module is imported by name and says which private names it leans on. `names` finds them, and refuses a
Keras that lacks one; `tests/keras` fails, name by name, when a new Keras moves one.
"""
