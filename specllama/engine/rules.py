"""The acceptance rules, as the native table lists them: one place for Python, the commands and the docs."""

from __future__ import annotations

from specllama import _core

RULES = {rule.name: rule for rule in _core.rules()}
"""By name."""
VERIFY = ("auto", *RULES)
"""What ``verify`` may be: ``auto`` chooses one of the rules."""


STEPWISE = next(name for name, rule in RULES.items() if rule.decides_in_steps and not rule.independent_of_draft)
"""The rule for a logits processor that remembers its calls: it asks for p only where the text goes on."""
DEPENDENT_ON_DRAFT = tuple(name for name, rule in RULES.items() if not rule.independent_of_draft)
"""The rules whose text, for one seed, depends on what was drafted."""


def is_independent_of_draft(name: str) -> bool:
    """Whether a seed means one text under this rule, whatever is drafted. No rule (an empty name) says nothing."""
    return name in RULES and name not in DEPENDENT_ON_DRAFT
