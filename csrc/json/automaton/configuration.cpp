#include "json/automaton/configuration.h"

#include <algorithm>

#include "json/document/canonical.h"
#include "json/document/value.h"
#include "json/satisfiability/value_search.h"

namespace structout::json {

namespace {

constexpr uint32_t kMaxKeyDepth = 512;  // in frames: a key is as long as the stack

std::shared_ptr<const Registers> with_used(const std::shared_ptr<const Registers>& registers, UsedValues used) {
  return std::make_shared<const Registers>(
      Registers{std::make_shared<const UsedValues>(std::move(used)), 0, registers->seen_keys});
}

std::shared_ptr<const Registers> with_seen_key(const std::shared_ptr<const Registers>& registers, uint32_t index) {
  PastKeys seen_keys = registers->seen_keys;
  if (seen_keys.size() <= index) seen_keys.resize(index + 1);
  seen_keys[index] = true;
  return std::make_shared<const Registers>(Registers{registers->used, 0, std::move(seen_keys)});
}

// True if these are the same registers, or have the same seen keys and no texts.
bool are_equal(const Registers* a, const Registers* b) {
  if (a == b) return true;
  if (a == nullptr || b == nullptr) return false;
  return a->used == nullptr && b->used == nullptr && a->begin == b->begin && a->is_outer_new == b->is_outer_new &&
         a->seen_keys == b->seen_keys;
}

}  // namespace

bool Configuration::equals(const Configuration& other) const {
  if (automaton_ != other.automaton_ || state_ != other.state_) return false;
  if (is_new_ != other.is_new_ || has_free_key_ != other.has_free_key_) return false;
  if (remembers_text() || other.remembers_text() || !are_equal(registers_.get(), other.registers_.get())) return false;
  const Frame *frame = below_.get(), *other_frame = other.below_.get();
  while (frame != other_frame) {
    if (frame == nullptr || other_frame == nullptr || frame->state != other_frame->state) return false;
    if (!are_equal(frame->registers.get(), other_frame->registers.get())) return false;
    frame = frame->below.get();
    other_frame = other_frame->below.get();
  }
  return true;
}

std::string Configuration::text_since(size_t begin) const {
  std::string text;
  for (const TextNode* node = text_.get(); node != nullptr && node->length > begin; node = node->before.get()) {
    text.push_back(node->byte);
  }
  std::reverse(text.begin(), text.end());
  return text;
}

bool Configuration::read(uint8_t byte) {
  Action action = automaton_->action(state_, byte);
  // A byte after a number ends it, then acts on the value around it.
  while (action.kind == Action::kPopBefore) {
    if (!apply(action, byte)) return false;
    action = automaton_->action(state_, byte);
  }
  if (!apply(action, byte)) return false;
  bool is_inside =
      automaton_->register_kind(state_) == RegisterKind::kInsideKey || (below_ != nullptr && below_->item != nullptr);
  if (is_inside) {
    text_ = std::make_shared<TextNode>(char(byte), length() + 1, text_);
  } else if (text_ != nullptr) {
    text_ = nullptr;
  }
  return true;
}

bool Configuration::apply(const Action& action, uint8_t byte) {
  if (action.kind == Action::kFail) return false;
  if (!automaton_->holds(automaton_->guard(state_, byte, action), seen_keys())) return false;
  switch (action.kind) {
    case Action::kFail:
      return false;
    case Action::kReplace: {
      RegisterKind now = automaton_->register_kind(state_), next = automaton_->register_kind(action.state);
      if (next == RegisterKind::kNone) {
        registers_ = nullptr;
      } else if (registers_ == nullptr) {
        registers_ = std::make_shared<const Registers>();
      }
      if (now != RegisterKind::kInsideKey && next == RegisterKind::kInsideKey) {
        registers_ =
            std::make_shared<const Registers>(Registers{registers_->used, length() + 1, registers_->seen_keys});
        used_begin_ = registers_->used == nullptr ? TextSet::Cursor() : registers_->used->values.begin();
      } else if (now == RegisterKind::kInsideKey && byte == '"' && automaton_->ends_free_key(state_)) {
        std::string key = text_since(registers_->begin);
        UsedValues used = registers_->used == nullptr ? UsedValues() : *registers_->used;
        if (used.values.contains(key)) return false;
        used.values = used.values.with(key);
        registers_ = with_used(registers_, std::move(used));
        has_free_key_ = has_free_key_ || (below_ != nullptr && below_->item != nullptr);
      } else if (std::optional<uint32_t> name = automaton_->completed_name(state_, action.state)) {
        registers_ = with_seen_key(registers_, *name);
      } else if (next == RegisterKind::kInsideKey) {
        used_begin_.read(byte);
      } else if (below_ != nullptr && below_->item != nullptr) {
        follow_string(action.state, byte);
      }
      state_ = action.state;
      return true;
    }
    case Action::kPush: {
      RegisterKind kind = automaton_->register_kind(action.below);
      bool is_item = kind == RegisterKind::kInsideItem;
      if (kind == RegisterKind::kNone) {
        registers_ = nullptr;
      } else if (registers_ == nullptr) {
        registers_ = std::make_shared<const Registers>();
      }
      if (is_item) {
        // A first item begins with this byte, another one after the comma.
        size_t begin = length() + (automaton_->register_kind(state_) == RegisterKind::kItems ? 1 : 0);
        registers_ = std::make_shared<const Registers>(Registers{registers_->used, begin, {}, is_new_});
        is_new_ = false;
      }
      below_ = std::make_shared<Frame>(action.below, is_item, std::move(below_), std::move(registers_));
      if (below_->item != nullptr) follow_string(action.state, byte);
      state_ = action.state;
      return true;
    }
    case Action::kPop:
    case Action::kPopBefore: {
      std::shared_ptr<const Frame> waiting = std::move(below_);
      State state = automaton_->resume(waiting == nullptr ? kNoState : waiting->state, action.state);
      if (state == kNoState) return false;
      if (automaton_->is_in_string(state_) && waiting != nullptr && waiting->item != nullptr) {
        used_begin_.read('"');
        is_new_ = is_new_ || !used_begin_.is_whole();
      }
      state_ = state;
      registers_ = nullptr;
      if (waiting == nullptr) return true;
      below_ = waiting->below;
      if (automaton_->register_kind(state) != RegisterKind::kNone) registers_ = waiting->registers;
      bool is_item =
          waiting->registers != nullptr && automaton_->register_kind(waiting->state) == RegisterKind::kInsideItem;
      if (is_item) {
        auto is_done = [&waiting](const auto& entry) { return entry.first == waiting->registers; };
        duplicate_candidates_.erase(std::remove_if(duplicate_candidates_.begin(), duplicate_candidates_.end(), is_done),
                                    duplicate_candidates_.end());
        std::string item = text_since(waiting->registers->begin);
        if (action.kind == Action::kPop) item.push_back(char(byte));
        if (!complete_item(*waiting, std::move(item))) return false;
      } else if (automaton_->register_kind(state) != RegisterKind::kNone && registers_ == nullptr) {
        registers_ = std::make_shared<const Registers>();
      }
      return true;
    }
  }
  return false;
}

bool Configuration::is_complete() const {
  if (below_ != nullptr) return false;
  return automaton_->is_end(state_) || automaton_->truth_values_at_end(state_).has_value();
}

// Moves used_begin_ along with a step to a state in a string of an item; a new string
// starts it anew.
void Configuration::follow_string(State next, uint8_t byte) {
  if (!automaton_->is_in_string(next)) return;
  if (!automaton_->is_in_string(state_)) {
    const Frame* item = below_->item;
    const UsedValues* used = item->registers->used.get();
    used_begin_ = used == nullptr ? TextSet::Cursor() : (item == below_.get() ? used->values : used->strings).begin();
  }
  used_begin_.read(byte);
}

// Parses a complete item and adds its canonical form to the used ones. False if it repeats
// one, or if the array cannot continue.
bool Configuration::complete_item(const Frame& waiting, std::string text) {
  Value value;
  try {
    value = parse_value(text);
  } catch (const SchemaError&) {  // it is a JSON text, so it is nested too deep
    throw engine::LimitError("item_nesting", kMaxNestedValues + 1, kMaxNestedValues);
  }
  std::string item = canonical(value);
  UsedValues used = waiting.registers->used == nullptr ? UsedValues() : *waiting.registers->used;
  if (used.values.contains(item)) return false;
  is_new_ = waiting.registers->is_outer_new;
  if (automaton_->register_kind(state_) == RegisterKind::kNone) return true;
  used.values = used.values.with(item);
  Value used_value = with_canonical_texts(value);
  uint32_t value_formulas = automaton_->item_formulas(waiting.state);
  used.have_same_formulas =
      used.last == nullptr || (used.have_same_formulas && used.last->value_formulas == value_formulas);
  used.are_written_once = used.are_written_once && !automaton_->allows_any_order() && !has_free_key_;
  used.written = used.are_written_once ? used.written.with(written(used_value)) : TextSet();
  used.last = std::make_shared<const UsedItem>(std::move(used_value), value_formulas, used.last);
  if (waiting.below == nullptr || waiting.below->item == nullptr) has_free_key_ = false;
  if (is_compound(item)) {
    visit_strings(value, [&used](const std::string& each) {
      if (!used.strings.contains(each)) used.strings = used.strings.with(each);
    });
  }
  if (automaton_->counts().is_tight(waiting.state) && !automaton_->counts().stays_live(state_, used.values))
    return false;
  registers_ = with_used(waiting.registers, std::move(used));
  return true;
}

const DuplicateCandidates& Configuration::duplicate_candidates_of(const Frame& item) const {
  auto known = std::find_if(duplicate_candidates_.begin(), duplicate_candidates_.end(),
                            [&](const auto& entry) { return entry.first == item.registers; });
  if (known != duplicate_candidates_.end() && known->second->length() == length()) return *known->second;
  if (known == duplicate_candidates_.end()) known = duplicate_candidates_.insert(known, {item.registers, nullptr});
  auto candidates = std::make_shared<DuplicateCandidates>(
      known->second != nullptr ? *known->second : DuplicateCandidates(item.registers->used, item.registers->begin));
  candidates->read(text_since(candidates->length()));
  automaton_->schema().budget().spend(candidates->take_work());
  known->second = std::move(candidates);
  return *known->second;
}

void Configuration::prepare_duplicate_candidates() const {
  for (const Frame* item = below_ == nullptr ? nullptr : below_->item; item != nullptr;) {
    if (item->registers->used != nullptr) duplicate_candidates_of(*item);
    item = item->below == nullptr ? nullptr : item->below->item;
  }
}

// Multiplies the least numbers of values that each part can still become, from the
// innermost value outwards. If these are more than the duplicate candidates (earlier items
// that this one could still equal), some continuation is new; if the number is exact and
// the candidates exhaust it, none is.
Configuration::Outlook Configuration::outlook(const Frame& item) const {
  auto num_used = [](const Frame& frame) {
    return frame.registers->used == nullptr ? size_t(0) : frame.registers->used->values.size();
  };
  // The number of items so far, if they all have the formulas of the next one.
  auto num_items = [this](const Registers* registers, State array) {
    const UsedValues* used = registers == nullptr ? nullptr : registers->used.get();
    if (used == nullptr) return size_t(0);
    bool have_same_formulas =
        used->have_same_formulas && used->last->value_formulas == automaton_->item_formulas(array);
    return have_same_formulas ? used->values.size() : ValueCounts::kUnknownItems;
  };
  bool is_in_array = automaton_->register_kind(state_) == RegisterKind::kItems;
  ValueCounts::Count count = automaton_->counts().values(
      state_, seen_keys(), is_in_array ? num_items(registers_.get(), state_) : ValueCounts::kUnknownItems);
  for (const Frame* frame = below_.get(); frame != &item; frame = frame->below.get()) {
    if (automaton_->register_kind(frame->state) == RegisterKind::kInsideItem) {
      // In an inner array, the items that have come cannot come again.
      bool is_tight = automaton_->counts().is_tight(frame->state);
      if (is_tight && (!count.are_many() || automaton_->counts().depends_on_truth_values(frame->state)))
        return Outlook::kUnknown;
      if (num_used(*frame) > 0 && !count.are_many()) {
        const DuplicateCandidates& candidates = duplicate_candidates_of(*frame);
        size_t num_past = candidates.size();
        size_t num_with_same_formulas =
            candidates.num_with_same_formulas(automaton_->item_formulas(frame->state), automaton_->allows_any_order());
        count = {count.least > num_past ? uint32_t(count.least - num_past) : 0,
                 count.is_exact && num_with_same_formulas == num_past};
      }
    }
    bool is_in_array = automaton_->register_kind(frame->state) == RegisterKind::kInsideItem;
    size_t num_past = is_in_array ? num_items(frame->registers.get(), frame->state) : ValueCounts::kUnknownItems;
    if (num_past != ValueCounts::kUnknownItems) ++num_past;
    ValueCounts::Count after =
        automaton_->counts().values_after(frame->state, seen_keys_of(frame->registers.get()), num_past);
    uint64_t all = uint64_t(count.least) * after.least;
    count = {uint32_t(std::min<uint64_t>(all, ValueCounts::kMany)), count.is_exact && after.is_exact};
  }
  if (automaton_->counts().is_tight(item.state)) {
    bool are_enough = count.are_many() && !automaton_->counts().depends_on_truth_values(item.state);
    return are_enough ? Outlook::kLive : Outlook::kUnknown;
  }
  if (count.least > num_used(item)) return Outlook::kLive;
  const DuplicateCandidates& candidates = duplicate_candidates_of(item);
  if (count.least > candidates.size()) return Outlook::kLive;
  bool is_dead =
      count.is_exact && count.least <= candidates.num_with_same_formulas(automaton_->item_formulas(item.state),
                                                                         automaton_->allows_any_order());
  return is_dead ? Outlook::kDead : Outlook::kUnknown;
}

bool Configuration::has_unused() const {
  RegisterKind kind = automaton_->register_kind(state_);
  bool is_at_key = kind == RegisterKind::kInsideKey || kind == RegisterKind::kKeys;
  if (is_at_key && registers_ != nullptr && registers_->used != nullptr) {
    if (!automaton_->counts().has_unused_key(state_, registers_->used->values, used_begin_, seen_keys())) return false;
  }
  const Frame* outermost = nullptr;
  bool is_new = is_new_;
  for (const Frame* item = below_ == nullptr ? nullptr : below_->item; item != nullptr;) {
    bool is_tight = automaton_->counts().is_tight(item->state);
    bool is_used = item->registers->used != nullptr && !is_new;
    if (!is_tight && is_used && item == below_.get() && automaton_->is_scalar(state_)) {
      TextSet::Cursor begin = used_begin_;
      if (!automaton_->is_in_string(state_)) {
        begin = item->registers->used->values.begin();
        for (char byte : text_since(item->registers->begin)) {
          if (!is_space(uint8_t(byte))) begin.read(uint8_t(byte));
        }
      }
      if (!automaton_->counts().has_unused_scalar(state_, begin)) return false;
    } else if (is_used || is_tight) {
      Outlook outlook = this->outlook(*item);
      if (outlook == Outlook::kDead) return false;
      if (outlook == Outlook::kUnknown) outermost = item;
    }
    is_new = item->registers->is_outer_new;
    item = item->below == nullptr ? nullptr : item->below->item;
  }
  return outermost == nullptr || can_complete(*this, outermost);
}

std::string Configuration::key_within(const Frame& item) const {
  std::string key;
  auto append = [&key](uint64_t number) { key.append(reinterpret_cast<const char*>(&number), sizeof number); };
  auto append_seen_keys = [&](const Registers* registers) {
    for (bool has_come : seen_keys_of(registers)) key.push_back(has_come ? '1' : '0');
  };
  append(state_);
  append_seen_keys(registers_.get());
  bool depends_on_text = registers_ != nullptr && registers_->used != nullptr;
  for (const Frame* frame = below_.get(); frame != item.below.get(); frame = frame->below.get()) {
    append(frame->state);
    append_seen_keys(frame->registers.get());
    bool has_used = frame->registers != nullptr && frame->registers->used != nullptr;
    bool is_item = automaton_->register_kind(frame->state) == RegisterKind::kInsideItem;
    depends_on_text = depends_on_text || (has_used && (!is_item || duplicate_candidates_of(*frame).size() > 0));
  }
  std::string text = text_since(item.registers->begin);
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), is_space));  // known values have none in front
  if (!depends_on_text) depends_on_text = automaton_->counts().may_be_scarce(item.state, text);
  return depends_on_text ? key + text : key;
}

std::optional<std::string> Configuration::key() const {
  if (remembers_text() || (below_ != nullptr && below_->depth > kMaxKeyDepth)) return std::nullopt;
  std::string key;
  auto append = [&key](uint32_t number) { key.append(reinterpret_cast<const char*>(&number), sizeof number); };
  auto append_seen_keys = [&](const Registers* registers) {
    append(registers == nullptr ? UINT32_MAX : uint32_t(registers->seen_keys.size()));
    for (bool has_come : seen_keys_of(registers)) key.push_back(has_come ? '1' : '0');
  };
  append(state_);
  append(uint32_t(is_new_) << 1 | uint32_t(has_free_key_));
  append_seen_keys(registers_.get());
  for (const Frame* frame = below_.get(); frame != nullptr; frame = frame->below.get()) {
    append(frame->state);
    append_seen_keys(frame->registers.get());
  }
  return key;
}

std::string Configuration::forced() const {
  std::string bytes;
  Configuration config = *this;
  while (!config.is_complete()) {
    std::vector<uint8_t> possible;
    for (int byte = 0; byte < 256; ++byte) {
      if (automaton_->action(config.state_, uint8_t(byte)).kind != Action::kFail) possible.push_back(uint8_t(byte));
    }
    if (possible.size() > 1 && config.has_registers()) {
      auto is_used = [&config](uint8_t byte) {
        Configuration next = config;
        return !next.read(byte) || !next.has_unused();
      };
      possible.erase(std::remove_if(possible.begin(), possible.end(), is_used), possible.end());
    }
    if (possible.size() != 1 || !config.read(possible[0])) break;
    bytes.push_back(char(possible[0]));
  }
  return bytes;
}

}  // namespace structout::json
