#include "chat/jinja/resolve_names.h"

#include <unordered_map>

namespace tessera::chat {
namespace {

enum class Origin { kContext, kFrame };
enum class Set { kAlways, kPerhaps };  // kPerhaps: in an {% if %}

template <typename F>
void for_each_name(Expression& e, const F& f) {
  if (e.kind == ExpressionKind::kName || e.kind == ExpressionKind::kNamespaceName) f(e);
  for (auto* list : {&e.parts, &e.arguments})
    for (auto& part : *list)
      if (part) for_each_name(*part, f);
  for (auto& [name, value] : e.named) for_each_name(*value, f);
  for (auto* part : {&e.star, &e.double_star})
    if (*part) for_each_name(**part, f);
}

/// What one frame consists of, besides frames within it.
struct Frame {
  std::vector<Expression*> targets = {};  // set when it begins, like the parameters
  std::vector<std::string> parameters = {};
  std::vector<Expression*> expressions = {};
  Body* body = nullptr;
};

class Resolver {
 public:
  void run(const Frame& frame) {
    auto outer = std::exchange(added_, {});
    for (auto* target : frame.targets) set(*target, Set::kAlways);
    for (const auto& name : frame.parameters) mention(name, Origin::kFrame);
    for (auto* expression : frame.expressions) read(expression);
    if (frame.body) mention(*frame.body, Set::kAlways);
    for (auto* expression : frame.expressions) mark(expression);
    if (frame.body) resolve(*frame.body);
    for (const auto& name : added_) known_.erase(name);
    added_ = std::move(outer);
  }

 private:
  void mention(const std::string& name, Origin origin) {
    if (known_.emplace(name, origin).second) added_.push_back(name);
  }
  void read(Expression* expression) {
    if (expression) for_each_name(*expression, [&](Expression& e) { mention(e.name, Origin::kContext); });
  }
  void set(Expression& target, Set how) {
    for_each_name(target, [&](Expression& e) {
      const bool is_own = e.kind == ExpressionKind::kName && how == Set::kAlways;
      mention(e.name, is_own ? Origin::kFrame : Origin::kContext);
    });
  }

  // The frame's own names, in the order in which it mentions them.
  void mention(Body& body, Set how) {
    for (auto& s : body) {
      if (s->kind != StatementKind::kSetBlock && s->kind != StatementKind::kGeneration) read(s->expression.get());
      for (auto& value : s->values) read(value.get());
      if (s->kind == StatementKind::kSet || s->kind == StatementKind::kSetBlock) set(*s->target, how);
      if (s->kind == StatementKind::kMacro) mention(s->text, how == Set::kAlways ? Origin::kFrame : Origin::kContext);
      if (s->kind != StatementKind::kIf) continue;
      mention(s->body, Set::kPerhaps);
      mention(s->elifs, Set::kPerhaps);
      mention(s->otherwise, Set::kPerhaps);
    }
  }

  void mark(Expression* expression) {
    if (!expression) return;
    for_each_name(*expression, [&](Expression& e) {
      const auto known = known_.find(e.name);
      e.is_set_here = known != known_.end() && known->second == Origin::kFrame;
    });
  }

  void resolve(Body& body) {
    for (auto& s : body) resolve(*s);
  }
  void resolve(Statement& s) {
    mark(s.expression.get());
    mark(s.target.get());
    for (auto& value : s.values) mark(value.get());
    switch (s.kind) {
      case StatementKind::kIf:
        resolve(s.body);
        resolve(s.elifs);
        resolve(s.otherwise);
        break;
      case StatementKind::kFor:
        run({.targets = {s.target.get()}, .parameters = {"loop"}, .body = &s.body});
        run({.targets = {s.target.get()}, .expressions = {s.condition.get()}});
        run({.body = &s.otherwise});
        break;
      case StatementKind::kWith: {
        Frame frame{.body = &s.body};
        for (auto& target : s.targets) frame.targets.push_back(target.get());
        run(frame);
        break;
      }
      case StatementKind::kMacro:
      case StatementKind::kCall:
      case StatementKind::kGeneration: {
        Frame frame{.parameters = s.parameters, .body = &s.body};
        for (auto& value : s.defaults) frame.expressions.push_back(value.get());
        run(frame);
        break;
      }
      case StatementKind::kBlock: {  // it sees nothing of the frames around it
        const auto outer = std::exchange(known_, {});
        run({.body = &s.body});
        known_ = outer;
        break;
      }
      default:
        run({.body = &s.body});
    }
  }

  std::unordered_map<std::string, Origin> known_;  // of the frames around here, and of this one
  std::vector<std::string> added_;                 // by this one
};

}  // namespace

void resolve_names(Body& body) {
  Resolver().run({.body = &body});
}

}  // namespace tessera::chat
