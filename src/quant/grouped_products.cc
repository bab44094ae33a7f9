#include "quant/grouped_products.h"

#include <algorithm>

#include "base/cpu_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/grouped_products.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::quant {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR
void multiply(const GroupedProduct&, std::int64_t, std::int64_t, float*) {}  // has_grouped_products() is false
#else
namespace hn = hwy::HWY_NAMESPACE;

using Sums = hn::CappedTag<float, 16>;
using SumVector = hn::Vec<Sums>;
using WordsOf = hn::RebindToUnsigned<Sums>;
using WordsVector = hn::Vec<WordsOf>;

constexpr std::int64_t kLanesOfSums = static_cast<std::int64_t>(hn::MaxLanes(Sums())), kOfWord = 8;
constexpr int kUnrolled = 4;  // inputs of a step of loops, between which the compiler keeps sums in memory
/// Half of the processor's registers.
constexpr int kSumRegisters = HWY_TARGET <= HWY_AVX3 || !HWY_ARCH_X86 ? 16 : 8;

HWY_INLINE SumVector low_codes(WordsVector words) {
  const auto codes = hn::And(words, hn::Set(WordsOf(), 15));
  return hn::ConvertTo(Sums(), hn::BitCast(hn::RebindToSigned<Sums>(), codes));
}
/// `count` elements, then zeros. No byte behind them is read.
template <class D>
HWY_INLINE hn::Vec<D> first_of(D d, const hn::TFromD<D>* from, std::size_t count) {
  if (count == static_cast<std::size_t>(kLanesOfSums)) return hn::LoadU(d, from);
#if HWY_ARCH_X86
  if constexpr (sizeof(hn::TFromD<D>) == 4) return hn::MaskedLoad(hn::FirstN(d, count), d, from);
#endif
  hn::TFromD<D> some[kLanesOfSums] = {};
  std::copy_n(from, count, some);
  return hn::LoadU(d, some);
}
HWY_INLINE WordsVector words_at(const std::int32_t* words, std::size_t count) {
  return first_of(WordsOf(), reinterpret_cast<const std::uint32_t*>(words), count);
}
HWY_INLINE SumVector zeros_of(WordsVector words, const GroupedProduct& p) {
  return low_codes(p.zeros_less_one ? hn::Add(words, hn::Set(WordsOf(), 1)) : words);
}
/// `count` scales from place `at` on.
HWY_INLINE SumVector scales_at(const GroupedProduct& p, std::int64_t at, std::size_t count) {
  if (p.scale_dtype == ScaleDtype::kFloat) return first_of(Sums(), static_cast<const float*>(p.scales) + at, count);
  const auto bits =
      first_of(hn::Rebind<std::uint16_t, Sums>(), static_cast<const std::uint16_t*>(p.scales) + at, count);
  if (p.scale_dtype == ScaleDtype::kHalf)
    return hn::PromoteTo(Sums(), hn::BitCast(hn::Rebind<hwy::float16_t, Sums>(), bits));
  return hn::BitCast(Sums(), hn::ShiftLeft<16>(hn::PromoteTo(WordsOf(), bits)));
}
/// total + scale * (sum - zero * sum of x).
HWY_INLINE SumVector with_group(SumVector total, SumVector scale, SumVector zero, SumVector sum, float x) {
  return hn::MulAdd(scale, hn::NegMulAdd(zero, hn::Set(Sums(), x), sum), total);
}

/// GPTQ's zero points of `count` outputs, from place `at` on: a word has 8.
HWY_INLINE SumVector gptq_zeros(const GroupedProduct& p, std::int64_t at, std::size_t count) {
  const auto place = hn::Iota(WordsOf(), static_cast<std::uint32_t>(at % kOfWord));  // a vector may begin in a word
  const auto word = hn::IndicesFromVec(WordsOf(), hn::ShiftRight<3>(place));
  const auto shift = hn::ShiftLeft<2>(hn::And(place, hn::Set(WordsOf(), kOfWord - 1)));
  const auto found = words_at(p.zeros + at / kOfWord, (count + kOfWord - 1) / kOfWord);
  return zeros_of(hn::Shr(hn::TableLookupLanes(found, word), shift), p);
}

/// GPTQ: a word has 8 inputs of an output. One group's sums of Vectors of outputs, `count` of them in the last vector.
/// A function of its own: in one piece with its callers sanitizers take minutes to compile it.
template <int Few, int Vectors>
HWY_NOINLINE void gptq_sums(const GroupedProduct& p, const std::int32_t* words, std::int64_t begin, std::int64_t end,
                            std::size_t count, SumVector (&out)[Vectors][Few]) {
  const auto count_of = [&](int v) { return v + 1 == Vectors ? count : static_cast<std::size_t>(kLanesOfSums); };
  const auto* x = static_cast<const float*>(p.x) + begin * Few;
  SumVector sums[Vectors][Few];
  for (auto& of_vector : sums)
    for (auto& sum : of_vector) sum = hn::Zero(Sums());
  for (auto input = begin; input < end; input += kOfWord, words += p.rows) {
    WordsVector all[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const auto* from = words + v * kLanesOfSums;
      all[v] = words_at(from, count_of(v));
      hwy::Prefetch(from + p.group_size / kOfWord * p.rows);  // of the next group, which the processor does not foresee
    }
#pragma GCC unroll 8
    for (int k = 0; k < kOfWord; ++k, x += Few) {
      SumVector codes[Vectors];
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) {
        codes[v] = low_codes(all[v]);
        all[v] = hn::ShiftRight<4>(all[v]);
      }
#pragma GCC unroll 8
      for (int f = 0; f < Few; ++f) {
        const auto few = hn::Set(Sums(), x[f]);
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) sums[v][f] = hn::MulAdd(few, codes[v], sums[v][f]);
      }
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v)
#pragma GCC unroll 8
    for (int f = 0; f < Few; ++f) out[v][f] = sums[v][f];
}

/// Of an input that lies anywhere, with its x. words: of the first input.
template <int Few, int Vectors>
HWY_INLINE void add_input(const std::int32_t* words, std::int64_t apart, std::int64_t input, const float* x,
                          std::size_t count, SumVector (&sums)[Vectors][Few]) {
  const auto* line = words + input / kOfWord * apart;
  const int place = static_cast<int>(input % kOfWord);
  hwy::Prefetch(line + (Vectors + place % Vectors) * kLanesOfSums);  // of the outputs after these
  SumVector codes[Vectors];
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) {
    const auto all = words_at(line + v * kLanesOfSums, v + 1 == Vectors ? count : kLanesOfSums);
    codes[v] = low_codes(hn::ShiftRightSame(all, 4 * place));
  }
#pragma GCC unroll 8
  for (int f = 0; f < Few; ++f) {
    const auto few = hn::Set(Sums(), x[f]);
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) sums[v][f] = hn::MulAdd(few, codes[v], sums[v][f]);
  }
}

/// As gptq_sums(), of a group whose inputs are those at places begin to end of p.order. words: of the first input.
template <int Few, int Vectors>
HWY_NOINLINE void ordered_sums(const GroupedProduct& p, const std::int32_t* words, std::int64_t begin, std::int64_t end,
                               std::size_t count, SumVector (&out)[Vectors][Few]) {
  const auto* x = static_cast<const float*>(p.x) + begin * Few;
  const auto* input = p.order + begin;
  SumVector sums[Vectors][Few];
  for (auto& of_vector : sums)
    for (auto& sum : of_vector) sum = hn::Zero(Sums());
  for (; begin + kUnrolled <= end; begin += kUnrolled)
#pragma GCC unroll 4
    for (int k = 0; k < kUnrolled; ++k, ++input, x += Few)
      add_input<Few, Vectors>(words, p.rows, *input, x, count, sums);
  for (; begin < end; ++begin, ++input, x += Few) add_input<Few, Vectors>(words, p.rows, *input, x, count, sums);
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v)
#pragma GCC unroll 8
    for (int f = 0; f < Few; ++f) out[v][f] = sums[v][f];
}

/// Vectors of outputs from `row` on, `count` of them in the last vector.
template <int Few, int Vectors>
void gptq_outputs(const GroupedProduct& p, std::int64_t row, std::size_t count, float* y) {
  const auto count_of = [&](int v) { return v + 1 == Vectors ? count : static_cast<std::size_t>(kLanesOfSums); };
  SumVector totals[Vectors][Few], sums[Vectors][Few];
  for (auto& of_vector : totals)
    for (auto& total : of_vector) total = hn::Zero(Sums());
  const auto* x_sums = p.x_sums;
  const auto groups = p.order ? p.groups : (p.columns + p.group_size - 1) / p.group_size;
  for (std::int64_t group = 0; group < groups; ++group, x_sums += Few) {
    if (p.order) {
      ordered_sums<Few, Vectors>(p, p.words + row, p.begins[group], p.begins[group + 1], count, sums);
    } else {
      const auto begin = group * p.group_size;
      gptq_sums<Few, Vectors>(p, p.words + begin / kOfWord * p.rows + row, begin,
                              std::min(begin + p.group_size, p.columns), count, sums);
    }
    for (int v = 0; v < Vectors; ++v) {
      const auto first = group * p.rows + row + v * kLanesOfSums;
      const auto zero = gptq_zeros(p, first, count_of(v)), scale = scales_at(p, first, count_of(v));
      for (int f = 0; f < Few; ++f) totals[v][f] = with_group(totals[v][f], scale, zero, sums[v][f], x_sums[f]);
    }
  }
  for (int v = 0; v < Vectors; ++v)
    for (int f = 0; f < Few; ++f) {
      HWY_ALIGN float lanes[kLanesOfSums];
      hn::Store(totals[v][f], Sums(), lanes);
      std::copy_n(lanes, count_of(v), y + f * p.rows + row + v * kLanesOfSums);
    }
}

template <int Few>
void gptq_rows(const GroupedProduct& p, std::int64_t first, std::int64_t count, float* y) {
  constexpr int kVectors = std::clamp(kSumRegisters / Few, 1, 4);
  constexpr auto kStep = kVectors * kLanesOfSums;
  const auto last = first + count;
  for (; first + kStep <= last; first += kStep) gptq_outputs<Few, kVectors>(p, first, kLanesOfSums, y);
  for (; first < last; first += kLanesOfSums)
    gptq_outputs<Few, 1>(p, first, static_cast<std::size_t>(std::min(kLanesOfSums, last - first)), y);
}

/// Sums, lane by word: totals[place in the word][f].
template <int Few>
using WordTotals = SumVector[kOfWord][Few];

/// AWQ: a word has 8 outputs of an input. One group's, of `count` words and of Places places in them from First on.
/// scales: of the words' outputs, one after the other.
template <int Few, int First, int Places>
HWY_NOINLINE void add_awq_group(const GroupedProduct& p, const std::int32_t* words, std::int64_t begin,
                                std::int64_t end, const float* scales, const std::int32_t* zeros, const float* x_sums,
                                std::size_t count, WordTotals<Few>& totals) {
  const auto apart = p.rows / kOfWord;
  SumVector sums[Places][Few];
  for (auto& of_place : sums)
    for (auto& sum : of_place) sum = hn::Zero(Sums());
  const auto* line = words;
  const auto* x = static_cast<const float*>(p.x) + begin * Few;
  for (auto input = begin; input < end; input += kUnrolled) {
#pragma GCC unroll 4
    for (int k = 0; k < kUnrolled; ++k, line += apart, x += Few) {
      auto all = hn::ShiftRight<4 * First>(words_at(line, count));
      if (First == 0) {  // of the next group, which the processor does not foresee
        hwy::Prefetch(line + p.group_size * apart);
        hwy::Prefetch(line + p.group_size * apart + kLanesOfSums - 1);
      }
      SumVector codes[Places];
#pragma GCC unroll 8
      for (int i = 0; i < Places; ++i, all = hn::ShiftRight<4>(all)) codes[i] = low_codes(all);
#pragma GCC unroll 8
      for (int f = 0; f < Few; ++f) {
        const auto few = hn::Set(Sums(), x[f]);
#pragma GCC unroll 8
        for (int i = 0; i < Places; ++i) sums[i][f] = hn::MulAdd(few, codes[i], sums[i][f]);
      }
    }
  }
  auto of_places = hn::ShiftRight<4 * First>(words_at(zeros, count));
  const auto by_word = hn::ShiftLeft<3>(hn::Iota(hn::RebindToSigned<Sums>(), 0));
#pragma GCC unroll 8
  for (int i = 0; i < Places; ++i, of_places = hn::ShiftRight<4>(of_places)) {
    const int place = First + i, output = place < 4 ? 2 * place : 2 * place - 7;
    const auto scale = hn::GatherIndex(Sums(), scales + output, by_word);
#pragma GCC unroll 8
    for (int f = 0; f < Few; ++f)
      totals[place][f] = with_group(totals[place][f], scale, zeros_of(of_places, p), sums[i][f], x_sums[f]);
  }
  if constexpr (First + Places < kOfWord)
    add_awq_group<Few, First + Places, Places>(p, words, begin, end, scales, zeros, x_sums, count, totals);
}

template <int Few>
void awq_rows(const GroupedProduct& p, std::int64_t first, std::int64_t count, float* y) {
  constexpr int kFit = kSumRegisters / Few, kPlaces = kFit >= 8 ? 8 : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  constexpr auto kStep = kLanesOfSums * kOfWord;
  const auto apart = p.rows / kOfWord, last = first + count;
  for (; first < last; first += kStep) {
    const auto outputs = std::min(kStep, last - first);
    const auto words = static_cast<std::size_t>(outputs / kOfWord);
    const auto* x_sums = p.x_sums;
    WordTotals<Few> totals;
    for (auto& of_place : totals)
      for (auto& total : of_place) total = hn::Zero(Sums());
    for (std::int64_t begin = 0, group = 0; begin < p.columns; begin += p.group_size, ++group, x_sums += Few) {
      HWY_ALIGN float scales[kStep];
      for (std::int64_t i = 0; i < outputs; i += kLanesOfSums)
        hn::Store(
            scales_at(p, group * p.rows + first + i, static_cast<std::size_t>(std::min(kLanesOfSums, outputs - i))),
            Sums(), scales + i);
      const auto* zeros = p.zeros + group * apart + first / kOfWord;
      add_awq_group<Few, 0, kPlaces>(p, p.words + begin * apart + first / kOfWord, begin,
                                     std::min(begin + p.group_size, p.columns), scales, zeros, x_sums, words, totals);
    }
    HWY_ALIGN float lanes[kLanesOfSums];
    for (int place = 0; place < kOfWord; ++place)
      for (int f = 0; f < Few; ++f) {
        hn::Store(totals[place][f], Sums(), lanes);
        const int output = place < 4 ? 2 * place : 2 * place - 7;
        for (std::size_t word = 0; word < words; ++word)
          y[f * p.rows + first + static_cast<std::int64_t>(word) * kOfWord + output] = lanes[word];
      }
  }
}

void multiply(const GroupedProduct& p, std::int64_t first, std::int64_t count, float* y) {
  with_grouped_rows(p.few, [&](auto few) {
    (p.layout == WordLayout::kGptq ? gptq_rows<few()> : awq_rows<few()>)(p, first, count, y);
  });
}

#endif
}  // namespace HWY_NAMESPACE
}  // namespace tessera::quant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::quant {

HWY_EXPORT(multiply);

bool has_grouped_products() {
#if defined(__x86_64__)
  return cpu_level() > CpuLevel::kPlain;
#else
  return true;
#endif
}

void grouped_product(const GroupedProduct& p, std::int64_t first, std::int64_t count, float* y) {
  TESSERA_DISPATCH(multiply)(p, first, count, y);
}

}  // namespace tessera::quant
#endif
