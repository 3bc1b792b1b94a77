#include "kernels/grids.hpp"

namespace specllama::kernels {

namespace {

#include "kernels/grids.inc"

template <int values, int entries>
constexpr auto expand(const uint16_t (&indices)[entries], const uint32_t (&levels)[values == 8 ? 4 : 8]) {
    constexpr int bits = values == 8 ? 2 : 3;
    Grid<entries, values / 4> grid = {};
    for (int i = 0; i < entries; ++i) {
        for (int k = 0; k < values; ++k) {
            const uint32_t level = levels[(indices[i] >> (bits * k)) & ((1 << bits) - 1)];
            grid.at[i * (values / 4) + k / 4] |= level << (8 * (k % 4));
        }
    }
    return grid;
}

constexpr uint32_t kLevels2[4] = {8, 25, 43, 0};
constexpr uint32_t kLevels3Xxs[8] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr uint32_t kLevels3S[8] = {1, 3, 5, 7, 9, 11, 13, 15};

}  // namespace

constexpr Grid<256, 2> kIq2XxsGrid = expand<8>(kIq2XxsEntries, kLevels2);
constexpr Grid<512, 2> kIq2XsGrid = expand<8>(kIq2XsEntries, kLevels2);
constexpr Grid<1024, 2> kIq2SGrid = expand<8>(kIq2SEntries, kLevels2);
constexpr Grid<256, 1> kIq3XxsGrid = expand<4>(kIq3XxsEntries, kLevels3Xxs);
constexpr Grid<512, 1> kIq3SGrid = expand<4>(kIq3SEntries, kLevels3S);

}  // namespace specllama::kernels
