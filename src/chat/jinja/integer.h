#pragma once
// Integers of any size, as Python has them. Most are small: those need no memory.
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/budget.h"

namespace tessera::chat {

class Integer {
 public:
  Integer(std::int64_t value = 0) : small_(value) {}  // NOLINT(google-explicit-constructor)
  /// Digits of `base` (2 to 36) with an optional sign; nothing else.
  static std::optional<Integer> parse(std::string_view digits, int base = 10);
  /// The whole part of a finite number.
  static Integer truncate(double value);

  bool is_small() const { return large_ == nullptr; }
  std::int64_t small() const { return small_; }
  bool is_zero() const { return is_small() && small_ == 0; }
  bool is_negative() const;
  double to_double() const;  // infinite where it is too large
  /// ValueError above Python's limit of 4300 digits.
  std::string to_string() const;
  std::string to_base(int base) const;  // without a prefix
  std::int64_t bit_length() const;

  Integer operator-() const;
  /// TemplateError(kLimit) when a result would have more than 2^16 bits.
  friend Integer operator+(const Integer& a, const Integer& b);
  friend Integer operator-(const Integer& a, const Integer& b) { return a + -b; }
  friend Integer operator*(const Integer& a, const Integer& b);
  friend bool operator==(const Integer& a, const Integer& b) { return (a <=> b) == 0; }
  friend std::strong_ordering operator<=>(const Integer& a, const Integer& b);

 private:
  using Limbs = std::vector<std::uint32_t>;  // little endian, without leading zeros
  struct Large {
    bool negative;
    Limbs limbs;
    Held held;
  };
  static Integer make(bool negative, Limbs limbs);
  bool negative() const { return is_negative(); }
  Limbs limbs() const;
  friend struct IntegerOps;

  std::int64_t small_ = 0;
  std::shared_ptr<const Large> large_;
};

struct Division {
  Integer quotient, remainder;
};
/// Rounds down; the remainder has the divisor's sign. The divisor must not be zero.
Division floor_divide(const Integer& a, const Integer& b);
/// The quotient rounded once; infinite where it is too large. The divisor must not be zero.
double divide(const Integer& a, const Integer& b);
/// exponent >= 0.
Integer power(const Integer& base, const Integer& exponent);

}  // namespace tessera::chat
