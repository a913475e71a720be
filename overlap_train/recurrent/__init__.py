"""Training passes of stock LSTM and GRU layers, with fewer operations in each time step than Keras's."""

from overlap_train.recurrent.layers import is_stock_recurrence, recur

__all__ = ["is_stock_recurrence", "recur"]
