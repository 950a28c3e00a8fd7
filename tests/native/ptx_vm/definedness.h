// Undefined values: shared memory that was not written, registers that were not set, and
// what is computed from them.
//
// A load of undefined memory is no fault, because compilers move loads up and drop what
// they loaded. A fault is what makes an undefined value matter: a branch or a guard on
// it, an access to an address or a warp-wide call with a mask made from it, its use by
// an atomic, its store to global memory. (MemorySanitizer does the same.)
//
// One bit for each lane of a register: an undefined byte makes a word undefined.
// `and` and `or` of predicates, alone among the logic operations, look at the other operand.
#pragma once

#include "ptx_vm/machine.h"

namespace structout::ptx_vm {

// Marks everything undefined when a block starts.
void mark_undefined(Block& block, uint32_t shared_bytes);
void mark_undefined(Warp& warp);

// Checks and propagates, before an instruction that is not an access to memory.
void propagate(Warp& warp, const Instruction& instruction, Mask lanes);

// propagate() for an access, with the lanes' addresses.
void propagate_access(Warp& warp, const Instruction& instruction, Mask lanes, const uint64_t* addresses);

// Fails if the guard of an instruction is undefined in one of the lanes.
void check_guard(const Warp& warp, const Instruction& instruction, Mask lanes);

}  // namespace structout::ptx_vm
