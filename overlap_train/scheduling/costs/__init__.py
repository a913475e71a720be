"""How long a layer takes on a device, measured or predicted."""
