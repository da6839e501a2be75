"""Attributes that are computed when first asked for, without the lock that Python 3.11 takes for it.

That lock is one for all objects of a class. A child forked while a thread of its parent computes the attribute, in a
background save say, inherits it locked by a thread it does not have: it would wait for ever.
"""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

T = TypeVar("T")


class cached_property(functools.cached_property[T]):  # noqa: N801 - used as its namesake is
    """As functools has it since Python 3.12: two threads may both compute the attribute, and either result stays."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        self.lock = nullcontext()
