// The kernels of attention over one head of a cache, for tests.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/instruction_sets.hpp"
#include "bindings/test/parts.hpp"
#include "kernels/attention.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Halves = py::array_t<uint16_t, py::array::c_style>;

template <class Number>
bool holds(const py::array & array) {
    return py::isinstance<py::array_t<Number, py::array::c_style>>(array);
}

kernels::CacheType type_of(const py::array & array) {
    return holds<float>(array)      ? kernels::CacheType::single
           : holds<uint16_t>(array) ? kernels::CacheType::half
           : holds<uint8_t>(array)  ? kernels::CacheType::q8
           : holds<int8_t>(array)   ? kernels::CacheType::q4
           : holds<int16_t>(array)  ? kernels::CacheType::iq4
                                    : throw std::invalid_argument("rows of this type are in no cache");
}

// Rows [n][length] of float32, or of float16 seen as uint16. Or their bytes: seen as uint8 of Q8_0, as int8 of Q4_0, as
// int16 of IQ4_NL.
struct Rows {
    explicit Rows(const py::array & array) : rows(array.shape(0)), type(type_of(array)) {
        const int64_t bytes = array.shape(1) * array.itemsize();
        if (bytes % kernels::block_bytes(type) != 0) {
            throw std::invalid_argument("rows must be of whole blocks");
        }
        length = bytes / kernels::block_bytes(type) * (is_quantized(type) ? kernels::kBlockValues : 1);
        cache = {static_cast<const uint8_t *>(array.data()), static_cast<int64_t>(array.strides(0))};
    }
    kernels::CacheRows cache = {};
    int64_t rows;
    int64_t length = 0;
    kernels::CacheType type;
};

void require(bool holds, const char * what) {
    if (!holds) {
        throw std::invalid_argument(what);
    }
}

Floats multiply_rows(const py::array & rows, const Floats & x, const std::string & set_name) {
    require(rows.ndim() == 2 && x.ndim() == 2, "rows and x must be [n, length]");
    const Rows cache(rows);
    require(x.shape(1) == cache.length && cache.length % kernels::kFloatLanes == 0,
            "rows and x must be of one length, a multiple of 16");
    const auto multiply = set_named(set_name).floats.multiply_rows_of(cache.type);
    Floats out({x.shape(0), rows.shape(0)});
    for (py::ssize_t first = 0; first < x.shape(0); first += kernels::kMostQueries) {
        const auto count = std::min<py::ssize_t>(kernels::kMostQueries, x.shape(0) - first);
        const float * columns[kernels::kMostQueries];
        float * results[kernels::kMostQueries];
        for (py::ssize_t i = 0; i < count; ++i) {
            columns[i] = x.data(first + i, 0);
            results[i] = out.mutable_data(first + i, 0);
        }
        multiply(cache.cache, cache.rows, columns, static_cast<int>(count), cache.length, results);
    }
    return out;
}

kernels::Queries queries_of(const Floats & queries, const Rows & keys, const Rows & values, const Halves & masks,
                            float scale, float cap, float slope, py::ssize_t first) {
    kernels::Queries made = {};
    made.keys = keys.cache;
    made.values = values.cache;
    made.key_length = keys.length;
    made.value_length = values.length;
    made.scale = scale;
    made.cap = cap;
    made.count = static_cast<int>(std::min<py::ssize_t>(kernels::kMostQueries, queries.shape(0) - first));
    for (int i = 0; i < made.count; ++i) {
        made.vectors[i] = queries.data(first + i, 0);
        made.masks[i] = reinterpret_cast<const uint8_t *>(masks.data(first + i, 0));
        made.slopes[i] = slope;
    }
    return made;
}

// Computes the attention of queries to a cache. cells: the cells that the queries see, ascending; if empty, all cells.
// cap, slope: as in kernels::Queries; sink: as in kernels::divide.
Floats attend(const Floats & queries, const py::array & key_rows, const py::array & value_rows, const Halves & masks,
              float scale, const std::string & set_name, const std::vector<int32_t> & cells, float cap, float slope,
              float sink) {
    require(queries.ndim() == 2 && key_rows.ndim() == 2 && value_rows.ndim() == 2 && masks.ndim() == 2,
            "queries, keys, values and masks must be [n, length]");
    const Rows keys(key_rows);
    const Rows values(value_rows);
    require(keys.type == values.type && keys.rows == values.rows && masks.shape(1) == keys.rows &&
                masks.shape(0) == queries.shape(0) && queries.shape(1) == keys.length,
            "queries, keys, values and masks do not belong together");
    require(keys.rows > 0 && (keys.rows | keys.length | values.length) % kernels::kFloatLanes == 0,
            "cells and lengths must be multiples of 16");
    const kernels::FloatKernels & floats = set_named(set_name).floats;
    const auto bytes = static_cast<std::size_t>(kernels::kMostQueries * kernels::Partial::bytes(values.length));
    require(std::all_of(cells.begin(), cells.end(), [&](int32_t cell) { return 0 <= cell && cell < keys.rows; }),
            "there are no such cells");
    const std::size_t packed = kernels::packed_bytes(keys.length, values.length, keys.type);
    std::vector<kernels::Partial> work((2 * bytes + packed) / sizeof(kernels::Partial) + 1);
    auto * out = reinterpret_cast<uint8_t *>(work.data());
    const kernels::SeenCells seen = {cells.data(), static_cast<int64_t>(cells.size()), keys.rows};
    Floats results({queries.shape(0), values.length});
    for (py::ssize_t first = 0; first < queries.shape(0); first += kernels::kMostQueries) {
        const kernels::Queries some = queries_of(queries, keys, values, masks, scale, cap, slope, first);
        if (cells.empty()) {
            kernels::attend_to_all(floats, keys.type, &some, 1, keys.rows, out, static_cast<int64_t>(bytes));
        } else {
            kernels::attend_to_some(floats, keys.type, some, seen, out, out + bytes, out + 2 * bytes);
        }
        for (int i = 0; i < some.count; ++i) {
            kernels::divide(
                *reinterpret_cast<const kernels::Partial *>(out + i * kernels::Partial::bytes(values.length)),
                values.length, sink, results.mutable_data(first + i, 0));
        }
    }
    return results;
}

}  // namespace

void bind_attention_for_tests(py::module_ & module) {
    module.def("multiply_rows", &multiply_rows, py::arg("rows"), py::arg("x"), py::arg("instruction_set"),
               "The product of rows of floats with columns, as the kernels compute it: [columns, rows].");
    module.def("attend", &attend, py::arg("queries"), py::arg("keys"), py::arg("values"), py::arg("masks"),
               py::arg("scale"), py::arg("instruction_set"), py::arg("cells") = std::vector<int32_t>(),
               py::arg("cap") = 0.0F, py::arg("slope") = 1.0F, py::arg("sink") = -INFINITY,
               "Attention of queries to one head of a cache, as the kernels compute it: [queries, length of a value].");
}

}  // namespace specllama
