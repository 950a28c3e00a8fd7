// Reads PTX text, as nvcc and Triton write it.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "ptx_vm/machine.h"

namespace structout::ptx_vm {

// The kernels of a module, by name. Throws a Fault that names the line and what is not
// known there.
std::map<std::string, Kernel> parse(std::string_view text);

}  // namespace structout::ptx_vm
