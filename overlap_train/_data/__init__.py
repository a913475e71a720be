"""Where the data comes from (A) and how the validation set is divided (D).

What a user gave is recognized once, by `_keras.data`. `array_feed.make_feed` makes a `feed` of it, and
`cursor` is the position in it; `validation_data` makes batches of it, in arrays, cached or streamed.
"""
