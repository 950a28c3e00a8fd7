#include "bindings/shard_args.h"

#include "bindings/tensor_checks.h"

namespace structout {
namespace {

constexpr const char* kOp = "sharded_masked_sample";

void check_contiguous(const char* name, const Tensor& tensor, ScalarType type, int64_t dim) {
  if (tensor.scalar_type() != type || tensor.dim() != dim || !tensor.is_contiguous()) {
    refuse(kOp, ": ", name, " must be contiguous ", dtype_name(type), " of ", dim, " dimensions, got ",
           dtype_name(tensor.scalar_type()), " ", shape_text(tensor));
  }
}

void check_merged(const Tensor& merged, const Tensor& beside, int64_t num_rows) {
  check_contiguous("merged outcomes", merged, ScalarType::Int, 2);
  check_same_device(kOp, "merged outcomes", merged, beside);
  if (merged.size(0) != kOutcomeFields || merged.size(1) != num_rows) {
    refuse(kOp, ": merged outcomes must be [", kOutcomeFields, ", ", num_rows, "], got ", shape_text(merged));
  }
}

}  // namespace

MergeOutcomesParams merge_outcomes_params(const Tensor& outcomes, const Tensor& temperature) {
  check_contiguous("outcomes", outcomes, ScalarType::Int, 3);
  if (outcomes.size(1) != kOutcomeFields && outcomes.size(1) != kOutcomeFields - 1) {
    refuse(kOp, ": outcomes must be [shards, ", kOutcomeFields - 1, " or ", kOutcomeFields, ", rows], got ",
           shape_text(outcomes));
  }
  MergeOutcomesParams params{};
  params.outcomes = static_cast<const int32_t*>(outcomes.data_ptr());
  params.num_shards = outcomes.size(0);
  params.num_fields = outcomes.size(1);
  params.num_rows = outcomes.size(2);
  params.temperature = row_values<float>(kOp, "temperature", temperature, ScalarType::Float, outcomes, params.num_rows);
  return params;
}

MergeMassesParams merge_masses_params(const Tensor& masses, const Tensor& merged, const Tensor& temperature) {
  check_contiguous("masses", masses, ScalarType::Long, 2);
  MergeMassesParams params{};
  params.num_shards = masses.size(0);
  params.num_rows = masses.size(1);
  check_merged(merged, masses, params.num_rows);
  params.masses = static_cast<const int64_t*>(masses.data_ptr());
  params.merged = static_cast<const int32_t*>(merged.data_ptr());
  params.temperature = row_values<float>(kOp, "temperature", temperature, ScalarType::Float, masses, params.num_rows);
  return params;
}

const float* highest_of(const Tensor& merged, const Tensor& logits, int64_t num_rows) {
  check_merged(merged, logits, num_rows);
  return static_cast<const float*>(merged.data_ptr());
}

}  // namespace structout
