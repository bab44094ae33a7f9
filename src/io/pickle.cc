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
  Machine(std::string_view bytes, const std::string& file, PickleNames names) : bytes_(bytes) {
    constexpr std::size_t kAlways = std::size_t{1} << 25;
    arena_.allowed = kAlways + bytes.size();
    arena_.file = file;
    arena_.names = names;
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

  PickleArena take_arena() { return std::move(arena_); }

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
    arena_.spend(1);
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
      case 0x81:
        return create(), true;
      case 'b':
        return set_state(), true;
      default:
        return false;
    }
  }

  void create() {
    const auto arguments = pop(), type = pop();
    const auto& global = arena_.at(type);
    if (global.kind != PickleKind::kGlobal || global.global != PickleGlobal::kPlainClass ||
        arena_.at(arguments).kind != PickleKind::kTuple)
      fail("an object of a type that is not listed");
    auto value = make(PickleKind::kObject);
    value.text = global.text;
    push(std::move(value));
  }
  void set_state() {
    const auto state = pop();
    if (!stack_.empty() && arena_.at(stack_.back()).kind == PickleKind::kObject)
      arena_.values[stack_.back()].items = {state};
    else
      top(PickleKind::kDict);  // attributes of a state dict (its "_metadata"): not needed
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
  PickleArena arena_;
  ValueId none_ = 0, mark_ = 0;
  std::vector<ValueId> stack_;
  std::unordered_map<std::uint64_t, ValueId> memo_;
};

}  // namespace

PickleResult run_pickle(std::string_view bytes, const std::string& file, PickleNames names) {
  Machine machine(bytes, file, names);
  const auto root = machine.run();
  return {machine.take_arena(), root};
}

std::vector<PickledEntry> read_state_dict_pickle(std::string_view bytes, const std::string& file) {
  const auto [arena, root_id] = run_pickle(bytes, file, PickleNames::kTensors);
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

namespace {

/// The attribute of an object whose state is a dict, or (nothing, dict) as classes with slots have it.
const PickleValue* attribute_of(const PickleArena& arena, const PickleValue& object, std::string_view name) {
  if (object.kind != PickleKind::kObject || object.items.size() != 1) return nullptr;
  const auto* state = &arena.at(object.items[0]);
  if (state->kind == PickleKind::kTuple && state->items.size() == 2) state = &arena.at(state->items[1]);
  if (state->kind != PickleKind::kDict) return nullptr;
  for (std::size_t i = 0; i + 1 < state->items.size(); i += 2)
    if (arena.at(state->items[i]).text == name) return &arena.at(state->items[i + 1]);
  return nullptr;
}

void add_shards(const PickleArena& arena, const PickleValue& sharded, const std::string& name,
                std::vector<PickledEntry>& out) {
  const auto fail = [&] { arena.fail(fmt::format("the sharded tensor '{}' is described wrongly", name)); };
  const auto& state = arena.at(sharded.items[0]);  // (shards, metadata, ...)
  if (state.kind != PickleKind::kTuple || state.items.empty()) fail();
  const auto& shards = arena.at(state.items[0]);
  if (shards.kind != PickleKind::kList) fail();
  for (const auto id : shards.items) {
    const auto* tensor = attribute_of(arena, arena.at(id), "tensor");
    const auto* metadata = attribute_of(arena, arena.at(id), "metadata");
    const auto* offsets = metadata ? attribute_of(arena, *metadata, "shard_offsets") : nullptr;
    if (!tensor || tensor->kind != PickleKind::kTensor || !offsets || offsets->items.size() != 1) return fail();
    out.push_back({fmt::format("{}@{}", name, arena.at(offsets->items[0]).integer), arena.tensors[tensor->tensor]});
  }
}

}  // namespace

std::vector<PickledEntry> read_nested_pickle(std::string_view bytes, const std::string& file) {
  constexpr std::size_t kMaxEntries = 10'000'000, kMaxNameBytes = std::size_t{1} << 30;  // of all together
  std::size_t name_bytes = 0;
  const auto [arena, root] = run_pickle(bytes, file, PickleNames::kDistributed);
  std::vector<PickledEntry> out;
  std::set<ValueId> entered;  // a dict may contain itself
  std::vector<std::pair<ValueId, std::string>> open{{root, ""}};
  while (!open.empty()) {
    const auto [id, prefix] = std::move(open.back());
    open.pop_back();
    const auto& value = arena.at(id);
    if (out.size() > kMaxEntries) arena.fail("too many tensors");
    if (value.kind == PickleKind::kTensor) out.push_back({prefix, arena.tensors[value.tensor]});
    if (value.kind == PickleKind::kObject && value.items.size() == 1) add_shards(arena, value, prefix, out);
    if (value.kind != PickleKind::kDict || !entered.insert(id).second) continue;
    for (std::size_t i = 0; i + 1 < value.items.size(); i += 2) {
      const auto& key = arena.at(value.items[i]);
      const std::string part = key.kind == PickleKind::kInteger ? std::to_string(key.integer) : key.text;
      name_bytes += prefix.size() + part.size();
      if (name_bytes > kMaxNameBytes) arena.fail("its names are too long: dicts lie in dicts too deep");
      open.emplace_back(value.items[i + 1], prefix.empty() ? part : prefix + "/" + part);
    }
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != out.end()) arena.fail(fmt::format("tensor '{}' is there twice", twice->name));
  return out;
}

PickledTensor read_tensor_pickle(std::string_view bytes, const std::string& file) {
  const auto [arena, root] = run_pickle(bytes, file, PickleNames::kTensors);
  if (arena.at(root).kind != PickleKind::kTensor) arena.fail("expected a tensor, found something else");
  return arena.tensors[arena.at(root).tensor];
}

}  // namespace tessera::io
