// jinja2 3.1's rules (Environment(trim_blocks=True, lstrip_blocks=True)): a block or comment tag swallows the line end
// behind it and the blanks before it when it begins its line; `-` strips all white space on its side, `+` keeps it.
#include "chat/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "chat/jinja/repr.h"
#include "chat/jinja/string_escapes.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  const std::string valid = valid_utf8(source);
  for (std::size_t i = 0; i < valid.size(); ++i) {
    if (valid[i] != '\r') {
      out += valid[i];
    } else {
      out += '\n';
      if (i + 1 < valid.size() && valid[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit_byte(char c) {
  return c >= '0' && c <= '9';
}

// The white space at the end, in bytes of whole code points.
std::string_view without_trailing_space(std::string_view text) {
  while (!text.empty()) {
    std::size_t begin = text.size() - 1;
    while (begin > 0 && is_continuation(text[begin])) --begin;
    if (!is_space(to_points(text.substr(begin)).front())) break;
    text = text.substr(0, begin);
  }
  return text;
}

}  // namespace

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "template data / text";
    case TokenKind::kVariableBegin:
      return "begin of print statement";
    case TokenKind::kVariableEnd:
      return "end of print statement";
    case TokenKind::kBlockBegin:
      return "begin of statement block";
    case TokenKind::kBlockEnd:
      return "end of statement block";
    case TokenKind::kString:
      return "string";
    case TokenKind::kInteger:
      return "integer";
    case TokenKind::kFloat:
      return "float";
    case TokenKind::kEnd:
      return "end of template";
    case TokenKind::kName:
    case TokenKind::kOperator:
      break;
  }
  return token.text;
}

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

Lexer::Lexer(std::string_view source) : source_(normalized(source)) {}

std::vector<Token> Lexer::run() {
  while (at_ < source_.size()) read_data();
  add(TokenKind::kEnd, "", position(source_.size()));
  return std::move(tokens_);
}

Position Lexer::position(std::size_t at) {
  if (at < known_at_) {
    known_at_ = 0;
    known_ = {1, 1};
  }
  for (; known_at_ < at; ++known_at_) {
    if (source_[known_at_] == '\n') {
      ++known_.line;
      known_.column = 1;
    } else if (!is_continuation(source_[known_at_])) {
      ++known_.column;
    }
  }
  return known_;
}

void Lexer::fail_at(std::size_t at, const std::string& message) {
  throw TemplateError(ErrorKind::kSyntax, message, position(at));
}

void Lexer::fail_unexpected(char32_t c) {
  fail_at(at_, fmt::format("unexpected char {} at {}", repr_text(to_utf8(std::u32string(1, c))),
                           count_points(std::string_view(source_).substr(0, at_))));
}

void Lexer::skip_space(std::size_t& at) const {
  while (at < source_.size()) {
    std::size_t end = at + 1;
    while (end < source_.size() && is_continuation(source_[end])) ++end;
    const auto c = end == at + 1 ? static_cast<char32_t>(source_[at])  // ASCII
                                 : to_points(std::string_view(source_).substr(at, end - at)).front();
    if (!is_space(c)) return;
    at = end;
  }
}

Lexer::Sign Lexer::sign_at(std::size_t at) const {
  if (at >= source_.size()) return Sign::kNone;
  return source_[at] == '-' ? Sign::kMinus : source_[at] == '+' ? Sign::kPlus : Sign::kNone;
}

std::string_view Lexer::strip(std::string_view data, Sign sign, bool variable) const {
  if (sign == Sign::kMinus) return without_trailing_space(data);
  if (sign == Sign::kPlus || variable) return data;
  const auto line_end = data.rfind('\n');
  const std::size_t line = line_end == std::string_view::npos ? 0 : line_end + 1;
  if (line == 0 && !line_starting_) return data;
  return without_trailing_space(data.substr(line)).empty() ? data.substr(0, line) : data;
}

void Lexer::add_data(std::string_view data, Position at) {
  if (!data.empty()) add(TokenKind::kData, std::string(data), at);
}

void Lexer::read_data() {
  const std::size_t begin = at_;
  std::size_t tag = begin;
  for (;; ++tag) {
    tag = source_.find('{', tag);
    if (tag == std::string::npos || tag + 1 >= source_.size()) {
      add_data(rest(), position(begin));
      at_ = source_.size();
      return;
    }
    const char next = source_[tag + 1];
    if (next == '{' || next == '%' || next == '#') break;
  }
  const bool variable = source_[tag + 1] == '{', comment = source_[tag + 1] == '#';
  const Sign sign = sign_at(tag + 2);
  const std::string_view data = std::string_view(source_).substr(begin, tag - begin);
  add_data(strip(data, sign, variable), position(begin));
  at_ = tag + 2 + (sign == Sign::kNone ? 0 : 1);
  if (comment) return read_comment(tag);
  if (!variable) {
    // {% raw %} is no tag like others: what follows is not looked at.
    std::size_t word = at_;
    skip_space(word);
    if (source_.compare(word, 3, "raw") == 0) {
      std::size_t end = word + 3;
      skip_space(end);
      const bool minus = source_.compare(end, 3, "-%}") == 0;
      if (minus || source_.compare(end, 2, "%}") == 0) {
        end += minus ? 3 : 2;
        if (minus) skip_space(end);
        return read_raw(tag, end);
      }
    }
  }
  add(variable ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "", position(tag));
  read_tag(variable);
}

void Lexer::read_comment(std::size_t begin) {
  std::size_t end = source_.find("#}", at_);
  if (end == std::string::npos) {
    if (at_ < source_.size()) fail_at(begin, "Missing end of comment tag");
    return;  // jinja2 forgives a comment that opens at the very end
  }
  const Sign sign = end > at_ ? sign_at(end - 1) : Sign::kNone;
  at_ = end + 2;
  if (sign == Sign::kMinus)
    skip_space(at_);
  else if (sign == Sign::kNone && peek() == '\n')
    ++at_;
  line_starting_ = source_[at_ - 1] == '\n';
}

void Lexer::read_raw(std::size_t begin, std::size_t body) {
  line_starting_ = source_[body - 1] == '\n';
  for (std::size_t tag = source_.find("{%", body); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
    const Sign sign = sign_at(tag + 2);
    std::size_t end = tag + 2 + (sign == Sign::kNone ? 0 : 1);
    skip_space(end);
    if (source_.compare(end, 6, "endraw") != 0) continue;
    end += 6;
    skip_space(end);
    const Sign after = sign_at(end);
    if (after != Sign::kNone) ++end;
    if (source_.compare(end, 2, "%}") != 0) continue;
    end += 2;
    add_data(strip(std::string_view(source_).substr(body, tag - body), sign, false), position(body));
    at_ = end;
    if (after == Sign::kMinus)
      skip_space(at_);
    else if (after == Sign::kNone && peek() == '\n')
      ++at_;
    line_starting_ = source_[at_ - 1] == '\n';
    return;
  }
  if (body < source_.size()) fail_at(begin, "Missing end of raw directive");
  at_ = body;
}

void Lexer::read_tag(bool variable) {
  brackets_.clear();
  while (at_ < source_.size()) {
    if (brackets_.empty() && read_tag_end(variable)) return;
    const std::size_t before = at_;
    skip_space(at_);
    if (at_ == before) read_expression_token();
  }
}

bool Lexer::read_tag_end(bool variable) {
  const std::string_view end = variable ? "}}" : "%}";
  const Sign sign = sign_at(at_);
  if (sign == Sign::kPlus && variable) return false;
  const std::size_t begin = at_ + (sign == Sign::kNone ? 0 : 1);
  if (source_.compare(begin, 2, end) != 0) return false;
  add(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, "", position(at_));
  at_ = begin + 2;
  if (sign == Sign::kMinus)
    skip_space(at_);
  else if (sign == Sign::kNone && !variable && peek() == '\n')
    ++at_;
  line_starting_ = source_[at_ - 1] == '\n';
  return true;
}

void Lexer::read_expression_token() {
  const char c = peek();
  if (is_digit_byte(c)) return read_number();
  if (c == '"' || c == '\'') return read_string();
  if (c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80)
    return read_name();
  read_operator();
}

void Lexer::read_number() {
  const std::size_t begin = at_;
  const auto digits = [&](auto accept) {
    // digits, with single underscores between them
    const std::size_t from = at_;
    while (accept(peek()) || (peek() == '_' && at_ > from && accept(peek(1)))) ++at_;
    return at_ > from;
  };
  const auto plain = [&](std::size_t from) {
    std::string out;
    for (char c : std::string_view(source_).substr(from, at_ - from))
      if (c != '_') out += c;
    return out;
  };
  const char radix = static_cast<char>(peek(1) | 32);
  if (peek() == '0' && (radix == 'b' || radix == 'o' || radix == 'x')) {
    const int base = radix == 'b' ? 2 : radix == 'o' ? 8 : 16;
    at_ += peek(2) == '_' ? 3 : 2;
    const std::size_t from = at_;
    const bool any = digits([&](char c) {
      return base == 16 ? is_digit_byte(c) || ((c | 32) >= 'a' && (c | 32) <= 'f') : c >= '0' && c < '0' + base;
    });
    if (any) {
      tokens_.push_back({TokenKind::kInteger, "", position(begin), *Integer::parse(plain(from), base)});
      return;
    }
    at_ = begin;  // "0", and a name behind it
  }
  digits(is_digit_byte);
  bool real = false;
  const bool element = begin > 0 && source_[begin - 1] == '.';  // x.0.1: elements 0 and 1
  if (!element && peek() == '.' && is_digit_byte(peek(1))) {
    ++at_;
    real = digits(is_digit_byte);
  }
  if (!element && (peek() | 32) == 'e') {
    const std::size_t sign = peek(1) == '+' || peek(1) == '-' ? 1 : 0;
    if (is_digit_byte(peek(1 + sign))) {
      at_ += 1 + sign;
      real = digits(is_digit_byte);
    }
  }
  const std::string text = plain(begin);
  if (real) {
    tokens_.push_back({TokenKind::kFloat, "", position(begin), std::strtod(text.c_str(), nullptr)});
    return;
  }
  // 0123 is two integers, as in jinja2.
  if (text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != std::string::npos) {
    at_ = begin + text.find_first_not_of('0');
    tokens_.push_back({TokenKind::kInteger, "", position(begin), Integer(0)});
    return;
  }
  try {
    tokens_.push_back({TokenKind::kInteger, "", position(begin), *Integer::parse(text)});
  } catch (const TemplateError& e) {
    fail_at(begin, e.message);
  }
}

void Lexer::read_name() {
  const std::size_t begin = at_;
  std::size_t end = at_;
  const auto may_belong = [](char c) {
    return c == '_' || is_digit_byte(c) || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
           static_cast<unsigned char>(c) >= 0x80;
  };
  while (end < source_.size() && may_belong(source_[end])) ++end;
  const std::u32string points = to_points(std::string_view(source_).substr(begin, end - begin));
  std::size_t count = 0;
  while (count < points.size() && (count == 0 ? is_identifier_start(points[0]) : is_identifier_part(points[count])))
    ++count;
  if (count == 0) fail_unexpected(points[0]);
  std::string name = to_utf8(std::u32string_view(points).substr(0, count));
  at_ += name.size();
  add(TokenKind::kName, std::move(name), position(begin));
}

void Lexer::read_string() {
  const std::size_t begin = at_;
  const char quote = peek();
  std::size_t end = at_ + 1;
  while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
  if (end >= source_.size()) fail_unexpected(static_cast<char32_t>(quote));
  std::string value;
  try {
    value = unescape(std::string_view(source_).substr(begin + 1, end - begin - 1));
  } catch (const TemplateError& e) {
    fail_at(begin, e.message);
  }
  at_ = end + 1;
  add(TokenKind::kString, std::move(value), position(begin));
}

void Lexer::read_operator() {
  static constexpr std::array<std::string_view, 7> kTwo{"//", "**", "==", "!=", ">=", "<=", "~"};
  const std::size_t begin = at_;
  std::string text;
  for (auto two : kTwo)
    if (starts(two)) text = two;
  if (text.empty() && std::string_view("+-/*%[](){}><=.:|,;").find(peek()) != std::string_view::npos)
    text = std::string(1, peek());
  if (text.empty()) fail_unexpected(static_cast<unsigned char>(peek()));
  if (text == "{" || text == "(" || text == "[") brackets_ += text == "{" ? '}' : text == "(" ? ')' : ']';
  if (text == "}" || text == ")" || text == "]") {
    if (brackets_.empty()) fail_at(begin, fmt::format("unexpected '{}'", text));
    if (brackets_.back() != text[0])
      fail_at(begin, fmt::format("unexpected '{}', expected '{}'", text, brackets_.back()));
    brackets_.pop_back();
  }
  at_ += text.size();
  add(TokenKind::kOperator, std::move(text), position(begin));
}

}  // namespace tessera::chat
