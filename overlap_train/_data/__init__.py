"""Where the data comes from (A) and how the validation set is divided (D).

What a user gave is recognized once, by `_keras.data`. `training_data` makes a `feed` of it, of arrays or of
an iterator, in which `cursor` is the position; `validation_data` makes batches of it, held, cached or
streamed, which `shards` divides.
"""
