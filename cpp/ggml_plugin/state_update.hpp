// One GATED_DELTA_NET or SSM_SCAN: what some tokens do to the states of a recurrent layer, divided among ggml's
// threads.
//
// llama.cpp gathers the states of a batch's texts into memory of the graph (GET_ROWS; a scan gathers them itself), lets
// the operation write the new states beside its results, and copies these back (CPY). A state has megabytes in each
// layer. Here the operation reads states where they are, and writes them, and the snapshots for rollbacks, where the
// copy would put them. The other two operations then have nothing to do.
#pragma once

#include <cstdint>

#include "ggml/ggml_layout.hpp"
#include "kernels/float_kernels.hpp"

namespace specllama {

class StateUpdate {
public:
    enum class Kind { delta_net, scan };

    // op: an operation for which fits() is true.
    StateUpdate(const kernels::FloatKernels & kernels, Kind kind, ggml::Tensor * op);

    // Whether the operation has the shapes that this class needs: rows that fill whole lanes, and for a scan one decay
    // for a head, as in Mamba-2.
    static bool fits(Kind kind, const ggml::Tensor * op);

    // The tensor of which our kernels have computed a part, if the model uses them.
    static const ggml::Tensor * made_by_weights(Kind kind, const ggml::Tensor * op);

    // When the graph is planned: notes that the operation reads the rows that GET_ROWS gathers, if it does; and that
    // the states are copied by this CPY, if they are.
    void plan() const;
    void plan_copy(ggml::Tensor * copy) const;

    void compute(const ggml::ComputeParams & params) const;

private:
    const float * state_of(int64_t text) const;
    float * new_state_of(int64_t text, int64_t slot, bool in_place) const;
    bool can_write_in_place() const;
    void update(int64_t text, int64_t head, bool in_place) const;
    int64_t num_slots() const;

    const kernels::FloatKernels & kernels_;
    Kind kind_;
    ggml::Tensor * op_;
    const ggml::Tensor * values_;
    const ggml::Tensor * keys_;
    const ggml::Tensor * queries_;
    int64_t length_;
    int64_t rows_;
    int64_t heads_;
    int64_t tokens_;  // of each text
    int64_t texts_;
    int64_t head_floats_;   // of a head's state
    int64_t state_floats_;  // of a text's state
};

// Whether an operation that has this source reads the new states of an update; and a note, when the graph is planned,
// that something other than a CPY to rows does.
bool reads_states(StateUpdate::Kind kind, const ggml::Tensor * update, const ggml::Tensor * source);
void note_other_reader_of_states(ggml::Tensor * update);

// Whether an update's new states are already where this CPY would put them.
bool are_states_copied(const ggml::Tensor * update, const ggml::Tensor * copy);

// Notes, when the graph is planned, that nothing reads the rows of this GET_ROWS yet; and that something other than a
// StateUpdate reads them.
void plan_choice_of_states(ggml::Tensor * choice);
void note_other_reader(ggml::Tensor * choice);

// Whether a StateUpdate reads the rows of this GET_ROWS.
bool are_read_by_update(const ggml::Tensor * choice);

// Whether a StateUpdate reads the rows of this GET_ROWS where they are, and nothing else reads them.
bool are_rows_read_in_place(const ggml::Tensor * choice);

}  // namespace specllama
