// A grammar as a language of stack tables.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "context_free/grammar_index.h"
#include "step/stack_language.h"

namespace structout::context_free {

// A state is a place of the grammar with all its stacks. Where a text is inside of a JSON
// value and nowhere else, the states of the schema are on top of one that waits for the
// value. Tables hold no numbers of tokens, and few tokens that are read by their ids: see
// may_have_tables().
class StackGrammar final : public engine::StackLanguage, public std::enable_shared_from_this<StackGrammar> {
 public:
  // Whether tables can follow a grammar whose texts end with such tokens.
  static bool may_have_tables(const Network& network, const std::vector<uint32_t>& stop_tokens);

  explicit StackGrammar(std::shared_ptr<GrammarIndex> index);

  const engine::VocabularyTrie& vocabulary() const override { return *index_->shared_vocabulary(); }
  uint32_t start() override;
  bool has_stack() const override { return false; }
  bool accepts(uint32_t state) override;
  bool is_below_bottom(uint32_t) override { return false; }
  bool keeps_names(uint32_t state) override;
  bool is_live(uint32_t state) override;
  void list_actions(uint32_t state, engine::StackAction* actions) override;
  bool reads_tokens(uint32_t state) override;
  std::vector<std::pair<uint32_t, int64_t>> list_tokens(uint32_t state) override;
  int64_t resume(uint32_t waiting, uint32_t verdicts) override;
  engine::StackMask fill(const engine::StackPlace& place, uint32_t* row) override;
  std::unique_ptr<Text> text() override;

 private:
  class GrammarText;

  struct State {
    enum Kind : uint8_t { kPlace, kInside, kWaiting };
    Kind kind;
    uint32_t language;  // that is embedded
    uint32_t number;    // of the place, of a state of the language, or of the stacks after it

    bool operator<(const State& other) const {
      return std::tie(kind, language, number) < std::tie(other.kind, other.language, other.number);
    }
  };

  // A place where a text may stand, and what it does there.
  struct KnownPlace {
    Place place;
    std::optional<uint32_t> number{};  // in places_, if it is there
    std::optional<std::string> key{};  // if it is not, and remembers no texts
    bool may_end = false, reads_tokens = false, is_live = false;
  };

  static constexpr size_t kMaxPlaceBytes = 64 << 20;

  KnownPlace described(Place place);  // while the states of the grammar are held

  // What follows is called while they are not.
  // The place that read() returns while they are. Nothing if it takes more than the limits:
  // the engine is asked there for good.
  template <typename Read>
  std::optional<KnownPlace> described_after(Read read);

  uint32_t number_of(const State& state);
  // Nothing if the place remembers texts, or there is no room for it.
  std::optional<uint32_t> number_of_place(const KnownPlace& place);
  uint32_t number_inside(uint32_t language, uint32_t state) { return number_of({State::kInside, language, state}); }

  // The embedded language in which a place is and nowhere else, if its texts tell where
  // they end.
  std::optional<uint32_t> language_around(const Place& place);
  engine::StackAction action_to(const std::optional<KnownPlace>& next);
  bool find_place(const KnownPlace& known, engine::StackPlace& place);
  engine::StackMask fill_inside(const engine::StackPlace& place, uint32_t* row);
  void fill_across(const State& waiting, const engine::StackPlace& inside, uint32_t* row);

  const std::shared_ptr<GrammarIndex> index_;
  const std::shared_ptr<GrammarStates> grammar_;  // of the tables alone
  std::vector<std::shared_ptr<engine::EmbeddedStates>> embedded_;
  std::vector<std::shared_ptr<engine::EmbeddedStackLanguage>> languages_;  // null for those without a stack

  std::mutex mutex_;  // guards what follows
  std::vector<State> states_;
  std::map<State, uint32_t> numbers_;
  std::vector<KnownPlace> places_;
  std::unordered_map<std::string, uint32_t> places_by_key_;
  size_t place_bytes_ = 0;
};

}  // namespace structout::context_free
