"""What runs and on what: networks as graphs of layers, devices, requests and jobs; Keras models taken apart."""
