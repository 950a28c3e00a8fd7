// The instructions that the machine knows.
#pragma once

#include <string>
#include <vector>

#include "ptx_vm/machine.h"

namespace structout::ptx_vm {

// Throws a Fault that names the opcode if there is no such form.
Form form_of(const std::string& opcode);

// The forms of ld, st, atom and multimem.st, which memory.cpp composes from modifiers.
// No `execute`: the opcode is none of these.
Form memory_form(const std::string& opcode, const std::vector<std::string>& modifiers);

// The names of all forms but those of memory_form.
std::vector<std::string> form_names();

// Instructions that other files define.
void convert_shared_to_generic(Warp&, const Instruction&, Mask);
void map_shared_rank(Warp&, const Instruction&, Mask);
void load_matrix(Warp&, const Instruction&, Mask);

}  // namespace structout::ptx_vm
