// Reads tensors that llama.cpp computes before the logits.
#include "llama/taps.hpp"

#include <algorithm>
#include <utility>

namespace specllama {

Taps::Taps(const Functions & functions, std::vector<std::string> names)
    : functions_(functions), names_(std::move(names)), values_(names_.size()) {}

Taps::Reading::Reading(Taps & taps) : taps_(taps) {
    for (auto & values : taps_.values_) {
        values.clear();
    }
    taps_.reads_ = true;
}

// Called from C, so no exception may leave it. If `asks`, returns whether the tensor is wanted; else, whether the
// decode goes on.
bool Taps::on_tensor(ggml_tensor * tensor, bool asks, void * self) {
    Taps & taps = *static_cast<Taps *>(self);
    if (!taps.reads_) {
        return !asks;
    }
    const char * name = taps.functions_.name(tensor);
    if (asks) {
        return std::find(taps.names_.begin(), taps.names_.end(), name) != taps.names_.end();
    }
    try {
        for (std::size_t i = 0; i < taps.names_.size(); ++i) {
            if (taps.names_[i] == name) {
                taps.append(taps.values_[i], tensor);
            }
        }
    } catch (const std::bad_alloc &) {
        return false;  // the decode ends
    }
    return true;
}

void Taps::append(std::vector<float> & values, const ggml_tensor * tensor) const {
    const std::size_t before = values.size();
    const std::size_t bytes = functions_.num_bytes(tensor);
    values.resize(before + bytes / sizeof(float));
    functions_.get(tensor, values.data() + before, 0, bytes);
}

}  // namespace specllama
