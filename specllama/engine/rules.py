"""The acceptance rules of the native table, for all of Python, the commands and the docs."""

from __future__ import annotations

from specllama import _core

RULES = {rule.name: rule for rule in _core.rules()}
"""The rules, by name."""
VERIFY = ("auto", *RULES)
"""The values of ``verify``. ``auto`` chooses one of the rules."""


STEPWISE = next(name for name, rule in RULES.items() if rule.decides_in_steps and not rule.independent_of_draft)
"""The rule for a logits processor that remembers its calls: it asks for p only where the text goes on."""
DEPENDENT_ON_DRAFT = tuple(name for name, rule in RULES.items() if not rule.independent_of_draft)
"""The rules whose text, for one seed, depends on what was drafted."""


def is_independent_of_draft(name: str) -> bool:
    """Whether a seed means one text under this rule, whatever is drafted. False for an empty name, which is no rule."""
    return name in RULES and name not in DEPENDENT_ON_DRAFT
