#include "bindings/shard_args.h"

#include "bindings/tensor_checks.h"

namespace structout {
namespace {

constexpr const char* kOp = "sharded_masked_sample";

}  // namespace

MergeShardResultsParams merge_shard_results_params(const Tensor& shard_results, const Tensor& temperature) {
  check_contiguous(kOp, "shard_results", shard_results, ScalarType::Int, 3);
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

}  // namespace structout
