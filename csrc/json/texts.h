// What may stand between the quotes of a string, and as a number: automata over bytes,
// and Boolean formulas over them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "json/decimal.h"
#include "json/formula.h"
#include "json/listed_texts.h"
#include "json/used_values.h"
#include "regular/automaton.h"

namespace structout::json {

enum class TextKind : uint8_t { kString, kNumber };

// A formula on texts while one is read. Text states are numbered; those of equal
// languages may have different numbers.
struct TextState {
  TextKind kind;
  uint32_t syntax;  // state of the automaton of all texts of the kind
  Formula formula;
  bool operator==(const TextState& other) const {
    return kind == other.kind && syntax == other.syntax && formula == other.formula;
  }
};

// How numbers are written that satisfy a language.
struct NumberSpelling {
  NumberSpelling() = default;
  static NumberSpelling without_exponents() {
    NumberSpelling spelling;
    spelling.is_plain = true;
    return spelling;
  }
  explicit NumberSpelling(const Decimal& value);

  // The digits of the schema's number before the point and after it, and whether it
  // can be written with an exponent, perhaps one that a double does not have.
  uint32_t num_whole = 0, num_decimals = 0;
  uint32_t num_digits = 0;  // that all numbers of the language may have
  bool has_exponent = false, exceeds_doubles = false;
  bool is_step = false;    // the numbers are multiples, and have no exponents
  bool is_plain = false;   // the numbers have no exponents
  Formula form = kAlways;  // asked for where the language is, but not where it is negated
};

class Texts {
 public:
  // `allowed_bytes`: those that a text may contain, 256 of them or fewer.
  Texts(Formulas& formulas, engine::Budget& budget, const std::vector<bool>& allowed_bytes);

  // The atom of a language with this name, which `compile` makes the first time.
  // Languages of one name are shared by all schemas of the process.
  Formula language(TextKind kind, const std::string& name, const std::function<engine::Automaton()>& compile);

  // The atom of texts that are listed, those that kListed names with `which`. The name is
  // for this object only.
  Formula listed(TextKind kind, const std::string& name, uint32_t which, const std::function<ListedTexts()>& build);

  Formula strings_matching(const std::string& pattern);
  Formula exact_strings(std::vector<std::string> values);
  Formula min_length(uint32_t length) { return length == 0 ? kAlways : formulas_.atom(Op::kMinLength, length); }

  // Whether a formula holds for a whole text: the content of a string, or a number.
  bool matches(TextKind kind, Formula formula, const std::string& text);

  void set_spelling(Formula language, const NumberSpelling& spelling) { spellings_[language] = spelling; }

  // The start of the texts that are to be written: of a number, in the form that the
  // formula asks for.
  uint32_t start(TextKind kind, Formula formula) {
    return add({kind, 0, kind == TextKind::kNumber ? written(formula) : formula});
  }

  // The start where the formula is only followed, in a text that another one decides.
  uint32_t followed(TextKind kind, Formula formula) { return add({kind, 0, formula}); }

  const TextState& operator[](uint32_t state) const { return states_[state]; }
  size_t num_states() const { return states_.size(); }

  // The state after another byte, or kDead if no text of the kind goes on so. The
  // formula of the state may be kNever.
  uint32_t next(uint32_t state, uint8_t byte);

  // What follows a state, by increasing bytes. Valid until the next call.
  const std::vector<engine::Edge>& edges(uint32_t state) {
    expand(state);
    return steps_[state].edges;
  }

  // Whether the text of a string ends with a whole character.
  bool is_between_characters(uint32_t state) const { return states_[state].syntax == kBoundary; }
  bool allows_all_bytes() const { return allows_all_bytes_; }

  // Whether the formula holds for a text that ends here.
  bool accepts(uint32_t state) const { return steps_[state].accepts; }

  // Whether the formula holds for this text or a continuation.
  bool is_live(uint32_t state);

  // In a string: how many bytes may follow of any characters that are written as
  // themselves. 0 if the formula asks more of them.
  uint32_t num_plain_bytes(uint32_t state);

  // In a string, between two characters: the classes all of whose characters lead back to
  // the state. See masks/character_classes.h.
  uint64_t repeated_classes(uint32_t state);

  // The state without its limit of the length, if that makes no difference to what may
  // follow within `max_length` bytes.
  uint32_t without_far_limit(uint32_t state, uint32_t max_length);

  struct LengthLimit {
    uint32_t without;      // the state without the limit
    uint32_t num_free;     // characters after which it still makes no difference
    uint32_t num_at_most;  // characters that may follow
  };
  // The limit of the length of a string, between two characters.
  std::optional<LengthLimit> length_limit(uint32_t state);

  // All continuations of the text in a state that its formula accepts, if there are at
  // most `max`, all of them short.
  std::optional<std::vector<std::string>> all_texts(uint32_t state, size_t max);
  std::optional<std::vector<std::string>> all_texts(TextKind kind, Formula formula, size_t max) {
    return all_texts(start(kind, formula), max);
  }

  // The same of strings, and none if bytes that are not allowed leave out a string that
  // the formula accepts, or may do so. Such a string may still be a name of the schema.
  std::optional<std::vector<std::string>> all_strings(Formula formula, size_t max);

  // How many they are, however long. kManyTexts: so many or more.
  static constexpr uint32_t kManyTexts = 1 << 30;
  uint32_t count(uint32_t state);

  // The same, or fewer of numbers, of which not all are counted. Not 0 if there are any.
  uint32_t least_count(uint32_t state);

  // How many texts of a set that begin so are among them, with a quote after or without.
  uint32_t num_among(uint32_t state, const TextSet::Cursor& begin);

  // Some text for which a formula holds.
  std::optional<std::string> witness(TextKind kind, Formula formula);

  size_t memory_bytes() const { return memory_bytes_; }

 private:
  static constexpr uint32_t kFar = UINT32_MAX;
  static constexpr uint32_t kBoundary = 0;  // the syntax state between two characters of a string

  struct Language {
    TextKind kind;
    std::shared_ptr<const engine::Automaton> automaton;
    // Pairs of its states with states of the syntax at which it accepts whatever may follow.
    // Null: there are none.
    std::shared_ptr<const std::unordered_set<uint64_t>> is_everything;
    // From each state, how many bytes to the nearest one that accepts. Null: not known.
    std::shared_ptr<const std::vector<uint32_t>> distances;
    std::shared_ptr<const ListedTexts> listed = nullptr;  // or those of which `which` tells some
    uint32_t which = 0;

    bool accepts(uint32_t state) const;
  };
  bool asks_for_length_only(uint32_t state) const;
  bool allows_plain(uint32_t state);
  bool leads_back(uint32_t start, uint32_t state, uint32_t num_separator_bytes,
                  std::map<std::pair<uint32_t, uint32_t>, bool>& known);
  // The formula of a state without its limit of the length, and that limit: fewer
  // characters than so many may follow.
  std::optional<std::pair<uint32_t, uint32_t>> split_limit(uint32_t state);
  // Bytes that a text must still have for its formula to hold, or fewer than those.
  uint32_t least_length(uint32_t state) const;
  // Characters of a shortest continuation that the formula accepts.
  uint32_t distance(uint32_t state);
  // The largest distance of the live states between two characters that follow, or kFar.
  uint32_t largest_distance(uint32_t state);
  // The numbers that a formula describes, without most of their spellings. There are
  // some if the formula describes any.
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

  // How many continuations a number has by digits before its point alone, or fewer than
  // those if it takes long to tell.
  uint32_t num_whole_numbers(uint32_t state);
  // Whether strings of so many characters are kManyTexts or more, if all are allowed; of
  // any number if it is kFar.
  bool are_many_of_length(uint32_t length) const;
  // Whether bytes that are not allowed would lead on, from the state or a later one.
  bool may_lack_texts(uint32_t state);
  // After how many digits, at most, a number may end, whichever digits have come before
  // them; kFar if there are digits after which it cannot, or if it takes long to tell.
  uint32_t num_digits_to_an_end(uint32_t state);

  uint32_t add(const TextState& state);
  const engine::Automaton& syntax(TextKind kind) const { return kind == TextKind::kString ? strings_ : numbers_; }
  Formula atom_of(uint32_t language, uint32_t state, uint32_t syntax_state);
  Formula after(Formula formula, uint8_t byte, uint32_t syntax_state, bool ends_character);
  bool holds_at_end(const TextState& state) const;
  void expand(uint32_t state);

  Formulas& formulas_;
  engine::Budget& budget_;
  engine::Automaton strings_, numbers_;
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
  size_t memory_bytes_ = 0;
};

}  // namespace structout::json
