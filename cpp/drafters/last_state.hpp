// The base of heads that read the target's state of the text's last token but one, and keep no memory of the text.
#pragma once

#include <cstddef>

#include "drafters/drafter.hpp"
#include "drafters/kept_states.hpp"

namespace specllama {

class LastStateHead : public DrawingDrafter {
public:
    void observe(const DecodedBatch & batch) override {
        kept_.forget(batch.unchanged);
        if (batch.states != nullptr) {
            kept_.append(batch.first, batch.states, batch.count);
        }
        size_ = batch.history.size();
    }
    std::size_t state_size() const override { return width_; }

    // 0 while the state is missing.
    std::size_t room() const override { return is_ready() ? static_cast<std::size_t>(-1) : 0; }
    std::size_t missing() const override { return 1; }
    std::size_t catch_up() override { return 0; }
    void probe() override {}
    void report_to(CostModel * costs) override { costs_ = costs; }

protected:
    // width: numbers of a state.
    LastStateHead(Source source, std::size_t width) : DrawingDrafter(source), width_(width), kept_(width) {}

    // Whether there is a state to read.
    bool is_ready() const { return size_ > 1 && kept_.first() + 2 <= size_ && kept_.end() + 1 >= size_; }
    const float * state() const { return kept_.at(size_ - 2); }
    // Learns from the head's decodes. Null: nothing does.
    CostModel * costs() const { return costs_; }

private:
    std::size_t width_;
    KeptStates kept_;
    std::size_t size_ = 0;  // length of the text
    CostModel * costs_ = nullptr;
};

}  // namespace specllama
