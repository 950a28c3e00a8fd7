// Deterministic automata over bytes, and the Boolean operations on them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "automata/partition.h"
#include "base/limits.h"

namespace structout::engine {

constexpr uint32_t kDead = UINT32_MAX;  // no state: no text with this beginning is accepted

struct Edge {
  uint8_t first;
  uint8_t last;
  uint32_t target;
  bool operator==(const Edge& other) const {
    return first == other.first && last == other.last && target == other.target;
  }
};

// A deterministic automaton in its canonical minimal form. Invariants: every state is
// reachable and reaches an accepting state, no two states accept the same texts, and
// states are numbered in the order of a breadth-first search from the start, which is
// state 0. So two automata are equal if and only if their languages are. The empty
// language has no states.
class Automaton {
 public:
  uint32_t num_states() const { return uint32_t(is_accepting_.size()); }
  bool accepts(uint32_t state) const { return is_accepting_[state] != 0; }
  size_t num_edges() const { return edges_.size(); }

  // The edges of a state by increasing bytes. They do not overlap, and two that touch
  // have different targets.
  const Edge* begin(uint32_t state) const { return edges_.data() + edge_begin_[state]; }
  const Edge* end(uint32_t state) const { return edges_.data() + edge_begin_[state + 1]; }

  // The state after a byte, or kDead. A binary search over the edges of the state.
  uint32_t next(uint32_t state, uint8_t byte) const {
    const Edge *low = begin(state), *high = end(state);
    while (low < high) {
      const Edge* middle = low + (high - low) / 2;
      if (middle->last < byte) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < end(state) && low->first <= byte ? low->target : kDead;
  }

  bool matches(const std::string& text) const;

  size_t memory_bytes() const {
    return edges_.capacity() * sizeof(Edge) + edge_begin_.capacity() * sizeof(uint32_t) + is_accepting_.capacity();
  }

  // Bytes of a fixed format, the same for equal automata.
  std::string serialize() const;

  // Throws std::invalid_argument for anything that serialize does not write.
  static Automaton deserialize(const std::string& bytes);

  bool operator==(const Automaton& other) const {
    return is_accepting_ == other.is_accepting_ && edge_begin_ == other.edge_begin_ && edges_ == other.edges_;
  }

 private:
  friend class AutomatonBuilder;
  std::vector<uint32_t> edge_begin_ = {0};
  std::vector<Edge> edges_;
  std::vector<uint8_t> is_accepting_;
};

// Collects the states and edges of a deterministic automaton that need not be minimal.
class AutomatonBuilder {
 public:
  // Adds the next state, with edges in the order of their bytes that do not overlap.
  // Targets may be added later.
  void add_state(bool is_accepting, const std::vector<Edge>& edges);
  uint32_t num_states() const { return uint32_t(is_accepting_.size()); }
  bool is_equal(uint32_t state, bool is_accepting, const std::vector<Edge>& edges) const;

  // Removes useless states, merges equivalent ones and returns the minimal automaton
  // with the given start. Leaves the builder empty. See coarsest_partition() for the
  // cost.
  Automaton minimal(uint32_t start, Budget& budget);

  // Like minimal(), but without the search for equivalent states: the caller guarantees
  // that no two states accept the same texts.
  Automaton numbered(uint32_t start);

 private:
  void prune(uint32_t start);
  Predecessors predecessors() const;
  std::vector<uint32_t> equivalence_classes(Budget& budget) const;
  Automaton merged(const std::vector<uint32_t>& classes) const;

  std::vector<uint32_t> edge_begin_ = {0};
  std::vector<Edge> edges_;
  std::vector<uint8_t> is_accepting_;
  uint32_t start_ = kDead;
};

// By the product construction: at most (states of a + 1) * (states of b + 1) pairs are
// visited, then the result is minimized.
Automaton intersection(const Automaton& a, const Automaton& b, Budget& budget);
Automaton union_of(const Automaton& a, const Automaton& b, Budget& budget);
Automaton difference(const Automaton& a, const Automaton& b, Budget& budget);

// The texts of bytes, UTF-8 or not, that `a` does not accept.
Automaton complement(const Automaton& a, Budget& budget);

}  // namespace structout::engine
