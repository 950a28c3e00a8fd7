// Facts about a device that launches depend on.
#pragma once

namespace structout::cuda {

// Properties of the device. They affect the speed of a call, never its result.
struct DeviceFacts {
  int num_sms;
  int compute_capability;        // 90 for 9.0
  int max_shared_bytes_a_block;  // cudaDevAttrMaxSharedMemoryPerBlockOptin
  // The number of clusters of 2, 4 and 8 blocks that run at a time, one block per multiprocessor.
  // A cluster stays within a GPC, and GPCs differ in size even within a GPU, so this
  // cannot be derived from num_sms. Zeros: the device has no clusters.
  int max_clusters[3] = {};
};

}  // namespace structout::cuda
