// Reads PTX: a text into statements of tokens, and those into kernels. A kernel's
// declarations are read before its instructions, because the dynamic shared memory, which
// every kernel may name, begins where its own variables end.
#include "ptx_vm/parser.h"

#include <algorithm>
#include <cctype>
#include <unordered_map>
#include <utility>

#include "ptx_vm/opcodes.h"

namespace structout::ptx_vm {
namespace {

constexpr uint32_t kDynamicAlignment = 16;

// An instruction up to its semicolon; a label with its colon; a kernel's head; a brace of a scope.
struct Statement {
  std::vector<std::string_view> tokens;
  std::string_view text;
  int line = 0;

  bool has(std::string_view token) const { return std::find(tokens.begin(), tokens.end(), token) != tokens.end(); }
};

bool is_one_of(std::string_view token, std::initializer_list<std::string_view> all) {
  return std::find(all.begin(), all.end(), token) != all.end();
}

// The end of the token that begins at `at`: a word, a string or one character.
size_t end_of_token(std::string_view text, size_t at) {
  const auto is_word = [&](size_t i) {
    return i < text.size() && (std::isalnum(text[i]) || is_one_of(text.substr(i, 1), {"_", ".", "%", "$"}));
  };
  size_t end = at + 1;
  if (text[at] == '"') return std::min(text.find('"', end), text.size() - 1) + 1;
  if (!is_word(at)) return end;
  while (is_word(end) || text.substr(end, 2) == "::") end += text[end] == ':' ? 2 : 1;
  return end;
}

// Leaves out comments, directives of one line and sections of debugging information.
std::vector<Statement> statements_of(std::string_view text) {
  std::vector<Statement> found;
  Statement now;
  int line = 1;
  for (size_t at = 0, end; at < text.size(); line += std::count(&text[at], &text[end], '\n'), at = end) {
    end = end_of_token(text, at);
    if (std::isspace(text[at])) continue;
    const std::string_view token = text.substr(at, end - at);
    const bool is_first = now.tokens.empty();
    const auto skip_to = [&](char last) { end = std::min(text.find(last, at), text.size() - 1) + 1; };
    if (text.substr(at).starts_with("//")) {
      skip_to('\n');
    } else if (is_first && is_one_of(token, {".version", ".target", ".address_size", ".file", ".loc"})) {
      skip_to('\n');
    } else if (is_first && token == ".section") {
      skip_to('}');
    } else if (token == ";" || (token == "{" && now.has(".entry"))) {
      if (!is_first) found.push_back(std::exchange(now, {}));
      if (token == "{") found.push_back({{token}, token, line});
    } else {
      const char* begin = is_first ? &text[at] : now.text.data();
      if (is_first) now.line = line;
      now.tokens.push_back(token);
      now.text = {begin, &text[at] + token.size()};
      const bool is_label = now.tokens.size() == 2 && token == ":";
      if (is_label || (is_first && is_one_of(token, {"{", "}"}))) found.push_back(std::exchange(now, {}));
    }
  }
  return found;
}

// A statement's tokens, one after another.
class Tokens {
 public:
  explicit Tokens(const Statement& statement) : tokens_(statement.tokens) {}

  bool is_at_end() const { return at_ == tokens_.size(); }
  std::string_view next() const { return is_at_end() ? std::string_view() : tokens_[at_]; }
  std::string_view take() {
    if (is_at_end()) throw Fault("ends too early");
    return tokens_[at_++];
  }
  bool take_if(std::string_view token) {
    const bool is_here = next() == token;
    at_ += is_here;
    return is_here;
  }
  void expect(std::string_view token) {
    if (!take_if(token)) throw Fault("no " + std::string(token));
  }

  // Bits of a number, such as 12, -0x1f or 0f3f800000.
  int64_t take_number() {
    const bool is_negative = take_if("-");
    const std::string digits(take());
    if (!std::isdigit(digits[0])) throw Fault("no such number: " + digits);
    if (digits.starts_with("0f")) return static_cast<int64_t>(std::stoul(digits.substr(2), nullptr, 16));
    const auto value = static_cast<int64_t>(std::stoull(digits, nullptr, 0));
    return is_negative ? -value : value;
  }
  uint32_t take_count() { return static_cast<uint32_t>(take_number()); }

 private:
  const std::vector<std::string_view>& tokens_;
  size_t at_ = 0;
};

// The bytes of a type such as ".b32"; 0 for ".pred".
uint32_t bytes_of_type(std::string_view type) {
  for (const auto& [name, bytes] : {std::pair{"pred", 0u}, {"64", 8u}, {"32", 4u}, {"16", 2u}, {"8", 1u}}) {
    if (type.ends_with(name)) return bytes;
  }
  throw Fault("no such type: " + std::string(type));
}

// A variable or parameter: directives with a type among them, and "name" or "name[count]".
struct Variable {
  std::string name;
  uint32_t bytes = 0, alignment = 0;

  explicit Variable(Tokens& in) {
    bool is_pointer = false;
    while (in.next().starts_with('.')) {
      const std::string_view directive = in.take();
      is_pointer |= directive == ".ptr";
      if (std::isdigit(directive.back())) bytes = bytes_of_type(directive);
      if (directive != ".align") continue;
      const uint32_t asked = in.take_count();
      if (!is_pointer) alignment = asked;  // not of what the pointer points to
    }
    if (alignment == 0) alignment = bytes;
    name = in.take();
    if (!in.take_if("[")) return;
    bytes *= in.next() == "]" ? 0 : in.take_count();
    in.expect("]");
  }
};

uint32_t aligned(uint32_t offset, uint32_t alignment) { return (offset + alignment - 1) / alignment * alignment; }

class KernelParser {
 public:
  KernelParser(Kernel& kernel, const std::vector<std::string>& dynamic_shared)
      : kernel_(kernel), dynamic_shared_(dynamic_shared) {}

  // .entry name(parameters) .maxntid 512 ...
  void read_head(const Statement& statement) {
    Tokens in(statement);
    while (in.take() != ".entry") continue;
    kernel_.name = in.take();
    in.expect("(");
    while (!in.take_if(")")) {
      const Variable parameter(in);
      kernel_.parameter_bytes = aligned(kernel_.parameter_bytes, parameter.alignment);
      kernel_.parameters.push_back({parameter.name, kernel_.parameter_bytes, parameter.bytes});
      kernel_.parameter_bytes += parameter.bytes;
      in.take_if(",");
    }
    while (!in.is_at_end()) {
      if (is_one_of(in.take(), {".maxntid", ".reqntid"})) kernel_.max_threads = in.take_count();
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
      if (found == labels_.end()) throw Fault("no label " + std::string(label));
      kernel_.code[place].target = found->second;
    }
  }

 private:
  void at(const Statement& statement, void (KernelParser::*read)(const Statement&)) {
    try {
      (this->*read)(statement);
    } catch (const Fault& fault) {
      throw Fault(text_of("line %d: %s: %s", statement.line, fault.what(), std::string(statement.text).c_str()));
    }
  }

  void declare(const Statement& statement) {
    Tokens in(statement);
    if (in.next() == ".shared") {
      const Variable variable(in);
      kernel_.static_shared_bytes = aligned(kernel_.static_shared_bytes, variable.alignment);
      variables_[variable.name] = kernel_.static_shared_bytes;
      kernel_.static_shared_bytes += variable.bytes;
    } else if (in.take_if(".reg")) {  // .reg .b32 %r<10>; or names
      const uint32_t bytes = bytes_of_type(in.take());
      do {
        const std::string name(in.take());
        if (!in.take_if("<")) {
          add_register(name, bytes);
          continue;
        }
        const uint32_t count = in.take_count();
        for (uint32_t i = 0; i < count; ++i) add_register(name + std::to_string(i), bytes);
        in.expect(">");
      } while (in.take_if(","));
    } else if (in.next().starts_with('.') && in.next() != ".pragma") {
      throw Fault("no such directive");
    }
  }

  const Operand& add_register(const std::string& name, uint32_t bytes) {
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
    return added;
  }

  void read_instruction(const Statement& statement) {
    Tokens in(statement);
    if (in.next() == ".pragma") {  // 11.4: which bytes of the next load are used
      const std::string text(statement.text), name = "used_bytes_mask ";
      const size_t mask = text.find(name);
      if (mask != text.npos)
        used_bytes_ = static_cast<uint32_t>(std::stoul(text.substr(mask + name.size()), nullptr, 0));
    }
    if (in.next().starts_with('.')) return;
    if (statement.tokens.back() == ":") {
      labels_[in.take()] = static_cast<uint32_t>(kernel_.code.size());
      return;
    }
    Instruction instruction;
    instruction.text = statement.text;
    instruction.line = statement.line;
    if (in.take_if("@")) {
      const Operand guard = operand(in);
      if (guard.kind != Operand::Kind::kPredicate) throw Fault("no such guard");
      instruction.guard = static_cast<int32_t>(guard.slot);
      instruction.guard_is_negated = guard.is_negated;
    }
    std::string opcode(in.take());
    const bool reads_timer = statement.tokens.back() == "%globaltimer";
    if (reads_timer) opcode += " %globaltimer";
    static_cast<Form&>(instruction) = form_of(opcode);
    instruction.access.used_bytes = std::exchange(used_bytes_, ~0u);
    if (instruction.flow == Flow::kBranch) {
      branches_.emplace_back(kernel_.code.size(), in.take());
    } else {
      if (!in.is_at_end()) {
        do {
          instruction.operands.push_back(operand(in));
        } while (in.take_if(",") && !(reads_timer && in.take_if("%globaltimer")));
      }
      const size_t count = instruction.operands.size();
      if (count < instruction.fewest_operands || count > instruction.most_operands) {
        throw Fault("no such number of operands: " + std::to_string(count));
      }
      if (instruction.flow == Flow::kBlockBarrier && (count != 1 || statement.tokens.back() != "0")) {
        throw Fault("only barrier 0 of all threads is known");
      }
      if (opcode.find("matrix.sync.aligned") != opcode.npos) {
        instruction.operands.push_back(constant(-1));  // the mask: the whole warp
      }
    }
    if (!in.is_at_end()) throw Fault("no such operand: " + std::string(in.take()));
    kernel_.code.push_back(std::move(instruction));
  }

  // An operand, or d|p.
  Operand operand(Tokens& in) {
    const Operand first = single_operand(in);
    if (!in.take_if("|")) return first;
    Operand both;
    both.kind = Operand::Kind::kGroup;
    both.parts = {first, operand(in)};
    return both;
  }

  Operand single_operand(Tokens& in) {
    Operand result;
    const std::string_view begin = in.next();
    if (in.take_if("_")) return result;
    if (in.take_if("!")) {
      result = single_operand(in);
      result.is_negated = true;
    } else if (in.take_if("{")) {  // {a, b}
      result.kind = Operand::Kind::kGroup;
      do {
        result.parts.push_back(operand(in));
      } while (in.take_if(","));
      in.expect("}");
    } else if (in.take_if("[")) {  // an address: `value` is the displacement, or all of it
      result = single_operand(in);
      if (in.take_if("+")) result.value += in.take_number();
      in.expect("]");
    } else if (begin == "-" || (!begin.empty() && std::isdigit(begin[0]))) {
      result = constant(in.take_number());
    } else {
      result = named(std::string(in.take()));
    }
    return result;
  }

  Operand named(const std::string& name) {
    if (const auto found = registers_.find(name); found != registers_.end()) return found->second;
    if (name[0] == '%') return special_register(name);
    if (const auto found = variables_.find(name); found != variables_.end()) return constant(found->second);
    for (const Parameter& parameter : kernel_.parameters) {
      if (parameter.name == name) return constant(parameter.offset);
    }
    throw Fault("no such operand: " + name);
  }

  const Operand& special_register(const std::string& name) {
    if (!is_one_of(name,
                   {"%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z",
                    "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid", "%cluster_ctarank", "%cluster_nctarank"})) {
      throw Fault("no such register: " + name);
    }
    const Operand& added = add_register(name, 4);
    kernel_.special_registers[name] = added.slot;
    return added;
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
  std::unordered_map<std::string, uint32_t> variables_;
  std::unordered_map<std::string_view, uint32_t> labels_;
  std::vector<std::pair<size_t, std::string_view>> branches_;
  uint32_t used_bytes_ = ~0u;
};

}  // namespace

std::map<std::string, Kernel> parse(std::string_view text) {
  std::map<std::string, Kernel> kernels;
  std::vector<std::string> dynamic_shared;
  const std::vector<Statement> statements = statements_of(text);
  for (size_t i = 0; i < statements.size(); ++i) {
    const Statement& statement = statements[i];
    if (statement.tokens[0] == ".extern" && statement.has(".shared")) {
      Tokens in(statement);
      dynamic_shared.push_back(Variable(in).name);
      continue;
    }
    if (!statement.has(".entry")) {
      throw Fault(text_of("line %d: no such directive: %s", statement.line, std::string(statement.text).c_str()));
    }
    std::vector<Statement> body;  // scopes within are those of assembly, whose names all differ
    int depth = 0;
    do {
      if (++i == statements.size()) throw Fault("a scope has no end: " + std::string(statement.text));
      const std::string_view brace = statements[i].tokens[0];
      depth += brace == "{" ? 1 : brace == "}" ? -1 : 0;
      if (!is_one_of(brace, {"{", "}"})) body.push_back(statements[i]);
    } while (depth > 0);
    Kernel kernel;
    KernelParser parser(kernel, dynamic_shared);
    parser.read_head(statement);
    parser.read_body(body);
    const std::string name = kernel.name;
    if (!kernels.emplace(name, std::move(kernel)).second) throw Fault("two kernels " + name);
  }
  return kernels;
}

}  // namespace structout::ptx_vm
