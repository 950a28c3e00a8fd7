#include "step/stack_tables.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <deque>
#include <set>
#include <stdexcept>
#include <unordered_set>

#include "base/hash.h"
#include "base/limits.h"

namespace structout::engine {

namespace {

constexpr uint32_t kBottomState = StackLanguage::kBottom;
constexpr size_t kFirstKeys = 1 << 8;
constexpr size_t kMaxCells = size_t(1) << 28;  // their numbers are operands

uint64_t hash_words(const int32_t* words, size_t count) {
  return hash_bytes(reinterpret_cast<const uint8_t*>(words), count * sizeof(int32_t));
}

// The number under which equal contents are found, or -1.
template <typename IsEqual>
int32_t find_shared(const std::unordered_multimap<uint64_t, int32_t>& numbers, uint64_t hash, IsEqual is_equal) {
  auto [first, end] = numbers.equal_range(hash);
  for (; first != end; ++first) {
    if (is_equal(first->second)) return first->second;
  }
  return -1;
}

StackRow row_of(const int32_t* row) { return {const_cast<int32_t*>(row), 1}; }

double cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

}  // namespace

StackTableBuilder::StackTableBuilder(std::shared_ptr<const VocabularyTrie> vocabulary, size_t max_mask_bytes)
    : vocabulary_(std::move(vocabulary)),
      max_masks_(max_mask_bytes / (sizeof(uint32_t) * std::max<size_t>(1, vocabulary_->row_words()))),
      keys_(kFirstKeys * kKeyColumns, kNoSlot),
      token_begin_(vocabulary_->token_begin().begin(), vocabulary_->token_begin().end()),
      scratch_(vocabulary_->row_words()) {}

uint32_t StackTableBuilder::add(std::shared_ptr<StackLanguage> language, std::vector<uint32_t> stop_tokens) {
  if (language->vocabulary().fingerprint() != vocabulary_->fingerprint()) {
    throw std::invalid_argument("the language is of another vocabulary than the tables");
  }
  for (uint32_t stop : stop_tokens) {
    if (stop >= vocabulary_->size()) throw std::invalid_argument("a stop token is out of range");
  }
  auto number = uint32_t(languages_.size());
  languages_.push_back({std::move(language), std::move(stop_tokens), {}, -1});
  list_stop_tokens();
  if (languages_[number].language->has_stack()) languages_[number].bottom = add_state(number, kBottomState);
  return number;
}

void StackTableBuilder::list_stop_tokens() {
  max_stop_tokens_ = 0;
  for (const Language& each : languages_) max_stop_tokens_ = std::max(max_stop_tokens_, each.stop_tokens.size());
  stop_tokens_.assign(languages_.size() * max_stop_tokens_, -1);
  for (size_t i = 0; i < languages_.size(); ++i) {
    const std::vector<uint32_t>& stops = languages_[i].stop_tokens;
    std::copy(stops.begin(), stops.end(), stop_tokens_.begin() + ptrdiff_t(i * max_stop_tokens_));
  }
}

// -- states -------------------------------------------------------------------------

int32_t StackTableBuilder::add_state(uint32_t language, uint32_t state) {
  auto number = int32_t(num_states());
  if (size_t(number) >= kMaxCells) throw LimitError("stack_table_states", size_t(number) + 1, kMaxCells);
  StackLanguage& of = *languages_[language].language;
  auto flags = int32_t(language << kStackLanguageShift);
  if (state != kBottomState) {
    flags |= of.accepts(state) ? kStackAccepting : 0;
    flags |= of.keeps_names(state) ? kStackKeepsNames : 0;
    flags |= of.is_live(state) ? kStackLive : 0;
    flags |= of.reads_tokens(state) ? kStackReadsTokens : 0;
  }
  states_.insert(states_.end(), {-1, 0, -1, -1, flags});
  origins_.push_back({language, state});
  return number;
}

int32_t StackTableBuilder::number_of(uint32_t language, uint32_t state) {
  auto [found, is_new] = languages_[language].numbers.try_emplace(state, -1);
  if (is_new) {
    try {
      found->second = add_state(language, state);
    } catch (...) {
      languages_[language].numbers.erase(state);
      throw;
    }
  }
  return found->second;
}

void StackTableBuilder::check_cells(size_t count) const {
  if (cells_.size() + count > kMaxCells) throw LimitError("stack_table_cells", cells_.size() + count, kMaxCells);
}

int32_t StackTableBuilder::shared_cells(const std::vector<int32_t>& values) {
  uint64_t hash = hash_words(values.data(), values.size());
  int32_t known = find_shared(cells_by_hash_, hash, [&](int32_t cell) {
    return size_t(cell) + values.size() <= cells_.size() &&
           std::equal(values.begin(), values.end(), cells_.begin() + cell);
  });
  if (known >= 0) return known;
  check_cells(values.size());
  auto cell = int32_t(cells_.size());
  cells_.insert(cells_.end(), values.begin(), values.end());
  cells_by_hash_.emplace(hash, cell);
  return cell;
}

int32_t StackTableBuilder::class_map_of(const uint8_t* classes) {
  uint64_t hash = hash_bytes(classes, 256);
  auto is_equal = [&](int32_t map) { return std::memcmp(&class_maps_[size_t(map) * 256], classes, 256) == 0; };
  int32_t map = find_shared(maps_by_hash_, hash, is_equal);
  if (map >= 0) return map;
  map = int32_t(class_maps_.size() / 256);
  class_maps_.insert(class_maps_.end(), classes, classes + 256);
  maps_by_hash_.emplace(hash, map);
  return map;
}

int32_t StackTableBuilder::guard_cell(const StackGuard& guard) {
  int32_t flags = (guard.closes ? kGuardCloses : 0) | (guard.allows_free ? kGuardAllowsFree : 0);
  return shared_cells({int32_t(guard.required), int32_t(guard.required >> 32), int32_t(guard.candidates),
                       int32_t(guard.candidates >> 32), guard.max_keys, flags});
}

int32_t StackTableBuilder::packed(uint32_t language, const StackAction& action) {
  auto with_operand = [](int32_t kind, int32_t operand) {
    return int32_t(uint32_t(operand) << kActionKindBits) | kind;
  };
  int32_t result = kActionFail;
  switch (action.kind) {
    case StackAction::kFail:
      return kActionFail;
    case StackAction::kAsk:
      return kActionMiss;
    case StackAction::kReplace:
      result = with_operand(kActionReplace, number_of(language, action.state));
      break;
    case StackAction::kPush: {
      int32_t state = number_of(language, action.state), below = number_of(language, action.below);
      result = with_operand(kActionPush, shared_cells({state, below}));
      break;
    }
    case StackAction::kPop:
      result = with_operand(kActionPop, int32_t(action.state));
      break;
    case StackAction::kPopBefore:
      result = with_operand(kActionPopBefore, int32_t(action.state));
      break;
  }
  if (!action.has_guard && action.name < 0) return result;
  StackGuard guard = action.guard;
  if (!action.has_guard) guard.allows_free = true;
  return with_operand(kActionGuarded, shared_cells({guard_cell(guard), result, action.name}));
}

void StackTableBuilder::add_actions(int32_t state) {
  if (field(state, kClassMapField) >= 0) return;
  Origin origin = origins_[size_t(state)];
  if (origin.state == kBottomState) throw std::logic_error("the bottom of a stack reads nothing");
  StackAction actions[256];
  languages_[origin.language].language->list_actions(origin.state, actions);
  uint8_t classes[256];
  std::vector<int32_t> row;
  for (int byte = 0; byte < 256; ++byte) {
    if (byte > 0 && actions[byte] == actions[byte - 1]) {
      classes[byte] = classes[byte - 1];
      continue;
    }
    int32_t action = packed(origin.language, actions[byte]);
    auto found = std::find(row.begin(), row.end(), action);
    classes[byte] = uint8_t(found - row.begin());
    if (found == row.end()) row.push_back(action);
  }
  if ((field(state, kFlagsField) & kStackReadsTokens) != 0) add_tokens(state);
  int32_t cell = shared_cells(row), map = class_map_of(classes);
  field(state, kActionsField) = cell;
  field(state, kClassMapField) = map;
}

std::vector<std::pair<int32_t, int32_t>> StackTableBuilder::pairs_of(int32_t state) const {
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (int32_t cell = states_[size_t(state * kStateFields + kPairsField)]; cell >= 0 && cells_[size_t(cell)] >= 0;
       cell += 2) {
    pairs.push_back({cells_[size_t(cell)], cells_[size_t(cell) + 1]});
  }
  return pairs;
}

void StackTableBuilder::add_tokens(int32_t state) {
  Origin origin = origins_[size_t(state)];
  std::vector<int32_t> list;
  for (auto [token, next] : languages_[origin.language].language->list_tokens(origin.state)) {
    list.insert(list.end(), {int32_t(token), next < 0 ? int32_t(next) : number_of(origin.language, uint32_t(next))});
  }
  list.push_back(-1);
  int32_t cell = shared_cells(list);
  field(state, kPairsField) = cell;
}

// Where a waiting state of the tables goes on: a state, kResumeRefused or kResumeAsked.
int32_t StackTableBuilder::resume(int32_t waiting, uint32_t verdicts) {
  int32_t known = tables().paired(waiting, int32_t(verdicts));
  if (known != StackTables::kNoPair) return known;
  Origin origin = origins_[size_t(waiting)];
  int64_t next = languages_[origin.language].language->resume(origin.state, verdicts);
  int32_t to = next < 0 ? int32_t(next) : number_of(origin.language, uint32_t(next));
  std::vector<int32_t> list;
  for (auto [known_verdicts, after] : pairs_of(waiting)) list.insert(list.end(), {known_verdicts, after});
  if (list.size() == 2 * size_t(kMaxPairs)) return kResumeAsked;
  list.insert(list.end(), {int32_t(verdicts), to, -1});
  field(waiting, kPairsField) = shared_cells(list);
  return to;
}

// -- saturation ---------------------------------------------------------------------

// Pairs of a state, and the state in which its value has begun: its entry.
class StackTableBuilder::Saturation {
 public:
  Saturation(StackTableBuilder& builder, uint32_t language) : builder_(builder) {
    Language& of = builder_.languages_[language];
    int32_t start = builder_.number_of(language, of.language->start());
    if (of.bottom >= 0) returns_[start].insert({of.bottom, kNoEntry});
    add(start, start);
  }

  // Returns whether all pairs were found.
  bool run(uint32_t max_states, double seconds) {
    double start = cpu_seconds();
    for (size_t i = 1; !work_.empty(); ++i) {
      if (states_.size() > max_states || (i % 16 == 0 && cpu_seconds() - start > seconds)) return false;
      auto [state, entry] = work_.front();
      work_.pop_front();
      visit(state, entry);
    }
    return true;
  }

 private:
  static constexpr int32_t kNoEntry = -1;  // of what is below the bottom

  void add(int32_t state, int32_t entry) {
    if (pairs_.insert(uint64_t(uint32_t(state)) << 32 | uint32_t(entry)).second) work_.push_back({state, entry});
  }

  void resume(int32_t waiting, uint32_t verdicts, int32_t entry) {
    int32_t state = builder_.resume(waiting, verdicts);
    if (state >= 0) add(state, entry == kNoEntry ? state : entry);
  }

  void visit(int32_t state, int32_t entry) {
    states_.insert(state);
    builder_.add_actions(state);
    if ((builder_.field(state, kFlagsField) & kStackReadsTokens) != 0) {
      for (auto [token, next] : builder_.pairs_of(state)) {
        if (next >= 0) add(next, entry);
      }
    }
    size_t first = size_t(builder_.field(state, kActionsField));
    const uint8_t* classes = &builder_.class_maps_[size_t(builder_.field(state, kClassMapField)) * 256];
    size_t count = size_t(*std::max_element(classes, classes + 256)) + 1;
    for (size_t i = 0; i < count; ++i) {
      int32_t action = builder_.cells_[first + i];
      if ((action & 7) == kActionGuarded) action = builder_.cells_[size_t(action >> kActionKindBits) + 1];
      int32_t kind = action & 7, operand = action >> kActionKindBits;
      if (kind == kActionReplace) {
        add(operand, entry);
      } else if (kind == kActionPush) {
        push(builder_.cells_[size_t(operand)], builder_.cells_[size_t(operand) + 1], entry);
      } else if (kind == kActionPop || kind == kActionPopBefore) {
        if (!pops_[entry].insert(operand).second) continue;
        for (auto [waiting, outer] : std::vector(returns_[entry].begin(), returns_[entry].end())) {
          resume(waiting, uint32_t(operand), outer);
        }
      }
    }
  }

  void push(int32_t state, int32_t below, int32_t entry) {
    add(state, state);
    if (!returns_[state].insert({below, entry}).second) return;
    for (int32_t verdicts : std::vector(pops_[state].begin(), pops_[state].end())) {
      resume(below, uint32_t(verdicts), entry);
    }
  }

  StackTableBuilder& builder_;
  std::unordered_set<uint64_t> pairs_;
  std::deque<std::pair<int32_t, int32_t>> work_;  // what texts come to soon is first
  std::unordered_set<int32_t> states_;
  // For each entry state, the states that values entered there return to, with their verdicts.
  std::unordered_map<int32_t, std::set<std::pair<int32_t, int32_t>>> returns_;
  std::unordered_map<int32_t, std::set<int32_t>> pops_;
};

bool StackTableBuilder::build(uint32_t language, uint32_t max_states, double seconds) {
  try {
    return Saturation(*this, language).run(max_states, seconds);
  } catch (const LimitError&) {
    return false;
  }
}

// -- texts --------------------------------------------------------------------------

void StackTableBuilder::start(uint32_t language, int32_t* row, int64_t max_depth) {
  Language& of = languages_.at(language);
  std::fill(row, row + kFramesColumn + max_depth * kFrameColumns, 0);
  row[kTopColumn] = number_of(language, of.language->start());
  if (of.bottom < 0) return;
  if (max_depth == 0) {
    row[kTopColumn] = kAskedStack;
    return;
  }
  row[kDepthColumn] = 1;
  row[kFramesColumn] = of.bottom;
}

bool StackTableBuilder::complete(const int32_t* row, int64_t max_depth, int64_t token) {
  std::vector<int32_t> copy(row, row + kFramesColumn + max_depth * kFrameColumns), scratch(kScratchColumns);
  for (;;) {
    StackMiss miss;
    if (tables().advance(row_of(copy.data()), max_depth, token, scratch.data(), &miss) == kStackAdvanced) return true;
    if (miss.state < 0) return false;
    if (miss.verdicts < 0) {
      add_actions(miss.state);
    } else if (resume(miss.state, uint32_t(miss.verdicts)) == kResumeAsked) {
      return false;
    }
  }
}

void StackTableBuilder::write_place(uint32_t language, StackLanguage::Text& text, int32_t* row, int64_t max_depth) {
  StackPlace place;
  std::fill(row, row + kFramesColumn + max_depth * kFrameColumns, 0);
  row[kTopColumn] = kAskedStack;
  if (!text.find_place(place)) return;
  int32_t bottom = languages_.at(language).bottom;
  // The end of the text is above no bottom.
  bool is_end =
      bottom >= 0 && place.frames.size() == 1 && languages_[language].language->is_below_bottom(place.frames[0].state);
  int64_t num_below = int64_t(place.frames.size()) - 1, num_bottoms = bottom >= 0 && !is_end;
  if (num_below + num_bottoms > max_depth) return;
  StackRow to = row_of(row);
  auto names_of = [](uint64_t names) { return StackNames{{uint32_t(names), uint32_t(names >> 32)}}; };
  if (num_bottoms > 0) to.frame(0).set(bottom, {});
  for (int64_t i = 0; i < num_below; ++i) {
    const StackPlace::Frame& frame = place.frames[size_t(i)];
    to.frame(num_bottoms + i).set(number_of(language, frame.state), names_of(frame.names));
  }
  to.at(kDepthColumn) = int32_t(num_below + num_bottoms);
  to.set_names(names_of(place.frames.back().names));
  to.at(kTopColumn) = number_of(language, place.frames.back().state);
}

bool StackTableBuilder::is_stop(uint32_t language, int64_t token) const {
  const std::vector<uint32_t>& stops = languages_.at(language).stop_tokens;
  return std::find(stops.begin(), stops.end(), token) != stops.end();
}

void StackTableBuilder::fill(uint32_t language, StackLanguage::Text& text, uint32_t* row) {
  text.fill(row);
  bool is_complete = text.is_complete();
  for (uint32_t stop : languages_.at(language).stop_tokens) {
    uint32_t bit = 1u << (stop & 31);
    row[stop >> 5] = is_complete ? row[stop >> 5] | bit : row[stop >> 5] & ~bit;
  }
}

// -- masks --------------------------------------------------------------------------

bool StackTableBuilder::place_of(const int32_t* row, int64_t max_depth, StackPlace& place, uint32_t& language) const {
  int32_t top = row[kTopColumn], depth = row[kDepthColumn];
  auto is_known = [this](int32_t state) { return state >= 0 && size_t(state) < origins_.size(); };
  if (!is_known(top) || depth < 0 || depth > max_depth) return false;
  language = origins_[size_t(top)].language;
  auto add = [&](int32_t state, StackNames names) {
    if (!is_known(state) || origins_[size_t(state)].language != language) return false;
    uint32_t of = origins_[size_t(state)].state;
    if (of != kBottomState) place.frames.push_back({of, names.words[0] | uint64_t(names.words[1]) << 32});
    return true;
  };
  StackRow stack = row_of(row);
  for (int32_t i = 0; i < depth; ++i) {
    if (!add(stack.frame(i).state(), stack.frame(i).names())) return false;
  }
  return add(top, stack.names()) && origins_[size_t(top)].state != kBottomState;
}

bool StackTableBuilder::keep_mask(const int32_t* row, int64_t max_depth) {
  StackPlace place;
  uint32_t language;
  if (!place_of(row, max_depth, place, language)) return false;
  if (tables().mask_row(row_of(row), max_depth) != kMissedStackRow) return true;
  StackMask mask = languages_[language].language->fill(place, scratch_.data());
  int32_t top = row[kTopColumn], depth = row[kDepthColumn];
  // Whether the text may end is told by the bottom.
  bool may_end = (field(top, kFlagsField) & kStackAccepting) != 0;
  uint32_t num_frames = std::max(mask.num_frames, may_end && depth > 0 ? 2u : 1u);
  if (num_frames > uint32_t(kKeyFrames)) return false;
  int32_t state = number_of(language, mask.state);
  auto old_frames = uint32_t(field(state, kFlagsField) >> kKeyFramesShift & 15);
  num_frames = std::max(num_frames, old_frames);
  field(top, kMaskStateField) = state;
  field(state, kFlagsField) = (field(state, kFlagsField) & ~(15 << kKeyFramesShift)) | int32_t(num_frames)
                                                                                           << kKeyFramesShift;

  int32_t key[kKeyFrames];
  key[0] = state;
  StackRow stack = row_of(row);
  for (int i = 1; i < kKeyFrames; ++i) {
    key[i] = i >= int(num_frames) || depth + 1 < i ? kNoFrame
             : depth < i                           ? kBelowBottom
                                                   : stack.frame(depth - i).state();
  }
  size_t num_conditions = mask.conditions.size() + mask.frames_with_names.size() * kNameWords;
  size_t max_conditions = mask.conditions.empty() ? kConditionWords : kMaxConditions;
  if (mask.is_asked || num_conditions > max_conditions) {
    insert_key(key, kAskedSlot);
    return false;
  }
  int32_t slot = slot_of(language, scratch_.data(), may_end && depth <= 1);
  if (slot < 0) return false;
  if (num_conditions == 0) {
    insert_key(key, slot);
    return true;
  }
  // Each key has a list of its own, so that with the truth of its conditions it names a mask.
  int32_t known = tables().find(key);
  int32_t cell = known <= -2 && known != kAskedSlot ? -2 - known : add_conditions(mask);
  insert_key(key, -2 - cell);
  tables().fill_with_conditions(key, cell, stack, depth);
  insert_key(key, slot);
  return true;
}

int32_t StackTableBuilder::add_conditions(const StackMask& mask) {
  std::vector<int32_t> list;
  for (const StackMask::Condition& condition : mask.conditions) {
    list.insert(list.end(), {condition.before, int32_t(condition.frame), guard_cell(condition.guard)});
  }
  for (uint32_t frame : mask.frames_with_names) list.insert(list.end(), {-1, int32_t(frame), kRawNames});
  list.insert(list.end(), {kEndOfConditions, 0, 0});
  auto cell = int32_t(cells_.size());
  check_cells(list.size());
  cells_.insert(cells_.end(), list.begin(), list.end());
  return cell;
}

int32_t StackTableBuilder::slot_of(uint32_t language, uint32_t* row, bool is_complete) {
  for (uint32_t stop : languages_[language].stop_tokens) {
    uint32_t bit = 1u << (stop & 31);
    row[stop >> 5] = is_complete ? row[stop >> 5] | bit : row[stop >> 5] & ~bit;
  }
  size_t size = row_words();
  uint64_t hash = hash_bytes(reinterpret_cast<const uint8_t*>(row), size * sizeof(uint32_t));
  int32_t slot = find_shared(masks_by_hash_, hash, [&](int32_t other) {
    return std::equal(row, row + size, masks_.begin() + ptrdiff_t(size_t(other) * size));
  });
  if (slot >= 0) return slot;
  if (num_masks() >= max_masks_) return -1;
  slot = int32_t(num_masks());
  masks_.insert(masks_.end(), row, row + size);
  masks_by_hash_.emplace(hash, slot);
  return slot;
}

void StackTableBuilder::insert_key(const int32_t (&key)[kKeyFrames], int32_t slot) {
  size_t capacity = keys_.size() / kKeyColumns;
  auto place = [&](const int32_t (&given)[kKeyFrames], int32_t value) {
    size_t at = hash_of_key(given) & (capacity - 1);
    for (;; at = (at + 1) & (capacity - 1)) {
      int32_t* entry = &keys_[at * kKeyColumns];
      bool is_free = entry[kKeyFrames] == kNoSlot;
      if (!is_free && !std::equal(given, given + kKeyFrames, entry)) continue;
      std::copy(given, given + kKeyFrames, entry);
      entry[kKeyFrames] = value;
      return is_free;
    }
  };
  num_keys_ += place(key, slot);
  if (2 * num_keys_ <= capacity) return;
  std::vector<int32_t> old = std::move(keys_);
  capacity *= 2;
  keys_.assign(capacity * kKeyColumns, kNoSlot);
  for (size_t i = 0; i < old.size(); i += kKeyColumns) {
    if (old[i + kKeyFrames] == kNoSlot) continue;
    int32_t other[kKeyFrames];
    std::copy(&old[i], &old[i] + kKeyFrames, other);
    place(other, old[i + kKeyFrames]);
  }
}

StackTables StackTableBuilder::tables() const {
  StackTables tables{};
  tables.states = states_.data();
  tables.class_maps = class_maps_.data();
  tables.cells = cells_.data();
  tables.keys = keys_.data();
  tables.stop_tokens = stop_tokens_.data();
  tables.token_bytes = vocabulary_->bytes().data();
  tables.token_begin = token_begin_.data();
  tables.num_states = num_states();
  tables.num_class_maps = int64_t(class_maps_.size() / 256);
  tables.num_cells = int64_t(cells_.size());
  tables.num_keys = int64_t(keys_.size() / kKeyColumns);
  tables.num_languages = int64_t(languages_.size());
  tables.max_stop_tokens = int64_t(max_stop_tokens_);
  tables.num_bytes = int64_t(vocabulary_->bytes().size());
  tables.vocab_size = vocabulary_->size();
  return tables;
}

}  // namespace structout::engine
