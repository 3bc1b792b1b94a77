// The matrices of a head.
#include "heads/matrix.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/block.hpp"
#include "kernels/matrix_product.hpp"
#include "kernels/pack.hpp"

namespace specllama {

namespace {

// Numbers of types in GGUF files.
constexpr int kFloat = 0;
constexpr int kHalf = 1;
constexpr int kBrain = 30;  // bfloat16: the first 16 bits of a float

bool is_floats(int type) { return type == kFloat || type == kHalf || type == kBrain; }

const kernels::InstructionSet & fastest_set() {
    static const kernels::InstructionSet & set = []() -> const kernels::InstructionSet & {
        const kernels::InstructionSet * sets[kernels::kMostSets];
        kernels::usable_sets(sets);
        return *sets[0];
    }();
    return set;
}

kernels::QuantizedType quantized(int type, std::size_t num_columns) {
    for (int i = 0; i < kernels::kNumTypes; ++i) {
        if (kernels::kLayouts[i].number == type) {
            const auto found = static_cast<kernels::QuantizedType>(i);
            if (!kernels::fits(found, static_cast<int64_t>(num_columns))) {
                throw std::invalid_argument("rows of " + std::to_string(num_columns) +
                                            " numbers are no whole blocks of the type " + kernels::kTypeNames[i]);
            }
            return found;
        }
    }
    throw std::invalid_argument("a matrix of the type number " + std::to_string(type) + " cannot be multiplied here");
}

float brain_float(const std::uint8_t * at) {
    const std::array<std::uint8_t, sizeof(float)> bytes{0, 0, at[0], at[1]};
    float value = 0.0F;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
}

// Converts one row of any type to floats.
void to_floats(int type, const std::uint8_t * row, std::size_t count, float * out) {
    if (type == kFloat) {
        std::memcpy(out, row, count * sizeof(float));
        return;
    }
    if (is_floats(type)) {
        for (std::size_t i = 0; i < count; ++i) {
            std::uint16_t half = 0;
            std::memcpy(&half, row + 2 * i, sizeof half);
            out[i] = type == kHalf ? kernels::half_to_float(half) : brain_float(row + 2 * i);
        }
        return;
    }
    const kernels::QuantizedType of_block = quantized(type, count);
    const kernels::Layout layout = kernels::layout_of(of_block);
    kernels::Block block;
    std::array<double, sizeof block.codes> values{};
    for (std::size_t i = 0; i < count; i += static_cast<std::size_t>(layout.values), row += layout.block_bytes) {
        kernels::take_apart(of_block, row, block);
        kernels::dequantize(of_block, block, values.data());
        std::transform(values.begin(), values.begin() + layout.values, out + i,
                       [](double value) { return static_cast<float>(value); });
    }
}

}  // namespace

std::size_t bytes_of_row(int type, std::size_t num_columns) {
    if (is_floats(type)) {
        return num_columns * (type == kFloat ? sizeof(float) : sizeof(std::uint16_t));
    }
    const kernels::Layout layout = kernels::layout_of(quantized(type, num_columns));
    return num_columns / static_cast<std::size_t>(layout.values) * static_cast<std::size_t>(layout.block_bytes);
}

Matrix::Matrix(int type, std::size_t num_rows, std::size_t num_columns, const std::uint8_t * data)
    : num_rows_(num_rows), num_columns_(num_columns) {
    if (!is_floats(type)) {
        const kernels::QuantizedType of_kernels = quantized(type, num_columns);
        type_ = static_cast<int>(of_kernels);
        const auto rows = static_cast<int64_t>(num_rows), columns = static_cast<int64_t>(num_columns);
        data_.resize(kernels::packed_bytes(of_kernels, rows, columns));
        const int64_t panels = kernels::num_panels(rows);
        kernels::pack(of_kernels, data, rows, columns, 0, panels, data_.data());
        return;
    }
    type_ = -1;
    is_half_ = type == kHalf;
    length_ = (num_columns + kernels::kFloatLanes - 1) / kernels::kFloatLanes * kernels::kFloatLanes;
    const std::size_t from = bytes_of_row(type, num_columns);
    const std::size_t to = length_ * (is_half_ ? sizeof(std::uint16_t) : sizeof(float));
    data_.assign(num_rows * to, 0);
    std::vector<float> row(num_columns);
    for (std::size_t i = 0; i < num_rows; ++i) {
        if (type == kBrain) {
            to_floats(type, data + i * from, num_columns, row.data());
            std::memcpy(data_.data() + i * to, row.data(), num_columns * sizeof(float));
        } else {
            std::memcpy(data_.data() + i * to, data + i * from, from);
        }
    }
}

void Matrix::multiply(const float * x, std::size_t count, float * out) const {
    if (type_ < 0) {
        multiply_floats(x, count, out);
        return;
    }
    kernels::multiply_packed(fastest_set(), static_cast<kernels::QuantizedType>(type_), data_.data(),
                             static_cast<int64_t>(num_rows_), x, static_cast<int64_t>(count),
                             static_cast<int64_t>(num_columns_), out);
}

void Matrix::multiply_floats(const float * x, std::size_t count, float * out) const {
    const std::size_t size = is_half_ ? sizeof(std::uint16_t) : sizeof(float);
    const kernels::CacheRows rows{data_.data(), static_cast<int64_t>(length_ * size)};
    std::vector<float> padded(count * length_);
    for (std::size_t c = 0; c < count; ++c) {
        std::copy_n(x + c * num_columns_, num_columns_, padded.begin() + static_cast<std::ptrdiff_t>(c * length_));
    }
    for (std::size_t begin = 0; begin < count; begin += kernels::kMostQueries) {
        const auto columns = static_cast<int>(std::min<std::size_t>(kernels::kMostQueries, count - begin));
        std::array<const float *, kernels::kMostQueries> from{};
        std::array<float *, kernels::kMostQueries> to{};
        for (std::size_t c = 0; c < static_cast<std::size_t>(columns); ++c) {
            from[c] = padded.data() + (begin + c) * length_;
            to[c] = out + (begin + c) * num_rows_;
        }
        fastest_set().floats.multiply_rows_of(is_half_ ? kernels::CacheType::half : kernels::CacheType::single)(
            rows, static_cast<int64_t>(num_rows_), from.data(), columns, static_cast<int64_t>(length_), to.data());
    }
}

Rows::Rows(int type, std::size_t num_rows, std::size_t num_columns, std::shared_ptr<const std::uint8_t> data)
    : type_(type), num_rows_(num_rows), num_columns_(num_columns), data_(std::move(data)) {
    bytes_of_row(type, num_columns);  // throws for a type that is not supported
}

void Rows::copy(std::size_t row, float * out) const {
    to_floats(type_, data_.get() + row * bytes_of_row(type_, num_columns_), num_columns_, out);
}

}  // namespace specllama
