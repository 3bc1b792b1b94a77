"""What models write beside words: calls of tools and thoughts, in the form that a chat template teaches them."""
