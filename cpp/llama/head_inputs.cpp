// The inputs of a head beside tokens.
#include "llama/head_inputs.hpp"

#include <algorithm>
#include <array>

#include "llama/errors.hpp"

namespace specllama {

namespace {

constexpr std::size_t most_encoded = 32;  // rows of one llama_encode

}  // namespace

int32_t HeadInputs::inject(llama_context * context, const BatchPart * parts, std::size_t num_parts) {
    constexpr std::size_t axes = 4;  // numbers of a position for some rotary embeddings: time, two of space, one unused
    features_.clear();
    positions_.clear();
    sequence_pointers_.clear();
    sequence_ids_.resize(num_parts);
    for (std::size_t k = 0; k < num_parts; ++k) {
        const BatchPart & part = parts[k];
        sequence_ids_[k] = part.seq_id;
        features_.insert(features_.end(), part.features, part.features + part.num_injected * hidden_.n_features);
        sequence_pointers_.insert(sequence_pointers_.end(), part.num_injected, &sequence_ids_[k]);
        for (std::size_t i = 0; i < part.num_injected; ++i) {
            positions_.push_back(static_cast<int32_t>(part.position + i));
        }
    }
    const std::size_t count = positions_.size();
    if (count == 0) {
        return 0;
    }
    positions_.resize(axes * count);
    for (std::size_t axis = 1; axis + 1 < axes; ++axis) {
        std::copy_n(positions_.begin(), count, positions_.begin() + static_cast<std::ptrdiff_t>(axis * count));
    }
    std::fill_n(positions_.begin() + static_cast<std::ptrdiff_t>((axes - 1) * count), count, 0);
    sequence_counts_.assign(count, 1);
    outputs_.assign(count, 0);
    const llama_batch batch = {
        static_cast<int32_t>(count), nullptr,        features_.data(), positions_.data(), sequence_counts_.data(),
        sequence_pointers_.data(),   outputs_.data()};
    const int32_t code = api_->llama_decode(context, batch);
    api_->llama_synchronize(context);
    return code;
}

int32_t HeadInputs::collect(llama_context * context, const BatchPart * parts, std::size_t num_parts) {
    inputs_.clear();
    for (std::size_t k = 0; k < num_parts; ++k) {
        const BatchPart & part = parts[k];
        if (part.features == nullptr) {
            inputs_.insert(inputs_.end(), part.states, part.states + part.count * hidden_.size());
        } else if (!hidden_.encodes) {
            inputs_.insert(inputs_.end(), part.features, part.features + part.count * hidden_.n_features);
        } else if (const int32_t code = encode(context, part.features, part.count)) {
            return code;
        }
    }
    return 0;
}

// Appends the encoder's output for each row to the inputs. llama.cpp reserves a row of logits for each row, and ends
// the process where there are more rows than n_ubatch. So the rows are encoded in parts.
int32_t HeadInputs::encode(llama_context * context, const float * features, std::size_t count) {
    const std::size_t most = std::min<std::size_t>(most_encoded, api_->llama_n_ubatch(context));
    std::array<int8_t, most_encoded> all{};
    all.fill(1);
    for (std::size_t done = 0; done < count;) {
        const std::size_t rows = std::min(most, count - done);
        features_.assign(features + done * hidden_.n_features, features + (done + rows) * hidden_.n_features);
        const llama_batch batch = {
            static_cast<int32_t>(rows), nullptr, features_.data(), nullptr, nullptr, nullptr, all.data()};
        const Taps::Reading reading(*hidden_.taps);
        if (const int32_t code = api_->llama_encode(context, batch)) {
            return code;
        }
        api_->llama_synchronize(context);
        const std::vector<float> & encoded = hidden_.taps->values(hidden_.taps->size() - 1);
        if (encoded.size() != rows * hidden_.width) {
            throw DecodeError("this llama.cpp does not show what the encoder of the " + name_ + " computes");
        }
        inputs_.insert(inputs_.end(), encoded.begin(), encoded.end());
        done += rows;
    }
    return 0;
}

}  // namespace specllama
