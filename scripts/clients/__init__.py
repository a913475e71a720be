"""Libraries that use Keras, each trained as it is and overlapped; run by `scripts/clients.sh`."""
