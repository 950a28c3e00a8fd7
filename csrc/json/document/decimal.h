// Exact decimal numbers, parsed from JSON.
#pragma once

#include <cstdint>
#include <string>

#include "base/limits.h"

namespace structout::json {

// A decimal fraction without rounding: digits * 10^exponent. For example, -0.0250 is
// negative, and has the digits "25" and the exponent -3.
class Decimal {
 public:
  static constexpr uint64_t kMaxDigits = 4000;

  // Parses the text of a JSON number. Throws std::invalid_argument for any other text,
  // and LimitError if the value takes more than kMaxDigits digits without an exponent.
  explicit Decimal(const std::string& text);

  // Equal values have equal members: the digits neither begin nor end with a zero, and zero
  // has no digits and is not negative.
  bool is_negative() const { return is_negative_; }
  const std::string& digits() const { return digits_; }
  int64_t exponent() const { return exponent_; }

  bool is_zero() const { return digits_.empty(); }
  bool is_integer() const { return exponent_ >= 0; }

  // The number of digits before the point; negative if zeros follow the point.
  int64_t point() const { return int64_t(digits_.size()) + exponent_; }

  // The digits before the point, at least one, and those after it without final zeros.
  std::string whole_digits() const;
  std::string fraction_digits() const;

  // The shortest text without an exponent.
  std::string text() const;

  bool operator<(const Decimal& other) const;
  bool operator==(const Decimal& other) const {
    return is_negative_ == other.is_negative_ && exponent_ == other.exponent_ && digits_ == other.digits_;
  }

 private:
  bool is_nearer_to_zero_than(const Decimal& other) const;

  bool is_negative_ = false;
  std::string digits_;
  int64_t exponent_ = 0;
};

}  // namespace structout::json
