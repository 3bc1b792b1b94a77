"""The samplers that llama_cpp.Llama has no arguments for, and those that llama.cpp alone has."""
