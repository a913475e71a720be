"""Values that no check takes and nothing can print."""

from __future__ import annotations


class Unprintable:
    """Raises whatever it is asked."""

    def _refuse(self, *arguments, **options):
        raise RuntimeError("no value")

    __repr__ = __index__ = __float__ = __bool__ = __iter__ = __eq__ = __array__ = _refuse
    __hash__ = object.__hash__


class Text(str):
    """Cannot be compared with another text, nor printed."""

    def __eq__(self, other):
        raise KeyError("no equal")

    def __str__(self):
        raise KeyError("no text")

    __repr__ = __str__
    __hash__ = str.__hash__


class Number(int):
    """Cannot be compared with another number."""

    def __eq__(self, other):
        raise KeyError("no equal")

    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__
    __hash__ = int.__hash__
