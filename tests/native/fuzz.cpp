// Fuzz targets: each reads an input of any bytes, and ends the process if something that
// must hold does not.
//
// Built with libFuzzer (STRUCTOUT_LIBFUZZER), the environment variable FUZZ_TARGET names the
// target. Otherwise the arguments are a target and the files to read. Prints their number,
// and how often the engine compiled and how often it refused what they ask for.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "fuzz/grammar.h"
#include "fuzz/parsers.h"
#include "fuzz/regex.h"
#include "fuzz/saved.h"
#include "fuzz/schema.h"
#include "fuzz/tags.h"

namespace {

using Target = void (*)(const uint8_t* bytes, size_t size);

Target target_of_name(const std::string& name) {
  static const std::map<std::string, Target> kTargets = {{"grammar", structout::fuzz::fuzz_grammar},
                                                         {"regex", structout::fuzz::fuzz_regex},
                                                         {"saved", structout::fuzz::fuzz_saved},
                                                         {"schema", structout::fuzz::fuzz_schema},
                                                         {"schema-parser", structout::fuzz::fuzz_schema_parser},
                                                         {"regex-parser", structout::fuzz::fuzz_regex_parser},
                                                         {"tags", structout::fuzz::fuzz_tags}};
  auto found = kTargets.find(name);
  if (found == kTargets.end()) {
    std::fprintf(stderr, "no target has the name \"%s\"\n", name.c_str());
    std::exit(2);
  }
  return found->second;
}

}  // namespace

#ifdef STRUCTOUT_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const char* const name = std::getenv("FUZZ_TARGET");
  static const Target target = target_of_name(name == nullptr ? "" : name);
  target(bytes, size);
  return 0;
}

#else

int main(int count, char** arguments) {
  Target target = target_of_name(count < 2 ? "" : arguments[1]);
  for (int i = 2; i < count; ++i) {
    std::fprintf(stderr, "%s\n", arguments[i]);  // the last one is that of a failure
    std::ifstream file(arguments[i], std::ios::binary);
    std::string input(std::istreambuf_iterator<char>(file), {});
    target(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
  std::printf("%d %d %d\n", count - 2, structout::fuzz::num_compiled, structout::fuzz::num_refused);
  return 0;
}

#endif
