// A head: a layer that reads the target's hidden states (EAGLE-3, Li et al. 2025, arXiv 2503.01840; MTP, DeepSeek-V3,
// arXiv 2412.19437, section 2.2).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "drafters/reading_head.hpp"

namespace specllama {

// Each entry of the head's KV cache is made from a token and the target's hidden state of the token before it. For a
// drafted token there is no such state yet, so the head uses its own state instead. Once the token is accepted, the
// head decodes it again with the target's state.
//
// Several MTP layers take turns: layer i draws the i-th token, so at most as many tokens are drawn as there are layers.
// Each layer has keys and values of its own. So each layer reads the text, and layer i also reads all tokens drafted
// before the i-th.
class HeadDrafter final : public ReadingHead {
public:
    // sequence: of a head's decoder. window: the most tokens of the text that the memory holds; 0: as many as the
    // context has room for.
    explicit HeadDrafter(const std::shared_ptr<Sequence> & sequence, std::size_t window = 0);

    void observe(const DecodedBatch & batch) override;

    std::optional<DraftToken> draw(const DraftRequest & request, std::size_t before,
                                   const Proposal & proposal) override;
    // 0 while the target's state of the text's last token but one is missing.
    std::size_t room() const override;
    void probe() override;

protected:
    void read(std::size_t count) override { decode_text(count, false); }
    std::size_t num_true() const override { return std::min(num_true_, num_held()); }
    void all_are_true() override { num_true_ = num_held(); }

private:
    void decode_rest_of_text();
    void decode_text(std::size_t count, bool draws);
    void decode_drafted(int32_t token);
    void decode_by_layer(std::size_t layer, const std::vector<int32_t> & drafted);
    bool has_several() const { return sequence().decoder().num_layers() > 1; }
    void decode_one(const Sequence::Addition & addition);

    std::size_t num_true_ = 0;
    std::vector<float> last_state_;  // the state of the token that was decoded last
    std::vector<float> chain_;       // with several layers: the states that the next layer reads beside the tokens
    std::size_t row_ = 0;            // the row of logits of the token that was decoded last
};

}  // namespace specllama
