#pragma once
// Splits a template into data and tags.
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/token.h"

namespace tessera::chat {

class Lexer {
 public:
  explicit Lexer(std::string_view source);
  std::vector<Token> run();

 private:
  enum class Sign { kNone, kMinus, kPlus };

  // Data up to the next tag, and that tag.
  void read_data();
  void read_comment(std::size_t begin);
  void read_raw(std::size_t begin, std::size_t body);
  void read_tag(bool variable);
  // True when a tag's end was read.
  bool read_tag_end(bool variable);
  void read_expression_token();
  void read_number();
  void read_name();
  void read_string();
  void read_operator();

  // What the tag that begins at `tag` leaves of the data before it.
  std::string_view strip(std::string_view data, Sign sign, bool variable) const;
  void add_data(std::string_view data, Position at);
  void add(TokenKind kind, std::string text, Position at) { tokens_.push_back({kind, std::move(text), at, {}}); }

  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }
  bool starts(std::string_view text) const { return rest().starts_with(text); }
  void skip_space(std::size_t& at) const;
  Sign sign_at(std::size_t at) const;
  Position position(std::size_t at);
  [[noreturn]] void fail_at(std::size_t at, const std::string& message);

  [[noreturn]] void fail_unexpected(char32_t c);

  std::string source_;  // line ends are \n, one trailing line end removed
  std::size_t at_ = 0;
  bool line_starting_ = true;
  std::string brackets_;  // the closing ones that are expected
  std::vector<Token> tokens_;
  // position() walks on from here
  std::size_t known_at_ = 0;
  Position known_{1, 1};
};

}  // namespace tessera::chat
