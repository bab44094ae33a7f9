// Schoolbook arithmetic on 32-bit limbs (Knuth, The Art of Computer Programming, vol. 2, 4.3.1): the numbers of
// templates are short.
#include "chat/jinja/integer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "chat/jinja/template_error.h"

namespace tessera::chat {

using Limbs = std::vector<std::uint32_t>;
constexpr std::size_t kMaxLimbs = (1 << 16) / 32;
constexpr std::size_t kMaxPrintedDigits = 4300;

struct IntegerOps {
  static Limbs limbs(const Integer& a) { return a.limbs(); }
  static Integer make(bool negative, Limbs limbs) { return Integer::make(negative, std::move(limbs)); }

  static void charge(std::size_t steps) { spend(static_cast<std::int64_t>(steps)); }
  static void trim(Limbs& a) {
    while (!a.empty() && a.back() == 0) a.pop_back();
  }
  static int compare(const Limbs& a, const Limbs& b) {
    if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
    for (std::size_t i = a.size(); i-- > 0;)
      if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
    return 0;
  }
  static Limbs add(const Limbs& a, const Limbs& b) {
    charge((a.size() + b.size()) * 2);
    Limbs out;
    std::uint64_t carry = 0;
    for (std::size_t i = 0; i < std::max(a.size(), b.size()) || carry; ++i) {
      carry += (i < a.size() ? a[i] : 0ULL) + (i < b.size() ? b[i] : 0ULL);
      out.push_back(static_cast<std::uint32_t>(carry));
      carry >>= 32;
    }
    return out;
  }
  // a >= b
  static Limbs subtract(const Limbs& a, const Limbs& b) {
    charge(a.size() * 2);
    Limbs out(a.size());
    std::int64_t borrow = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      borrow += static_cast<std::int64_t>(a[i]) - (i < b.size() ? static_cast<std::int64_t>(b[i]) : 0);
      out[i] = static_cast<std::uint32_t>(borrow);
      borrow >>= 32;
    }
    trim(out);
    return out;
  }
  static Limbs multiply(const Limbs& a, const Limbs& b) {
    if (a.size() + b.size() > kMaxLimbs) fail(ErrorKind::kLimit, "an integer has more than 2^16 bits");
    charge(a.size() * b.size());
    Limbs out(a.size() + b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      std::uint64_t carry = 0;
      for (std::size_t j = 0; j < b.size() || carry; ++j) {
        carry += out[i + j] + static_cast<std::uint64_t>(a[i]) * (j < b.size() ? b[j] : 0);
        out[i + j] = static_cast<std::uint32_t>(carry);
        carry >>= 32;
      }
    }
    trim(out);
    return out;
  }
  static std::int64_t bit_length(const Limbs& a) {
    return a.empty() ? 0 : static_cast<std::int64_t>(a.size()) * 32 - std::countl_zero(a.back());
  }
  static void shift_left(Limbs& a, std::size_t bits) {
    charge(a.size() + bits / 32);
    a.insert(a.begin(), bits / 32, 0);
    if (bits % 32 == 0) return;
    a.push_back(0);
    for (std::size_t i = a.size(); i-- > 1;) a[i] = a[i] << bits % 32 | a[i - 1] >> (32 - bits % 32);
    a[0] <<= bits % 32;
    trim(a);
  }
  // a * 2^exponent, rounded once, half to even.
  static double scaled(bool negative, const Limbs& a, std::int64_t exponent) {
    constexpr std::int64_t kDigits = 53, kLowest = -1074;
    const std::int64_t bits = bit_length(a);
    charge(static_cast<std::size_t>(bits));
    const std::int64_t dropped = std::max({bits - kDigits, kLowest - exponent, std::int64_t{0}});
    std::uint64_t top = 0;
    bool half = false, below = false;
    for (std::int64_t bit = 0; bit < bits; ++bit) {
      const std::uint64_t set = a[static_cast<std::size_t>(bit / 32)] >> (bit % 32) & 1;
      if (bit < dropped - 1)
        below = below || set;
      else if (bit == dropped - 1)
        half = set;
      else
        top |= set << (bit - dropped);
    }
    if (half && (below || (top & 1))) ++top;
    const auto power = static_cast<int>(std::clamp<std::int64_t>(exponent + dropped, -5000, 5000));
    const double magnitude = std::ldexp(static_cast<double>(top), power);
    return negative ? -magnitude : magnitude;
  }
  static std::uint32_t divide_small(Limbs& a, std::uint32_t divisor) {
    charge(a.size() * 5);
    std::uint64_t rest = 0;
    for (std::size_t i = a.size(); i-- > 0;) {
      rest = rest << 32 | a[i];
      a[i] = static_cast<std::uint32_t>(rest / divisor);
      rest %= divisor;
    }
    trim(a);
    return static_cast<std::uint32_t>(rest);
  }
  // Binary long division; returns the quotient and leaves the remainder in `a`.
  static Limbs divide(Limbs& a, const Limbs& b) {
    charge(a.size() * 32 * (b.size() + 2) * 2);
    Limbs quotient(a.size());
    Limbs rest;
    for (std::size_t bit = a.size() * 32; bit-- > 0;) {
      std::uint32_t carry = a[bit / 32] >> (bit % 32) & 1;
      for (auto& limb : rest) {
        const std::uint32_t next = limb >> 31;
        limb = limb << 1 | carry;
        carry = next;
      }
      if (carry) rest.push_back(carry);
      if (compare(rest, b) >= 0) {
        rest = subtract(rest, b);
        quotient[bit / 32] |= 1U << (bit % 32);
      }
    }
    trim(quotient);
    a = std::move(rest);
    return quotient;
  }
};

Integer Integer::make(bool negative, Limbs limbs) {
  IntegerOps::trim(limbs);
  if (limbs.size() > kMaxLimbs) fail(ErrorKind::kLimit, "an integer has more than 2^16 bits");
  if (limbs.size() <= 2) {
    const std::uint64_t magnitude =
        (limbs.size() > 1 ? static_cast<std::uint64_t>(limbs[1]) << 32 : 0) | (limbs.empty() ? 0 : limbs[0]);
    if (magnitude <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return negative ? -static_cast<std::int64_t>(magnitude) : static_cast<std::int64_t>(magnitude);
  }
  Integer out;
  Held held(static_cast<std::int64_t>(sizeof(Large) + limbs.capacity() * sizeof(limbs[0])) + 32);
  out.large_ = std::make_shared<const Large>(Large{negative, std::move(limbs), std::move(held)});
  return out;
}

Limbs Integer::limbs() const {
  if (large_) return large_->limbs;
  std::uint64_t magnitude = small_ < 0 ? 0 - static_cast<std::uint64_t>(small_) : static_cast<std::uint64_t>(small_);
  Limbs out;
  for (; magnitude; magnitude >>= 32) out.push_back(static_cast<std::uint32_t>(magnitude));
  return out;
}

std::optional<Integer> Integer::parse(std::string_view digits, int base) {
  bool negative = false;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) {
    negative = digits[0] == '-';
    digits.remove_prefix(1);
  }
  if (digits.empty()) return std::nullopt;
  if (digits.size() > kMaxPrintedDigits) value_error("Exceeds the limit (4300 digits) for integer string conversion");
  IntegerOps::charge(digits.size() * digits.size() / 8);
  Limbs out;
  for (char c : digits) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99;
    if (digit >= base) return std::nullopt;
    std::uint64_t carry = static_cast<std::uint64_t>(digit);
    for (auto& limb : out) {
      carry += static_cast<std::uint64_t>(limb) * static_cast<std::uint64_t>(base);
      limb = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
    if (carry) out.push_back(static_cast<std::uint32_t>(carry));
  }
  return make(negative, std::move(out));
}

Integer Integer::truncate(double value) {
  if (std::abs(value) < 9e18) return static_cast<std::int64_t>(value);
  int exponent = 0;
  const double fraction = std::frexp(std::abs(value), &exponent);  // [0.5, 1)
  auto mantissa = static_cast<std::uint64_t>(std::ldexp(fraction, 53));
  Limbs out(static_cast<std::size_t>(exponent + 63) / 32 + 2);
  const auto shift = static_cast<std::size_t>(exponent - 53);
  for (std::size_t bit = 0; mantissa; ++bit, mantissa >>= 1)
    if (mantissa & 1) out[(bit + shift) / 32] |= 1U << ((bit + shift) % 32);
  return make(value < 0, std::move(out));
}

bool Integer::is_negative() const {
  return large_ ? large_->negative : small_ < 0;
}

double Integer::to_double() const {
  return large_ ? IntegerOps::scaled(large_->negative, large_->limbs, 0) : static_cast<double>(small_);
}

std::int64_t Integer::bit_length() const {
  return IntegerOps::bit_length(limbs());
}

std::string Integer::to_base(int base) const {
  if (!large_ && base == 10) return std::to_string(small_);
  Limbs rest = limbs();
  std::string out;
  while (!rest.empty())
    out += "0123456789abcdefghijklmnopqrstuvwxyz"[IntegerOps::divide_small(rest, static_cast<std::uint32_t>(base))];
  if (out.empty()) out += '0';
  if (is_negative()) out += '-';
  std::reverse(out.begin(), out.end());
  return out;
}

std::string Integer::to_string() const {
  // log10(2) < 0.30103
  if (large_ && static_cast<double>(bit_length()) * 0.30103 > static_cast<double>(kMaxPrintedDigits) + 1)
    value_error("Exceeds the limit (4300 digits) for integer string conversion");
  return to_base(10);
}

Integer Integer::operator-() const {
  if (!large_ && small_ != std::numeric_limits<std::int64_t>::min()) return -small_;
  return make(!is_negative(), limbs());
}

Integer operator+(const Integer& a, const Integer& b) {
  if (std::int64_t out = 0; a.is_small() && b.is_small() && !__builtin_add_overflow(a.small_, b.small_, &out))
    return out;
  if (a.negative() == b.negative()) return Integer::make(a.negative(), IntegerOps::add(a.limbs(), b.limbs()));
  const auto left = a.limbs(), right = b.limbs();
  if (IntegerOps::compare(left, right) >= 0) return Integer::make(a.negative(), IntegerOps::subtract(left, right));
  return Integer::make(b.negative(), IntegerOps::subtract(right, left));
}

Integer operator*(const Integer& a, const Integer& b) {
  if (std::int64_t out = 0; a.is_small() && b.is_small() && !__builtin_mul_overflow(a.small_, b.small_, &out))
    return out;
  return Integer::make(a.negative() != b.negative(), IntegerOps::multiply(a.limbs(), b.limbs()));
}

std::strong_ordering operator<=>(const Integer& a, const Integer& b) {
  if (a.is_small() && b.is_small()) return a.small_ <=> b.small_;
  IntegerOps::charge(40 + static_cast<std::size_t>(a.bit_length() + b.bit_length()) / 16);
  if (a.negative() != b.negative()) return a.negative() ? std::strong_ordering::less : std::strong_ordering::greater;
  const int magnitude = IntegerOps::compare(a.limbs(), b.limbs());
  return (a.negative() ? -magnitude : magnitude) <=> 0;
}

Division floor_divide(const Integer& a, const Integer& b) {
  if (a.is_small() && b.is_small() && b.small() != -1) {
    std::int64_t quotient = a.small() / b.small(), remainder = a.small() % b.small();
    if (remainder != 0 && (remainder < 0) != (b.small() < 0)) {
      --quotient;
      remainder += b.small();
    }
    return {quotient, remainder};
  }
  Limbs rest = IntegerOps::limbs(a);
  const Limbs divisor = IntegerOps::limbs(b);
  Integer quotient = IntegerOps::make(a.is_negative() != b.is_negative(), IntegerOps::divide(rest, divisor));
  Integer remainder = IntegerOps::make(a.is_negative(), std::move(rest));
  if (!remainder.is_zero() && remainder.is_negative() != b.is_negative()) return {quotient - Integer(1), remainder + b};
  return {quotient, remainder};
}

double divide(const Integer& a, const Integer& b) {
  constexpr std::int64_t kExact = std::int64_t{1} << 53;  // whole numbers up to here are floats
  const auto exact = [](const Integer& value) {
    return value.is_small() && value.small() >= -kExact && value.small() <= kExact;
  };
  if (exact(a) && exact(b)) return static_cast<double>(a.small()) / static_cast<double>(b.small());
  if (a.is_zero()) return b.is_negative() ? -0.0 : 0.0;
  // A quotient of 66 bits or more, the lowest set where a remainder is left.
  const std::int64_t shift = 66 - (a.bit_length() - b.bit_length());
  Limbs dividend = IntegerOps::limbs(a), divisor = IntegerOps::limbs(b);
  IntegerOps::shift_left(shift >= 0 ? dividend : divisor, static_cast<std::size_t>(std::abs(shift)));
  Limbs quotient = IntegerOps::divide(dividend, divisor);
  if (!dividend.empty()) {
    if (quotient.empty()) quotient.push_back(0);
    quotient[0] |= 1;
  }
  return IntegerOps::scaled(a.is_negative() != b.is_negative(), quotient, -shift);
}

Integer power(const Integer& base, const Integer& exponent) {
  if (exponent.is_zero() || base == Integer(1)) return 1;
  if (base.is_zero()) return 0;
  if (base == Integer(-1)) return floor_divide(exponent, 2).remainder.is_zero() ? 1 : -1;
  if (!exponent.is_small() || exponent.small() > 1 << 16) fail(ErrorKind::kLimit, "an integer has more than 2^16 bits");
  Integer out = 1, square = base;
  for (auto left = exponent.small(); left > 0; left >>= 1) {
    if (left & 1) out = out * square;
    if (left > 1) square = square * square;
  }
  return out;
}

}  // namespace tessera::chat
