"""The acceptance rules, as the table in C++ lists them, for Python, the commands and the docs."""

from __future__ import annotations

from specllama import _core

RULES = {rule.name: rule for rule in _core.rules()}
"""The rules, by name."""
VERIFY = ("auto", *RULES)
"""The values of ``verify``. ``auto`` chooses one of the rules."""


STEPWISE = next(name for name, rule in RULES.items() if rule.decides_in_steps and not rule.independent_of_draft)
"""The rule for a logits processor that remembers its calls: p is computed only at places that the text reaches."""
DEPENDENT_ON_DRAFT = tuple(name for name, rule in RULES.items() if not rule.independent_of_draft)
"""The rules under which the text, for one seed, depends on the drafted tokens."""


def is_independent_of_draft(name: str) -> bool:
    """Whether a seed gives the same text under this rule, whatever is drafted. False for an empty name (no rule)."""
    return name in RULES and name not in DEPENDENT_ON_DRAFT
