"""Which device a layer goes to, one layer at a time or by a plan for the whole request."""
