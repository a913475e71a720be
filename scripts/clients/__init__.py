"""Libraries that use Keras, each trained as it is and with the validation overlapped; see `scripts/clients.sh`."""
