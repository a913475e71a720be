"""G: when, with which model and with which numbers Keras callbacks are called, and what they remember."""
