"""One `fit`: built, run epoch by epoch, delivered. The only room that knows all stages."""
