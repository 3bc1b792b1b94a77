// Reads tensors that llama.cpp computes before the logits, by their names in its graph.
//
// llama.cpp calls a callback of the context for each tensor (`cb_eval` of llama_context_params). This works for every
// architecture.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

struct ggml_tensor;

namespace specllama {

class Taps {
public:
    // ggml's functions.
    struct Functions {
        const char * (*name)(const ggml_tensor *);
        std::size_t (*num_bytes)(const ggml_tensor *);
        void (*get)(const ggml_tensor *, void *, std::size_t offset, std::size_t size);
    };

    // `names`: names of tensors of floats.
    Taps(const Functions & functions, std::vector<std::string> names);
    Taps(const Taps &) = delete;
    Taps & operator=(const Taps &) = delete;

    std::size_t size() const { return names_.size(); }

    // While a Reading lives, the values of the tensors are kept. They stay until the next Reading.
    class Reading {
    public:
        explicit Reading(Taps & taps);
        ~Reading() { taps_.reads_ = false; }
        Reading(const Reading &) = delete;
        Reading & operator=(const Reading &) = delete;

    private:
        Taps & taps_;
    };

    // The values of tensor number i: the rows of all parts of the batch, one after the other.
    const std::vector<float> & values(std::size_t i) const { return values_[i]; }

    // The callback: `self` is a Taps.
    static bool on_tensor(ggml_tensor * tensor, bool asks, void * self);

private:
    void append(std::vector<float> & values, const ggml_tensor * tensor) const;

    const Functions functions_;
    const std::vector<std::string> names_;
    bool reads_ = false;
    std::vector<std::vector<float>> values_;
};

}  // namespace specllama
