"""Evidence from a machine with a GPU: stages that survive being cut off, and the page that they end in."""
