// Argument checks that all ops share, in torch's stable ABI. Messages say what was
// expected, what was passed and how to fix it.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <sstream>
#include <stdexcept>
#include <string>

#include "common/float_format.h"
#include "common/strided.h"

namespace structout {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class... Args>
[[noreturn]] void refuse(const Args&... message) {
  std::ostringstream text;
  (text << ... << message);
  throw std::invalid_argument(text.str());
}

inline std::string dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Byte:
      return "uint8";
    case ScalarType::Char:
      return "int8";
    case ScalarType::Short:
      return "int16";
    case ScalarType::Int:
      return "int32";
    case ScalarType::Long:
      return "int64";
    case ScalarType::UInt32:
      return "uint32";
    case ScalarType::Half:
      return "float16";
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::Bool:
      return "bool";
    default:
      return torch::headeronly::toString(type);
  }
}

inline std::string device_name(const torch::stable::Device& device) {
  using torch::headeronly::DeviceType;
  if (device.type() == DeviceType::CPU) return "cpu";
  if (device.type() == DeviceType::Meta) return "meta";
  if (device.type() == DeviceType::CUDA) return "cuda:" + std::to_string(device.index());
  return "device type " + std::to_string(static_cast<int>(device.type()));
}

inline std::string shape_text(const Tensor& tensor) {
  std::string text = "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) text += (i ? ", " : "") + std::to_string(tensor.size(i));
  return text + "]";
}

inline FloatFormat float_format(const char* op, ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return FloatFormat::kFloat32;
    case ScalarType::Half:
      return FloatFormat::kFloat16;
    case ScalarType::BFloat16:
      return FloatFormat::kBFloat16;
    default:
      refuse(op, ": logits must be float32, float16 or bfloat16, got ", dtype_name(type),
             "; convert with logits.float()");
  }
}

// The layout of a matrix. A tensor [columns] counts as [1, columns].
struct MatrixLayout {
  int64_t num_rows;
  int64_t num_columns;
  int64_t row_stride;
};

inline MatrixLayout matrix_layout(const char* op, const char* name, const Tensor& tensor) {
  const int64_t dim = tensor.dim();
  if (dim != 1 && dim != 2) {
    refuse(op, ": ", name, " must have 1 or 2 dimensions, got ", dim, " (shape ", shape_text(tensor),
           "); flatten the leading dimensions");
  }
  const int64_t columns = tensor.size(dim - 1);
  if (columns > 1 && (dim == 1 || tensor.size(0) > 0) && tensor.stride(dim - 1) != 1) {
    refuse(op, ": the last dimension of ", name, " must be contiguous, got stride ", tensor.stride(dim - 1), "; use ",
           name, ".contiguous()");
  }
  return {dim == 2 ? tensor.size(0) : 1, columns, dim == 2 ? tensor.stride(0) : columns};
}

inline void check_same_device(const char* op, const char* name, const Tensor& tensor, const Tensor& leader,
                              const char* leader_name = "logits") {
  if (tensor.device() != leader.device()) {
    refuse(op, ": ", name, " must be on the device of ", leader_name, " (", device_name(leader.device()), "), got ",
           device_name(tensor.device()), "; move it with ", name, ".to(", leader_name, ".device)");
  }
}

inline void check_rows_apart(const char* op, const MatrixLayout& logits) {
  if (logits.num_rows > 1 && logits.row_stride < logits.num_columns) {
    refuse(op, ": logits is written in place, but its rows overlap (row stride ", logits.row_stride, ", row length ",
           logits.num_columns, "); use logits.contiguous()");
  }
}

inline void check_one_per_row(const char* op, const char* name, const Tensor& tensor, const Tensor& logits,
                              int64_t num_rows) {
  if (tensor.dim() != 1 || tensor.size(0) != num_rows) {
    refuse(op, ": ", name, " must have one entry per logits row, shape [", num_rows, "], got ", shape_text(tensor),
           "; expand one value with .expand(", num_rows, ")");
  }
  check_same_device(op, name, tensor, logits);
}

inline void check_dtype(const char* op, const char* name, const Tensor& tensor, ScalarType type) {
  if (tensor.scalar_type() != type) {
    refuse(op, ": ", name, " must be ", dtype_name(type), ", got ", dtype_name(tensor.scalar_type()), "; convert with ",
           name, ".to(torch.", dtype_name(type), ")");
  }
}

inline void check_contiguous(const char* op, const char* name, const Tensor& tensor, ScalarType type, int64_t dim) {
  if (tensor.scalar_type() != type || tensor.dim() != dim || !tensor.is_contiguous()) {
    refuse(op, ": ", name, " must be contiguous ", dtype_name(type), " with ", dim, " dimensions, got ",
           dtype_name(tensor.scalar_type()), " ", shape_text(tensor));
  }
}

inline void check_integers(const char* op, const char* name, const Tensor& tensor) {
  const ScalarType type = tensor.scalar_type();
  if (type != ScalarType::Int && type != ScalarType::Long) {
    refuse(op, ": ", name, " must be int32 or int64, got ", dtype_name(type), "; convert with ", name, ".int()");
  }
}

inline StridedIntegers strided_integers(const Tensor& tensor) {
  return {tensor.data_ptr(), tensor.stride(0), tensor.scalar_type() == ScalarType::Long};
}

template <class T>
Strided<T> row_values(const char* op, const char* name, const Tensor& tensor, ScalarType type, const Tensor& logits,
                      int64_t num_rows) {
  check_dtype(op, name, tensor, type);
  check_one_per_row(op, name, tensor, logits, num_rows);
  return {static_cast<const T*>(tensor.data_ptr()), tensor.stride(0)};
}

inline StridedIntegers row_integers(const char* op, const char* name, const Tensor& tensor, const Tensor& logits,
                                    int64_t num_rows) {
  check_integers(op, name, tensor);
  check_one_per_row(op, name, tensor, logits, num_rows);
  return strided_integers(tensor);
}

// The number of bytes from the start of a matrix's first element to the end of its
// last.
inline int64_t byte_extent(const MatrixLayout& layout, int64_t element_bytes) {
  if (layout.num_rows == 0 || layout.num_columns == 0) return 0;
  return ((layout.num_rows - 1) * layout.row_stride + layout.num_columns) * element_bytes;
}

}  // namespace structout
