// Runs clusters of warps to their end.
#pragma once

#include "ptx_vm/machine.h"

namespace structout::ptx_vm {

// Runs the clusters together. `pause` is called whenever every warp has had a turn, so
// that other devices may run.
void run_clusters(std::vector<Cluster*> clusters, void (*pause)());

}  // namespace structout::ptx_vm
