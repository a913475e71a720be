"""Training under `tf.distribute`: the strategy, and a step shared by its replicas."""
