#include "json/satisfiability/value_search.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "json/document/canonical.h"
#include "json/document/value.h"

namespace structout::json {

namespace {

constexpr uint64_t kMaxReadsToCount = 1 << 16;                        // of values
constexpr uint64_t kMaxShortestReads = 1 << 13;                       // of one for a shortest text
constexpr uint64_t kStepsPerRead = 16;                                // of a budget
constexpr std::string_view kFirst = "\"}],:0123456789-.tfnaeulrs[{";  // what ends a value comes first

std::array<uint8_t, 256> bytes_in_order() {
  std::array<uint8_t, 256> bytes;
  size_t count = 0;
  for (char byte : kFirst) bytes[count++] = uint8_t(byte);
  for (int byte = 0; byte < 256; ++byte) {
    if (kFirst.find(char(byte)) == std::string_view::npos) bytes[count++] = uint8_t(byte);
  }
  return bytes;
}

const std::array<uint8_t, 256> kBytes = bytes_in_order();

size_t depth_of(const Configuration& config) {
  size_t depth = 0;
  for (const Frame* frame = config.below(); frame != nullptr; frame = frame->below.get()) ++depth;
  return depth;
}

// Follows texts depth first, without spaces, and the keys of an object in one order only.
class ValueSearch {
 public:
  // After `max_reads` bytes the search gives up, and claims to have found a text.
  ValueSearch(SchemaAutomaton& automaton, uint64_t max_reads, bool needs_allowed_bytes)
      : automaton_(automaton), max_reads_(max_reads), needs_allowed_bytes_(needs_allowed_bytes) {}

  // Calls is_found(config, text after the start) for each text until it says true.
  template <typename IsFound>
  bool find(const Configuration& start, IsFound&& is_found) {
    return find(start, is_found, [](const Configuration&) { return false; });
  }

  // Does not continue from configurations that are hopeless.
  template <typename IsFound, typename IsHopeless>
  bool find(const Configuration& start, IsFound&& is_found, IsHopeless&& is_hopeless) {
    std::vector<Step> path = {{start}};
    uint64_t num_reads = 0;
    while (!path.empty()) {
      Step& step = path.back();
      State state = step.config.state();
      bool is_inside = automaton_.is_in_string(state) || automaton_.is_key(state);
      if (step.next == 256) {
        // A space is needed only where nothing else may follow.
        bool is_after_space = !text_.empty() && text_.back() == ' ';
        bool needs_space = !is_inside && !step.has_gone_on && !step.has_tried_space && !is_after_space;
        step.has_tried_space = true;
        if (!needs_space || !enter(path, ' ')) {
          path.pop_back();
          if (!path.empty()) text_.pop_back();
          continue;
        }
      } else {
        uint8_t byte = kBytes[step.next++];
        if (!is_inside && is_space(byte)) continue;
        if (needs_allowed_bytes_ && !automaton_.schema().allows_byte(byte)) continue;
        if (automaton_.action(state, byte).kind == Action::kFail) continue;
        if (++num_reads > max_reads_) return true;
        automaton_.schema().budget().spend(kStepsPerRead);
        if (!enter(path, byte)) continue;
      }
      if (is_found(path.back().config, text_)) return true;
      if (is_hopeless(path.back().config)) {
        path.pop_back();
        text_.pop_back();
      }
    }
    return false;
  }

 private:
  static constexpr size_t kUnknown = SIZE_MAX;
  struct LastKey {
    size_t begin = kUnknown, length = 0;  // in the text
    bool is_free = false;
  };
  struct Step {
    Configuration config;
    int next = 0;  // byte, in order
    bool has_gone_on = false, has_tried_space = false;
    size_t key_begin = kUnknown;     // in the text
    std::vector<LastKey> keys = {};  // of each object around
  };

  bool enter(std::vector<Step>& path, uint8_t byte) {
    Step next = {path.back().config};
    bool was_key = automaton_.is_key(next.config.state());
    bool was_free = was_key && byte == '"' && automaton_.ends_free_key(next.config.state());
    if (!next.config.read(byte)) return false;
    path.back().has_gone_on = true;
    next.key_begin = path.back().key_begin;
    next.keys = path.back().keys;
    bool is_key = automaton_.is_key(next.config.state());
    size_t depth = depth_of(next.config);
    next.keys.resize(depth + 1);
    if (is_key && !was_key) next.key_begin = text_.size() + 1;
    // A free key may have any length, so none is begun before the names that must come.
    bool is_begun_here = (is_key || was_free) && next.key_begin != kUnknown;
    if (is_begun_here && automaton_.lacks_names(next.config.state(), next.config.seen_keys())) return false;
    if (was_key && !is_key) {
      bool is_known = next.key_begin != kUnknown;
      LastKey key = {next.key_begin, is_known ? text_.size() - next.key_begin : 0, was_free};
      if (automaton_.allows_any_order() || was_free) {  // others have their declared order
        if (!comes_after(next.keys[depth], key)) return false;
        next.keys[depth] = key;
      }
      next.key_begin = kUnknown;
    }
    text_.push_back(char(byte));
    path.push_back(std::move(next));
    return true;
  }

  // Named keys come first, and each kind in the order of the bytes.
  bool comes_after(const LastKey& before, const LastKey& key) const {
    if (before.begin == kUnknown || key.begin == kUnknown) return true;
    if (before.is_free != key.is_free) return key.is_free;
    return text_.compare(before.begin, before.length, text_, key.begin, key.length) <= 0;
  }

  SchemaAutomaton& automaton_;
  const uint64_t max_reads_;
  const bool needs_allowed_bytes_;
  std::string text_;
};

}  // namespace

// Used values, and the scarce ones of tight arrays, decide which configurations are
// followed. So the search ends: each value that it completes in vain is a used one, and
// these are finitely many.
bool can_complete(const Configuration& config, const Frame* item) {
  SchemaAutomaton& automaton = config.automaton();
  bool is_tight = false;  // one of the arrays, so that it matters which value is completed
  std::unordered_set<std::string> seen;
  Configuration::Outlook outlook = Configuration::Outlook::kUnknown;
  auto is_found = [&](const Configuration& next, const std::string&) {
    is_tight = false;
    const Frame* frame = next.below();
    for (; frame != nullptr && frame != item; frame = frame->below.get()) {
      is_tight = is_tight || automaton.counts().is_tight(frame->state);
    }
    if (frame == nullptr) return true;
    is_tight = is_tight || automaton.counts().is_tight(item->state);
    outlook = next.outlook(*item);
    return outlook == Configuration::Outlook::kLive;
  };
  auto is_hopeless = [&](const Configuration& next) {
    if (outlook == Configuration::Outlook::kDead) return true;
    return is_tight && !seen.insert(next.key_within(*item)).second;
  };
  return ValueSearch(automaton, UINT64_MAX, false).find(config, is_found, is_hopeless);
}

std::optional<std::string> some_completion(const Configuration& config, uint64_t max_reads) {
  if (config.is_complete()) return "";
  std::optional<std::string> completion;
  ValueSearch(config.automaton(), max_reads, true)
      .find(config, [&](const Configuration& next, const std::string& text) {
        if (next.is_complete()) completion = text;
        return completion.has_value();
      });
  return completion;
}

// Breadth first: reads all bytes at all configurations of one length after the other. Equal
// configurations are followed once, unless they remember texts.
std::optional<std::string> short_completion(const Configuration& start) {
  std::optional<std::string> some = some_completion(start);
  if (!some || some->size() < 2) return some;
  struct Step {
    Configuration config;
    size_t before;
    uint8_t byte;
  };
  std::vector<Step> steps = {{start, 0, 0}};
  std::unordered_map<State, std::vector<size_t>> seen;  // steps by their states
  SchemaAutomaton& automaton = start.automaton();
  uint64_t num_reads = 0;
  for (size_t at = 0, end = 1, length = 1; at < steps.size() && length < some->size(); ++at) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      if (!automaton.schema().allows_byte(uint8_t(byte))) continue;
      if (automaton.action(steps[at].config.state(), uint8_t(byte)).kind == Action::kFail) continue;
      if (++num_reads > kMaxShortestReads) return some;
      automaton.schema().budget().spend(kStepsPerRead);
      Configuration next = steps[at].config;
      if (!next.read(uint8_t(byte))) continue;
      if (next.is_complete()) {
        std::string text(1, char(byte));
        for (size_t step = at; step != 0; step = steps[step].before) text.push_back(char(steps[step].byte));
        return std::string(text.rbegin(), text.rend());
      }
      if (!next.remembers_text()) {
        std::vector<size_t>& others = seen[next.state()];
        auto is_equal = [&](size_t other) { return steps[other].config.equals(next); };
        if (std::any_of(others.begin(), others.end(), is_equal)) continue;
        others.push_back(steps.size());
      }
      steps.push_back({std::move(next), at, uint8_t(byte)});
    }
    if (at + 1 == end) {
      end = steps.size();
      ++length;
    }
  }
  return some;
}

size_t num_different_values(SchemaAutomaton& automaton, State start, size_t max) {
  std::set<std::string> values;
  ValueSearch(automaton, kMaxReadsToCount, false)
      .find(Configuration(automaton, start), [&](const Configuration& config, const std::string& text) {
        if (config.is_complete()) values.insert(canonical(parse_value(text)));
        return values.size() >= max;
      });
  return values.size();
}

}  // namespace structout::json
