#include "json/value_search.h"

#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "json/canonical.h"
#include "json/value.h"

namespace structout::json {

namespace {

constexpr uint64_t kMaxReads = 1 << 16;  // of a search; after so many it is taken to find one
constexpr std::string_view kFirst = "\"}],:0123456789-.tfnaeulrs[{";  // what ends a value comes first

bool is_space(int byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

std::array<uint8_t, 256> bytes_in_order() {
  std::array<uint8_t, 256> bytes;
  size_t count = 0;
  for (char byte : kFirst) bytes[count++] = uint8_t(byte);
  for (int byte = 0; byte < 256; ++byte) {
    if (kFirst.find(char(byte)) == std::string_view::npos) bytes[count++] = uint8_t(byte);
  }
  return bytes;
}

size_t depth_of(const Position& position) {
  size_t depth = 0;
  for (const Frame* frame = position.below(); frame != nullptr; frame = frame->below.get()) ++depth;
  return depth;
}

// Follows texts depth first, without spaces, and the keys of an object in one order only.
class ValueSearch {
 public:
  explicit ValueSearch(Machine& machine) : machine_(machine) {}

  // Calls is_found(position, text behind the start) for each text until it says true.
  template <typename IsFound>
  bool find(const Position& start, IsFound&& is_found) {
    static const std::array<uint8_t, 256> kBytes = bytes_in_order();
    std::vector<Step> path = {{start}};
    uint64_t num_reads = 0;
    while (!path.empty()) {
      Step& step = path.back();
      State state = step.position.state();
      bool is_inside = machine_.is_in_string(state) || machine_.is_key(state);
      if (step.next == 256) {
        // A space is needed only where nothing else may follow.
        bool is_behind_space = !text_.empty() && text_.back() == ' ';
        bool needs_space = !is_inside && !step.has_gone_on && !step.has_tried_space && !is_behind_space;
        step.has_tried_space = true;
        if (!needs_space || !enter(path, ' ')) {
          path.pop_back();
          if (!path.empty()) text_.pop_back();
          continue;
        }
      } else {
        uint8_t byte = kBytes[step.next++];
        if (!is_inside && is_space(byte)) continue;
        if (machine_.action(state, byte).kind == Action::kFail) continue;
        if (++num_reads > kMaxReads) return true;
        if (!enter(path, byte)) continue;
      }
      if (is_found(path.back().position, text_)) return true;
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
    Position position;
    int next = 0;  // byte, in order
    bool has_gone_on = false, has_tried_space = false;
    size_t key_begin = kUnknown;     // in the text
    std::vector<LastKey> keys = {};  // of each object around
  };

  bool enter(std::vector<Step>& path, uint8_t byte) {
    Step next = {path.back().position};
    bool was_key = machine_.is_key(next.position.state());
    bool was_free = was_key && byte == '"' && machine_.ends_free_key(next.position.state());
    if (!next.position.read(byte)) return false;
    path.back().has_gone_on = true;
    next.key_begin = path.back().key_begin;
    next.keys = path.back().keys;
    bool is_key = machine_.is_key(next.position.state());
    size_t depth = depth_of(next.position);
    next.keys.resize(depth + 1);
    if (is_key && !was_key) next.key_begin = text_.size() + 1;
    // A free key may have any length, so none is begun before the names that must come.
    bool is_begun_here = (is_key || was_free) && next.key_begin != kUnknown;
    if (is_begun_here && machine_.lacks_names(next.position.state(), next.position.names())) return false;
    if (was_key && !is_key) {
      bool is_known = next.key_begin != kUnknown;
      LastKey key = {next.key_begin, is_known ? text_.size() - next.key_begin : 0, was_free};
      if (machine_.allows_any_order() || was_free) {  // others have their declared order
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

  Machine& machine_;
  std::string text_;
};

}  // namespace

bool can_complete(const Position& position, const Frame* item) {
  return ValueSearch(position.machine()).find(position, [item](const Position& next, const std::string&) {
    const Frame* frame = next.below();
    while (frame != nullptr && frame != item) frame = frame->below.get();
    return frame == nullptr;
  });
}

std::optional<std::string> some_completion(const Position& position) {
  if (position.is_complete()) return "";
  std::optional<std::string> completion;
  ValueSearch(position.machine()).find(position, [&](const Position& next, const std::string& text) {
    if (next.is_complete()) completion = text;
    return completion.has_value();
  });
  return completion;
}

size_t num_different_values(Machine& machine, State start, size_t max) {
  std::set<std::string> values;
  ValueSearch(machine).find(Position(machine, start), [&](const Position& position, const std::string& text) {
    if (position.is_complete()) values.insert(canonical(parse_value(text)));
    return values.size() >= max;
  });
  return values.size();
}

}  // namespace structout::json
