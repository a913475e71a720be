"""Where batches come from: sources, shards of the validation set, and the MNIST of the examples."""
