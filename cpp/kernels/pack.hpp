// Packs the rows of a quantized matrix into panels: 16 rows side by side, so that one register holds a step of all of
// them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/quantized_type.hpp"

namespace specllama::kernels {

// Packs the panels from first to last (not included).
//
// rows: the whole matrix as a GGUF file holds it, row after row; num_rows and columns: its shape (see fits).
// panels: packed_bytes(type, num_rows, columns) bytes. The rows that fill up the last panel give products of 0.
void pack(QuantizedType type, const uint8_t * rows, int64_t num_rows, int64_t columns, int64_t first, int64_t last,
          uint8_t * panels);

}  // namespace specllama::kernels
