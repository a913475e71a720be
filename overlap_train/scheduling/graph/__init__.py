"""What runs and on what: networks as graphs of layers, devices, requests, jobs; Keras models taken apart."""
