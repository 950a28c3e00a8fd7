// Lets allocations of the engine fail, each once: while constraints compile and while texts are
// read. What fails must be an error of its own call: afterwards the same text and others have
// the masks that they had before.
//
// Arguments: the first seed, seconds, and a file of JSON schemas, one a line. Prints how many
// constraints there were and how many allocations failed, then each finding. Prints the seed on
// stderr before it begins, for those that end the process.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "automata/compile.h"
#include "grammar/token_masks/compiled_grammar.h"
#include "grammar/token_masks/grammar_matcher.h"
#include "json/document/errors.h"
#include "json/token_masks/compiled_schema.h"
#include "json/token_masks/schema_matcher.h"
#include "language/index_matcher.h"
#include "random_grammar.h"
#include "token_masks/token_index.h"

using namespace structout;
using namespace structout::random_grammars;

namespace {

bool is_armed = false;
long num_allocations = 0, failing_allocation = 0;

bool fails_now() { return is_armed && ++num_allocations == failing_allocation; }

void* allocated(size_t size) { return fails_now() ? nullptr : std::malloc(size == 0 ? 1 : size); }

void* allocated(size_t size, std::align_val_t alignment) {
  if (fails_now()) return nullptr;
  size_t unit = size_t(alignment);
  return std::aligned_alloc(unit, (std::max<size_t>(size, 1) + unit - 1) / unit * unit);
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t size) { return or_throw(allocated(size)); }
void* operator new[](size_t size) { return or_throw(allocated(size)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return allocated(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return allocated(size); }
void* operator new(size_t size, std::align_val_t alignment) { return or_throw(allocated(size, alignment)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace {

constexpr size_t kMaxFaults = 150;  // of each constraint in compiling, and again in reading
constexpr int kSteps = 8;

// Makes the matchers of texts that share what was compiled.
using MakeMatcher = std::function<std::unique_ptr<engine::Matcher>()>;
using Compile = std::function<MakeMatcher()>;

long num_faults = 0;
std::vector<std::string> findings;

// Calls with one failing allocation; with 0 none fails. Returns whether the call came to an end.
bool with_fault(long allocation, const std::function<void()>& call) {
  num_allocations = 0;
  failing_allocation = allocation;
  num_faults += allocation > 0;
  is_armed = true;
  try {
    call();
    is_armed = false;
    return true;
  } catch (const std::bad_alloc&) {
    is_armed = false;
    return false;
  } catch (...) {
    is_armed = false;
    throw;
  }
}

// A text with its masks.
struct Text {
  std::vector<int64_t> tokens;
  std::vector<std::vector<uint32_t>> rows;
};

Text drawn(engine::Matcher& matcher) {
  Text text;
  std::vector<uint32_t> row(matcher.row_words());
  for (int step = 0; step < kSteps && !matcher.is_terminated(); ++step) {
    matcher.fill(matcher.current_state(), row.data());
    if (!matcher.error().empty()) break;
    text.rows.push_back(row);
    std::vector<int64_t> allowed;
    for (uint32_t token = 0; token < matcher.vocabulary().size(); ++token) {
      if (row[token >> 5] >> (token & 31) & 1) allowed.push_back(token);
    }
    if (allowed.empty()) break;
    text.tokens.push_back(allowed[below(allowed.size())]);
    if (!matcher.accept(&text.tokens.back(), 1)) std::abort();
  }
  return text;
}

// What differs when the text is read again. Empty also where the matcher has an error of its
// own, if `may_fail`.
std::string difference(engine::Matcher& matcher, const Text& text, bool may_fail) {
  std::vector<uint32_t> row(matcher.row_words());
  for (size_t i = 0; i < text.rows.size(); ++i) {
    matcher.fill(matcher.current_state(), row.data());
    if (!matcher.error().empty()) return may_fail ? "" : "the error " + matcher.error();
    if (row != text.rows[i]) return "another mask after " + std::to_string(i) + " tokens";
    if (i == text.tokens.size()) break;
    std::vector<uint32_t> states;
    matcher.append_draft_states(&text.tokens[i], 1, states);
    if (!matcher.error().empty()) return may_fail ? "" : "the error " + matcher.error();
    size_t num_before = matcher.num_tokens();
    bool is_accepted = matcher.accept(&text.tokens[i], 1);
    if (!is_accepted && !matcher.error().empty()) return may_fail ? "" : "the error " + matcher.error();
    if (!is_accepted) return "token " + std::to_string(i) + " is refused";
    if (matcher.num_tokens() != num_before + 1) return "the number of tokens is wrong";
  }
  return "";
}

std::vector<long> attempts(long total) {
  std::vector<long> chosen;
  if (size_t(total) <= kMaxFaults) {
    for (long i = 1; i <= total; ++i) chosen.push_back(i);
  } else {
    for (size_t i = 0; i < kMaxFaults; ++i) chosen.push_back(1 + long(below(size_t(total))));
  }
  return chosen;
}

void find(const std::string& name, const std::string& where, long allocation, const std::string& problem) {
  if (!problem.empty()) findings.push_back(name + ": " + where + " " + std::to_string(allocation) + ": " + problem);
}

void check(const std::string& name, const Compile& compile) {
  Text text = drawn(*compile()());
  with_fault(0, [&] { compile(); });
  for (long allocation : attempts(num_allocations)) {
    MakeMatcher make;
    if (!with_fault(allocation, [&] { make = compile(); })) continue;
    find(name, "after compiling without allocation", allocation, difference(*make(), text, false));
  }
  // Reading: of new states, and of some that others have made.
  with_fault(0, [&] { difference(*compile()(), text, false); });
  MakeMatcher make = compile();
  for (long allocation : attempts(num_allocations)) {
    if (below(4) == 0) make = compile();
    std::unique_ptr<engine::Matcher> other = make(), same = make();
    std::string problem;
    with_fault(allocation, [&] { problem = difference(*same, text, true); });
    find(name, "while reading without allocation", allocation, problem);
    same->rollback(same->num_tokens());
    find(name, "the same text after reading without allocation", allocation, difference(*same, text, false));
    find(name, "another text after reading without allocation", allocation, difference(*other, text, false));
  }
}

const std::vector<std::string> kPatterns = {"(ab|c)*d{2,4}", "[^a]+\\.(x|yz)?", "\\w{1,8}@\\w+", "(a|b)*a(a|b){4}"};

}  // namespace

int main(int, char** arguments) {
  unsigned seed = unsigned(std::atoi(arguments[1]));
  auto last = std::chrono::steady_clock::now() + std::chrono::milliseconds(long(std::atof(arguments[2]) * 1000));
  std::vector<std::string> corpus;
  std::ifstream file(arguments[3]);
  for (std::string line; std::getline(file, line);) corpus.push_back(line);
  auto tokens = vocabulary();
  uint32_t stop = tokens->size() - 1;
  engine::Limits limits;
  limits.states = 2'000;
  limits.seconds = 5;
  long num_constraints = 0, num_refused = 0;
  do {
    rng.seed(seed);
    std::fprintf(stderr, "seed %u\n", seed);
    Compile compile;
    std::string name = "seed " + std::to_string(seed);
    std::shared_ptr<RandomGrammar> grammar;
    Languages languages;
    switch (below(3)) {
      case 0: {
        std::string schema = corpus[below(corpus.size())];
        compile = [&, schema] {
          auto index =
              std::make_shared<json::CompiledSchema>(schema, json::SchemaOptions(), json::TextForm(), limits, tokens);
          return [&, index] { return std::make_unique<json::SchemaMatcher>(index, std::vector<uint32_t>{stop}); };
        };
        break;
      }
      case 1: {
        std::string pattern = kPatterns[below(kPatterns.size())];
        compile = [&, pattern] {
          auto index = std::make_shared<engine::TokenIndex>(engine::compile_regex(pattern, limits), tokens);
          return [&, index] { return std::make_unique<engine::IndexMatcher>(index, std::vector<uint32_t>{stop}); };
        };
        break;
      }
      default: {
        if (below(3) == 0) languages = schemas(tokens);
        grammar = std::make_shared<RandomGrammar>(below(2) == 0, languages);
        size_t growth = below(2) == 0 ? 1 : 8 << 20;
        compile = [&, grammar, growth] {
          auto network =
              std::make_shared<context_free::Network>(grammar->rules, grammar->root, grammar->options, limits);
          auto index = std::make_shared<context_free::CompiledGrammar>(network, limits, tokens, growth);
          if (index->is_empty()) throw std::runtime_error("empty");
          return
              [&, index] { return std::make_unique<context_free::GrammarMatcher>(index, std::vector<uint32_t>{stop}); };
        };
      }
    }
    try {
      compile();
    } catch (const std::exception&) {
      ++num_refused;
      ++seed;
      continue;
    }
    ++num_constraints;
    try {
      check(name, compile);
    } catch (const std::exception& error) {
      findings.push_back(name + ": " + error.what());
    }
    ++seed;
  } while (std::chrono::steady_clock::now() < last && findings.size() < 20);
  std::printf("%ld %ld %ld %u\n", num_constraints, num_refused, num_faults, seed);
  for (const std::string& finding : findings) std::printf("%s\n", finding.c_str());
  return 0;
}
