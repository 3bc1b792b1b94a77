// Counter-based uniforms and Gumbels: a pure function of (seed, stream, position, token).
//
// A key is mixed from (seed, stream, position). It starts a SplitMix64 sequence (Steele, Lea, Flood, "Fast Splittable
// Pseudorandom Number Generators", OOPSLA 2014), and the draw is element number `token` of that sequence. There is no
// state, so the noise of a position is the same for the target and for every draft, and without a draft.
#pragma once

#include <cmath>
#include <cstdint>

namespace specllama {

// Draws of different streams are independent. `gumbel` is keyed by the position in the history, because the coupled
// rule needs the same noise for draft and target. The other streams are keyed by the number of the round, because block
// verification also looks at uniforms of positions that are decided in the next round, and the next round must not see
// the same uniforms.
enum class Stream : std::uint64_t { gumbel = 1, draft = 2, accept = 3, next = 4 };

inline std::uint64_t mix64(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

class Noise {
public:
    Noise(std::uint64_t seed, Stream stream, std::uint64_t position) {
        constexpr std::uint64_t golden = 0x9e3779b97f4a7c15ULL;
        key_ = mix64(seed + golden);
        key_ = mix64(key_ ^ (golden * (static_cast<std::uint64_t>(stream) + 1)));
        key_ = mix64(key_ ^ (golden * (position + 1)));
    }

    std::uint64_t bits(std::uint64_t token) const { return mix64(key_ + 0x9e3779b97f4a7c15ULL * (token + 1)); }

    // A uniform number in (0, 1), never 0 or 1: the middle of one of 2^52 equal intervals.
    double uniform(std::uint64_t token) const { return (static_cast<double>(bits(token) >> 12) + 0.5) * 0x1p-52; }

    // -log(uniform): a variable with the distribution Exp(1). -log of it is a Gumbel variable.
    double exponential(std::uint64_t token) const { return -std::log(uniform(token)); }

    // No draw of exponential() is smaller: -log(1 - e) >= e for the smallest distance e of uniform() from 1.
    static constexpr double smallest_exponential = 0x1p-53;

private:
    std::uint64_t key_;
};

}  // namespace specllama
