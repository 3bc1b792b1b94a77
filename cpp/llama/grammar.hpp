// A GBNF grammar, checked by llama.cpp's own engine: it allows the same texts as plain llama_cpp, within a time limit.
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
    // vocab: must outlive the grammar. first_bytes: made from vocab. Throws std::invalid_argument if llama.cpp cannot
    // parse the grammar. An empty grammar allows everything, as in llama.cpp.
    Grammar(std::shared_ptr<const LlamaApi> api, const llama_vocab * vocab,
            std::shared_ptr<const FirstBytes> first_bytes, const std::string & gbnf, const std::string & root);

    // Throws std::invalid_argument if one place of the text takes too long; so does forced(). Later calls may succeed.
    void forbid(const int32_t * recent, std::size_t n_recent, Candidate * candidates, std::size_t count) override;
    // Returns nothing if too many tokens begin with the only possible byte.
    std::optional<Forced> forced(const int32_t * recent, std::size_t n_recent) override;
    void ask(const Poll * poll) override { poll_ = poll; }

private:
    using State = std::shared_ptr<llama_sampler>;
    struct Step {
        int32_t token;
        bool followed;  // false: the grammar does not allow the token, or it ends the text
    };
    struct Copy {
        std::size_t num_steps;  // the state is the one after this many steps
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
    State state_;               // the state after all steps
    std::vector<Copy> copies_;  // copies of earlier states, in order
    bool copies_take_long_ = false;
    const Poll * poll_ = nullptr;
    double worked_ = 0.0;    // seconds of work at the current place of the text
    double unpolled_ = 0.0;  // seconds of work since the last call of poll_
    std::vector<llama_token_data> data_;
};

}  // namespace specllama
