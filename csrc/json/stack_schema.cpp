#include "json/stack_schema.h"

#include <algorithm>

namespace structout::json {

using engine::StackAction;
using engine::StackGuard;
using engine::StackMask;
using engine::StackPlace;

namespace {

constexpr size_t kMaxNames = 32 * kNameWords;

// A set of names as bits. None if there are too many names.
std::optional<uint64_t> bits_of(const PastKeys& names) {
  uint64_t bits = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    if (!names[i]) continue;
    if (i >= kMaxNames) return std::nullopt;
    bits |= uint64_t{1} << i;
  }
  return bits;
}

PastKeys names_of_bits(uint64_t bits) {
  PastKeys names;
  for (; bits != 0; bits &= bits - 1) {
    auto name = size_t(__builtin_ctzll(bits));
    names.resize(name + 1);
    names[name] = true;
  }
  return names;
}

std::vector<std::pair<State, PastKeys>> stack_of(const StackPlace& place) {
  std::vector<std::pair<State, PastKeys>> stack;
  for (const StackPlace::Frame& frame : place.frames) stack.emplace_back(frame.state, names_of_bits(frame.names));
  return stack;
}

bool may_have_names(Machine& machine, State state) {
  MemoryKind memory = machine.memory(state);
  return machine.allows_any_order() && (memory == MemoryKind::kKeys || memory == MemoryKind::kInsideKey);
}

}  // namespace

bool StackSchema::accepts(uint32_t state) {
  SchemaStates::Lock lock(*states_);
  return states_->machine_->is_end(state) || states_->machine_->verdicts_at_end(state).has_value();
}

bool StackSchema::is_below_bottom(uint32_t state) {
  SchemaStates::Lock lock(*states_);
  return states_->machine_->is_end(state);
}

bool StackSchema::keeps_names(uint32_t state) {
  SchemaStates::Lock lock(*states_);
  return states_->machine_->memory(state) != MemoryKind::kNone;
}

std::optional<StackGuard> StackSchema::packed(Machine& machine, const Guard& guard) {
  GuardNames names = machine.names_of(guard);
  if (guard.kind == Guard::kKeys && guard.allows_free && !names.max_keys) {  // it always holds
    StackGuard always;
    always.allows_free = true;
    return always;
  }
  std::optional<uint64_t> required = bits_of(names.required), candidates = bits_of(names.candidates);
  if (!required || !candidates) return std::nullopt;
  StackGuard result;
  result.required = *required;
  result.candidates = *candidates;
  result.max_keys = names.max_keys ? int32_t(std::min<uint32_t>(*names.max_keys, INT32_MAX)) : -1;
  result.closes = guard.kind == Guard::kClose;
  result.allows_free = guard.allows_free;
  return result;
}

StackAction StackSchema::action(State state, uint8_t byte) {
  Machine& machine = *states_->machine_;
  Action action = machine.action(state, byte);
  StackAction result;
  result.state = action.state;
  result.below = action.below;
  switch (action.kind) {
    case Action::kFail:
      return {};
    case Action::kReplace: {
      result.kind = StackAction::kReplace;
      bool is_in_key = machine.memory(state) == MemoryKind::kInsideKey;
      bool is_free_key = is_in_key && byte == '"' && machine.memory(action.state) != MemoryKind::kInsideKey &&
                         machine.ends_free_key(state);
      std::optional<uint32_t> name = machine.completed_name(state, action.state);
      if (is_free_key || (name && *name >= kMaxNames)) return {StackAction::kAsk};
      if (name) result.name = int32_t(*name);
      break;
    }
    case Action::kPush:
      result.kind = StackAction::kPush;
      if (machine.memory(action.below) == MemoryKind::kInsideItem && machine.counts().is_tight(action.below)) {
        return {StackAction::kAsk};
      }
      break;
    case Action::kPop:
      result.kind = StackAction::kPop;
      break;
    case Action::kPopBefore:
      result.kind = StackAction::kPopBefore;
      break;
  }
  Guard guard = machine.guard(state, byte, action);
  if (guard.kind == Guard::kNone) return result;
  std::optional<StackGuard> names = packed(machine, guard);
  if (!names) return {StackAction::kAsk};
  result.has_guard = true;
  result.guard = *names;
  return result;
}

void StackSchema::list_actions(uint32_t state, StackAction* actions) {
  SchemaStates::Lock lock(*states_);
  for (int byte = 0; byte < 256; ++byte) actions[byte] = action(state, uint8_t(byte));
}

int64_t StackSchema::resume(uint32_t waiting, uint32_t verdicts) {
  SchemaStates::Lock lock(*states_);
  Machine& machine = *states_->machine_;
  State state = machine.resume(waiting == kBottom ? kNoState : waiting, verdicts);
  if (state == kNoState) return kRefused;
  bool is_item = waiting != kBottom && machine.memory(waiting) == MemoryKind::kInsideItem;
  return is_item && machine.memory(state) != MemoryKind::kNone ? int64_t{kAsked} : int64_t{state};
}

StackMask StackSchema::fill(const StackPlace& place, uint32_t* row) {
  SchemaStates::Lock lock(*states_);
  Machine& machine = *states_->machine_;
  const std::vector<std::pair<State, PastKeys>> stack = stack_of(place);
  const bool is_in_item = this->is_in_item(place);
  const Position position(machine, stack);
  StackMask mask;
  mask.state = states_->mask_state(position);
  const SchemaStates::Entry& entry = states_->entry_of(position, mask.state);
  mask.num_frames = held_num_frames(mask.state);
  // Where tokens are read to tell whether they are allowed, the text of a key or an item
  // that has begun matters, or the names.
  bool is_in_key = machine.memory(position.state()) == MemoryKind::kInsideKey;
  bool are_suspect = !entry.suspects.of_themselves.empty();
  const auto& tokens = entry.conditions.tokens;
  bool are_read = std::any_of(tokens.begin(), tokens.end(),
                              [](const auto& token) { return token.second == Conditions::kByReading; });
  mask.is_asked = (are_suspect && (is_in_key || is_in_item)) || (are_read && is_in_item);
  if (mask.is_asked) return mask;
  if (are_suspect || are_read) {
    for (uint32_t i = 0; i < std::min<size_t>(mask.num_frames, stack.size()); ++i) {
      if (may_have_names(machine, stack[stack.size() - 1 - i].first)) mask.frames_with_names.push_back(i);
    }
  } else if (!tokens.empty()) {
    for (size_t i = Conditions::kByReading + 1; i < entry.conditions.all.size(); ++i) {
      const Conditions::Condition& each = entry.conditions.all[i];
      std::optional<StackGuard> guard = packed(machine, each.guard);
      mask.is_asked = mask.is_asked || !guard;
      if (mask.is_asked) return mask;
      int32_t before = int32_t(each.before) - int32_t(Conditions::kByReading + 1);
      mask.conditions.push_back({std::max(before, -1), each.frame, *guard});
    }
  }
  states_->fill_row(position, row);
  return mask;
}

// A text of its own, whose position remembers all.
class StackSchema::SchemaText final : public engine::StackLanguage::Text {
 public:
  explicit SchemaText(std::shared_ptr<SchemaStates> states) : states_(std::move(states)), place_(states_->start()) {}

  std::unique_ptr<Text> copy() const override { return std::make_unique<SchemaText>(*this); }
  bool read(uint32_t token) override {
    PlacePtr next = states_->after(*place_, token);
    if (next == nullptr) return false;
    place_ = std::move(next);
    return true;
  }
  bool is_complete() override { return place_->is_complete; }
  void fill(uint32_t* row) override { states_->fill(*place_, row); }

  bool find_place(StackPlace& place) override { return StackSchema(states_).find_place(place_->position, place); }

 private:
  std::shared_ptr<SchemaStates> states_;
  PlacePtr place_;
};

std::unique_ptr<engine::StackLanguage::Text> StackSchema::text() { return std::make_unique<SchemaText>(states_); }

bool StackSchema::is_delimited(const engine::EmbeddedPosition& given) {
  SchemaStates::Lock lock(*states_);
  const auto& position = static_cast<const Position&>(given);
  if (position.below() != nullptr || !states_->machine_->reads_number(position.state())) return true;
  return states_->machine_->action(position.state(), '"').kind == Action::kPop;  // a string
}

bool StackSchema::find_place(const engine::EmbeddedPosition& given, StackPlace& place) {
  SchemaStates::Lock lock(*states_);
  Machine& machine = *states_->machine_;
  const auto& position = static_cast<const Position&>(given);
  if (position.has_used()) return false;
  auto add = [&](State state, const PastKeys& names) {
    std::optional<uint64_t> bits = bits_of(names);
    bool is_tight = machine.memory(state) == MemoryKind::kInsideItem && machine.counts().is_tight(state);
    if (!bits || is_tight) return false;
    place.frames.push_back({state, *bits});
    return true;
  };
  if (!add(position.state(), position.names())) return false;
  for (const Frame* frame = position.below(); frame != nullptr; frame = frame->below.get()) {
    if (!add(frame->state, names_of(frame->memory.get()))) return false;
  }
  std::reverse(place.frames.begin(), place.frames.end());
  return true;
}

engine::PositionPtr StackSchema::position(const StackPlace& place) {
  SchemaStates::Lock lock(*states_);
  return std::make_shared<Position>(*states_->machine_, stack_of(place));
}

bool StackSchema::is_in_item(const StackPlace& place) const {
  return std::any_of(place.frames.begin(), place.frames.end(), [this](const StackPlace::Frame& frame) {
    return states_->machine_->memory(frame.state) == MemoryKind::kInsideItem;
  });
}

uint32_t StackSchema::held_num_frames(State mask_state) const {
  return mask_state < states_->num_frames_.size() ? states_->num_frames_[mask_state] : 1;
}

uint32_t StackSchema::num_mask_frames(uint32_t mask_state) {
  SchemaStates::Lock lock(*states_);
  return held_num_frames(mask_state);
}

bool StackSchema::has_remembered_text(const StackPlace& place) {
  SchemaStates::Lock lock(*states_);
  return is_in_item(place) || states_->machine_->memory(place.frames.back().state) == MemoryKind::kInsideKey;
}

}  // namespace structout::json
