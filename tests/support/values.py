"""Values that no check takes and nothing can print."""


class Unprintable:
    """Raises whatever it is asked."""

    def _refuse(self, *arguments, **options):
        raise RuntimeError("no value")

    __repr__ = __index__ = __float__ = __bool__ = __iter__ = __eq__ = __array__ = _refuse
    __hash__ = object.__hash__
