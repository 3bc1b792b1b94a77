// What llama.cpp computes on the way to the logits.
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

// It is called from C: nothing may leave it but its answer. Yes means: this one, please; or: go on.
bool Taps::on_tensor(ggml_tensor * tensor, bool asks, void * self) {
    Taps & taps = *static_cast<Taps *>(self);
    if (!taps.reads_) {
        return !asks;
    }
    const auto found = std::find(taps.names_.begin(), taps.names_.end(), taps.functions_.name(tensor));
    if (asks || found == taps.names_.end()) {
        return found != taps.names_.end() || !asks;
    }
    try {
        std::vector<float> & values = taps.values_[static_cast<std::size_t>(found - taps.names_.begin())];
        const std::size_t before = values.size();
        const std::size_t bytes = taps.functions_.num_bytes(tensor);
        values.resize(before + bytes / sizeof(float));
        taps.functions_.get(tensor, values.data() + before, 0, bytes);
    } catch (const std::bad_alloc &) {
        return false;  // the decode ends
    }
    return true;
}

}  // namespace specllama
