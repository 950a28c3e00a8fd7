// A schema as a language of stack tables.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "json/schema_states.h"
#include "step/stack_language.h"

namespace structout::json {

// Its states are those of the machine. The names that have come in an object are in its
// frame, as in a Position. Free keys and items that must differ are texts, which tables do
// not hold: where one is complete the engine is asked, and it follows the text until the
// object or the array ends. So it does where an object has more names than a frame holds.
class StackSchema final : public engine::EmbeddedStackLanguage {
 public:
  explicit StackSchema(std::shared_ptr<SchemaStates> states) : states_(std::move(states)) {}

  const engine::VocabularyTrie& vocabulary() const override { return *states_->shared_vocabulary(); }
  uint32_t start() override { return states_->start()->position.state(); }
  bool has_stack() const override { return true; }
  bool accepts(uint32_t state) override;
  bool is_below_bottom(uint32_t state) override;
  bool keeps_names(uint32_t state) override;
  bool is_live(uint32_t) override { return true; }
  void list_actions(uint32_t state, engine::StackAction* actions) override;
  int64_t resume(uint32_t waiting, uint32_t verdicts) override;
  engine::StackMask fill(const engine::StackPlace& place, uint32_t* row) override;
  std::unique_ptr<Text> text() override;

  bool is_delimited(const engine::EmbeddedPosition& position) override;
  bool find_place(const engine::EmbeddedPosition& position, engine::StackPlace& place) override;
  engine::PositionPtr position(const engine::StackPlace& place) override;
  uint32_t num_mask_frames(uint32_t mask_state) override;
  bool has_remembered_text(const engine::StackPlace& place) override;

 private:
  class SchemaText;
  engine::StackAction action(State state, uint8_t byte);
  // While the states are held.
  bool is_in_item(const engine::StackPlace& place) const;  // that is remembered
  uint32_t held_num_frames(State mask_state) const;
  static std::optional<engine::StackGuard> packed(Machine& machine, const Guard& guard);

  std::shared_ptr<SchemaStates> states_;
};

}  // namespace structout::json
