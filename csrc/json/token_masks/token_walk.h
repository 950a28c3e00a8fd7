// TokenWalk: computes the mask of the tokens that may follow a configuration, by a walk
// through the vocabulary trie.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "json/automaton/configuration.h"
#include "token_masks/vocabulary.h"

namespace structout::json {

// Tokens that could produce a duplicate key or item and so need a check for each text: they
// complete one, or begin one whose continuations may be used up.
struct DuplicateChecks {
  std::vector<uint32_t> of_earlier;     // all of these tokens
  std::vector<uint32_t> of_themselves;  // those that may repeat a key or item that they complete themselves
};

// Tokens that are allowed only under a condition on the seen keys of an object, such as
// that the key "a" has not come yet: see Guard.
struct Conditions {
  static constexpr uint32_t kAlways = 0;     // no condition
  static constexpr uint32_t kByReading = 1;  // only reading the token decides
  struct Condition {
    uint32_t before;  // another condition, which must hold too
    uint32_t frame;   // the frame whose seen keys the guard checks, 0: on top
    Guard guard;
  };
  std::vector<Condition> all = std::vector<Condition>(2);
  std::vector<std::pair<uint32_t, uint32_t>> tokens;  // with their conditions

  // The number of the conjunction of a condition and a guard on the seen keys of a frame.
  uint32_t with(uint32_t before, uint32_t frame, const Guard& guard) {
    if (before == kByReading) return kByReading;
    // Later bytes of one key allow fewer names, so their guard implies the earlier one.
    bool is_narrower = before != kAlways && guard.kind == Guard::kKeys && all[before].frame == frame &&
                       all[before].guard.kind == Guard::kKeys && all[before].guard.object == guard.object;
    if (is_narrower) before = all[before].before;
    for (uint32_t i = 2; i < all.size(); ++i) {
      if (all[i].before == before && all[i].frame == frame && all[i].guard == guard) return i;
    }
    all.push_back({before, frame, guard});
    return uint32_t(all.size() - 1);
  }
};

// Follows tokens from the states of a configuration, but without the keys and items that it
// remembers: tokens that depend on those get a duplicate check, or conditions. So a mask
// serves all configurations with the same states.
//
// Tokens share their first bytes in the trie, so a node is followed once for all tokens
// below it, and a byte that is not allowed cuts all of them off. Subtrees are allowed
// without a visit if strings accept all plain characters, or if a state repeats for
// whole classes of them (json/automaton/walk_hints.h). Frames of the stack are numbered and point
// to the frame below, so bytes at one depth share lower frames, and a return to that
// depth truncates a vector.
class TokenWalk {
 public:
  static constexpr uint32_t kBottom = UINT32_MAX;  // below the last frame
  static constexpr uint32_t kNoSeenKeys = UINT32_MAX;

  // Events: bits for what the present token has done to keys and items that are remembered.
  static constexpr uint32_t kEntered = 1, kCompleted = 2, kEnteredAnother = 4, kCompletedAnother = 8;
  static constexpr uint32_t kCompletedPresentKey = 16;  // the one that had begun before the token
  static constexpr uint32_t kNewName = 1, kNewFreeKey = 2;

  struct WalkFrame {
    State state;
    uint32_t below;
    uint32_t events;
    uint32_t seen_keys;                        // the given frame whose seen keys count here, or none yet
    uint32_t new_keys = 0;                     // kNewName, kNewFreeKey: those that the token has completed
    uint32_t condition = Conditions::kAlways;  // of the frame on top
  };

  // Sees the tokens that a walk allows, each range with the frame on top after them. `plain`
  // tokens of a string are not followed: the frame is the one before them.
  class Visitor {
   public:
    virtual ~Visitor() = default;
    virtual void visit(const TokenWalk& walk, const uint32_t* begin, const uint32_t* end, uint32_t top) = 0;
    virtual void visit_plain(const TokenWalk& walk, const uint32_t* begin, const uint32_t* end, uint32_t top) = 0;
    virtual void visit_string_tokens(const TokenWalk& walk) = 0;  // all those of a string without limits
  };

 private:
  static constexpr uint32_t kUnlimited = UINT32_MAX - 1;  // plain bytes
  static constexpr size_t kMaxDoubtful = 2'048;           // tokens that are followed one by one

 public:
  // `top`: the state that replaces the one on top (see SchemaCache::mask_state()).
  TokenWalk(SchemaAutomaton& automaton, const Configuration& config, State top, Visitor* visitor = nullptr)
      : automaton_(automaton), visitor_(visitor) {
    frames_.push_back({top, 1, 0, 0});
    for (const Frame* frame = config.below(); frame != nullptr; frame = frame->below.get()) {
      auto number = uint32_t(frames_.size());
      frames_.push_back({frame->state, number + 1, 0, number});
    }
    frames_.back().below = kBottom;
    num_given_ = frames_.size();
  }

  const WalkFrame& frame(uint32_t number) const { return frames_[number]; }

  // The number of frames, from the top down, that the walk has looked at; one more than
  // there are if it has reached the bottom. The mask depends on these states alone.
  size_t num_looked_at() const { return num_looked_at_; }

  // Sets the bits of the tokens that are allowed, and lists their duplicate checks and
  // those with conditions.
  void fill(const engine::VocabularyTrie& vocabulary, uint32_t* row, DuplicateChecks& duplicate_checks,
            Conditions& conditions) {
    start(vocabulary, row, duplicate_checks, conditions);
    uint32_t num_nodes = uint32_t(vocabulary.nodes().size());
    if (automaton_.hints().is_free_text(frames_[0].state)) {
      fill_free_text(vocabulary.string_tokens());
    } else if (automaton_.hints().num_plain_bytes(frames_[0].state) >= vocabulary.max_depth() &&
               !may_run_out(frames_[0].state)) {
      const engine::StringTokens& strings = vocabulary.string_tokens();
      std::copy(strings.plain_row.begin(), strings.plain_row.end(), row_);
      if (visitor_ != nullptr) visitor_->visit_string_tokens(*this);
      fill_special(vocabulary, 0, num_nodes);
    } else {
      fill_below(vocabulary, engine::VocabularyTrie::kRoot, 0);
    }
  }

  // Takes the row, duplicate checks and conditions of the state in which the key cannot
  // become a named one, and changes them to those of this state. Follows only tokens that
  // continue with a name or end the key.
  void fill_names(const engine::VocabularyTrie& vocabulary, uint32_t* row, DuplicateChecks& duplicate_checks,
                  Conditions& conditions) {
    start(vocabulary, row, duplicate_checks, conditions);
    std::vector<std::pair<uint32_t, uint32_t>> before = std::move(conditions.tokens);
    conditions.tokens.clear();
    is_followed_.assign(before.empty() ? 0 : vocabulary.size(), false);
    fill_names(vocabulary, engine::VocabularyTrie::kRoot, 0);
    for (const auto& token : before) {
      if (!is_followed_[token.first]) conditions.tokens.push_back(token);
    }
  }

  // Lists the nodes of the trie after which the whole text may end while tokens continue,
  // with their conditions.
  void list_continuations(const engine::VocabularyTrie& vocabulary,
                          std::vector<std::pair<uint32_t, uint32_t>>& continuations, Conditions& conditions) {
    DuplicateChecks duplicate_checks;
    start(vocabulary, nullptr, duplicate_checks, conditions);
    const std::vector<engine::VocabularyTrie::Node>& nodes = vocabulary.nodes();
    const engine::StringTokens& strings = vocabulary.string_tokens();
    auto enter = [&](uint32_t number) {
      if (!follow(nodes[number])) return false;
      const WalkFrame& top = frames_[tops_[nodes[number].depth + 1]];
      bool is_inner = top.below != kBottom || nodes[number].end == number + 1;
      if (is_inner || !(automaton_.is_end(top.state) || automaton_.truth_values_at_end(top.state))) return true;
      bool is_remembered = (top.events & kCompleted) != 0;
      continuations.emplace_back(number, is_remembered ? Conditions::kByReading : top.condition);
      return true;
    };
    open(0);
    vocabulary.visit_below(engine::VocabularyTrie::kRoot, [&](uint32_t number, uint8_t byte, uint32_t depth) {
      if (automaton_.action(frames_[tops_[depth]].state, byte).kind == Action::kFail) return false;
      const Level& level = levels_[depth];
      // Inside a string, plain characters lead to no continuation.
      bool is_plain = level.num_plain_bytes > 0 && strings.is_after_plain[number] != 0 &&
                      level.num_plain_bytes > strings.height[number];
      if (is_plain) {
        for (uint32_t i = strings.num_special_before[number]; i < strings.num_special_before[nodes[number].end];) {
          uint32_t special = strings.special_nodes[i];
          i = enter(special) ? i + 1 : strings.num_special_before[nodes[special].end];
        }
        return false;
      }
      if (level.repeated_classes != 0 && (strings.classes[number] & ~level.repeated_classes) == 0) return false;
      if (!enter(number)) return false;
      open(depth + 1);
      return true;
    });
  }

  // Takes the row of the state without its maximum length, and forbids the tokens that are
  // too long. Returns false if more than kMaxDoubtful tokens must be read: then fill() is
  // faster.
  bool forbid_longer(const engine::VocabularyTrie& vocabulary, const WalkHints::LengthLimit& limit, uint32_t* row) {
    row_ = row;
    const engine::StringTokens& strings = vocabulary.string_tokens();
    const uint32_t longest = engine::StringTokens::kNumLengths - 1;
    std::vector<uint32_t> doubtful;
    if (limit.num_free < longest) {
      const std::vector<uint32_t>& free = strings.rows_up_to[limit.num_free];
      const std::vector<uint32_t>& at_most = strings.rows_up_to[std::min(limit.num_at_most, longest)];
      const std::vector<uint32_t>& listed = strings.rows_up_to[longest];
      for (uint32_t i = 0; i < free.size(); ++i) {
        row[i] &= at_most[i] | ~listed[i];
        for (uint32_t bits = row[i] & at_most[i] & ~free[i]; bits != 0; bits &= bits - 1) {
          doubtful.push_back(i << 5 | uint32_t(__builtin_ctz(bits)));
        }
      }
    }
    auto first = std::upper_bound(strings.longer.begin(), strings.longer.end(), std::pair(limit.num_free, UINT32_MAX));
    for (auto each = first; each != strings.longer.end(); ++each) {
      auto [length, token] = *each;
      if ((row[token >> 5] >> (token & 31) & 1) == 0) continue;
      if (length > limit.num_at_most) {
        forbid(token);
      } else {
        doubtful.push_back(token);
      }
    }
    if (doubtful.size() > kMaxDoubtful) return false;
    for (uint32_t token : doubtful) {
      uint32_t top = 0;
      for (const uint8_t* byte = vocabulary.begin(token); byte < vocabulary.end(token) && top != kBottom; ++byte) {
        top = next(top, *byte);
      }
      automaton_.schema().budget().spend(1);
      frames_.resize(num_given_);
      if (top == kBottom) forbid(token);
    }
    return true;
  }

 private:
  // The number of the frame on top after a byte, or kBottom if it is not allowed.
  uint32_t next(uint32_t top, uint8_t byte) {
    for (;;) {
      Action action = automaton_.action(frames_[top].state, byte);
      if (action.kind == Action::kFail) return kBottom;
      const WalkFrame frame = frames_[top];
      if (action.kind == Action::kReplace && automaton_.is_scalar(frame.state)) {  // most bytes: nothing is remembered
        return add({action.state, frame.below, frame.events, frame.seen_keys, frame.new_keys, frame.condition});
      }
      std::optional<uint32_t> condition = condition_after(frame, byte, action);
      if (!condition) return kBottom;
      switch (action.kind) {
        case Action::kFail:
          return kBottom;
        case Action::kReplace: {
          uint32_t event = replacement_event(top, action.state), new_keys = frame.new_keys;
          if (automaton_.completed_name(frame.state, action.state)) new_keys |= kNewName;
          if ((event & kCompleted) != 0) new_keys |= kNewFreeKey;
          return add({action.state, frame.below, events_with(top, event), frame.seen_keys, new_keys, *condition});
        }
        case Action::kPush: {
          uint32_t event = register_kind(action.below) == RegisterKind::kInsideItem ? kEntered : 0;
          uint32_t below = add({action.below, frame.below, 0, frame.seen_keys, frame.new_keys});
          return add({action.state, below, events_with(top, event), kNoSeenKeys, 0, *condition});
        }
        case Action::kPop:
        case Action::kPopBefore: {
          uint32_t below = frame.below;
          look_at(below);
          State waiting = below == kBottom ? kNoState : frames_[below].state;
          State state = automaton_.resume(waiting, action.state);
          if (state == kNoState) return kBottom;
          bool completes_item = waiting != kNoState && register_kind(waiting) == RegisterKind::kInsideItem;
          uint32_t events = events_with(top, completes_item ? kCompleted : 0);
          if (below == kBottom) {
            top = add({state, kBottom, events, kNoSeenKeys, 0, *condition});
          } else {
            const WalkFrame resumed = frames_[below];
            top = add({state, resumed.below, events, resumed.seen_keys, resumed.new_keys, *condition});
          }
          if (action.kind == Action::kPop) return top;
        }
      }
    }
  }

  void start(const engine::VocabularyTrie& vocabulary, uint32_t* row, DuplicateChecks& duplicate_checks,
             Conditions& conditions) {
    duplicate_checks_ = &duplicate_checks;
    conditions_ = &conditions;
    row_ = row;
    tops_.assign(vocabulary.max_depth() + 1, 0);
    sizes_.assign(vocabulary.max_depth() + 1, frames_.size());
    levels_.resize(vocabulary.max_depth() + 1);
  }

  // The way in which a token may repeat something.
  enum class DuplicateCheck : uint8_t {
    kNone,
    kOfEarlier,  // a key or item from before the token
    kOfItself,   // also one that the token itself has completed
  };

  // Follows the last byte of a node. False if it is not allowed.
  bool follow(const engine::VocabularyTrie::Node& node) {
    automaton_.schema().budget().spend(1);
    frames_.resize(sizes_[node.depth]);
    uint32_t top = next(tops_[node.depth], node.byte);
    if (top == kBottom) return false;
    // A number may end in front of any byte, so what is below it counts though no byte of JSON leads there.
    if (frames_[top].below == kBottom && automaton_.truth_values_at_end(frames_[top].state)) look_at(kBottom);
    tops_[node.depth + 1] = top;
    sizes_[node.depth + 1] = frames_.size();
    return true;
  }

  // Follows the last byte of a node, and allows its tokens. False if the byte is not
  // allowed.
  bool enter(const engine::VocabularyTrie& vocabulary, uint32_t number) {
    const engine::VocabularyTrie::Node& node = vocabulary.nodes()[number];
    if (!follow(node)) return false;
    uint32_t first = vocabulary.first_token(number);
    if (first == node.tokens_end) return true;
    uint32_t top = tops_[node.depth + 1];
    DuplicateCheck check = this->duplicate_check(top);
    for (uint32_t i = first; i < node.tokens_end; ++i) allow(vocabulary.tokens()[i], check, top);
    return true;
  }

  // Hints on the state before a depth: characters that may follow without a look at each
  // byte.
  struct Level {
    State state = kNoState;
    uint32_t num_plain_bytes;
    uint64_t repeated_classes;
  };

  // True if the strings or keys that continue from a state must differ and may be used up,
  // so that each token must be followed.
  bool may_run_out(State state) {
    bool must_differ = automaton_.has_unique_items() || register_kind(state) == RegisterKind::kInsideKey;
    return must_differ && automaton_.hints().num_plain_bytes(state) < kUnlimited;
  }

  void open(uint32_t depth) {
    State state = frames_[tops_[depth]].state;
    if (depth > 0 && levels_[depth - 1].state == state) {
      levels_[depth] = levels_[depth - 1];
      return;
    }
    levels_[depth].state = state;
    levels_[depth].num_plain_bytes = automaton_.hints().num_plain_bytes(state);
    levels_[depth].repeated_classes = automaton_.hints().repeated_classes(state);
    if (may_run_out(state)) levels_[depth].num_plain_bytes = 0;
  }

  // Follows the tokens below a node, or below the root. `depth`: of its children.
  void fill_below(const engine::VocabularyTrie& vocabulary, uint32_t node, uint32_t depth) {
    const std::vector<engine::VocabularyTrie::Node>& nodes = vocabulary.nodes();
    const engine::StringTokens& strings = vocabulary.string_tokens();
    open(depth);
    vocabulary.visit_below(node, [&](uint32_t number, uint8_t byte, uint32_t depth) {
      if (automaton_.action(frames_[tops_[depth]].state, byte).kind == Action::kFail) return false;
      const Level& level = levels_[depth];
      if (level.num_plain_bytes > 0 && strings.is_after_plain[number] != 0 &&
          level.num_plain_bytes > strings.height[number]) {
        // All plain tokens below may follow. Only the others need reading.
        uint32_t first_plain = strings.num_plain_before[vocabulary.first_token(number)];
        uint32_t last_plain = strings.num_plain_before[nodes[nodes[number].end - 1].tokens_end];
        allow_all(strings.plain, first_plain, last_plain, DuplicateCheck::kNone, tops_[depth]);
        fill_special(vocabulary, number, nodes[number].end);
        return false;
      }
      if (level.repeated_classes != 0 && (strings.classes[number] & ~level.repeated_classes) == 0) {
        DuplicateCheck check = this->duplicate_check(tops_[depth]);
        uint32_t last_token = nodes[nodes[number].end - 1].tokens_end;
        allow_all(vocabulary.tokens(), vocabulary.first_token(number), last_token, check, tops_[depth]);
        return false;
      }
      if (!enter(vocabulary, number) || nodes[number].end == number + 1) return false;
      open(depth + 1);
      return true;
    });
  }

  // Follows the tokens of nodes first ... end that are not plain.
  void fill_special(const engine::VocabularyTrie& vocabulary, uint32_t first, uint32_t end) {
    const engine::StringTokens& strings = vocabulary.string_tokens();
    for (uint32_t i = strings.num_special_before[first]; i < strings.num_special_before[end];) {
      uint32_t number = strings.special_nodes[i];
      i = enter(vocabulary, number) ? i + 1 : strings.num_special_before[vocabulary.nodes()[number].end];
    }
  }

  // Allows the tokens that continue from a string without constraints: a stored row has
  // those that stay inside it, and the others are followed from the closing quote on.
  void fill_free_text(const engine::StringTokens& strings) {
    bool is_canonical = !automaton_.hints().is_in_any_spelling(frames_[0].state);
    for (size_t i = 0; i < strings.inner_row.size(); ++i) {
      row_[i] = strings.inner_row[i] & (is_canonical ? strings.canonical_row[i] : UINT32_MAX);
    }
    if (visitor_ != nullptr) visitor_->visit_string_tokens(*this);
    auto allow_each = [&](const std::vector<uint32_t>& tokens, DuplicateCheck check, uint32_t top) {
      for (uint32_t token : tokens) {
        if (!is_canonical || (strings.canonical_row[token >> 5] >> (token & 31) & 1) != 0) allow(token, check, top);
      }
    };
    uint32_t after_quote = next(0, '"');
    if (after_quote == kBottom) return;
    allow_each(strings.tokens_that_end, this->duplicate_check(after_quote), after_quote);
    tops_[0] = after_quote;
    sizes_.assign(sizes_.size(), frames_.size());
    const std::vector<engine::VocabularyTrie::Node>& nodes = strings.exits->nodes();
    for (uint32_t number = 0; number < nodes.size();) {
      if (!follow(nodes[number])) {
        number = nodes[number].end;
        continue;
      }
      uint32_t top = tops_[nodes[number].depth + 1];
      DuplicateCheck check = this->duplicate_check(top);
      for (uint32_t i = strings.exits->first_token(number); i < nodes[number].tokens_end; ++i) {
        allow_each(strings.tokens_of_exit[strings.exits->tokens()[i]], check, top);
      }
      ++number;
    }
  }

  // Follows the tokens below a node that continue with a name or end the key. The row
  // already has the others. `depth`: of the children of the node.
  void fill_names(const engine::VocabularyTrie& vocabulary, uint32_t node, uint32_t depth) {
    const std::vector<engine::VocabularyTrie::Node>& nodes = vocabulary.nodes();
    std::vector<uint8_t> bytes = automaton_.hints().name_bytes(frames_[tops_[depth]].state);
    bytes.push_back('"');
    for (uint8_t byte : bytes) {
      uint32_t number = vocabulary.child(node, byte);
      if (number == engine::VocabularyTrie::kNone) continue;
      if (byte == '"' && ends_as_without_name(tops_[depth])) continue;
      bool is_allowed = follow(nodes[number]);
      if (is_allowed && byte != '"' && automaton_.hints().state_without_name(frames_[tops_[depth + 1]].state)) {
        enter(vocabulary, number);
        for (uint32_t i = vocabulary.first_token(number); !is_followed_.empty() && i < nodes[number].tokens_end; ++i) {
          is_followed_[vocabulary.tokens()[i]] = true;
        }
        fill_names(vocabulary, number, depth + 1);
        continue;
      }
      uint32_t last_token = nodes[nodes[number].end - 1].tokens_end;
      for (uint32_t i = vocabulary.first_token(number); i < last_token; ++i) {
        forbid(vocabulary.tokens()[i]);
        if (!is_followed_.empty()) is_followed_[vocabulary.tokens()[i]] = true;
      }
      if (!is_allowed) continue;
      enter(vocabulary, number);
      fill_below(vocabulary, number, depth + 1);
    }
  }

  // True if the closing quote has the same effect as in the state where the key cannot
  // become a named one.
  bool ends_as_without_name(uint32_t top) {
    State state = frames_[top].state, without = *automaton_.hints().state_without_name(state);
    Action action = automaton_.action(state, '"');
    bool is_same = frames_[top].condition == Conditions::kAlways && action == automaton_.action(without, '"');
    return is_same && automaton_.guard(state, '"', action) == automaton_.guard(without, '"', action);
  }

  // `top`: the frame on top after the token.
  void allow(uint32_t token, DuplicateCheck check, uint32_t top) {
    if (visitor_ != nullptr) visitor_->visit(*this, &token, &token + 1, top);
    add_token(token, check, top);
  }

  // Allows tokens of plain characters, which do not change the frame on top.
  void allow_all(const std::vector<uint32_t>& tokens, uint32_t first, uint32_t end, DuplicateCheck check,
                 uint32_t top) {
    if (visitor_ != nullptr) visitor_->visit_plain(*this, tokens.data() + first, tokens.data() + end, top);
    if (check != DuplicateCheck::kNone || frames_[top].condition != Conditions::kAlways) {
      for (uint32_t i = first; i < end; ++i) add_token(tokens[i], check, top);
      return;
    }
    uint32_t* row = row_;
    for (uint32_t i = first; i < end; ++i) row[tokens[i] >> 5] |= 1u << (tokens[i] & 31);
  }

  void add_token(uint32_t token, DuplicateCheck check, uint32_t top) {
    row_[token >> 5] |= 1u << (token & 31);
    uint32_t condition = frames_[top].condition;
    if (condition != Conditions::kAlways) conditions_->tokens.emplace_back(token, condition);
    if (check != DuplicateCheck::kNone) duplicate_checks_->of_earlier.push_back(token);
    if (check == DuplicateCheck::kOfItself) duplicate_checks_->of_themselves.push_back(token);
  }

  void forbid(uint32_t token) { row_[token >> 5] &= ~(1u << (token & 31)); }

  // The condition after an action. None if it does not hold.
  std::optional<uint32_t> condition_after(const WalkFrame& frame, uint8_t byte, const Action& action) {
    Guard guard = automaton_.guard(frame.state, byte, action);
    if (guard.kind == Guard::kNone) return frame.condition;
    if ((frame.new_keys & kNewName) != 0) return Conditions::kByReading;
    if (frame.seen_keys != kNoSeenKeys) return conditions_->with(frame.condition, frame.seen_keys, guard);
    return automaton_.holds(guard, {}) ? std::optional(frame.condition) : std::nullopt;
  }

  uint32_t events_with(uint32_t top, uint32_t event) const {
    uint32_t before = frames_[top].events;
    if ((event & kEntered) != 0 && (before & kCompleted) != 0) event |= kEnteredAnother;
    if ((event & kCompleted) != 0 && (before & kEnteredAnother) != 0) event |= kCompletedAnother;
    return before | event;
  }

  RegisterKind register_kind(State state) const { return automaton_.register_kind(state); }

  uint32_t replacement_event(uint32_t top, State next) {
    bool was_inside = register_kind(frames_[top].state) == RegisterKind::kInsideKey;
    bool is_inside = register_kind(next) == RegisterKind::kInsideKey;
    if (is_inside) return was_inside ? 0 : kEntered;
    if (!was_inside || !automaton_.ends_free_key(frames_[top].state)) return 0;
    return frames_[top].events == 0 ? kCompleted | kCompletedPresentKey : kCompleted;
  }

  // Classifies a token that leads to `top`, by its events and by counts of values: a
  // token needs a check if it completes a key or item, or begins one of which few values
  // may be left.
  DuplicateCheck duplicate_check(uint32_t top) {
    const WalkFrame& frame = frames_[top];
    if (frame.events == 0 && !automaton_.has_unique_items() && automaton_.is_scalar(frame.state))
      return DuplicateCheck::kNone;
    bool completes = (frame.events & kCompleted) != 0, enters_another = (frame.events & kEnteredAnother) != 0;
    if ((frame.events & kCompletedAnother) != 0) return DuplicateCheck::kOfItself;
    DuplicateCheck found = DuplicateCheck::kNone;
    // forbid_used() finds the tokens that complete the present key and do no more.
    if (completes && frame.events != (kCompleted | kCompletedPresentKey)) found = DuplicateCheck::kOfEarlier;
    if (automaton_.counts().may_lack_keys(frame.state)) {
      // However new an item is, its keys may be used up.
      if (completes || automaton_.has_unique_items()) return DuplicateCheck::kOfItself;
      found = DuplicateCheck::kOfEarlier;
    }
    if (!automaton_.has_unique_items()) return found;
    if (register_kind(frame.state) == RegisterKind::kItems && automaton_.counts().is_tight(frame.state))
      return DuplicateCheck::kOfItself;
    for (uint32_t below = frame.below; below != kBottom; below = frames_[below].below) {
      look_at(below);
      if (register_kind(frames_[below].state) != RegisterKind::kInsideItem) continue;
      bool is_tight = automaton_.counts().is_tight(frames_[below].state);
      if (is_tight && completes) return DuplicateCheck::kOfItself;
      bool may_fail = is_tight && automaton_.counts().depends_on_truth_values(frames_[below].state);
      if (!may_fail && automaton_.counts().are_many(frame.state)) continue;
      if (is_tight || completes || enters_another) return DuplicateCheck::kOfItself;
      found = DuplicateCheck::kOfEarlier;
    }
    return found;
  }

  uint32_t add(WalkFrame frame) {
    frames_.push_back(frame);
    return uint32_t(frames_.size() - 1);
  }

  void look_at(uint32_t frame) {
    if (frame == kBottom) num_looked_at_ = num_given_ + 1;
    if (frame < num_given_) num_looked_at_ = std::max(num_looked_at_, size_t(frame) + 1);
  }

  SchemaAutomaton& automaton_;
  Visitor* const visitor_;
  std::vector<WalkFrame> frames_;
  size_t num_given_;
  size_t num_looked_at_ = 1;
  DuplicateChecks* duplicate_checks_ = nullptr;
  Conditions* conditions_ = &no_conditions_;
  Conditions no_conditions_;       // where they are known already
  std::vector<bool> is_followed_;  // tokens of names
  uint32_t* row_ = nullptr;
  // For each depth: the frame on top after the bytes before it, and the number of frames
  // then.
  std::vector<uint32_t> tops_;
  std::vector<size_t> sizes_;
  std::vector<Level> levels_;
};

}  // namespace structout::json
