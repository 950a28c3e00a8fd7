// Walks through the schemas of a file, one a line. After the schema, and tabs, may be all
// of its texts without spaces: then each mask must be that of these texts. Otherwise walks
// prefer few characters, so that values come again, and must end. Prints what is wrong,
// some texts with the numbers of their lines, and how many walks there were.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/limits.h"
#include "json/document/errors.h"
#include "json/token_masks/compiled_schema.h"
#include "json/token_masks/schema_matcher.h"

using namespace structout;

namespace {

constexpr size_t kMaxBytes = 60;  // of a walk that goes on as long as it may
constexpr uint32_t kStop = 256;
constexpr const char* kPreferred = "\"{}[],:ab01nktruel";
constexpr const char* kEnds = "\"]}:,0";

std::mt19937_64 rng;

size_t below(size_t bound) { return rng() % bound; }

bool is_space(uint32_t byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

class Walk {
 public:
  explicit Walk(const std::shared_ptr<json::CompiledSchema>& index)
      : matcher_(index, {kStop}), row_(index->shared_vocabulary()->row_words()) {}

  const std::string& text() const { return text_; }

  // What may follow, the stop token included.
  std::vector<uint32_t> allowed() {
    matcher_.fill(matcher_.current_state(), row_.data());
    std::vector<uint32_t> tokens;
    for (uint32_t token = 0; token <= kStop; ++token) {
      if ((row_[token >> 5] >> (token & 31) & 1) != 0) tokens.push_back(token);
    }
    return tokens;
  }

  bool read(uint32_t byte) {
    int64_t token = byte;
    text_.push_back(char(byte));
    return matcher_.accept(&token, 1) == 1;
  }

 private:
  json::SchemaMatcher matcher_;
  std::vector<uint32_t> row_;
  std::string text_;
};

// Through sorted texts. Returns what is wrong.
std::string walk_finite(Walk& walk, const std::vector<std::string>& texts) {
  auto first = texts.begin(), last = texts.end();
  for (;;) {
    size_t length = walk.text().size();
    std::vector<uint32_t> expected;
    for (auto text = first; text != last;) {
      if (text->size() == length) {
        ++text;
        continue;
      }
      auto byte = uint8_t((*text)[length]);
      expected.push_back(byte);
      text = std::find_if(text, last, [&](const std::string& other) { return uint8_t(other[length]) != byte; });
    }
    bool may_end = first->size() == length;
    std::vector<uint32_t> all = expected, allowed = walk.allowed();
    if (may_end) all.push_back(kStop);
    allowed.erase(std::remove_if(allowed.begin(), allowed.end(), is_space), allowed.end());
    if (allowed != all) return "another mask than that of its texts";
    if (expected.empty() || (may_end && below(10) < 3)) return "";
    uint32_t byte = expected[below(expected.size())];
    if (!walk.read(byte)) return "an allowed byte is not accepted";
    auto goes_on = [&](const std::string& text) { return text.size() > length && uint8_t(text[length]) == byte; };
    first = std::find_if(first, last, goes_on);
    last = std::find_if_not(first, last, goes_on);
  }
}

std::string walk_on(Walk& walk, bool& is_complete) {
  is_complete = false;
  for (;;) {
    std::vector<uint32_t> allowed = walk.allowed();
    if (allowed.empty()) return "nothing may follow";
    bool is_long = walk.text().size() > kMaxBytes;
    bool may_end = allowed.back() == kStop;
    if (may_end && (is_long || allowed.size() == 1 || below(10) == 0)) {
      is_complete = true;
      return "";
    }
    if (walk.text().size() > 10 * kMaxBytes) return "";  // inside of a string, for as long as this goes
    if (may_end) allowed.pop_back();
    auto among = [&](const char* bytes) {
      std::vector<uint32_t> found;
      std::copy_if(allowed.begin(), allowed.end(), std::back_inserter(found),
                   [&](uint32_t byte) { return std::string(bytes).find(char(byte)) != std::string::npos; });
      return found;
    };
    std::vector<uint32_t> preferred = among(kPreferred), ends = among(kEnds);
    if (preferred.empty()) preferred = allowed;
    const std::vector<uint32_t>& bytes = !ends.empty() && (is_long || below(10) < 3) ? ends : preferred;
    uint32_t byte = bytes[below(bytes.size())];
    if (is_long && std::count(allowed.begin(), allowed.end(), ']') > 0) byte = ']';
    if (!walk.read(byte)) return "an allowed byte is not accepted";
  }
}

}  // namespace

// Arguments: how many walks each schema takes, the file, a seed, and whether keys come in
// the declared order.
int main(int, char** arguments) {
  int num_walks = std::atoi(arguments[1]);
  rng.seed(uint64_t(std::atoll(arguments[3])));
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(std::string(1, char(byte)));
  tokens.push_back("");
  auto vocabulary = std::make_shared<const engine::VocabularyTrie>(tokens);
  json::TextForm form;
  form.whitespace.rule = json::WhitespaceRule::kAny;
  if (std::atoi(arguments[4]) != 0) form.key_order = json::KeyOrderRule::kDeclared;
  std::ifstream file(arguments[2]);
  int number = -1, total = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    std::istringstream parts(line);
    std::string schema;
    std::getline(parts, schema, '\t');
    std::vector<std::string> texts;
    for (std::string text; std::getline(parts, text, '\t');) texts.push_back(text);
    std::sort(texts.begin(), texts.end());
    try {
      auto index = std::make_shared<json::CompiledSchema>(schema, json::SchemaOptions(), form, engine::Limits(),
                                                          vocabulary, 1 << 16);
      for (int i = 0; i < num_walks; ++i, ++total) {
        Walk walk(index);
        bool is_complete = true;
        std::string wrong = texts.empty() ? walk_on(walk, is_complete) : walk_finite(walk, texts);
        if (!wrong.empty()) {
          std::printf("wrong\t%s: %s after %s\n", schema.c_str(), wrong.c_str(), walk.text().c_str());
          break;
        }
        bool is_line = walk.text().find_first_of("\t\n\r") == std::string::npos;
        if (texts.empty() && is_complete && is_line && i < 3)
          std::printf("text\t%d\t%s\n", number, walk.text().c_str());
      }
    } catch (const json::SchemaError& error) {
      bool is_impossible = error.kind == json::ErrorKind::kImpossible;
      std::printf("%s\t%d\n", is_impossible ? "impossible" : "refused", number);
    } catch (const engine::LimitError& error) {
      std::printf("wrong\t%s: %s\n", schema.c_str(), error.what());
    }
  }
  std::printf("walks\t%d\n", total);
}
