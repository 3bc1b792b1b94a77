// The types of weights that the kernels multiply, and how the values of each are coded.
#pragma once

#include <cstddef>
#include <cstdint>

namespace specllama::kernels {

// The order is that of kTypeNames.
enum class QuantizedType {
    q4_0,
    q4_1,
    q5_0,
    q5_1,
    q8_0,
    q2_k,
    q3_k,
    q4_k,
    q5_k,
    q6_k,
    iq4_nl,
    iq4_xs,
    mxfp4,
    nvfp4,
    q1_0,
    q2_0,
    tq1_0,
    tq2_0,
    iq2_xxs,
    iq2_xs,
    iq2_s,
    iq3_xxs,
    iq3_s,
    f16,
    bf16,
    // What types with grids become for many columns (see InstructionSet::expand). No file has these.
    expanded_16,
    expanded_32,
};

constexpr int kNumTypes = 25;    // of files
constexpr int kNumLayouts = 27;  // with the expanded types
constexpr const char * kTypeNames[kNumTypes] = {"Q4_0",    "Q4_1",  "Q5_0",  "Q5_1",   "Q8_0",    "Q2_K",   "Q3_K",
                                                "Q4_K",    "Q5_K",  "Q6_K",  "IQ4_NL", "IQ4_XS",  "MXFP4",  "NVFP4",
                                                "Q1_0",    "Q2_0",  "TQ1_0", "TQ2_0",  "IQ2_XXS", "IQ2_XS", "IQ2_S",
                                                "IQ3_XXS", "IQ3_S", "F16",   "BF16"};

// Digits of base 3 in a byte of TQ1_0.
constexpr int kThirds = 5;

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
    numbers,  // the codes are the numbers; a code of one bit stands for 0 or 2
    iq4,      // indices of kIq4Values
    // Indices of kFp4Values, whose values are 0 to 24. If there is one scale, it is a power of two that may be outside
    // the range of float16, so d holds the first 16 bits of a float.
    fp4,
    // Numbers of 0 to 2, five in a byte (see kThirds).
    thirds,
    // Indices of a table of four or eight magnitudes, and a sign for each value (see grids.hpp).
    grid,
    expanded,    // the numbers, as signed bytes; d holds floats
    half,        // float16
    brain_half,  // the first 16 bits of a float
};

// How the scales of spans are coded.
enum class Scales {
    bytes,         // a signed byte for each
    with_minimum,  // a scale and its minimum share a byte
    float8,        // an unsigned E4M3 for each, of which half is the scale
    // A nibble s, which stands for 2 * s + 1; two neighbours share a byte.
    nibbles,
    // The same, in the highest bits of the row's signs.
    in_signs,
};

// How a type is coded, and where its parts stand in a panel of kPanelRows rows.
//
// A block of a panel has, one after the other:
//   - for every 32 values the low bits (64 bytes for each bit), then the high bits. Of a grid: the indices (64 bytes
//   for four entries of all rows), then the signs (64 bytes)
//   - of a grid with whole signs: for every 32 values the indices' high bits [rows]
//   - d [rows] and dmin or m [rows], as float16 (see Codes)
//   - scales and minima: bytes, two neighbours side by side: [num_scales / 2][rows][2]; float8: [num_scales][rows];
//     nibbles: [num_scales / 2][rows]
struct Layout {
    int values = 0;     // values of a block
    int low_bits = 0;   // bits of a value; with grids: registers of indices and signs of 32 values
    int high_bits = 0;  // 0, 1 or 2; they are stored apart from the low bits
    int span = 0;       // values that share a scale: 16 or 32; 0 if there are no scales
    Offset kind = Offset::constant;
    int offset = 0;  // for Offset::constant
    Codes codes = Codes::numbers;
    Scales scales = Scales::bytes;  // if there are scales
    int group = 0;                  // values of a column that share a scale when it is quantized
    int block_bytes = 0;            // bytes of a block in a GGUF file
    int number = 0;                 // the number of the type in a GGUF file
    bool is_signed = false;         // whether a value is a signed byte (possibly looked up), not a small unsigned code
    // With grids only.
    bool whole_signs = false;  // whether all eight signs are coded; else the eighth makes the number of signs even
    int entry = 0;             // values of an entry of the table: 4 or 8
    int index_bits = 0;        // bits of its index: 8 to 10

    constexpr int num_scales() const { return span == 0 ? 0 : values / span; }
    constexpr int num_groups() const { return values / group; }
    // Bytes of 32 values of all rows, without what stands elsewhere.
    constexpr int part_bytes() const { return 64 * (low_bits + high_bits); }
    constexpr int code_bytes() const {
        return codes == Codes::thirds ? 64 * (values / kStep / kThirds + 1) : part_bytes() * (values / 32);
    }
    constexpr bool is_float() const { return codes == Codes::half || codes == Codes::brain_half; }
    constexpr bool is_grid() const { return codes == Codes::grid; }
    constexpr bool has_d() const { return !is_float() && scales != Scales::float8; }
    constexpr bool has_minimum() const { return kind != Offset::constant; }
    // With grids of whole signs: where the high bits of the indices stand.
    constexpr int high_at() const { return code_bytes(); }
    constexpr int d_at() const { return code_bytes() + (whole_signs ? kPanelRows * (values / 32) : 0); }
    constexpr int d_bytes() const { return has_d() ? (codes == Codes::expanded ? 4 : 2) : 0; }
    constexpr int minimum_at() const { return d_at() + d_bytes() * kPanelRows; }
    constexpr int scales_at() const { return minimum_at() + (has_minimum() ? 2 * kPanelRows : 0); }
    constexpr int scale_bytes() const {
        return scales == Scales::in_signs ? 0 : num_scales() * kPanelRows / (scales == Scales::nibbles ? 2 : 1);
    }
    constexpr int minima_at() const { return scales_at() + scale_bytes(); }
    constexpr int panel_bytes() const {
        const bool has_minima = kind == Offset::minimum && scales != Scales::with_minimum;
        return minima_at() + (has_minima ? num_scales() * kPanelRows : 0);
    }
    constexpr bool is_table() const { return codes == Codes::iq4 || codes == Codes::fp4; }
    // The largest code, if codes are unsigned.
    constexpr int largest() const {
        return codes == Codes::fp4                       ? 24
               : low_bits == 1 || codes == Codes::thirds ? 2
                                                         : (1 << (low_bits + high_bits)) - 1;
    }
};

// The layouts, by QuantizedType. A line has Layout's fields in their order.
constexpr Offset kConstant = Offset::constant;
constexpr Layout kLayouts[kNumLayouts] = {
    {32, 4, 0, 0, kConstant, 8, Codes::numbers, Scales::bytes, 32, 18, 2, false},                   // Q4_0
    {32, 4, 0, 0, Offset::added, 0, Codes::numbers, Scales::bytes, 32, 20, 3, false},               // Q4_1
    {32, 4, 1, 0, kConstant, 16, Codes::numbers, Scales::bytes, 32, 22, 6, false},                  // Q5_0
    {32, 4, 1, 0, Offset::added, 0, Codes::numbers, Scales::bytes, 32, 24, 7, false},               // Q5_1
    {32, 8, 0, 0, kConstant, 0, Codes::numbers, Scales::bytes, 32, 34, 8, true},                    // Q8_0
    {256, 2, 0, 16, Offset::minimum, 0, Codes::numbers, Scales::with_minimum, 256, 84, 10, false},  // Q2_K
    {256, 2, 1, 16, kConstant, 4, Codes::numbers, Scales::bytes, 256, 110, 11, false},              // Q3_K
    {256, 4, 0, 32, Offset::minimum, 0, Codes::numbers, Scales::bytes, 256, 144, 12, false},        // Q4_K
    {256, 4, 1, 32, Offset::minimum, 0, Codes::numbers, Scales::bytes, 256, 176, 13, false},        // Q5_K
    {256, 4, 2, 16, kConstant, 32, Codes::numbers, Scales::bytes, 256, 210, 14, false},             // Q6_K
    {32, 4, 0, 0, kConstant, 0, Codes::iq4, Scales::bytes, 32, 18, 20, true},                       // IQ4_NL
    {256, 4, 0, 32, kConstant, 0, Codes::iq4, Scales::bytes, 256, 136, 23, true},                   // IQ4_XS
    {32, 4, 0, 0, kConstant, 12, Codes::fp4, Scales::bytes, 32, 17, 39, false},                     // MXFP4
    {64, 4, 0, 16, kConstant, 12, Codes::fp4, Scales::float8, 32, 36, 40, false},                   // NVFP4
    {128, 1, 0, 0, kConstant, 1, Codes::numbers, Scales::bytes, 32, 18, 41, false},                 // Q1_0
    {64, 2, 0, 0, kConstant, 1, Codes::numbers, Scales::bytes, 32, 18, 42, false},                  // Q2_0
    {256, 2, 0, 0, kConstant, 1, Codes::thirds, Scales::bytes, 256, 54, 34, false},                 // TQ1_0
    {256, 2, 0, 0, kConstant, 1, Codes::numbers, Scales::bytes, 256, 66, 35, false},                // TQ2_0
    {256, 2, 0, 32, kConstant, 0, Codes::grid, Scales::in_signs, 256, 66, 16, true, false, 8, 8},   // IQ2_XXS
    {256, 2, 0, 16, kConstant, 0, Codes::grid, Scales::nibbles, 256, 74, 17, true, false, 8, 9},    // IQ2_XS
    {256, 2, 0, 16, kConstant, 0, Codes::grid, Scales::nibbles, 256, 82, 22, true, true, 8, 10},    // IQ2_S
    {256, 3, 0, 32, kConstant, 0, Codes::grid, Scales::in_signs, 256, 98, 18, true, false, 4, 8},   // IQ3_XXS
    {256, 3, 0, 32, kConstant, 0, Codes::grid, Scales::nibbles, 256, 110, 21, true, true, 4, 9},    // IQ3_S
    {32, 16, 0, 0, kConstant, 0, Codes::half, Scales::bytes, 32, 64, 1, true},                      // F16
    {32, 16, 0, 0, kConstant, 0, Codes::brain_half, Scales::bytes, 32, 64, 30, true},               // BF16
    {256, 8, 0, 16, kConstant, 0, Codes::expanded, Scales::bytes, 256, 0, -1, true},                // expanded_16
    {256, 8, 0, 32, kConstant, 0, Codes::expanded, Scales::bytes, 256, 0, -1, true},                // expanded_32
};

constexpr Layout layout_of(QuantizedType type) { return kLayouts[static_cast<int>(type)]; }

// What a type with a grid becomes for many columns.
constexpr QuantizedType expanded(QuantizedType type) {
    return layout_of(type).span == 16 ? QuantizedType::expanded_16 : QuantizedType::expanded_32;
}

// The values of the codes of IQ4_NL and IQ4_XS, of Q4_0, and of MXFP4 and NVFP4. An MXFP4 value v stands here as 2 * v
// + 12, which is 0 or more.
constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kQ4Values[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
constexpr int8_t kFp4Values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// Half of an E4M3 is the float16 of the same bits, moved to its place, times this.
constexpr float kFloat8Factor = 128.0F;

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
