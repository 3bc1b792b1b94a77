// How a panel is read that several tiles are multiplied with.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/instruction_set.hpp"

namespace specllama::kernels {

// With several tiles, a type with a grid is expanded first. The products have the same bits.
class PanelReader {
public:
    PanelReader(const InstructionSet & set, QuantizedType type, int64_t num_blocks, int64_t num_tiles)
        : set_(set),
          expand_(num_tiles > 1 ? set.expand[static_cast<int>(type)] : nullptr),
          type_(expand_ == nullptr ? type : expanded(type)),
          num_blocks_(num_blocks) {}

    bool expands() const { return expand_ != nullptr; }

    // The panel as multiply() takes it. It is valid until the thread asks for another one.
    const uint8_t * read(const uint8_t * panel) const {
        if (expand_ == nullptr) {
            return panel;
        }
        thread_local std::vector<uint8_t> room;
        room.resize(static_cast<std::size_t>(num_blocks_ * layout_of(type_).panel_bytes()));
        expand_(panel, num_blocks_, room.data());
        return room.data();
    }

    void multiply(const uint8_t * panel, const uint8_t * tile, int width, float * out, int64_t stride) const {
        set_.multiply[static_cast<int>(type_)][width - 1](panel, num_blocks_, tile, out, stride);
    }

private:
    const InstructionSet & set_;
    Expand expand_;
    QuantizedType type_;
    int64_t num_blocks_;
};

}  // namespace specllama::kernels
