#include "token_masks/bytes_below.h"

#include "base/utf8.h"
#include "token_masks/vocabulary.h"

namespace structout::engine {

namespace {

const std::array<ByteGroups, 256> kGroups = [] {
  constexpr ByteGroups kLower = 1, kUpper = 2, kDigit = 4, kControl = 8;
  std::array<ByteGroups, 256> groups{};
  ByteGroups next = kControl;
  for (int each = 0; each < 256; ++each) {
    bool is_space = each == '\t' || each == '\n' || each == '\r';
    groups[size_t(each)] = each >= 0x80                                ? BytesBelow::kAboveAscii
                           : each >= 'a' && each <= 'z'                ? kLower
                           : each >= 'A' && each <= 'Z'                ? kUpper
                           : each >= '0' && each <= '9'                ? kDigit
                           : (each < ' ' || each == 0x7F) && !is_space ? kControl
                                                                       : next <<= 1;
  }
  return groups;
}();

}  // namespace

ByteGroups BytesBelow::group_of(uint8_t byte) { return kGroups[byte]; }

BytesBelow::BytesBelow(const VocabularyTrie& trie) : groups_(trie.nodes().size()), valid_from_(trie.nodes().size()) {
  const std::vector<VocabularyTrie::Node>& nodes = trie.nodes();
  for (uint32_t node = uint32_t(nodes.size()); node-- > 0;) {  // children lie after their parents
    uint8_t valid = UINT8_MAX;
    for (uint32_t child = node + 1; child < nodes[node].end; child = nodes[child].end) {
      groups_[node] |= groups_[child] | group_of(nodes[child].byte);
      for (uint8_t state = 0; state < utf8::kNumStates; ++state) {
        uint8_t next = utf8::after(state, nodes[child].byte);
        bool is_valid = next != utf8::kInvalid && (valid_from_[child] >> next & 1) != 0;
        if (!is_valid) valid &= uint8_t(~(1u << state));
      }
    }
    valid_from_[node] = valid;
  }
  read_tokens(trie);
}

void BytesBelow::read_tokens(const VocabularyTrie& trie) {
  for (uint32_t skipped = 0; skipped <= kMaxSkipped; ++skipped) {
    std::vector<ByteGroups>& of_tokens = of_tokens_[skipped];
    of_tokens.reserve(trie.tokens().size());
    for (uint32_t token : trie.tokens()) {
      ByteGroups groups = 0;
      uint8_t state = utf8::kBetween;
      for (const uint8_t* at = trie.begin(token) + skipped; at < trie.end(token); ++at) {
        groups |= group_of(*at);
        if (state != utf8::kInvalid) state = utf8::after(state, *at);
      }
      of_tokens.push_back(state == utf8::kInvalid ? groups | kInvalid : groups);
    }
  }
}

}  // namespace structout::engine
