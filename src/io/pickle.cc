// The stack machine: Lib/pickletools.py of CPython describes the operations.
#include "io/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <unordered_map>

#include "io/pickle_value.h"

namespace tessera::io {
namespace {

class Machine {
 public:
  Machine(std::string_view bytes, const std::string& file) : bytes_(bytes) {
    arena_.file = file;
    none_ = arena_.add({});
    mark_ = arena_.add(make(PickleKind::kMark));
  }

  // Runs to STOP and returns the value that is left.
  ValueId run() {
    for (;;) {
      const auto operation = static_cast<unsigned char>(take(1)[0]);
      if (operation == '.') return pop();
      if (!scalar(operation) && !container(operation) && !memo(operation) && !object(operation))
        fail(fmt::format("operation 0x{:02x}, which torch.save does not write for tensors", operation));
    }
  }

  const PickleArena& arena() const { return arena_; }

 private:
  static PickleValue make(PickleKind kind) {
    PickleValue out;
    out.kind = kind;
    return out;
  }
  [[noreturn]] void fail(const std::string& what) const {
    arena_.fail(fmt::format("its pickle is damaged or not of torch.save, at byte {}: {}", at_, what));
  }

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) fail(fmt::format("{} bytes are needed, {} are left", count, bytes_.size() - at_));
    const auto out = bytes_.substr(at_, count);
    at_ += count;
    return out;
  }
  template <class T>
  T number() {
    T out{};
    std::memcpy(&out, take(sizeof(T)).data(), sizeof(T));
    return out;
  }
  std::string_view line() {
    const auto end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail("a name does not end");
    const auto out = take(end - at_);
    take(1);
    return out;
  }

  void push(ValueId id) { stack_.push_back(id); }
  void push(PickleValue value) { stack_.push_back(arena_.add(std::move(value))); }
  void push_text(std::uint64_t count) {
    auto value = make(PickleKind::kString);
    value.text = take(count);
    push(std::move(value));
  }
  void push_integer(std::int64_t n, PickleKind kind = PickleKind::kInteger) {
    auto value = make(kind);
    value.integer = n;
    push(std::move(value));
  }
  ValueId pop() {
    if (stack_.empty() || stack_.back() == mark_) fail("a value is missing on the stack");
    const auto out = stack_.back();
    stack_.pop_back();
    return out;
  }
  std::vector<ValueId> pop_to_mark() {
    auto at = stack_.size();
    while (at > 0 && stack_[at - 1] != mark_) --at;
    if (at == 0) fail("a mark is missing on the stack");
    std::vector<ValueId> out(stack_.begin() + static_cast<std::ptrdiff_t>(at), stack_.end());
    stack_.resize(at - 1);
    return out;
  }
  PickleValue& top(PickleKind kind) {
    if (stack_.empty() || arena_.at(stack_.back()).kind != kind) fail("a list or dict is missing on the stack");
    return arena_.values[stack_.back()];
  }

  bool scalar(unsigned char operation) {
    switch (operation) {
      case 'N':
        return push(none_), true;
      case 0x88:
      case 0x89:
        return push_integer(operation == 0x88, PickleKind::kBool), true;
      case 'J':
        return push_integer(number<std::int32_t>()), true;
      case 'K':
        return push_integer(number<std::uint8_t>()), true;
      case 'M':
        return push_integer(number<std::uint16_t>()), true;
      case 0x8a:
        return push_long(), true;
      case 'G':
        return push_real(), true;
      case 'X':
      case 'T':
      case 'B':
        return push_text(number<std::uint32_t>()), true;
      case 0x8c:
      case 'U':
      case 'C':
        return push_text(number<std::uint8_t>()), true;
      case 0x8d:
      case 0x8e:
        return push_text(number<std::uint64_t>()), true;
      default:
        return false;
    }
  }

  void push_long() {  // little-endian two's complement of up to 255 bytes; 8 are enough for sizes
    const auto digits = take(number<std::uint8_t>());
    if (digits.size() > 8) fail("an integer does not fit into 64 bits");
    std::int64_t n = digits.empty() || !(digits.back() & 0x80) ? 0 : -1;
    std::memcpy(&n, digits.data(), digits.size());
    push_integer(n);
  }
  void push_real() {
    auto value = make(PickleKind::kReal);
    const auto bytes = take(8);
    char reversed[8];
    std::reverse_copy(bytes.begin(), bytes.end(), reversed);
    std::memcpy(&value.real, reversed, 8);
    push(std::move(value));
  }

  void push_items(PickleKind kind, std::vector<ValueId> items) {
    if (kind == PickleKind::kDict && items.size() % 2 != 0) fail("a dict has a key without a value");
    auto value = make(kind);
    value.items = std::move(items);
    push(std::move(value));
  }
  void append(PickleKind kind, const std::vector<ValueId>& items) {
    if (kind == PickleKind::kDict && items.size() % 2 != 0) fail("a dict has a key without a value");
    auto& target = top(kind).items;
    target.insert(target.end(), items.begin(), items.end());
  }

  bool container(unsigned char operation) {
    switch (operation) {
      case '(':
        return push(mark_), true;
      case ')':
        return push_items(PickleKind::kTuple, {}), true;
      case ']':
        return push_items(PickleKind::kList, {}), true;
      case '}':
        return push_items(PickleKind::kDict, {}), true;
      case 't':
        return push_items(PickleKind::kTuple, pop_to_mark()), true;
      case 'l':
        return push_items(PickleKind::kList, pop_to_mark()), true;
      case 'd':
        return push_items(PickleKind::kDict, pop_to_mark()), true;
      case 0x85:
      case 0x86:
      case 0x87: {
        std::vector<ValueId> items(operation - 0x84u);
        for (auto i = items.size(); i-- > 0;) items[i] = pop();
        return push_items(PickleKind::kTuple, std::move(items)), true;
      }
      case 'a': {
        const auto item = pop();
        return append(PickleKind::kList, {item}), true;
      }
      case 'e': {
        const auto items = pop_to_mark();
        return append(PickleKind::kList, items), true;
      }
      case 's': {
        const auto value = pop(), key = pop();
        return append(PickleKind::kDict, {key, value}), true;
      }
      case 'u': {
        const auto items = pop_to_mark();
        return append(PickleKind::kDict, items), true;
      }
      default:
        return false;
    }
  }

  void remember(std::uint64_t index) {
    if (stack_.empty() || stack_.back() == mark_) fail("a value is missing on the stack");
    memo_[index] = stack_.back();
  }
  void recall(std::uint64_t index) {
    const auto it = memo_.find(index);
    if (it == memo_.end()) fail(fmt::format("value {} is used before it is remembered", index));
    push(it->second);
  }

  bool memo(unsigned char operation) {
    switch (operation) {
      case 'q':
        return remember(number<std::uint8_t>()), true;
      case 'r':
        return remember(number<std::uint32_t>()), true;
      case 0x94:
        return remember(memo_.size()), true;
      case 'h':
        return recall(number<std::uint8_t>()), true;
      case 'j':
        return recall(number<std::uint32_t>()), true;
      case '0':
        return pop(), true;
      case '1':
        return pop_to_mark(), true;
      default:
        return false;
    }
  }

  bool object(unsigned char operation) {
    switch (operation) {
      case 0x80:
        if (const auto protocol = number<std::uint8_t>(); protocol > 5)
          fail(fmt::format("pickle protocol {}", protocol));
        return true;
      case 0x95:  // a frame: only a hint for buffering
        return take(8), true;
      case 'c': {
        const auto module = line(), name = line();
        return push(allowed_global(arena_, module, name)), true;
      }
      case 0x93: {
        const auto name = pop(), module = pop();
        if (arena_.at(name).kind != PickleKind::kString || arena_.at(module).kind != PickleKind::kString)
          fail("a global without a name");
        return push(allowed_global(arena_, arena_.at(module).text, arena_.at(name).text)), true;
      }
      case 'R': {
        const auto arguments = pop(), callable = pop();
        return push(reduce(arena_, callable, arguments)), true;
      }
      case 'Q':
        return push(persistent_storage(arena_, pop())), true;
      case 'b':  // attributes of a state dict (its "_metadata"): not needed
        pop();
        top(PickleKind::kDict);
        return true;
      default:
        return false;
    }
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
  PickleArena arena_;
  ValueId none_ = 0, mark_ = 0;
  std::vector<ValueId> stack_;
  std::unordered_map<std::uint64_t, ValueId> memo_;
};

}  // namespace

std::vector<PickledEntry> read_state_dict_pickle(std::string_view bytes, const std::string& file) {
  Machine machine(bytes, file);
  const auto root_id = machine.run();
  const auto& arena = machine.arena();
  const auto& root = arena.at(root_id);
  if (root.kind != PickleKind::kDict) arena.fail("expected a dict of tensors (a state dict), found something else");
  std::vector<PickledEntry> out;
  std::set<std::string_view> names;
  for (std::size_t i = 0; i + 1 < root.items.size(); i += 2) {
    const auto& key = arena.at(root.items[i]);
    const auto& value = arena.at(root.items[i + 1]);
    if (key.kind != PickleKind::kString || value.kind != PickleKind::kTensor) continue;
    if (!names.insert(key.text).second) arena.fail(fmt::format("tensor '{}' is there twice", key.text));
    out.push_back({key.text, arena.tensors[value.tensor]});
  }
  if (out.empty()) arena.fail("no tensors at the top level of its dict; a state dict {name: tensor} is expected");
  return out;
}

}  // namespace tessera::io
