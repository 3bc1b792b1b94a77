// The matrices of a head, in the types of the head's file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace specllama {

// A matrix that is multiplied with columns, on the calling thread. The result of a column does not depend on the other
// columns.
class Matrix {
public:
    // type: the number of the type in GGUF files. data: the rows, as a GGUF file holds them. Throws
    // std::invalid_argument for a type that is neither a float type nor one that the kernels multiply, and for rows
    // that are not whole blocks.
    Matrix(int type, std::size_t num_rows, std::size_t num_columns, const std::uint8_t * data);

    std::size_t num_rows() const { return num_rows_; }
    std::size_t num_columns() const { return num_columns_; }

    // x: [count][num_columns]; out: [count][num_rows].
    void multiply(const float * x, std::size_t count, float * out) const;

private:
    void multiply_floats(const float * x, std::size_t count, float * out) const;

    std::size_t num_rows_;
    std::size_t num_columns_;
    std::size_t length_ = 0;  // for float types: the length of a row, filled up to whole lanes
    int type_ = 0;            // the kernels' number of the type; below 0 for float types
    bool is_half_ = false;
    std::vector<std::uint8_t> data_;
};

// A matrix whose rows are looked up one by one. The data is not copied.
class Rows {
public:
    // data: the memory must stay valid as long as the shared_ptr is held. Throws what Matrix throws.
    Rows(int type, std::size_t num_rows, std::size_t num_columns, std::shared_ptr<const std::uint8_t> data);

    std::size_t num_rows() const { return num_rows_; }
    std::size_t num_columns() const { return num_columns_; }

    // Copies one row to out [num_columns], as floats.
    void copy(std::size_t row, float * out) const;

private:
    int type_;
    std::size_t num_rows_;
    std::size_t num_columns_;
    std::shared_ptr<const std::uint8_t> data_;
};

// The bytes of a row. type: the number of the type in GGUF files. Throws what Matrix throws.
std::size_t bytes_of_row(int type, std::size_t num_columns);

}  // namespace specllama
