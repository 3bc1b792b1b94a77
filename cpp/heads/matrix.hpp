// Matrices of a head's file, in the type that they have there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace specllama {

// Products with some columns, on the calling thread. What comes of a column does not depend on the others.
class Matrix {
public:
    // type: its number in GGUF files; data: the rows, as such a file holds them. Throws std::invalid_argument for a
    // type that is neither one of floats nor one that the kernels multiply, and for rows that have no whole blocks.
    Matrix(int type, std::size_t num_rows, std::size_t num_columns, const std::uint8_t * data);

    std::size_t num_rows() const { return num_rows_; }
    std::size_t num_columns() const { return num_columns_; }

    // x: [count][num_columns]; out: [count][num_rows].
    void multiply(const float * x, std::size_t count, float * out) const;

private:
    void multiply_floats(const float * x, std::size_t count, float * out) const;

    std::size_t num_rows_;
    std::size_t num_columns_;
    std::size_t length_ = 0;  // of rows of floats: filled up to whole lanes
    int type_ = 0;            // of the kernels; below 0: floats
    bool is_half_ = false;
    std::vector<std::uint8_t> data_;
};

// Rows that are looked up one by one, and stay where they are.
class Rows {
public:
    // data: lives as long as it is held. Throws what Matrix throws.
    Rows(int type, std::size_t num_rows, std::size_t num_columns, std::shared_ptr<const std::uint8_t> data);

    std::size_t num_rows() const { return num_rows_; }
    std::size_t num_columns() const { return num_columns_; }

    // out: [num_columns].
    void copy(std::size_t row, float * out) const;

private:
    int type_;
    std::size_t num_rows_;
    std::size_t num_columns_;
    std::shared_ptr<const std::uint8_t> data_;
};

// Bytes of a row of a type, by its number in GGUF files. Throws what Matrix throws.
std::size_t bytes_of_row(int type, std::size_t num_columns);

}  // namespace specllama
