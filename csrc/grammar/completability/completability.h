// Completability: proves that texts can be completed although their lexer is greedy.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "grammar/completability/lexemes.h"
#include "grammar/gss/number_tables.h"
#include "grammar/rules/network.h"

namespace structout::context_free {

// Completability of program points in single rules, whatever rule calls them.
//
// A program point is a state of a rule, and the end of the lexeme in front of it: the set
// of bytes that would extend it (see ByteClassSets). From a program point lexemes and calls
// lead to the end of the rule; the ends with which they arrive there are the exits of the
// program point. Exits are a least fixpoint, computed on demand (tabulation: Reps, Horwitz,
// Sagiv, "Precise interprocedural dataflow analysis via graph reachability", 1995). All
// lexemes that can follow an end can follow a smaller one, so only minimal exits count.
//
// After StepBudgetExceeded the same call may be made again.
class RuleCompletability {
 public:
  // `contexts`: the number of the context of each state: see contexts_of_states().
  RuleCompletability(const Network& network, Lexemes& lexemes, const ByteClassSets& sets,
                     std::vector<uint32_t> contexts);

  // True if the program point is completable: every text that has reached it can be
  // completed, whatever the stack below. Conservative: false if that is not certain.
  bool is_completable_at(uint32_t state, uint32_t end, engine::Budget& budget);

 private:
  struct Point {
    uint32_t state, end;
    bool is_expanded = false, is_wanted = false;
    std::vector<uint32_t> exits{};    // ends at the end of its rule, the minimal ones
    std::vector<uint32_t> parents{};  // program points that lead here in the same rule
    std::vector<std::pair<uint32_t, uint32_t>>
        callers{};  // program points that call a rule here, and the states after the calls
  };

  uint32_t point_of(uint32_t state, uint32_t end);
  bool is_needed(const Point& point) const;
  void expand(uint32_t number, engine::Budget& budget);
  void link(uint32_t from, uint32_t to);
  void add_exit(uint32_t point, uint32_t end);
  const std::vector<uint32_t>& exits(uint32_t state, uint32_t end, engine::Budget& budget);

  const Network& network_;
  Lexemes& lexemes_;
  const ByteClassSets& sets_;
  const std::vector<uint32_t> contexts_;
  std::vector<std::vector<uint32_t>> returns_;  // by rule: the states after its calls
  std::vector<uint32_t> ignored_;
  PairTable point_numbers_;
  std::vector<Point> points_;
  std::vector<uint32_t> to_expand_;
  std::vector<std::pair<uint32_t, uint32_t>> new_exits_;  // program points and ends
  PairTable is_completable_exit_;                         // by rule and end: 0 or 1
  PairTable is_completable_at_;                           // by state and end
};

// Completability of states of the lexer, whatever the stacks, so that all texts share the
// results. They are conservative: if one is false, EndSearch looks at the stacks.
class Completability {
 public:
  Completability(const Network& network, Lexer& lexer);
  ~Completability();

  // True if every text in this state of the lexer can be completed, whatever its stacks.
  // A known state costs a look into a vector.
  bool is_completable(uint32_t lexer_state, engine::Budget& budget) {
    if (lexer_state < is_completable_.size() && is_completable_[lexer_state] != kUnknown)
      return is_completable_[lexer_state] == 1;
    return computed_is_completable(lexer_state, budget);
  }

  // A way to complete the lexeme from a state that is not completable: the terminals that
  // accept it then, and the number of its end (see ByteClassSets).
  struct Completion {
    uint32_t accepted, end;
    bool operator<(const Completion& other) const {
      return accepted != other.accepted ? accepted < other.accepted : end < other.end;
    }
  };
  const std::vector<Completion>& completions(uint32_t lexer_state, engine::Budget& budget);

  // True if every text with this state of a rule on top, after a lexeme with this end, can
  // be finished.
  bool is_completable_at(uint32_t state, uint32_t end, engine::Budget& budget);

  // True if a lexeme may begin after one with this end, with a byte that would not extend
  // that one.
  bool may_begin(uint32_t lexer_start, uint32_t end, engine::Budget& budget);

  // True if an embedded text or a token may begin after a lexeme with this end.
  bool may_follow(uint32_t symbol, uint32_t end) const { return lexemes_.may_follow(symbol, end); }

  size_t memory_bytes() const;

 private:
  static constexpr uint8_t kUnknown = 2;

  bool computed_is_completable(uint32_t lexer_state, engine::Budget& budget);
  uint32_t end_of(uint32_t lexer_state, engine::Budget& budget);
  bool is_completable_after(uint32_t terminal, uint32_t end, engine::Budget& budget);

  const Network& network_;
  Lexer& lexer_;
  ByteClassSets sets_;
  Lexemes lexemes_;
  std::vector<uint8_t> bytes_;                         // one of each class that has tokens
  std::unique_ptr<RuleCompletability> with_all_;       // as if the lexer followed all terminals everywhere
  std::unique_ptr<RuleCompletability> with_contexts_;  // with contexts_of_states(); null until it is needed
  bool are_contexts_known_ = false;
  std::vector<std::vector<uint32_t>> targets_;  // of each terminal; an ignored one leads back
  PairTable is_completable_after_;              // by terminal and end: 0 or 1
  std::vector<uint8_t> is_completable_;         // by state of the lexer: 0, 1 or kUnknown
  std::unordered_map<uint32_t, std::vector<Completion>> completions_;
};

}  // namespace structout::context_free
