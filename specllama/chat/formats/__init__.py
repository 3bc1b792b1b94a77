"""Forms in which models write calls of tools and thoughts. A model's chat template teaches one of them."""
