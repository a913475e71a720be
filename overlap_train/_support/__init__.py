"""The ground: checks of arguments, cached files and extras. It imports nothing of the package's."""
