"""Shows values that users gave in error messages."""

from __future__ import annotations

import math
import numbers
from typing import Any

_LONGEST_SHOWN = 100


def brief(value: Any) -> str:
    """A value as messages show it: cut if it is long. Works for numbers of more than 4300 digits, too."""
    if isinstance(value, int) and abs(value) >= 10**_LONGEST_SHOWN:
        return f"{'-' * (value < 0)}(a number of about {int(math.log10(abs(value))) + 1} digits)"
    try:
        return (str(value) if isinstance(value, numbers.Number) else repr(value))[:_LONGEST_SHOWN]
    except ValueError:
        return f"(a {type(value).__name__} with a number of thousands of digits)"
