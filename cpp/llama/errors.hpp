// The exception types. bindings/errors.cpp maps each to a Python class; std::invalid_argument becomes ValueError.
#pragma once

#include <stdexcept>
#include <string>

namespace specllama {

// The loaded libllama does not fit this extension. (ImportError)
struct AbiError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// llama_decode failed; the KV cache has been put back to a committed position. (RuntimeError)
struct DecodeError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// No room is left in the context. (RuntimeError)
struct ContextFullError : DecodeError {
    using DecodeError::DecodeError;
};

// No room is left in a cache that several texts share. A scheduler makes room.
struct NoRoomError : ContextFullError {
    using ContextFullError::ContextFullError;
};

// A context is in use by another thread. (RuntimeError)
struct BusyError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The Llama has been closed. (RuntimeError)
struct ClosedError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace specllama
