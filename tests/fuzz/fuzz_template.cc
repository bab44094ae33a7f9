// Any bytes as a chat template: an error, or a text, in bounded time and memory.
#include "chat/chat_template.h"
#include "chat/jinja/json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera::chat;
  static const Value messages = parse_json(
      R"([{"role": "system", "content": "s"}, {"role": "user", "content": "h\u00e9 \ud83d\ude00"},)"
      R"( {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.5}}}]}])");
  RenderLimits limits;
  limits.work = 2'000'000;
  limits.memory = 1 << 22;
  limits.depth = 200;
  try {
    const Template chat_template({reinterpret_cast<const char*>(data), size});
    render_chat(chat_template, {{"messages", messages}, {"n", std::int64_t{7}}, {"eos_token", "</s>"}}, limits);
  } catch (const TemplateError&) {
  }
  return 0;
}
