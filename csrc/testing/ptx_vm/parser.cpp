// A kernel's declarations are read before its instructions, because the dynamic shared
// memory, which every kernel may name, begins where its own variables end.
#include "testing/ptx_vm/parser.h"

#include <algorithm>
#include <cstdlib>
#include <unordered_map>
#include <utility>

#include "testing/ptx_vm/opcodes.h"

namespace structout::ptx_vm {
namespace {

constexpr uint32_t kDynamicAlignment = 16;

struct Statement {
  std::string text;
  int line;
};

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\n"), end = text.find_last_not_of(" \t\n");
  return begin == text.npos ? std::string() : std::string(text.substr(begin, end - begin + 1));
}

// Splits at commas outside of brackets.
std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{' || text[i] == '[' || text[i] == '(') ++depth;
    if (text[i] == '}' || text[i] == ']' || text[i] == ')') --depth;
    if (text[i] != ',' || depth != 0) continue;
    parts.push_back(trimmed(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  if (const std::string last = trimmed(text.substr(begin)); !last.empty()) parts.push_back(last);
  return parts;
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> found;
  for (size_t begin = 0; (begin = text.find_first_not_of(" \t\n", begin)) != text.npos;) {
    const size_t end = std::min(text.find_first_of(" \t\n", begin), text.size());
    found.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return found;
}

// The bytes of a type such as ".b32"; 0 for ".pred".
uint32_t bytes_of_type(const std::string& type) {
  for (const auto& [name, bytes] : {std::pair{"pred", 0u}, {"64", 8u}, {"32", 4u}, {"16", 2u}, {"8", 1u}}) {
    if (type.ends_with(name)) return bytes;
  }
  throw Fault("no such type: " + type);
}

// A variable or parameter: "[.align n] .type name[count]", with other directives
// between.
struct Variable {
  std::string name;
  uint32_t bytes = 0, alignment = 0;
  bool is_unsized = false;

  explicit Variable(const std::string& declaration) {
    const std::vector<std::string> parts = words(declaration);
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      if (parts[i] == ".align") alignment = static_cast<uint32_t>(std::stoul(parts[i + 1]));
      const bool is_type = parts[i].size() > 2 && parts[i][0] == '.' && std::isdigit(parts[i].back());
      if (is_type) bytes = bytes_of_type(parts[i]);
    }
    name = parts.back();
    // ".ptr .align" tells what a pointer points to, not how the parameter is aligned.
    if (alignment == 0 || declaration.find(".ptr") != declaration.npos) alignment = bytes;
    if (const size_t bracket = name.find('['); bracket != name.npos) {
      is_unsized = name[bracket + 1] == ']';
      bytes *= static_cast<uint32_t>(std::strtoul(name.c_str() + bracket + 1, nullptr, 10));
      name.resize(bracket);
    }
  }
};

uint32_t aligned(uint32_t offset, uint32_t alignment) { return (offset + alignment - 1) / alignment * alignment; }

class KernelParser {
 public:
  KernelParser(Kernel& kernel, const std::vector<std::string>& dynamic_shared)
      : kernel_(kernel), dynamic_shared_(dynamic_shared) {}

  // "name(parameters) .maxntid 512 ..."
  void read_entry(const std::string& text) {
    const size_t open = text.find('('), close = text.rfind(')');
    kernel_.name = trimmed(text.substr(0, open));
    for (const std::string& declaration : split(std::string_view(text).substr(open + 1, close - open - 1))) {
      const Variable parameter(declaration);
      kernel_.parameter_bytes = aligned(kernel_.parameter_bytes, parameter.alignment);
      kernel_.parameters.push_back({parameter.name, kernel_.parameter_bytes, parameter.bytes});
      kernel_.parameter_bytes += parameter.bytes;
    }
    const std::vector<std::string> directives = words(text.substr(close + 1));
    for (size_t i = 0; i + 1 < directives.size(); ++i) {
      if (directives[i] != ".maxntid" && directives[i] != ".reqntid") continue;
      kernel_.max_threads = static_cast<uint32_t>(std::stoul(directives[i + 1]));
    }
  }

  void read_body(const std::vector<Statement>& statements) {
    for (const Statement& statement : statements) at(statement, &KernelParser::declare);
    kernel_.static_shared_bytes = aligned(kernel_.static_shared_bytes, kDynamicAlignment);
    for (const std::string& name : dynamic_shared_) variables_[name] = kernel_.static_shared_bytes;
    for (const Statement& statement : statements) at(statement, &KernelParser::read_instruction);
    kernel_.code.push_back({});
    kernel_.code.back().flow = Flow::kExit;
    for (const auto& [place, label] : branches_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) throw Fault("no label " + label);
      kernel_.code[place].target = found->second;
    }
  }

 private:
  void at(const Statement& statement, void (KernelParser::*read)(const Statement&)) {
    try {
      (this->*read)(statement);
    } catch (const Fault& fault) {
      throw Fault(text_of("line %d: %s: %s", statement.line, fault.what(), statement.text.c_str()));
    }
  }

  void declare(const Statement& statement) {
    const std::string& text = statement.text;
    if (text.starts_with(".shared")) {
      const Variable variable(text);
      kernel_.static_shared_bytes = aligned(kernel_.static_shared_bytes, variable.alignment);
      variables_[variable.name] = kernel_.static_shared_bytes;
      kernel_.static_shared_bytes += variable.bytes;
    } else if (text.starts_with(".reg")) {  // .reg .b32 %r<10>; or names
      const size_t type = text.find('.', 1), names = text.find_first_of(" \t", type);
      const uint32_t bytes = bytes_of_type(text.substr(type, names - type));
      for (const std::string& name : split(std::string_view(text).substr(names))) {
        const size_t bracket = name.find('<');
        if (bracket == name.npos) {
          add_register(name, bytes);
        } else {
          const int count = std::atoi(name.c_str() + bracket + 1);
          for (int i = 0; i < count; ++i) add_register(name.substr(0, bracket) + std::to_string(i), bytes);
        }
      }
    } else if (text[0] == '.' && !text.starts_with(".pragma") && !text.starts_with(".loc")) {
      throw Fault("no such directive");
    }
  }

  void add_register(const std::string& name, uint32_t bytes) {
    Operand& added = registers_[name];
    if (bytes == 0) {
      added.kind = Operand::Kind::kPredicate;
      added.slot = kernel_.num_predicates++;
    } else {
      added.kind = Operand::Kind::kRegister;
      added.is_wide = bytes == 8;
      added.slot = kernel_.register_bytes;
      kernel_.register_bytes += kLanes * (bytes == 8 ? 8 : 4);
    }
  }

  void read_instruction(const Statement& statement) {
    std::string text = statement.text;
    if (text[0] == '.') {  // 11.4: which bytes of the next load are used
      const size_t mask = text.find("used_bytes_mask ");
      if (mask != text.npos) used_bytes_ = static_cast<uint32_t>(std::stoul(text.substr(mask + 16), nullptr, 0));
      return;
    }
    if (text.back() == ':') {
      labels_[text.substr(0, text.size() - 1)] = static_cast<uint32_t>(kernel_.code.size());
      return;
    }
    Instruction instruction;
    instruction.text = text;
    instruction.line = statement.line;
    if (text[0] == '@') {
      const size_t end = text.find_first_of(" \t");
      const Operand guard = operand(text.substr(1, end - 1));
      if (guard.kind != Operand::Kind::kPredicate) throw Fault("no such guard");
      instruction.guard = static_cast<int32_t>(guard.slot);
      instruction.guard_is_negated = guard.is_negated;
      text = trimmed(text.substr(end));
    }
    const size_t end = std::min(text.find_first_of(" \t\n"), text.size());
    instruction.opcode = text.substr(0, end);
    const std::vector<std::string> operands = split(std::string_view(text).substr(end));
    if (operands.size() == 2 && operands[1] == "%globaltimer") instruction.opcode += " %globaltimer";
    const Form form = form_of(instruction.opcode);
    if (operands.size() < form.fewest_operands || operands.size() > form.most_operands) {
      throw Fault("no such number of operands: " + std::to_string(operands.size()));
    }
    instruction.execute = form.execute;
    instruction.flow = form.flow;
    instruction.propagation = form.propagation;
    instruction.access = form.access;
    instruction.access.used_bytes = std::exchange(used_bytes_, ~0u);
    if (form.flow == Flow::kBranch) {
      branches_.emplace_back(kernel_.code.size(), operands.at(0));
    } else {
      for (const std::string& each : operands) {
        if (each != "%globaltimer") instruction.operands.push_back(operand(each));
      }
      if (instruction.opcode.find("matrix.sync.aligned") != std::string::npos) {
        instruction.operands.push_back(constant(-1));  // the mask: the whole warp
      }
      if (form.flow == Flow::kBlockBarrier && operands != std::vector<std::string>{"0"}) {
        throw Fault("only barrier 0 of all threads is known");
      }
    }
    kernel_.code.push_back(std::move(instruction));
  }

  Operand operand(const std::string& text) {
    Operand result;
    if (text == "_") return result;
    if (text[0] == '!') {
      result = operand(text.substr(1));
      result.is_negated = true;
      return result;
    }
    if (text[0] == '{' || text.find('|') != text.npos) {  // {a, b} or d|p
      result.kind = Operand::Kind::kGroup;
      std::string inside = text[0] == '{' ? text.substr(1, text.size() - 2) : text;
      std::replace(inside.begin(), inside.end(), '|', ',');
      for (const std::string& part : split(inside)) result.parts.push_back(operand(part));
      return result;
    }
    if (text[0] == '[') return address(text.substr(1, text.size() - 2));
    if (const auto found = registers_.find(text); found != registers_.end()) return found->second;
    if (text[0] == '%') return special_register(text);
    if (std::isdigit(text[0]) || text[0] == '-') return constant(number(text));
    if (const auto found = variables_.find(text); found != variables_.end()) return constant(found->second);
    for (const Parameter& parameter : kernel_.parameters) {
      if (parameter.name == text) return constant(parameter.offset);
    }
    throw Fault("no such operand: " + text);
  }

  // [base+displacement]: `value` is the displacement.
  Operand address(const std::string& text) {
    const size_t plus = text.find('+');
    Operand result = operand(trimmed(text.substr(0, plus)));
    if (plus != text.npos) result.value += number(trimmed(text.substr(plus + 1)));
    return result;
  }

  Operand special_register(const std::string& name) {
    static constexpr std::string_view kNames[] = {"%tid.x",   "%tid.y",           "%tid.z",           "%ntid.x",
                                                  "%ntid.y",  "%ntid.z",          "%ctaid.x",         "%ctaid.y",
                                                  "%ctaid.z", "%nctaid.x",        "%nctaid.y",        "%nctaid.z",
                                                  "%laneid",  "%cluster_ctarank", "%cluster_nctarank"};
    if (std::find(std::begin(kNames), std::end(kNames), name) == std::end(kNames)) {
      throw Fault("no such register: " + name);
    }
    add_register(name, 4);
    kernel_.special_registers[name] = registers_[name].slot;
    return registers_[name];
  }

  static int64_t number(const std::string& text) {
    if (text.starts_with("0f")) return static_cast<int64_t>(std::stoul(text.substr(2), nullptr, 16));
    if (text[0] == '-') return std::stoll(text, nullptr, 0);
    return static_cast<int64_t>(std::stoull(text, nullptr, 0));
  }

  Operand constant(int64_t value) {
    Operand result;
    result.kind = Operand::Kind::kConstant;
    result.value = value;
    Constant& lanes = kernel_.constants.emplace_back();
    lanes.narrow.fill(static_cast<uint32_t>(value));
    lanes.wide.fill(static_cast<uint64_t>(value));
    result.constant = &lanes;
    return result;
  }

  Kernel& kernel_;
  std::vector<std::string> dynamic_shared_;
  std::unordered_map<std::string, Operand> registers_;
  std::unordered_map<std::string, uint32_t> variables_, labels_;
  std::vector<std::pair<size_t, std::string>> branches_;
  uint32_t used_bytes_ = ~0u;
};

// Splits a text at semicolons. A brace that opens or closes a scope and a label with its
// colon are statements, too. Comments and directives of one line are dropped.
std::vector<Statement> statements_of(std::string_view text) {
  std::vector<Statement> found;
  Statement now{"", 1};
  const auto end = [&](std::string_view brace = "") {
    now.text = trimmed(now.text);
    if (!now.text.empty()) found.push_back(now);
    if (!brace.empty()) found.push_back({std::string(brace), now.line});
    now.text.clear();
  };
  const auto begins_with = [&](std::initializer_list<std::string_view> words) {
    return std::any_of(words.begin(), words.end(), [&](std::string_view word) { return now.text.starts_with(word); });
  };
  int line = 1, depth = 0;  // of braces around operands
  for (size_t at = 0; at < text.size(); ++at) {
    if (text.substr(at).starts_with("//") && (at = text.find('\n', at)) == text.npos) break;
    const char here = text[at];
    if (here == '\n') {
      ++line;
      if (begins_with({".version", ".target", ".address_size", ".file", ".loc"})) now.text.clear();
    }
    if (now.text.empty()) now.line = line;
    const auto is_scope = [&] {
      return now.text.empty() || begins_with({".section"}) || now.text.find(".entry ") != now.text.npos;
    };
    if (depth == 0 && here == ';') {
      end();
    } else if (depth == 0 && here == '{' && is_scope()) {
      end("{");
    } else if (depth == 0 && here == '}') {
      end("}");
    } else if (!now.text.empty() || !std::isspace(here)) {
      depth += here == '{' ? 1 : here == '}' ? -1 : 0;
      const bool is_label =
          here == ':' && !text.substr(at + 1).starts_with(':') && now.text.find_first_of(" .:") == std::string::npos;
      now.text += std::isspace(here) ? ' ' : here;
      if (is_label) end();
    }
  }
  end();
  return found;
}

}  // namespace

std::map<std::string, Kernel> parse(std::string_view text) {
  std::map<std::string, Kernel> kernels;
  std::vector<std::string> dynamic_shared;
  const std::vector<Statement> statements = statements_of(text);
  for (size_t i = 0; i < statements.size(); ++i) {
    const Statement& statement = statements[i];
    const size_t entry = statement.text.find(".entry ");
    // The statements of a scope; of those within, which assembly opens, all names differ.
    const auto scope = [&] {
      std::vector<Statement> inside;
      int depth = 0;
      do {
        if (++i == statements.size()) throw Fault("a scope has no end: " + statement.text);
        const std::string& each = statements[i].text;
        depth += each == "{" ? 1 : each == "}" ? -1 : 0;
        if (each != "{" && each != "}") inside.push_back(statements[i]);
      } while (depth > 0);
      return inside;
    };
    if (statement.text.starts_with(".section")) {
      scope();
    } else if (statement.text.starts_with(".extern .shared")) {
      dynamic_shared.push_back(Variable(statement.text).name);
    } else if (entry != statement.text.npos) {
      Kernel kernel;
      KernelParser parser(kernel, dynamic_shared);
      parser.read_entry(statement.text.substr(entry + 7));
      parser.read_body(scope());
      const std::string name = kernel.name;
      if (!kernels.emplace(name, std::move(kernel)).second) throw Fault("two kernels " + name);
    } else {
      throw Fault(text_of("line %d: no such directive: %s", statement.line, statement.text.c_str()));
    }
  }
  return kernels;
}

}  // namespace structout::ptx_vm
