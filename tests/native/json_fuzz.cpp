// Feeds JSON Schema with the schemas of a file, one a line, and with damaged copies of
// them, and reads texts that follow the masks or do not. Built with sanitizers. Prints
// how many schemas compiled, and how many did not.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/limits.h"
#include "json/automaton/closure.h"
#include "json/document/errors.h"
#include "json/token_masks/compiled_schema.h"
#include "json/token_masks/schema_matcher.h"

using namespace structout;

namespace {

std::mt19937_64 rng(17);

size_t below(size_t bound) { return rng() % bound; }

const std::vector<std::string> kParts = {"{",
                                         "}",
                                         "[",
                                         "]",
                                         "\"",
                                         ":",
                                         ",",
                                         "\\",
                                         "\\u00",
                                         "\\ud83e",
                                         "true",
                                         "null",
                                         "1",
                                         "-",
                                         "1e9",
                                         "0.5",
                                         "99",
                                         "\"a\"",
                                         "{}",
                                         "[1]",
                                         "\"not\":",
                                         "\"$ref\":\"#\"",
                                         "\"type\":\"array\"",
                                         "\"uniqueItems\":true",
                                         "\"minItems\":3",
                                         "\"maxContains\":2",
                                         "\"contains\":",
                                         "\"items\":",
                                         "\"enum\":[1,\"a\"]",
                                         "\"pattern\":\"^a|b\"",
                                         "\xC3\xA9",
                                         "\xFF",
                                         std::string(1, '\0')};

std::string damaged(std::string text) {
  for (size_t i = 1 + below(3); i > 0; --i) {
    size_t at = below(text.size() + 1);
    switch (below(4)) {
      case 0:
        text.insert(at, kParts[below(kParts.size())]);
        break;
      case 1:
        text.erase(at, 1 + below(4));
        break;
      case 2:
        if (at < text.size()) text[at] ^= char(1 << below(8));
        break;
      case 3:
        text.insert(at, text.substr(below(text.size() + 1), below(30)));
        break;
    }
  }
  return text;
}

// A token that the mask allows, or any.
int64_t next_token(const std::vector<uint32_t>& row, uint32_t size) {
  uint32_t first = uint32_t(below(size));
  for (uint32_t i = 0; i < size && below(20) > 0; ++i) {
    uint32_t token = (first + i) % size;
    if ((row[token >> 5] >> (token & 31) & 1) != 0) return token;
  }
  return first;
}

void walk(const std::shared_ptr<json::CompiledSchema>& index) {
  json::SchemaMatcher matcher(index, {0});
  uint32_t size = index->shared_vocabulary()->size();
  std::vector<uint32_t> row(index->shared_vocabulary()->row_words());
  for (int step = 0; step < 60; ++step) {
    matcher.fill(matcher.current_state(), row.data());
    int64_t token = next_token(row, size);
    std::vector<int64_t> drafts = {token, next_token(row, size), int64_t(below(size + 9)) - 4};
    std::vector<uint32_t> states;
    matcher.append_draft_states(drafts.data(), drafts.size(), states);
    for (uint32_t state : states) {
      if (state != engine::kFreeRow) matcher.fill(state, row.data());
    }
    matcher.accept(&token, 1);
    if (below(6) == 0) matcher.rollback(below(matcher.num_tokens() + 1));
    if (below(6) == 0) matcher.forced();
    if (below(6) == 0) matcher.accept_bytes(kParts[below(kParts.size())]);
    if (below(20) == 0) matcher.copy();
  }
}

}  // namespace

int main(int, char** arguments) {
  std::vector<std::string> corpus, tokens = {""};
  std::ifstream file(arguments[2]);
  for (std::string line; std::getline(file, line);) corpus.push_back(line);
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(std::string(1, char(byte)));
  for (const std::string& part : kParts) {
    if (part.size() > 1) tokens.push_back(part);
  }
  for (const char* more : {"\"a\":1,\"a\"", "[1,1", "\",\"", "\"}", " 1", ", \"a\"", "1,2,3"}) tokens.push_back(more);
  auto vocabulary = std::make_shared<const engine::VocabularyTrie>(tokens);
  engine::Limits limits;
  limits.states = 5000;
  limits.seconds = 0.5;
  int num_compiled = 0, num_refused = 0;
  for (int i = std::atoi(arguments[1]); i > 0; --i) {
    std::string schema = corpus[below(corpus.size())];
    if (i % 3 != 0) schema = damaged(std::move(schema));
    json::TextForm form;
    form.whitespace.rule = std::array{json::WhitespaceRule::kIndented, json::WhitespaceRule::kCompact,
                                      json::WhitespaceRule::kAny}[below(3)];
    if (below(2) == 0) form.whitespace.max_length = 2;
    if (below(2) == 0) form.key_order = json::KeyOrderRule::kDeclared;
    try {
      auto index =
          std::make_shared<json::CompiledSchema>(schema, json::SchemaOptions(), form, limits, vocabulary, 1 << 16);
      if (i % 7 == 0) index->cache()->closed(limits);
      ++num_compiled;
      walk(index);
    } catch (const json::SchemaError&) {
      ++num_refused;
    } catch (const engine::PatternError&) {
      ++num_refused;
    } catch (const engine::LimitError&) {
      ++num_refused;
    }
  }
  std::printf("%d %d\n", num_compiled, num_refused);
}
