"""More mistakes."""

from trying import Mistake

OWN: tuple[Mistake, ...] = ()
