#include "models/beam_search.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/logits_processors.h"

namespace tessera::models {
namespace {

using EarlyStopping = GenerationConfig::EarlyStopping;

constexpr float kOut = -1.0e9f;  // what transformers adds to a candidate that may not win

struct Beam {
  std::vector<std::int64_t> ids;  // with the start token or the prompt
  float score = 0;                // running: sum of log probabilities; finished: divided by the length penalty
  bool finished = false;          // ended by itself, not only kept because nothing better is there
  std::int64_t parent = 0;        // row of the step before, in this source
  bool ends = false;              // a candidate whose last token ends it
};

std::vector<Beam> best(std::vector<Beam> beams, std::int64_t count) {
  std::vector<std::size_t> order(beams.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return beams[a].score != beams[b].score ? beams[a].score > beams[b].score : a < b;
  });
  std::vector<Beam> chosen;
  for (std::int64_t i = 0; i < count; ++i) chosen.push_back(std::move(beams[order[static_cast<std::size_t>(i)]]));
  return chosen;
}

// The search of one source text: num_beams running beams and as many best finished ones (transformers' vectorised
// _beam_search).
class Search {
 public:
  Search(const GenerationConfig& config, std::vector<std::int64_t> prompt, std::int64_t max_length)
      : config_(config), max_length_(max_length), prompt_length_(static_cast<std::int64_t>(prompt.size())) {
    for (std::int64_t b = 0; b < config.num_beams; ++b) {
      running_.push_back({prompt, b == 0 ? 0.0f : kOut, false, b, false});
      finished_.push_back({prompt, kOut, false, b, false});
    }
  }

  const std::vector<Beam>& running() const { return running_; }
  const std::vector<Beam>& finished() const { return finished_; }
  bool can_improve() const { return can_improve_; }
  bool full() const {
    return config_.early_stopping == EarlyStopping::kTrue &&
           std::all_of(finished_.begin(), finished_.end(), [](const Beam& b) { return b.finished; });
  }
  bool all_candidates_end() const { return all_end_; }

  // log_probs: [num_beams, V] after the processors.
  void advance(const float* log_probs, std::int64_t classes) {
    auto candidates = top(log_probs, classes);
    all_end_ = std::all_of(candidates.begin(), candidates.end(), [](const Beam& b) { return b.ends; });
    auto going = candidates;
    for (auto& beam : going) beam.score += beam.ends ? kOut : 0.0f;
    running_ = best(std::move(going), config_.num_beams);
    collect(std::move(candidates));
    check_heuristic();
  }

 private:
  std::vector<Beam> top(const float* log_probs, std::int64_t classes) const {
    const auto beams = config_.num_beams;
    const auto keep = std::min<std::int64_t>(
        std::max<std::int64_t>(2, 1 + static_cast<std::int64_t>(config_.eos_token_ids.size())) * beams,
        beams * classes);
    std::vector<float> total(static_cast<std::size_t>(beams * classes));
    for (std::int64_t i = 0; i < beams * classes; ++i) total[i] = log_probs[i] + running_[i / classes].score;
    std::vector<std::int64_t> order(total.size());
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + keep, order.end(), [&](std::int64_t a, std::int64_t b) {
      return total[a] != total[b] ? total[a] > total[b] : a < b;
    });
    std::vector<Beam> out;
    for (std::int64_t i = 0; i < keep; ++i) {
      const std::int64_t parent = order[i] / classes, token = order[i] % classes;
      Beam beam{running_[parent].ids, total[order[i]], false, parent, false};
      beam.ids.push_back(token);
      const auto& eos = config_.eos_token_ids;
      beam.ends = std::find(eos.begin(), eos.end(), token) != eos.end() ||
                  static_cast<std::int64_t>(beam.ids.size()) >= max_length_;
      out.push_back(std::move(beam));
    }
    return out;
  }

  float penalty(std::int64_t new_tokens) const {
    return static_cast<float>(std::pow(static_cast<double>(new_tokens), config_.length_penalty));
  }

  void collect(std::vector<Beam> candidates) {
    const bool closed = full();
    auto merged = finished_;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      auto beam = std::move(candidates[i]);
      beam.finished = beam.ends && i < static_cast<std::size_t>(config_.num_beams);
      beam.score /= penalty(static_cast<std::int64_t>(beam.ids.size()) - prompt_length_);
      if (closed) beam.score += kOut;
      if (!can_improve_) beam.score += kOut;
      if (!beam.finished) beam.score += kOut;
      merged.push_back(std::move(beam));
    }
    finished_ = best(std::move(merged), config_.num_beams);
  }

  void check_heuristic() {
    const auto length = static_cast<std::int64_t>(running_[0].ids.size());
    const bool hopeful = config_.early_stopping == EarlyStopping::kNever && config_.length_penalty > 0;
    const float reachable = running_[0].score / penalty((hopeful ? max_length_ : length) - prompt_length_);
    const float worst = std::min_element(finished_.begin(), finished_.end(), [](const Beam& a, const Beam& b) {
                          return a.score < b.score;
                        })->score;
    can_improve_ = can_improve_ && std::any_of(finished_.begin(), finished_.end(),
                                               [&](const Beam& b) { return reachable > (b.finished ? worst : kOut); });
  }

  GenerationConfig config_;
  std::int64_t max_length_, prompt_length_;
  std::vector<Beam> running_, finished_;
  bool can_improve_ = true, all_end_ = false;
};

bool goes_on(const std::vector<Search>& searches) {
  const auto all = [&](auto predicate) { return std::all_of(searches.begin(), searches.end(), predicate); };
  return !all([](const Search& s) { return !s.can_improve(); }) && !all([](const Search& s) { return s.full(); }) &&
         !all([](const Search& s) { return s.all_candidates_end(); });
}

// The running beams as [R, length] ids.
at::Tensor running_ids(const std::vector<Search>& searches) {
  const auto& first = searches[0].running();
  const auto beams = static_cast<std::int64_t>(first.size()), length = static_cast<std::int64_t>(first[0].ids.size());
  auto ids =
      at::empty({static_cast<std::int64_t>(searches.size()) * beams, length}, at::TensorOptions().dtype(at::kLong));
  auto* p = ids.mutable_data_ptr<std::int64_t>();
  for (const auto& search : searches) {
    for (const auto& beam : search.running()) p = std::copy(beam.ids.begin(), beam.ids.end(), p);
  }
  return ids;
}

at::Tensor running_parents(const std::vector<Search>& searches, std::int64_t beams) {
  auto parents = at::empty({static_cast<std::int64_t>(searches.size()) * beams}, at::TensorOptions().dtype(at::kLong));
  auto* p = parents.mutable_data_ptr<std::int64_t>();
  for (std::size_t s = 0; s < searches.size(); ++s) {
    for (const auto& beam : searches[s].running()) *p++ = static_cast<std::int64_t>(s) * beams + beam.parent;
  }
  return parents;
}

GenerationOutput collected(const std::vector<Search>& searches, const GenerationConfig& config) {
  const auto rows = static_cast<std::int64_t>(searches.size()) * config.num_return_sequences;
  std::size_t longest = 1;
  for (const auto& s : searches) {
    for (std::int64_t i = 0; i < config.num_return_sequences; ++i)
      longest = std::max(longest, s.finished()[i].ids.size());
  }
  // Upstream fills with the padding id, but with the end id where padding is 0.
  const auto fill =
      config.pad_token_id != 0 || config.eos_token_ids.empty() ? config.pad_token_id : config.eos_token_ids[0];
  GenerationOutput out;
  out.sequences = at::full({rows, static_cast<std::int64_t>(longest)}, fill, at::TensorOptions().dtype(at::kLong));
  out.sequences_scores = at::empty({rows}, at::TensorOptions().dtype(at::kFloat));
  std::int64_t row = 0;
  for (const auto& s : searches) {
    for (std::int64_t i = 0; i < config.num_return_sequences; ++i, ++row) {
      const auto& beam = s.finished()[i];
      std::copy(beam.ids.begin(), beam.ids.end(),
                out.sequences.mutable_data_ptr<std::int64_t>() + row * static_cast<std::int64_t>(longest));
      out.sequences_scores.mutable_data_ptr<float>()[row] = beam.score;
    }
  }
  return out;
}

}  // namespace

GenerationOutput beam_search(const at::Tensor& prompts, std::int64_t max_length, const GenerationConfig& config,
                             const NextLogits& next, const AnyGoesOn& any_goes_on) {
  const std::int64_t batch = prompts.size(0), prompt_length = prompts.size(1);
  const auto ids = prompts.contiguous();
  const auto* p = ids.const_data_ptr<std::int64_t>();
  std::vector<Search> searches;
  for (std::int64_t b = 0; b < batch; ++b) {
    searches.emplace_back(config, std::vector<std::int64_t>(p + b * prompt_length, p + (b + 1) * prompt_length),
                          max_length);
  }
  at::Tensor parents;
  bool is_going = true;
  while (is_going) {
    const auto tokens = running_ids(searches);
    auto log_probs = at::log_softmax(next(tokens.narrow(1, tokens.size(1) - 1, 1), parents), -1).contiguous();
    process_scores(log_probs, {tokens, prompt_length, max_length}, config);
    const std::int64_t classes = log_probs.size(1);
    for (std::int64_t s = 0; s < batch; ++s) {
      searches[s].advance(log_probs.const_data_ptr<float>() + s * config.num_beams * classes, classes);
    }
    parents = running_parents(searches, config.num_beams);
    is_going = goes_on(searches);
    if (any_goes_on) is_going = any_goes_on(is_going);
  }
  return collected(searches, config);
}

}  // namespace tessera::models
