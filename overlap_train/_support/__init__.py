"""The ground: checks of arguments, cached files, extras, moved names. It imports nothing of the package's."""
