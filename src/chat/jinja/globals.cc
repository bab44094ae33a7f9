#include "chat/jinja/globals.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <map>

#include "chat/jinja/bound_arguments.h"
#include "chat/jinja/native_function.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/runtime.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/text_builder.h"

namespace tessera::chat {
namespace {

constexpr std::int64_t kClockWork = 2000;
constexpr std::int64_t kMaxRange = 100000;  // jinja2.sandbox.MAX_RANGE

Value range(Runtime&, Arguments arguments) {
  if (!arguments.named.empty()) type_error("range() takes no keyword arguments");
  const auto& given = arguments.positional;
  if (given.empty() || given.size() > 3)
    type_error(fmt::format("range expected 1 to 3 arguments, got {}", given.size()));
  Range out;
  out.start = given.size() > 1 ? as_index(given[0]) : 0;
  out.stop = as_index(given[given.size() > 1 ? 1 : 0]);
  out.step = given.size() > 2 ? as_index(given[2]) : 1;
  if (out.step == 0) value_error("range() arg 3 must not be zero");
  constexpr std::int64_t kFar = std::int64_t{1} << 60;
  if (std::max({std::abs(out.start), std::abs(out.stop), std::abs(out.step)}) > kFar || out.size() > kMaxRange)
    value_error(fmt::format("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMaxRange));
  return out;
}

Value dict(Runtime&, Arguments arguments) {
  return make_dict(make_dict_from(std::move(arguments)));
}

Value raise_exception(Runtime&, Arguments arguments) {
  const BoundArguments bound("raise_exception", std::move(arguments), {"message"}, 1);
  throw TemplateError(ErrorKind::kRaised, to_text(bound[0]));
}

// %f, %z and %Z are Python's: a time that names no zone writes nothing for it.
std::string own_formats(std::string_view format, std::int64_t microseconds) {
  std::string out;
  for (std::size_t at = 0; at < format.size(); at += 2) {
    const auto plain = format.substr(at, format.find('%', at) - at);
    out += plain;
    at += plain.size();
    const auto code = format.substr(std::min(at, format.size()), 2);
    if (code == "%f")
      out += fmt::format("{:06}", microseconds);
    else if (code != "%z" && code != "%Z")
      out += code;
  }
  return out;
}

Value strftime_now(Runtime&, Arguments arguments) {
  const BoundArguments bound("strftime_now", std::move(arguments), {"format"}, 1);
  const std::string& given = required_text(bound[0], "strftime_now");
  spend(kClockWork + static_cast<std::int64_t>(given.size()));
  std::timespec now{};
  std::timespec_get(&now, TIME_UTC);
  const std::string format = own_formats(given, now.tv_nsec / 1000);
  if (format.empty()) return "";
  std::tm local{};
  localtime_r(&now.tv_sec, &local);
  std::array<char, 4096> buffer{};
  const auto size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &local);
  if (size == 0) value_error("the text of strftime_now is too long");
  return std::string_view(buffer.data(), size);
}

class Joiner : public Object {
 public:
  explicit Joiner(std::string separator) : separator_(std::move(separator)) {}
  std::string type_name() const override { return "Joiner"; }
  std::string repr() const override { return "<jinja2.utils.Joiner object>"; }
  Value call(Runtime&, Arguments arguments) override {
    const BoundArguments none("joiner", std::move(arguments), {});
    return std::exchange(used_, true) ? separator_ : "";
  }

 private:
  std::string separator_;
  bool used_ = false;
};

class Cycler : public Object, public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {
    if (items_.empty()) value_error("at least one item has to be provided");
    for (const auto& item : items_) depth = std::max(depth, depth_of(item) + 1);
    if (depth > kMaxNesting) fail(ErrorKind::kLimit, "values nest too deep");
  }
  std::string type_name() const override { return "Cycler"; }
  std::string repr() const override { return "<jinja2.utils.Cycler object>"; }
  bool callable() const override { return false; }
  std::optional<Value> attribute(std::string_view name) const override {
    if (name == "current") return items_[at_];
    // The method outlives the expression only inside of it: keep the cycler alive.
    const auto self = std::const_pointer_cast<Cycler>(shared_from_this());
    if (name == "next")
      return make_function("next", [self](Runtime&, Arguments) {
        const Value out = self->items_[self->at_];
        self->at_ = (self->at_ + 1) % self->items_.size();
        return out;
      });
    if (name == "reset")
      return make_function("reset", [self](Runtime&, Arguments) {
        self->at_ = 0;
        return Value();
      });
    return std::nullopt;
  }

 private:
  std::vector<Value> items_;
  std::size_t at_ = 0;
};

Value joiner(Runtime&, Arguments arguments) {
  const BoundArguments bound("joiner", std::move(arguments), {"sep"});
  return ObjectPtr(std::make_shared<Joiner>(bound.text(0, ", ")));
}

Value cycler(Runtime&, Arguments arguments) {
  return ObjectPtr(std::make_shared<Cycler>(std::move(arguments.positional)));
}

// Words of the usual filler text; jinja2 draws them at random, here they come in their order.
Value lipsum(Runtime&, Arguments arguments) {
  const BoundArguments bound("lipsum", std::move(arguments), {"n", "html", "min", "max"});
  static constexpr std::string_view kParagraph =
      "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore "
      "magna aliqua.";
  const bool html = bound.truth(1, true);
  TextBuilder out;
  for (std::int64_t i = 0; i < bound.integer(0, 5); ++i) {
    if (i > 0) out += html ? "\n" : "\n\n";
    out += html ? fmt::format("<p>{}</p>", kParagraph) : std::string(kParagraph);
  }
  return html ? make_safe(out.take()) : Value(out.take());
}

// Made before any rendering, so that none is charged for them.
const std::map<std::string, Value> kGlobals{
    {"range", make_function("range", range)},
    {"dict", make_function("dict", dict)},
    {"joiner", make_function("joiner", joiner)},
    {"cycler", make_function("cycler", cycler)},
    {"lipsum", make_function("lipsum", lipsum)},
    {"raise_exception", make_function("raise_exception", raise_exception)},
    {"strftime_now", make_function("strftime_now", strftime_now)},
};

}  // namespace

Dict make_dict_from(Arguments arguments) {
  if (arguments.positional.size() > 1)
    type_error(fmt::format("dict expected at most 1 argument, got {}", arguments.positional.size()));
  Dict out;
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    require_defined(from);
    if (const auto* dict = from.get<DictPtr>()) {
      for (const auto& [key, value] : (*dict)->items()) out.set(key, value);
    } else {
      for (const auto& pair : iterate(from)) {
        const auto items = iterate(pair);
        if (items.size() != 2) value_error("dictionary update sequence element has not length 2");
        out.set(items[0], items[1]);
      }
    }
  }
  for (auto& [name, value] : arguments.named) out.set(name, std::move(value));
  return out;
}

const std::map<std::string, Value>& all_globals() {
  return kGlobals;
}

const Value* find_global(const std::string& name) {
  const auto it = kGlobals.find(name);
  return it == kGlobals.end() ? nullptr : &it->second;
}

}  // namespace tessera::chat
