#include <fmt/format.h>

#include "chat/jinja/parser.h"
#include "chat/jinja/resolve_names.h"

namespace tessera::chat {
namespace {

constexpr int kMaxDepth = 200;  // of tags and of expressions, each
// Published ones have up to 50 KB. Parsing takes time and memory in proportion, which no budget counts.
constexpr std::size_t kMaxTemplateBytes = 1 << 20;

std::string in_quotes(const std::string& text) {
  return fmt::format("'{}'", text);
}

}  // namespace

ParsedTemplate parse_template(std::string_view source) {
  if (source.size() > kMaxTemplateBytes)
    throw TemplateError(ErrorKind::kLimit, fmt::format("the template has {} bytes, at most {} are taken", source.size(),
                                                       kMaxTemplateBytes));
  return Parser(source).run();
}

ParsedTemplate Parser::run() {
  ParsedTemplate out;
  out.body = parse_body(nullptr);
  if (!unknown_.empty()) fail_at(unknown_.front().at, unknown_.front().message);
  out.names = std::move(names_);
  out.blocks = std::move(blocks_);
  resolve_names(out.body);
  return out;
}

void Parser::fail_at(Position at, const std::string& message) const {
  throw TemplateError(ErrorKind::kSyntax, message, at);
}

void Parser::fail_expected(const std::string& what) {
  if (current().kind == TokenKind::kEnd)
    fail_at(current().at, fmt::format("unexpected end of template, expected '{}'.", what));
  fail_at(current().at, fmt::format("expected token '{}', got '{}'", what, describe(current())));
}

const Token& Parser::take() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::skip_operator(std::string_view text) {
  if (!is_operator(text)) return false;
  take();
  return true;
}

bool Parser::skip_word(std::string_view text) {
  if (!is_word(text)) return false;
  take();
  return true;
}

void Parser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) fail_expected(std::string(text));
}

void Parser::expect_word(std::string_view text) {
  if (!skip_word(text)) fail_expected(std::string(text));
}

void Parser::expect(TokenKind kind) {
  if (current().kind != kind) {
    Token wanted;
    wanted.kind = kind;
    wanted.text = "name";
    fail_expected(describe(wanted));
  }
  take();
}

Parser::Nested::Nested(Parser& parser, Position at) : parser(parser) {
  if (++parser.nesting_ <= kMaxDepth) return;
  --parser.nesting_;
  throw TemplateError(ErrorKind::kLimit, fmt::format("tags or parentheses nest deeper than {} levels", kMaxDepth), at);
}

ExpressionPtr Parser::node(ExpressionKind kind, Position at) const {
  auto out = std::make_unique<Expression>();
  out->kind = kind;
  out->at = at;
  return out;
}

void Parser::grow(Expression& parent, const Expression& part) const {
  parent.depth = std::max(parent.depth, part.depth + 1);
  if (parent.depth > 2 * kMaxDepth)
    throw TemplateError(ErrorKind::kLimit, fmt::format("an expression nests deeper than {} levels", 2 * kMaxDepth),
                        parent.at);
}

void Parser::adopt(Expression& parent, ExpressionPtr part) {
  if (part) grow(parent, *part);
  parent.parts.push_back(std::move(part));
}

ExpressionPtr Parser::binary(ExpressionKind kind, Position at, ExpressionPtr left, ExpressionPtr right) {
  auto out = node(kind, at);
  adopt(*out, std::move(left));
  adopt(*out, std::move(right));
  return out;
}

void Parser::fail_tag(const std::string* tag, Position at) {
  std::string message =
      tag == nullptr ? "Unexpected end of template." : fmt::format("Encountered unknown tag {}.", in_quotes(*tag));
  if (!end_tags_.empty()) {
    std::string looking;
    for (const auto& end : end_tags_.back()) looking += (looking.empty() ? "" : " or ") + in_quotes(end);
    bool expected = false;
    for (const auto& ends : end_tags_)
      for (const auto& end : ends) expected = expected || (tag != nullptr && end == *tag);
    message += expected ? fmt::format(
                              " You probably made a nesting mistake. Jinja is expecting this tag, but currently "
                              "looking for {}.",
                              looking)
                        : fmt::format(" Jinja was looking for the following tags: {}.", looking);
  }
  if (!open_tags_.empty())
    message += fmt::format(" The innermost block that needs to be closed is {}.", in_quotes(open_tags_.back()));
  fail_at(at, message);
}

}  // namespace tessera::chat
