// Lookup and a draft model together, token by token, each where it pays (design sections 7 and 8).
#include "mixed.hpp"

#include <algorithm>

#include "forced.hpp"

namespace specllama {

namespace {

constexpr std::size_t most_forced = 4;    // tokens at a time: each has to be looked for
constexpr std::size_t least_probed = 16;  // tokens of an answer: behind fewer a probe would be felt

}  // namespace

MixedDrafter::MixedDrafter(std::unique_ptr<ModelDrafter> model, const std::vector<int32_t> & corpus)
    : model_(std::move(model)), lookup_(corpus) {
    if (model_) {
        model_->report_to(&pace_.draft());
        pace_.set_draft_batch(model_->n_batch());
    }
}

std::vector<Sequence *> MixedDrafter::sequences() const {
    return model_ ? model_->sequences() : std::vector<Sequence *>();
}

std::size_t MixedDrafter::room(std::size_t history_size) const {
    return model_ ? model_->room(history_size) : static_cast<std::size_t>(-1);
}

void MixedDrafter::begin(const std::vector<int32_t> & history, const Task & task) {
    lookup_.begin(history);
    pace_.begin_generation();
    task_ = task;
    probes_ = false;
    if (model_) {
        model_->begin(history, task);
        prompt_pays_ = prompt_pays(history);
        probes_ = !prompt_pays_ && task.max_tokens >= least_probed && pace_.probes();
    }
}

bool MixedDrafter::prompt_pays(const std::vector<int32_t> & history) {
    const std::size_t missing = model_->missing(history.size());
    return !task_.paced || missing <= 1 || pace_.prompt_pays(missing, task_.gamma, task_.max_tokens);
}

std::size_t MixedDrafter::prefill(const std::vector<int32_t> & history) {
    if (probes_) {
        probes_ = false;
        model_->probe(history);
        prompt_pays_ = prompt_pays(history);
    }
    return model_ && prompt_pays_ ? model_->prefill(history) : 0;
}

void MixedDrafter::commit(const std::vector<int32_t> & history) {
    lookup_.commit(history);
    if (model_) {
        model_->commit(history);
    }
}

void MixedDrafter::rewind(std::size_t count) { lookup_.rewind(count); }

void MixedDrafter::propose(const DraftRequest & request, Proposal & out) {
    offered_ = {};
    used_ = false;
    dropped_.reset();
    paced_ = request.paced;
    if (paced_) {
        mix(request, out);
        drop(out);
    } else if (model_) {
        model_->propose(request, out);
    } else {
        guess(request, out);
    }
}

void MixedDrafter::guess(const DraftRequest & request, Proposal & out) {
    while (out.tokens.size() < request.gamma) {
        const Lookup::Found found = find(request, out);
        for (std::size_t i = 0; i < found.tokens.size(); ++i) {
            out.append_guess(found.tokens[i], found.expectations[i].source);
            lookup_.push(found.tokens[i]);
        }
        if (found.tokens.empty() || request.target.is_eog(out.tokens.back())) {
            return;
        }
    }
}

void MixedDrafter::mix(const DraftRequest & request, Proposal & out) {
    pace_.begin_round(request.gamma, model_ ? model_->missing(request.history.size()) : 0, request.may_drop);
    while (out.tokens.size() < request.gamma) {
        const Lookup::Found found = find(request, out);
        const Pace::Decision decision = pace_.decide(found.expectations);
        if (out.tokens.empty()) {
            offered_ = found;
            used_ = decision.move == Pace::Move::lookup;
        }
        if (decision.move == Pace::Move::stop) {
            return;
        }
        take(request, decision, found, out);
        if (decision.move == Pace::Move::pad || request.target.is_eog(out.tokens.back())) {
            return;
        }
    }
}

void MixedDrafter::drop(Proposal & out) {
    num_kept_ = pace_.drop();
    if (num_kept_ < out.tokens.size()) {
        dropped_ = out.tokens[num_kept_];
        out.cut(num_kept_);
    }
}

// What can be drafted here without a decode.
Lookup::Found MixedDrafter::find(const DraftRequest & request, const Proposal & out) const {
    const std::size_t most = request.gamma - out.tokens.size();
    Lookup::Found forced = forced_tokens(request, out, std::min(most, most_forced));
    if (!forced.tokens.empty()) {
        return forced;
    }
    Lookup::Found found = lookup_.look_up(most, request.target);
    drop_forbidden(request, out, found);
    return found;
}

void MixedDrafter::take(const DraftRequest & request, const Pace::Decision & decision, const Lookup::Found & found,
                        Proposal & out) {
    if (decision.move == Pace::Move::model) {
        const std::size_t before = pace_.before();
        const double confidence = model_->draw(request, out);
        pace_.drafted(Expectation::of_model(confidence, before));
        lookup_.push(out.tokens.back());
        return;
    }
    for (std::size_t i = 0; i < decision.count; ++i) {
        if (decision.move == Pace::Move::lookup) {
            out.append_guess(found.tokens[i], found.expectations[i].source);
            pace_.drafted(found.expectations[i]);
        } else {
            // The same token once more: it is seldom right, and makes the batch a size that costs less.
            out.append_guess(out.tokens.back(), Source::padding);
            pace_.drafted(Expectation::of_padding());
        }
        lookup_.push(out.tokens.back());
    }
}

void MixedDrafter::learn(const Outcome & outcome) {
    if (!outcome.proposed || !paced_) {
        pace_.decoded(outcome.num_drafted + 1, outcome.verify_seconds);
        return;
    }
    pace_.end_round(outcome.num_accepted, outcome.verify_seconds, outcome.draft_seconds);
    if (dropped_ && outcome.emitted.size() == num_kept_ + 1) {
        pace_.judge_dropped(*dropped_ == outcome.emitted.back());
    }
    if (!used_) {
        const auto & tokens = offered_.tokens;
        const std::size_t judged = std::min(tokens.size(), outcome.emitted.size());
        std::size_t right = 0;
        while (right < judged && tokens[right] == outcome.emitted[right]) {
            ++right;
        }
        pace_.judge_unused(offered_.expectations, right, judged);
    }
}

}  // namespace specllama
