// A GBNF grammar, by llama.cpp's own engine: the same texts are allowed as in plain llama_cpp, if it does not take too
// long.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "llama/llama_api.hpp"
#include "llama/vocabulary.hpp"
#include "math/constraint.hpp"

namespace specllama {

class Grammar final : public Constraint {
public:
    // vocab: must be there for as long as the grammar is asked. first_bytes: of it. Throws std::invalid_argument if
    // llama.cpp cannot parse the text. As there, an empty text allows everything.
    Grammar(std::shared_ptr<const LlamaApi> api, const llama_vocab * vocab,
            std::shared_ptr<const FirstBytes> first_bytes, const std::string & gbnf, const std::string & root);

    // Throws std::invalid_argument if one place of the text takes too long, as forced() does. The next call may come.
    void forbid(const int32_t * recent, std::size_t n_recent, Candidate * candidates, std::size_t count) override;
    // Gives up where too many tokens begin the text.
    std::optional<Forced> forced(const int32_t * recent, std::size_t n_recent) override;
    void ask(const Heed * heed) override { heed_ = heed; }

private:
    using State = std::shared_ptr<llama_sampler>;
    struct Step {
        int32_t token;
        bool followed;  // else it was passed over
    };
    struct Copy {
        std::size_t num_steps;  // after which the state is
        State state;
    };

    State owned(llama_sampler * sampler) const;
    State at_beginning() const;
    State copy_of(const State & state);
    void go_behind(const int32_t * recent, std::size_t n_recent);
    void go_back(std::size_t count);
    void go_on(int32_t token);
    bool goes_on_with(int32_t token);
    std::optional<std::size_t> only_byte();
    std::vector<int32_t> allowed_of(const std::vector<int32_t> & tokens);
    void test(Candidate * candidates, std::size_t count);
    void test_part(Candidate * candidates, std::size_t count);
    void worked_since(double start);

    std::shared_ptr<const LlamaApi> api_;
    const llama_vocab * vocab_;
    std::shared_ptr<const FirstBytes> first_bytes_;
    std::string gbnf_;
    std::string root_;
    std::vector<Step> steps_;
    State state_;               // after all steps
    std::vector<Copy> copies_;  // after some of the last steps
    bool copies_take_long_ = false;
    const Heed * heed_ = nullptr;
    double worked_ = 0.0;    // seconds at the last place
    double unheeded_ = 0.0;  // seconds since somebody was asked
    std::vector<llama_token_data> data_;
};

}  // namespace specllama
