// The papers' draft: a second, smaller model in a context of its own.
#include "model.hpp"

#include <algorithm>

#include "../prefill.hpp"

namespace specllama {

// The last drafted token is never decoded: n tokens behind the history need n - 1 cells.
std::size_t ModelDrafter::room(std::size_t history_size) const {
    return context_->n_ctx() + 1 - std::min(context_->n_ctx() + 1, history_size);
}

std::size_t ModelDrafter::prefill(const std::vector<int32_t> & history) { return prefill_chunk(*context_, history); }

void ModelDrafter::propose(const DraftRequest & request, Proposal & out) {
    sequence_ = request.history;
    const std::size_t n_vocab = std::min(request.n_vocab, context_->n_vocab());
    for (std::size_t i = 0; i < request.gamma; ++i) {
        // In the first step: the tokens that the last round added (two after a round without rejection). Then one each.
        const std::size_t cached = context_->tokens().size();
        const std::size_t count = sequence_.size() - cached;
        context_->decode(sequence_.data() + cached, count, count - 1);
        Distribution q;
        request.chain.apply(context_->logits(count - 1), n_vocab, sequence_.data() + request.prompt_size,
                            sequence_.size() - request.prompt_size, q);
        const int32_t token = request.rule == Rule::coupled
                                  ? q.gumbel_argmax(Noise(request.seed, Stream::gumbel, sequence_.size()))
                                  : q.sample(Noise(request.seed, Stream::draft, request.round).uniform(i));
        sequence_.push_back(token);
        out.q.push_back(std::move(q));
        out.tokens.push_back(token);
        if (context_->is_eog(token)) {
            return;  // what would follow is of no use
        }
    }
}

}  // namespace specllama
