#include "bindings/verify_drafts_args.h"

#include "bindings/tensor_checks.h"

namespace structout {

VerifyDraftsParams verify_drafts_params(const Tensor& leader, const Tensor& drafts, const Tensor& row_indptr,
                                        int64_t num_rows) {
  constexpr const char* kOp = "verify_drafts";
  VerifyDraftsParams params{};
  params.num_tokens = num_rows;
  params.drafts = row_values<int64_t>(kOp, "drafts", drafts, ScalarType::Long, leader, params.num_tokens);
  check_integers(kOp, "row_indptr", row_indptr);
  if (row_indptr.dim() != 1 || row_indptr.size(0) == 0) {
    refuse(kOp, ": row_indptr must have one entry per request and one more, got shape ", shape_text(row_indptr));
  }
  check_same_device(kOp, "row_indptr", row_indptr, leader);
  params.row_indptr = strided_integers(row_indptr);
  params.num_requests = row_indptr.size(0) - 1;
  return params;
}

}  // namespace structout
