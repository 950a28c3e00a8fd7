// What must hold of a text of any language, whatever its constraint is.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "draws.h"
#include "json/document/errors.h"
#include "language/matcher.h"
#include "token_masks/vocabulary.h"

namespace structout::fuzz {

using Row = std::vector<uint32_t>;

constexpr int kSteps = 10;  // of a text

inline int num_compiled = 0, num_refused = 0;  // by the engine, over all inputs

// Runs `compile`, which may refuse. Returns whether it did not.
template <typename Compile>
bool compiles(Compile compile) {
  try {
    compile();
    ++num_compiled;
    return true;
  } catch (const json::SchemaError&) {
  } catch (const engine::PatternError&) {
  } catch (const engine::LimitError&) {
  }
  ++num_refused;
  return false;
}

// Limits that keep inputs to some milliseconds.
inline engine::Limits small_limits() {
  engine::Limits limits;
  limits.states = 1'000;
  limits.nodes = 10'000;
  limits.set_entries = 100'000;
  limits.conditions = 10'000;
  limits.schema_states = 4'000;
  limits.seconds = 0.3;
  return limits;
}

// Every byte, tokens that reach over several parts of a text, a token twice, and last the
// stop token, which has no text.
inline const std::shared_ptr<const engine::VocabularyTrie>& vocabulary() {
  static const auto made = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.push_back(std::string(1, char(byte)));
    for (const char* text : {"aa",       "ab",
                             "abc",      "ab",
                             "ba",       "00",
                             "10",       "-1",
                             "1.5",      "e1",
                             "0.",       ", ",
                             ": ",       "{\"",
                             "\"}",      "\":",
                             "\",\"",    "\": \"",
                             "\"a\"",    "\"a\":1",
                             "[1",       "1,2",
                             "]]",       "}}",
                             "{}",       "[]",
                             "true",     "fal",
                             "null",     "\\u",
                             "\\u00",    "\\\"",
                             "\\\\",     "d8",
                             "\xC3\xA9", "\xA9\"",
                             "\xF0\x9F", "\xF0\x9F\xA6\x8A",
                             "\xED\xA0", "  ",
                             "\n ",      "<a",
                             "<a>",      "</a>",
                             "a>",       "()",
                             ")(",       "((",
                             "))"}) {
      tokens.push_back(text);
    }
    tokens.push_back("");
    return std::make_shared<const engine::VocabularyTrie>(tokens);
  }();
  return made;
}

inline uint32_t stop_token() { return vocabulary()->size() - 1; }

inline bool has_bit(const Row& row, size_t token) { return (row[token >> 5] >> (token & 31) & 1) != 0; }

// A token that the mask allows, the next from a drawn one on.
inline int64_t allowed_token(const Row& row, Draws& draws) {
  size_t size = vocabulary()->size(), first = draws.below(size);
  for (size_t i = 0; i < size; ++i) {
    if (has_bit(row, (first + i) % size)) return int64_t((first + i) % size);
  }
  check(false, "a mask allows some token");
  return -1;
}

// The mask of a position, or nothing after an error.
inline Row mask(const engine::Matcher& matcher, uint32_t state) {
  Row row(matcher.row_words());
  bool allows_any = matcher.fill(state, row.data());
  if (!matcher.error().empty()) return {};
  check(allows_any, "a place that is entered has an end");
  return row;
}

inline Row mask(const engine::Matcher& matcher) { return mask(matcher, matcher.current_state()); }

// What a token does: as a token, as a draft and as bytes.
inline void check_token(const engine::Matcher& matcher, bool is_allowed, int64_t token) {
  std::unique_ptr<engine::Matcher> by_token = matcher.copy();
  bool is_accepted = by_token->accept(&token, 1);
  if (!by_token->error().empty()) return;
  check(is_accepted == is_allowed, "the mask says of a token what accept says");
  std::unique_ptr<engine::Matcher> drafting = matcher.copy();
  std::vector<uint32_t> states;
  bool is_draft = drafting->append_draft_states(&token, 1, states) == 1;
  if (!drafting->error().empty()) return;
  check(is_draft == is_allowed, "a draft is read as a token is");
  std::unique_ptr<engine::Matcher> by_bytes = matcher.copy();
  const engine::VocabularyTrie& tokens = matcher.vocabulary();
  std::string bytes(tokens.begin(uint32_t(token)), tokens.end(uint32_t(token)));
  if (bytes.empty()) return;
  bool are_read = by_bytes->accept_bytes(bytes);
  if (!by_bytes->error().empty()) return;
  check(are_read == is_allowed, "bytes are read as their token is");
  if (!is_allowed) return;
  Row row = mask(*by_token), of_draft = mask(*drafting, states[1]), of_bytes = mask(*by_bytes);
  if (row.empty() || of_draft.empty() || of_bytes.empty()) return;
  check(of_draft == row, "a draft has the mask of its token");
  check(of_bytes == row, "bytes have the mask of their token");
}

inline void check_forced(const engine::Matcher& matcher, const Row& row) {
  std::unique_ptr<engine::Matcher> other = matcher.copy();
  std::string forced = other->forced();
  if (!other->error().empty() || forced.empty()) return;
  const engine::VocabularyTrie& tokens = matcher.vocabulary();
  for (uint32_t token = 0; token < tokens.size(); ++token) {
    if (!has_bit(row, token)) continue;
    check(tokens.begin(token) != tokens.end(token) && *tokens.begin(token) == uint8_t(forced[0]),
          "what is allowed begins with what is forced");
  }
  bool are_read = other->accept_bytes(forced);
  check(are_read || !other->error().empty(), "what is forced is accepted");
}

// Work that ends before its time leaves the text as it was.
inline void check_interruption(const engine::Matcher& matcher, const Row& row, int64_t token, Draws& draws) {
  std::unique_ptr<engine::Matcher> other = matcher.copy();
  size_t num_tokens = other->num_tokens();
  try {
    engine::StepBudget step_budget(draws.below(256));
    mask(*other);
    if (other->accept(&token, 1)) other->rollback(1);
  } catch (const engine::StepBudgetExceeded&) {
  }
  if (!other->error().empty()) return;
  check(other->num_tokens() == num_tokens, "an interrupted step accepts nothing");
  Row again = mask(*other);
  check(again.empty() || again == row, "an interrupted step changes no mask");
}

// Reads a text of drawn tokens. Masks, accept, drafts, bytes, copies and rollbacks must
// agree. What exceeds a limit ends the text.
inline void read_text(engine::Matcher& matcher, Draws& draws) {
  std::vector<Row> rows;  // before each token, and now
  for (int step = 0; step < kSteps && !matcher.is_terminated(); ++step) {
    Row row = mask(matcher);
    if (row.empty()) return;
    size_t num_tokens = matcher.num_tokens();
    if (num_tokens == rows.size()) rows.push_back(row);
    check(rows[num_tokens] == row, "a text that goes back has the mask that it had");
    size_t any = draws.below(vocabulary()->size());
    check_token(matcher, has_bit(row, any), int64_t(any));
    int64_t token = allowed_token(row, draws);
    check_token(matcher, true, token);
    if (draws.one_in(3)) check_forced(matcher, row);
    if (draws.one_in(3)) check_interruption(matcher, row, token, draws);
    int64_t outside = int64_t(vocabulary()->size()) + int64_t(draws.below(3)) * 1'000'000'000'000 - 2;
    if (outside >= vocabulary()->size()) check(!matcher.accept(&outside, 1), "what is no token is refused");
    if (!matcher.accept(&token, 1)) return check(!matcher.error().empty(), "a token that the mask allows is accepted");
    if (draws.one_in(5)) {
      matcher.rollback(1 + draws.below(matcher.num_tokens()));
      rows.resize(matcher.num_tokens() + 1);
    }
  }
}

// Reads one text in two ways that must have the same masks.
inline void read_alike(engine::Matcher& first, engine::Matcher& second, Draws& draws) {
  for (int step = 0; step < kSteps && !first.is_terminated(); ++step) {
    Row row = mask(first), other = mask(second);
    if (row.empty() || other.empty()) return;
    check(row == other, "one language in two engines has the same masks");
    int64_t token = allowed_token(row, draws);
    if (!first.accept(&token, 1) || !second.accept(&token, 1)) {
      return check(!first.error().empty() || !second.error().empty(), "both engines accept what both masks allow");
    }
  }
}

}  // namespace structout::fuzz
