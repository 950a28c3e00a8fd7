#include "masks/bytes_below.h"

#include "base/utf8.h"
#include "masks/vocabulary.h"

namespace structout::engine {

uint8_t BytesBelow::group_of(uint8_t byte) {
  static const std::array<uint8_t, 256> kGroups = [] {
    enum : uint8_t { kLower, kUpper, kDigit, kControl, kFirstOther };
    std::array<uint8_t, 256> groups{};
    uint8_t next = kFirstOther;
    for (int each = 0; each < 256; ++each) {
      bool is_space = each == '\t' || each == '\n' || each == '\r';
      groups[size_t(each)] = each >= 0x80                                ? kAboveAscii
                             : each >= 'a' && each <= 'z'                ? uint8_t(kLower)
                             : each >= 'A' && each <= 'Z'                ? uint8_t(kUpper)
                             : each >= '0' && each <= '9'                ? uint8_t(kDigit)
                             : (each < ' ' || each == 0x7F) && !is_space ? uint8_t(kControl)
                                                                         : next++;
    }
    return groups;
  }();
  return kGroups[byte];
}

BytesBelow::BytesBelow(const VocabularyTrie& trie) : groups_(trie.nodes().size()), valid_from_(trie.nodes().size()) {
  const std::vector<VocabularyTrie::Node>& nodes = trie.nodes();
  for (uint32_t node = uint32_t(nodes.size()); node-- > 0;) {  // children lie after their parents
    uint8_t valid = UINT8_MAX;
    for (uint32_t child = node + 1; child < nodes[node].end; child = nodes[child].end) {
      groups_[node] |= groups_[child] | ByteGroups(1) << group_of(nodes[child].byte);
      for (uint8_t state = 0; state < utf8::kNumStates; ++state) {
        uint8_t next = utf8::after(state, nodes[child].byte);
        bool is_valid = next != utf8::kInvalid && (valid_from_[child] >> next & 1) != 0;
        if (!is_valid) valid &= uint8_t(~(1u << state));
      }
    }
    valid_from_[node] = valid;
  }
}

}  // namespace structout::engine
