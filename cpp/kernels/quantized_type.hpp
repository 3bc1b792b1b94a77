// The quantized types that the kernels multiply, and how the values of each are coded.
#pragma once

#include <cstddef>
#include <cstdint>

namespace specllama::kernels {

// The order is that of kTypeNames.
enum class QuantizedType { q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4 };

constexpr int kNumTypes = 13;
constexpr const char * kTypeNames[kNumTypes] = {"Q4_0", "Q4_1", "Q5_0", "Q5_1",   "Q8_0",   "Q2_K", "Q3_K",
                                                "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"};

// Rows that stand side by side in a panel: one AVX-512 register of 32-bit lanes, two of AVX2.
constexpr int kPanelRows = 16;

constexpr int64_t num_panels(int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows; }
// Values of one row that stand side by side: one 32-bit lane.
constexpr int kStep = 4;

// How the values of a block are shifted. A code c stands for d * scale * (c - offset) - dmin * minimum.
enum class Offset {
    constant,  // by an offset that is the same for all blocks: Layout::offset
    minimum,   // by a minimum for each scale, times dmin
    added,     // by one number m for the block, which is added
};

// What the codes of a type stand for.
enum class Codes {
    numbers,  // the codes are the numbers
    iq4,      // indices of kIq4Values
    // Indices of kFp4Values, whose values are 0 to 24. The scale is a power of two that may be outside the range of
    // float16, so d holds the first 16 bits of a float.
    fp4,
};

// How a type is coded, and where its parts stand in a panel of kPanelRows rows.
//
// A block of a panel has, one after the other:
//   - for every 32 values the low bits (64 bytes for each bit), then the high bits
//   - d [rows] and dmin or m [rows], as float16 (see Codes)
//   - scales and minima, two neighbours side by side: [num_scales / 2][rows][2]
struct Layout {
    int values;     // values of a block: 256 or 32
    int low_bits;   // 2, 4 or 8
    int high_bits;  // 0, 1 or 2; they are stored apart from the low bits
    int span;       // values that share a scale: 16 or 32; 0 if there are no scales
    Offset kind;
    int offset;  // for Offset::constant
    Codes codes;
    bool is_signed;   // whether a value is a signed byte (possibly looked up), not a small unsigned code
    bool packed;      // whether a scale and its minimum share a byte (Q2_K)
    int block_bytes;  // bytes of a block in a GGUF file
    int number;       // the number of the type in a GGUF file

    constexpr int num_scales() const { return span == 0 ? 0 : values / span; }
    constexpr int code_bytes() const { return 64 * (low_bits + high_bits) * (values / 32); }
    constexpr bool has_minimum() const { return kind != Offset::constant; }
    constexpr int d_at() const { return code_bytes(); }
    constexpr int minimum_at() const { return d_at() + 2 * kPanelRows; }
    constexpr int scales_at() const { return minimum_at() + (has_minimum() ? 2 * kPanelRows : 0); }
    constexpr int minima_at() const { return scales_at() + num_scales() * kPanelRows; }
    constexpr int panel_bytes() const {
        return minima_at() + (kind == Offset::minimum && !packed ? num_scales() * kPanelRows : 0);
    }
    constexpr bool is_table() const { return codes != Codes::numbers; }
    // The largest code, if codes are unsigned.
    constexpr int largest() const { return codes == Codes::fp4 ? 24 : (1 << (low_bits + high_bits)) - 1; }
};

// The layouts, by QuantizedType. A line has Layout's fields in their order.
constexpr Layout kLayouts[kNumTypes] = {
    {32, 4, 0, 0, Offset::constant, 8, Codes::numbers, false, false, 18, 2},       // Q4_0
    {32, 4, 0, 0, Offset::added, 0, Codes::numbers, false, false, 20, 3},          // Q4_1
    {32, 4, 1, 0, Offset::constant, 16, Codes::numbers, false, false, 22, 6},      // Q5_0
    {32, 4, 1, 0, Offset::added, 0, Codes::numbers, false, false, 24, 7},          // Q5_1
    {32, 8, 0, 0, Offset::constant, 0, Codes::numbers, true, false, 34, 8},        // Q8_0
    {256, 2, 0, 16, Offset::minimum, 0, Codes::numbers, false, true, 84, 10},      // Q2_K
    {256, 2, 1, 16, Offset::constant, 4, Codes::numbers, false, false, 110, 11},   // Q3_K
    {256, 4, 0, 32, Offset::minimum, 0, Codes::numbers, false, false, 144, 12},    // Q4_K
    {256, 4, 1, 32, Offset::minimum, 0, Codes::numbers, false, false, 176, 13},    // Q5_K
    {256, 4, 2, 16, Offset::constant, 32, Codes::numbers, false, false, 210, 14},  // Q6_K
    {32, 4, 0, 0, Offset::constant, 0, Codes::iq4, true, false, 18, 20},           // IQ4_NL
    {256, 4, 0, 32, Offset::constant, 0, Codes::iq4, true, false, 136, 23},        // IQ4_XS
    {32, 4, 0, 0, Offset::constant, 12, Codes::fp4, false, false, 17, 39},         // MXFP4
};

constexpr Layout layout_of(QuantizedType type) { return kLayouts[static_cast<int>(type)]; }

// The values of the codes of IQ4_NL, IQ4_XS and MXFP4. An MXFP4 value v stands here as 2 * v + 12, which is 0 or more.
constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kFp4Values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// Bytes of the panels of rows x columns weights. Rows are filled up to whole panels.
//
// columns: a multiple of the type's block (see fits); else the result means nothing.
constexpr std::size_t packed_bytes(QuantizedType type, int64_t rows, int64_t columns) {
    const Layout layout = layout_of(type);
    const int64_t panels = num_panels(rows);
    return static_cast<std::size_t>(panels * (columns / layout.values) * layout.panel_bytes());
}

// Whether a row of so many values is made of whole blocks.
constexpr bool fits(QuantizedType type, int64_t columns) {
    return columns > 0 && columns % layout_of(type).values == 0;
}

}  // namespace specllama::kernels
