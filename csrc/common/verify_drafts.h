// verify_drafts: how many drafts of each request the drawn tokens confirm. The struct
// crosses from the torch bindings to the CPU and CUDA kernels.
#pragma once

#include "common/strided.h"

namespace structout {

struct VerifyDraftsParams {
  int64_t num_requests;
  int64_t num_tokens;          // all requests' rows together
  int64_t* ids;                // [num_tokens], contiguous: the token drawn for each row
  Strided<int64_t> drafts;     // [num_tokens]; the last of each request is not read
  StridedIntegers row_indptr;  // [num_requests + 1]; request i owns rows row_indptr[i] ... row_indptr[i + 1]
  int32_t* num_accepted;       // [num_requests], contiguous

  // Counts the leading drafts of one request that equal the drawn tokens, and sets the
  // ids after the first that differs to -1.
  STRUCTOUT_HOST_DEVICE void run(int64_t request) const {
    const int64_t begin = within(row_indptr.at(request)), end = within(row_indptr.at(request + 1));
    int64_t row = begin;
    while (row + 1 < end && ids[row] >= 0 && ids[row] == drafts.at(row)) ++row;
    num_accepted[request] = static_cast<int32_t>(row - begin);
    for (++row; row < end; ++row) ids[row] = -1;
  }

 private:
  // A row_indptr that is out of range cannot lead out of the rows.
  STRUCTOUT_HOST_DEVICE int64_t within(int64_t row) const { return row < 0 ? 0 : row > num_tokens ? num_tokens : row; }
};

}  // namespace structout
