"""What happens to a request from its admission to its result: queue, controllers, distributor and workers."""
