#include "tasks/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

#include "base/json_text.h"
#include "tasks/left_padding.h"
#include "tasks/opened_model.h"
#include "tasks/positions_note.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

using Ids = std::vector<std::int32_t>;
using Numbers = std::vector<std::size_t>;

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \n\t");
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(" \n\t") - begin + 1);
}

class Generator {
 public:
  Generator(const GenerateOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out,
            std::ostream& err)
      : options_(options), out_(out), err_(err), opened_(open_model(options, std::move(group))) {}

  void run() {
    tell_idle_flags();
    const auto prompts = read_prompts(options_, opened_.tokenizer_folder);
    lines_.resize(prompts.size());
    for (const auto& batch : batches(prompts)) {
      try {
        answer(prompts, batch);
      } catch (const models::NonFiniteScores& e) {  // of a batch; the user counts from the file's start
        throw models::NonFiniteScores(static_cast<std::int64_t>(batch.at(static_cast<std::size_t>(e.row))), e.step);
      }
    }
    if (expected_ > 0) err_ << fmt::format("exact match: {} of {}\n", matches_, expected_);
  }

 private:
  /// Of several adapters, the number of the one that answers.
  int adapter_of(const Prompt& prompt) const {
    if (!loaded_.several && !prompt.adapter.empty()) {
      throw ConfigError("a row names the adapter '" + prompt.adapter +
                            "'; give the adapters by name: --adapter NAME=FOLDER NAME=FOLDER, or --adapter_name",
                        "adapter");
    }
    if (!loaded_.several) return peft::kBaseModel;
    const auto& standard = options_.adapter_name.empty() ? options_.adapters[0].name : options_.adapter_name;
    return loaded_.several->number_of(prompt.adapter.empty() ? standard : prompt.adapter);
  }

  /// The prompts' numbers, each batch of one adapter.
  std::vector<Numbers> batches(const std::vector<Prompt>& prompts) const {
    std::vector<Numbers> all;
    std::map<int, std::size_t> open;  // by adapter: its batch that has room
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const auto [place, is_new] = open.try_emplace(adapter_of(prompts[i]), all.size());
      if (!is_new && all[place->second].size() == static_cast<std::size_t>(options_.batch_size))
        place->second = all.size();
      if (place->second == all.size()) all.emplace_back();
      all[place->second].push_back(i);
    }
    return all;
  }

  void tell_idle_flags() const {
    for (const auto& note : options_.notes) err_ << note << "\n";
    for (const auto& note : loaded_.notes) err_ << note << "\n";
    for (const auto& flag : options_.sampling_flags)
      if (!settings_.do_sample) err_ << flag << " has no effect without --do_sample\n";
    for (const auto& flag : options_.beam_flags)
      if (settings_.num_beams == 1) err_ << flag << " has no effect without --num_beams above 1\n";
  }

  /// Once, whatever is too long first.
  void tell_length(const std::vector<Ids>& rows) {
    if (loaded_.config.kind != models::ModelKind::kCausal) return;
    std::int64_t most = 0;
    for (const auto& row : rows) most = std::max(most, models::most_tokens(settings_, std::ssize(row)));
    const auto note = positions_note(loaded_.config, "a prompt and its answer may have", most);
    if (!note.empty() && !std::exchange(told_length_, true)) err_ << note;
  }

  bool single() const { return options_.input_file.empty(); }

  void answer(const std::vector<Prompt>& prompts, const Numbers& batch_of) {
    std::vector<Ids> rows;
    for (const auto number : batch_of) {
      const auto& prompt = prompts[number];
      auto ids = opened_.tokenizer->encode(prompt.text, prompt.add_special_tokens).ids;
      if (ids.empty()) throw DataError("a prompt has no token: \"" + prompt.text + "\"");
      rows.push_back(std::move(ids));
    }
    tell_length(rows);
    if (loaded_.several) loaded_.several->use(adapter_of(prompts[batch_of[0]]));
    const auto batch = left_padded(rows);
    const bool streams = single() && options_.stream && settings_.num_beams == 1 && settings_.num_return_sequences == 1;
    TokenStream stream(out_, *opened_.tokenizer, options_.skip_special_tokens);
    models::TokenCallback on_tokens;
    if (streams) on_tokens = [&](const at::Tensor& tokens) { stream.add(tokens); };
    const auto result = models::generate(*loaded_.model, batch.ids, batch.mask, settings_, false, on_tokens);
    if (streams) {
      stream.finish();
    } else {
      print(prompts, batch_of, result.sequences,
            loaded_.config.kind == models::ModelKind::kCausal ? batch.ids.size(1) : 1);
    }
  }

  void print(const std::vector<Prompt>& prompts, const Numbers& batch, const at::Tensor& sequences, std::int64_t skip) {
    const auto each = sequences.size(0) / static_cast<std::int64_t>(batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const auto& prompt = prompts[batch[i]];
      nlohmann::json texts = nlohmann::json::array();
      for (std::int64_t k = 0; k < each; ++k) {
        texts.push_back(generated_text(sequences, static_cast<std::int64_t>(i) * each + k, skip, settings_,
                                       *opened_.tokenizer, options_.skip_special_tokens));
      }
      std::string& line = lines_[batch[i]];
      if (single()) {
        for (std::size_t k = 0; k < texts.size(); ++k) {
          if (each > 1) line += fmt::format("--- answer {} of {}\n", k + 1, each);
          line += texts[k].get<std::string>() + "\n";
        }
        continue;
      }
      nlohmann::ordered_json row = {{"prompt", prompt.text}, {"generated", texts}};
      if (!prompt.adapter.empty()) row["adapter"] = prompt.adapter;
      if (prompt.expected) {
        row["expected"] = *prompt.expected;
        ++expected_;
        if (trimmed(texts[0].get<std::string>()) == trimmed(*prompt.expected)) ++matches_;
      }
      line = json_text(row) + "\n";
    }
    for (; printed_ < lines_.size() && !lines_[printed_].empty(); ++printed_) out_ << lines_[printed_];
    out_ << std::flush;
  }

  const GenerateOptions& options_;
  std::ostream& out_;
  std::ostream& err_;
  OpenedModel opened_;
  Assembled& loaded_ = opened_.loaded;
  models::GenerationConfig& settings_ = opened_.settings;
  std::vector<std::string> lines_;  // by prompt; empty: not answered yet
  std::size_t printed_ = 0;         // so many, in the prompts' order
  std::int64_t expected_ = 0, matches_ = 0;
  bool told_length_ = false;
};

}  // namespace

int generate(const std::vector<std::string>& args, std::ostream& out, std::ostream& err) {
  const auto options = parse_generate(args, out);
  if (!options) return 0;
  auto group = comm::connect();
  std::ostream quiet(nullptr);
  const bool speaks = group->rank() == 0;
  Generator(*options, group, speaks ? out : quiet, speaks ? err : quiet).run();
  group->barrier();
  return 0;
}

}  // namespace tessera::tasks
