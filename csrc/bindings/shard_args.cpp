#include "bindings/shard_args.h"

#include "bindings/tensor_checks.h"

namespace structout {
namespace {

constexpr const char* kOp = "sharded_masked_sample";

void check_contiguous(const char* name, const Tensor& tensor, ScalarType type, int64_t dim) {
  if (tensor.scalar_type() != type || tensor.dim() != dim || !tensor.is_contiguous()) {
    refuse(kOp, ": ", name, " must be contiguous ", dtype_name(type), " with ", dim, " dimensions, got ",
           dtype_name(tensor.scalar_type()), " ", shape_text(tensor));
  }
}

void check_merged(const Tensor& merged, const Tensor& leader, const char* leader_name, int64_t num_rows) {
  check_contiguous("merged", merged, ScalarType::Int, 2);
  check_same_device(kOp, "merged", merged, leader, leader_name);
  if (merged.size(0) != kShardResultFields || merged.size(1) != num_rows) {
    refuse(kOp, ": merged must be [", kShardResultFields, ", ", num_rows, "], got ", shape_text(merged));
  }
}

}  // namespace

MergeShardResultsParams merge_shard_results_params(const Tensor& shard_results, const Tensor& temperature) {
  check_contiguous("shard_results", shard_results, ScalarType::Int, 3);
  if (shard_results.size(1) != kShardResultFields && shard_results.size(1) != kShardResultFields - 1) {
    refuse(kOp, ": shard_results must be [shards, ", kShardResultFields - 1, " or ", kShardResultFields,
           ", rows], got ", shape_text(shard_results));
  }
  MergeShardResultsParams params{};
  params.shard_results = static_cast<const int32_t*>(shard_results.data_ptr());
  params.num_shards = shard_results.size(0);
  params.num_fields = shard_results.size(1);
  params.num_rows = shard_results.size(2);
  params.temperatures =
      row_values<float>(kOp, "temperature", temperature, ScalarType::Float, shard_results, params.num_rows);
  return params;
}

MergeMassesParams merge_masses_params(const Tensor& masses, const Tensor& merged, const Tensor& temperature) {
  check_contiguous("masses", masses, ScalarType::Long, 2);
  MergeMassesParams params{};
  params.num_shards = masses.size(0);
  params.num_rows = masses.size(1);
  check_merged(merged, masses, "masses", params.num_rows);
  params.masses = static_cast<const int64_t*>(masses.data_ptr());
  params.merged = static_cast<const int32_t*>(merged.data_ptr());
  params.temperatures = row_values<float>(kOp, "temperature", temperature, ScalarType::Float, masses, params.num_rows);
  return params;
}

const float* highest_logits(const Tensor& merged, const Tensor& logits, int64_t num_rows) {
  check_merged(merged, logits, "logits", num_rows);
  return static_cast<const float*>(merged.data_ptr());
}

}  // namespace structout
