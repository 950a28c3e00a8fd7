// Texts: Boolean formulas over automata of bytes, for the contents of strings and for
// numbers.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "automata/automaton.h"
#include "json/document/decimal.h"
#include "json/formulas/formula.h"
#include "json/scalars/listed_texts.h"
#include "json/uniqueness/used_values.h"

namespace structout::json {

enum class TextKind : uint8_t {
  kString,               // written canonically: equal strings have equal bytes
  kStringInAnySpelling,  // with any escapes of JSON, where only lengths constrain it
  kNumber,
};

// A formula on texts after some bytes: its derivative (Brzozowski, 1964). Each atom holds a
// state of its automaton, so a byte moves the atoms and keeps the connectives: after the
// byte a, `minLength 2 and ^ab` becomes `minLength 1` and the rest of the pattern. Text
// states are numbered; two states of equal languages may have different numbers.
struct TextState {
  TextKind kind;
  uint32_t syntax;  // state of the automaton of all texts of the kind
  Formula formula;
  bool operator==(const TextState& other) const {
    return kind == other.kind && syntax == other.syntax && formula == other.formula;
  }
};

// The spelling that numbers of a language need.
struct NumberSpelling {
  NumberSpelling() = default;
  static NumberSpelling without_exponents() {
    NumberSpelling spelling;
    spelling.is_plain = true;
    return spelling;
  }
  explicit NumberSpelling(const Decimal& value);

  // The digits of the schema's number before the point and after it. has_exponent: it can
  // be written with an exponent; exceeds_doubles: with one that a double does not have.
  uint32_t num_whole = 0, num_decimals = 0;
  uint32_t num_digits = 0;  // that all numbers of the language may have
  bool has_exponent = false, exceeds_doubles = false;
  bool is_step = false;    // the numbers are multiples, and have no exponents
  bool is_plain = false;   // the numbers have no exponents
  Formula form = kAlways;  // required with the language, but not with its negation
};

// A deterministic automaton that is built while it runs: the first use of a text state
// computes its transitions and stores them. A known transition costs a search among the
// edges of its state, a new state a substitution in its formula. CacheFull if there are
// more than about a million states.
class Texts {
 public:
  // `allowed_bytes`: for each of the 256 bytes, true if a text may contain it.
  Texts(Formulas& formulas, engine::Budget& budget, const std::vector<bool>& allowed_bytes);

  // The atom of a language with this name. `compile` makes its automaton the first time;
  // all schemas of the process share languages by name.
  Formula language(TextKind kind, const std::string& name, const std::function<engine::Automaton()>& compile);

  // The atom of listed texts: all of them, or those whose label has bit `which` (see
  // Op::kListed). Other objects may use the same name for other texts.
  Formula listed(TextKind kind, const std::string& name, uint32_t which, const std::function<ListedTexts()>& build);

  Formula strings_matching(const std::string& pattern);
  Formula exact_strings(std::vector<std::string> values);
  Formula min_length(uint32_t length) { return length == 0 ? kAlways : formulas_.atom(Op::kMinLength, length); }

  // True if a formula accepts a whole text, the content of a string or a number. The text
  // may have bytes that are not allowed.
  bool matches(TextKind kind, Formula formula, const std::string& text);

  void set_spelling(Formula language, const NumberSpelling& spelling) { spellings_[language] = spelling; }

  // The start state of texts that are to be written. Numbers are restricted to the spelling
  // that the formula needs (see NumberSpelling).
  uint32_t start(TextKind kind, Formula formula) {
    return add({kind, 0, kind == TextKind::kNumber ? written(formula) : formula});
  }

  // The start state of the string of a value that is compared with no other. With a formula
  // on lengths alone, it may have any spelling.
  uint32_t start_of_lone_string(Formula formula) {
    return add({is_about_length(formula) ? TextKind::kStringInAnySpelling : TextKind::kString, 0, formula});
  }

  // The start state of a formula that is only tracked, in a text that another formula
  // decides.
  uint32_t followed(TextKind kind, Formula formula) { return add({kind, 0, formula}); }

  const TextState& operator[](uint32_t state) const { return states_[state]; }
  size_t num_states() const { return states_.size(); }

  // The state after another byte, or kDead if no text of the kind continues with it. The
  // formula of the state may be kNever.
  uint32_t next(uint32_t state, uint8_t byte);

  // The transitions of a state, by increasing bytes. Valid until the next call.
  const std::vector<engine::Edge>& edges(uint32_t state) {
    expand(state);
    return steps_[state].edges;
  }

  // True if the text of a string ends with a whole character.
  bool is_between_characters(uint32_t state) const { return states_[state].syntax == kBoundary; }
  bool is_in_any_spelling(uint32_t state) const { return states_[state].kind == TextKind::kStringInAnySpelling; }
  bool allows_all_bytes() const { return allows_all_bytes_; }

  // True if the formula accepts a text that ends here.
  bool accepts(uint32_t state) const { return steps_[state].accepts; }

  // True if the formula accepts this text or a continuation. Memoized; the first call is a
  // search.
  bool is_live(uint32_t state);

  // True if a continuation satisfies the formula of the first of these states, which have read
  // the same bytes, and of the others those whose bit of `truths` is set, and no more of them.
  bool may_satisfy(const std::vector<uint32_t>& states, uint32_t truths);

  // In a string: the number of bytes that may follow of arbitrary characters that are
  // written as themselves. 0 if the formula restricts such characters, or if that takes
  // long to find.
  uint32_t num_plain_bytes(uint32_t state);

  // In a string that only its length restricts: the characters that must follow. 0 in any
  // other.
  uint32_t num_required(uint32_t state);

  // In a string: an upper bound on the bytes that it needs to its end after any plain
  // characters. kManyTexts if none is found soon.
  uint32_t num_bytes_to_an_end(uint32_t state);

  // In a string, between two characters: the classes all of whose characters lead back
  // to the state. See token_masks/character_classes.h.
  uint64_t repeated_classes(uint32_t state);

  // The state without its maximum length, if the next `max_length` bytes cannot reach it;
  // otherwise the state itself. So far from their end, long strings share states.
  uint32_t without_far_limit(uint32_t state, uint32_t max_length);

  struct LengthLimit {
    uint32_t without;      // the state without the limit
    uint32_t num_free;     // characters after which it still makes no difference
    uint32_t num_at_most;  // characters that may follow
  };
  // The maximum length of the rest of a string, between two characters. None if the state
  // has no maximum, or if the rest of its formula may need all of it.
  std::optional<LengthLimit> length_limit(uint32_t state);

  // A formula on strings as the conjunction of bounds of the length and of the rest, which
  // has bounds of its own only in alternatives.
  struct BoundedStrings {
    Formula others;
    uint32_t min = 0, max = kNoMaximum;  // characters
  };
  static constexpr uint32_t kNoMaximum = UINT32_MAX;
  BoundedStrings without_lengths(Formula formula);

  // The JSON strings that a formula accepts, in canonical spelling. Throws LimitError.
  engine::Automaton strings_between_quotes(Formula formula, const engine::Limits& limits);

  // All continuations that the formula of a state accepts, if there are at most `max`, all
  // of them short.
  std::optional<std::vector<std::string>> all_texts(uint32_t state, size_t max);
  std::optional<std::vector<std::string>> all_texts(TextKind kind, Formula formula, size_t max) {
    return all_texts(start(kind, formula), max);
  }

  // As all_texts(), for strings. Nothing if the formula may accept a string with bytes that
  // are not allowed. Such a string may still be a name of the schema.
  std::optional<std::vector<std::string>> all_strings(Formula formula, size_t max);

  // The number of continuations that the formula of a state accepts, however long.
  // kManyTexts: that many or more, also infinitely many.
  static constexpr uint32_t kManyTexts = 1 << 30;
  uint32_t count(uint32_t state);

  // A lower bound of count(), which may be smaller for numbers. It is 0 only if there are
  // none.
  uint32_t least_count(uint32_t state);

  // Counts the texts of a set, from a cursor in it on, that are continuations of the state,
  // with a closing quote or without.
  uint32_t num_among(uint32_t state, const TextSet::Cursor& begin);

  // The first byte of a shortest continuation that the formula accepts, where it does not
  // accept the text as it is. Nothing if it is not found soon. The bytes that follow are
  // those of the states to which it leads.
  std::optional<uint8_t> next_byte(uint32_t state);

  // A shortest text that a formula accepts, or nothing if it is unsatisfiable.
  std::optional<std::string> witness(TextKind kind, Formula formula);

  size_t memory_bytes() const { return memory_bytes_; }

 private:
  static constexpr uint32_t kFar = UINT32_MAX;
  static constexpr uint32_t kBoundary = 0;  // the syntax state between two characters of a string

  struct Language {
    TextKind kind;
    std::shared_ptr<const engine::Automaton> automaton;
    // See SharedLanguage::is_everything. Null: no pairs.
    std::shared_ptr<const std::unordered_set<uint64_t>> is_everything;
    // The bytes from each state to the nearest one that accepts. Null: unknown.
    std::shared_ptr<const std::vector<uint32_t>> distances;
    std::shared_ptr<const ListedTexts> listed = nullptr;  // of listed texts, from which `which` selects
    uint32_t which = 0;

    bool accepts(uint32_t state) const;
  };
  std::optional<std::string> only_text(Formula formula) const;
  bool is_continued_by(const TextState& state, const std::string& text);
  bool asks_for_length_only(uint32_t state) const;
  bool is_about_length(Formula formula) const;
  bool allows_plain(uint32_t state);
  bool leads_back(uint32_t start, uint32_t state, uint32_t num_separator_bytes,
                  std::map<std::pair<uint32_t, uint32_t>, bool>& known);
  // Splits the formula of a state: returns the state without its maximum length, and the
  // limit: fewer characters than this may follow. None if there is no maximum.
  std::optional<std::pair<uint32_t, uint32_t>> split_limit(uint32_t state);
  // A lower bound on the bytes that the text still needs for its formula to hold.
  uint32_t least_length(uint32_t state) const;
  // The characters of a shortest continuation that the formula accepts, or kFar if there is
  // none.
  uint32_t distance(uint32_t state);
  // An upper bound on distance() for all live states between two characters that may
  // follow, or kFar if they are too many to search.
  uint32_t largest_distance(uint32_t state);
  // Restricts a formula on numbers to a few spellings of each number. Satisfiable if the
  // formula is.
  Formula written(Formula formula);
  Formula with_forms(Formula formula);
  enum class Life : uint8_t { kUnknown, kLive, kDead };
  struct Steps {
    bool is_expanded = false;
    bool accepts = false;
    bool lacks_edges = false;  // for bytes that are not allowed
    Life life = Life::kUnknown;
    std::vector<engine::Edge> edges;
  };

  // A lower bound on the continuations of a number by digits alone. 0 if a better one takes
  // long to find.
  uint32_t num_whole_numbers(uint32_t state);
  // True if there are kManyTexts or more strings of `length` characters (kFar: of any
  // length), given that the formula allows them all. Not all strings are counted.
  bool are_many_of_length(uint32_t length) const;
  // True if a byte that is not allowed would continue the text, in this state or a later
  // one.
  bool may_lack_texts(uint32_t state);
  // An upper bound on the digits that it takes to end a number, whichever digits come
  // before them. kFar if it cannot end after some digits, or if the search takes long.
  uint32_t num_digits_to_an_end(uint32_t state);

  uint32_t add(const TextState& state);
  const engine::Automaton& syntax(TextKind kind) const { return syntax_[size_t(kind)]; }
  Formula atom_of(uint32_t language, uint32_t state, uint32_t syntax_state);
  Formula after(Formula formula, uint8_t byte, uint32_t syntax_state, bool ends_character);
  bool holds_at_end(const TextState& state) const;
  void expand(uint32_t state);

  Formulas& formulas_;
  engine::Budget& budget_;
  std::array<engine::Automaton, 3> syntax_;  // by kind
  std::vector<bool> allowed_bytes_;
  bool allows_all_bytes_;
  std::vector<Language> languages_;
  std::unordered_map<std::string, uint32_t> languages_by_name_;
  std::unordered_map<Formula, NumberSpelling> spellings_;  // of languages of numbers
  std::unordered_map<Formula, Formula> written_;
  std::unordered_map<uint32_t, uint32_t> digits_to_an_end_;
  std::unordered_map<std::string, std::shared_ptr<const ListedTexts>> listed_by_name_;
  std::vector<TextState> states_;
  std::vector<Steps> steps_;
  engine::StateNumbers state_numbers_;
  std::unordered_map<uint32_t, uint32_t> distances_, largest_distances_;
  std::unordered_map<uint32_t, uint32_t> counts_;
  std::unordered_map<uint32_t, bool> allows_plain_;
  std::unordered_map<uint32_t, uint64_t> repeated_classes_;
  std::unordered_map<uint32_t, std::pair<uint32_t, uint8_t>> next_bytes_;  // with the length of the continuation
  size_t memory_bytes_ = 0;
};

}  // namespace structout::json
