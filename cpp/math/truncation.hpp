// Truncation: llama.cpp's top-n-sigma, top-k, typical, top-p and min-p are applied one after the other.
#pragma once

#include <cstddef>
#include <vector>

#include "math/logits_scan.hpp"
#include "math/sampler_params.hpp"

namespace specllama {

class Truncation {
public:
    Truncation(const SamplerParams & params, const float * logits, std::size_t n)
        : params_(params), logits_(logits), n_(n) {}
    // Begins with candidates that the first steps have left already, in descending order.
    Truncation(const SamplerParams & params, std::vector<Candidate> selected)
        : params_(params), logits_(nullptr), n_(0), kept_(std::move(selected)), is_selected_(true) {}

    // Returns the candidates that are left, in descending order; none if no logit is finite. The logits are scanned in
    // single passes, and never sorted.
    std::vector<Candidate> run();

private:
    // One step of the truncation. The first step that is on is applied to all logits, a later one to kept_.
    struct Step {
        bool is_on;
        void (Truncation::*of_all)();
        void (Truncation::*of_kept)();
    };

    float min_p_threshold(float top) const;
    void select_by_min_p(float top);
    void sigma_of_all();
    void top_k_of_all();
    void top_k_of_kept();
    std::vector<double> probabilities_of_kept(double sum) const;
    bool reach_top_p(double sum);
    void top_p_of_kept() { reach_top_p(0.0); }
    void top_p_of_all();
    void min_p_of_all();
    void min_p_of_kept();
    void typical_of_kept();
    void typical_of_all();

    const SamplerParams & params_;
    const float * logits_;
    std::size_t n_;
    std::vector<Candidate> kept_;
    bool is_selected_ = false;  // the first step that is on is applied to kept_, too, because there are no logits
};

}  // namespace specllama
