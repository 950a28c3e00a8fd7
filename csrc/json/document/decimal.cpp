#include "json/document/decimal.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>

namespace structout::json {

namespace {

constexpr int64_t kLargestReadExponent = int64_t(1) << 40;  // larger ones are read as this one; exceeds every limit

}  // namespace

Decimal::Decimal(const std::string& text) {
  size_t at = 0;
  auto take = [&](std::string_view characters) {
    bool is_found = at < text.size() && characters.find(text[at]) != std::string_view::npos;
    at += is_found;
    return is_found;
  };
  auto check = [&](bool is_well_formed) {
    if (!is_well_formed) throw std::invalid_argument("expected a JSON number, got " + text.substr(0, 100));
  };
  auto take_digits = [&] {
    size_t begin = at;
    while (take("0123456789")) continue;
    check(at > begin);
    return text.substr(begin, at - begin);
  };
  is_negative_ = take("-");
  digits_ = take_digits();
  check(digits_ == "0" || digits_[0] != '0');
  if (take(".")) {
    std::string fraction = take_digits();
    exponent_ -= int64_t(fraction.size());
    digits_ += fraction;
  }
  if (take("eE")) {
    bool is_below_zero = take("-");
    if (!is_below_zero) take("+");
    int64_t exponent = 0;
    for (char digit : take_digits()) exponent = std::min(10 * exponent + (digit - '0'), kLargestReadExponent);
    exponent_ += is_below_zero ? -exponent : exponent;
  }
  check(at == text.size());

  digits_.erase(0, digits_.find_first_not_of('0'));
  if (digits_.empty()) {
    is_negative_ = false;
    exponent_ = 0;
    return;
  }
  size_t num_kept = digits_.find_last_not_of('0') + 1;
  exponent_ += int64_t(digits_.size() - num_kept);
  digits_.resize(num_kept);
  uint64_t num_digits = uint64_t(std::max({int64_t(digits_.size()), point(), -exponent_}));
  if (num_digits > kMaxDigits) throw engine::LimitError("number_digits", num_digits, kMaxDigits);
}

std::string Decimal::whole_digits() const {
  if (point() <= 0) return "0";
  if (exponent_ >= 0) return digits_ + std::string(size_t(exponent_), '0');
  return digits_.substr(0, size_t(point()));
}

std::string Decimal::fraction_digits() const {
  if (exponent_ >= 0) return "";
  if (point() < 0) return std::string(size_t(-point()), '0') + digits_;
  return digits_.substr(size_t(point()));
}

std::string Decimal::text() const {
  std::string text = (is_negative_ ? "-" : "") + whole_digits(), fraction = fraction_digits();
  return fraction.empty() ? text : text + "." + fraction;
}

bool Decimal::operator<(const Decimal& other) const {
  if (is_negative_ != other.is_negative_) return is_negative_;
  return is_negative_ ? other.is_nearer_to_zero_than(*this) : is_nearer_to_zero_than(other);
}

bool Decimal::is_nearer_to_zero_than(const Decimal& other) const {
  if (is_zero() || other.is_zero()) return !other.is_zero();
  return point() != other.point() ? point() < other.point() : digits_ < other.digits_;
}

}  // namespace structout::json
