"""One generation: what is asked, the tokens out of the native loop, and the memory that they leave."""
