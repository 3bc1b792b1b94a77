// A drafter that is a function of the caller's: history and gamma in, tokens and their q out. Costs no decode.
#include "callback.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace specllama {

namespace {

void require_proposal(const DraftRequest & request, const Proposal & proposal) {
    const std::size_t count = proposal.tokens.size();
    if (count > request.gamma || proposal.q.size() != count) {
        throw std::invalid_argument("the drafter gave " + std::to_string(count) + " tokens and " +
                                    std::to_string(proposal.q.size()) + " distributions: at most " +
                                    std::to_string(request.gamma) + " of each were asked for");
    }
    for (std::size_t i = 0; i < count; ++i) {
        const int32_t token = proposal.tokens[i];
        if (token < 0 || static_cast<std::size_t>(token) >= request.target.n_vocab() ||
            !(proposal.q[i].of(token) > 0.0)) {
            throw std::invalid_argument("the drafter gave token " + std::to_string(token) + " at position " +
                                        std::to_string(i) + ": it must be one of the target's " +
                                        std::to_string(request.target.n_vocab()) +
                                        ", with a probability above 0 in its q");
        }
    }
}

void cut_behind_end(const DraftRequest & request, Proposal & out) {
    const auto end = std::find_if(out.tokens.begin(), out.tokens.end(),
                                  [&request](int32_t token) { return request.target.is_eog(token); });
    if (end != out.tokens.end()) {
        out.cut(static_cast<std::size_t>(end - out.tokens.begin()) + 1);
    }
}

}  // namespace

void CallbackDrafter::propose(const DraftRequest & request, Proposal & out) {
    try {
        propose_(request, out);
        require_proposal(request, out);
    } catch (...) {
        out.clear();
        throw;
    }
    out.sources.assign(out.tokens.size(), Source::function);
    cut_behind_end(request, out);
}

}  // namespace specllama
