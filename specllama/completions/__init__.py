"""The methods of llama_cpp.Llama over a generation: text, stop strings, log-probabilities, chats."""
