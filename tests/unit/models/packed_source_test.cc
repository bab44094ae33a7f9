// Sources of packed matrices: quantised while they are read, and as bitsandbytes stores them.
#include "quant/packed_source.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <variant>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::quant {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

const std::string kNf4Folder = std::string(TESSERA_TEST_DATA) + "/goldens/C_quant/model_nf4_double_bf16";
const std::string kProjection = "model.layers.0.self_attn.q_proj.weight";

at::Tensor bytes_of(const PackedSource& source, const std::string& name, std::int64_t begin, std::int64_t count) {
  auto bytes = at::empty({count}, at::kByte);
  source.read_bytes(name, begin, bytes);
  return bytes;
}

bool is_part_of(const at::Tensor& bytes, const at::Tensor& whole, std::int64_t begin) {
  return std::memcmp(bytes.const_data_ptr(), static_cast<const char*>(whole.const_data_ptr()) + begin,
                     bytes.nbytes()) == 0;
}

TEST(PackingSource, ARangeHasTheBytesOfTheWholeMatrix) {
  at::manual_seed(1);
  const auto values = at::randn({66, 97}).to(at::kBFloat16).to(at::kFloat);
  const auto dense = io::memory_source({{"m.weight", values}, {"m.bias", at::ones({3})}});
  for (const bool nested : {false, true})
    for (const bool transposed : {false, true}) {
      SCOPED_TRACE(::testing::Message() << nested << transposed);
      const FourBitSettings settings{.nested = nested};
      const auto source = packing_source(dense, {{"m.weight", {settings, at::kBFloat16, transposed}}});
      const auto whole = tensor::pack(four_bit_codec(settings), transposed ? values.t() : values);
      EXPECT_EQ(source->find("m.weight")->shape, (std::vector<std::int64_t>{whole.rows, whole.columns}));
      EXPECT_EQ(source->codec("m.weight")->name(), four_bit_codec(settings)->name());
      EXPECT_EQ(source->codec("m.bias"), nullptr);
      const auto fields = whole.codec->fields(whole.rows, whole.columns);
      for (std::size_t i = 0; i < fields.size(); ++i) {
        const auto name = fields[i].name.empty() ? "m.weight" : "m.weight." + fields[i].name;
        const auto size = static_cast<std::int64_t>(whole.fields[i].nbytes());
        EXPECT_EQ(source->find(name)->nbytes(), size) << name;
        EXPECT_TRUE(is_part_of(bytes_of(*source, name, 0, size), whole.fields[i], 0)) << name;
        const auto step = fields[i].block_bytes;
        const auto begin = size / 2 / step * step;
        EXPECT_TRUE(is_part_of(bytes_of(*source, name, begin, size - begin), whole.fields[i], begin)) << name;
      }
    }
}

TEST(PackingSource, ValuesAreRoundedFirst) {
  at::manual_seed(2);
  const auto values = at::randn({8, 64});
  const auto source =
      packing_source(io::memory_source({{"w", values}}), {{"w", {FourBitSettings{}, at::kBFloat16, false}}});
  const auto rounded = tensor::pack(four_bit_codec({}), values.to(at::kBFloat16));
  EXPECT_TRUE(is_part_of(bytes_of(*source, "w.absmax", 0, 8 * 4), rounded.fields[1], 0));
  EXPECT_FALSE(
      is_part_of(bytes_of(*source, "w.absmax", 0, 8 * 4), tensor::pack(four_bit_codec({}), values).fields[1], 0));
}

TEST(PackingSource, ValuesThatAreNotFiniteAreNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const float value : {nan, -nan, infinity, -infinity})
    for (const std::int64_t place : {0, 37, 64 * 41 - 1})
      for (const PackedSettings& form : {PackedSettings(FourBitSettings{.nested = true}),
                                         PackedSettings(FourBitSettings{}), PackedSettings(Int8Settings{})}) {
        const auto values = at::ones({41, 64});
        values.view(-1)[place] = value;
        const auto source = packing_source(io::memory_source({{"m.weight", values}}), {{"m.weight", {form}}});
        const std::string scales = std::holds_alternative<Int8Settings>(form) ? "m.weight.SCB" : "m.weight.absmax";
        for (const auto& name : {std::string("m.weight"), scales}) {
          auto bytes = at::empty({source->find(name)->nbytes()}, at::kByte);
          try {
            source->read_bytes(name, 0, bytes);
            ADD_FAILURE() << name << ' ' << value << ' ' << place;
          } catch (const DataError& e) {
            EXPECT_NE(std::string(e.what()).find("tensor 'm.weight': holds NaN or infinities, for which"),
                      std::string::npos)
                << e.what();
          }
        }
      }
}

/// Counts what is read of a source, and by how many threads.
class CountedSource final : public io::TensorSource {
 public:
  explicit CountedSource(std::shared_ptr<const io::TensorSource> of) : of_(std::move(of)) {}
  const std::vector<io::TensorInfo>& tensors() const override { return of_->tensors(); }
  const io::TensorInfo* find(const std::string& name) const override { return of_->find(name); }
  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    {
      const std::lock_guard lock(mutex_);
      elements += out.numel();
      threads.insert(std::this_thread::get_id());
    }
    of_->read(name, begin, std::move(out));
  }
  std::optional<io::MappedTensor> map(const std::string& name) const override { return of_->map(name); }

  mutable std::int64_t elements = 0;
  mutable std::set<std::thread::id> threads;

 private:
  std::shared_ptr<const io::TensorSource> of_;
  mutable std::mutex mutex_;
};

#ifdef _OPENMP
constexpr bool kIsParallel = true;
#else
constexpr bool kIsParallel = false;  // clang without OpenMP's header: libtorch's loops have one thread
#endif

TEST(PackingSource, AllThreadsPackAndGiveTheBytesOfOne) {
  at::manual_seed(3);
  const auto values = at::randn({1027, 513}).to(at::kBFloat16);
  const auto dense = std::make_shared<CountedSource>(io::memory_source({{"m.weight", values}}));
  const auto threads_before = at::get_num_threads();
  for (const PackedSettings& settings :
       {PackedSettings(FourBitSettings{}), PackedSettings(FourBitSettings{.nested = true}),
        PackedSettings(FourBitSettings{.type = FourBitType::kFp4}), PackedSettings(Int8Settings{})})
    for (const bool transposed : {false, true}) {
      std::vector<std::vector<at::Tensor>> read;
      for (const int threads : {1, 3}) {
        at::set_num_threads(threads);
        dense->threads.clear();
        const auto source = packing_source(dense, {{"m.weight", {settings, at::kBFloat16, transposed}}});
        const auto& shape = source->find("m.weight")->shape;
        read.emplace_back();
        for (const auto& field : source->codec("m.weight")->fields(shape[0], shape[1])) {
          const auto name = field.full_name("m.weight");
          read.back().push_back(bytes_of(*source, name, 0, source->find(name)->nbytes()));
        }
        EXPECT_EQ(dense->threads.size(), static_cast<std::size_t>(transposed || !kIsParallel ? 1 : threads));
      }
      for (std::size_t i = 0; i < read[0].size(); ++i) EXPECT_TRUE(at::equal(read[0][i], read[1][i])) << i;
    }
  at::set_num_threads(threads_before);
}

TEST(PackingSource, ScalesOfARangeNeedThatRangeAlone) {
  const auto dense = std::make_shared<CountedSource>(io::memory_source({{"m.weight", at::ones({640, 640})}}));
  const auto read_after = [&](const PackedSettings& settings, const std::string& field) {
    const auto source = packing_source(dense, {{"m.weight", {settings, at::kFloat, false}}});
    dense->elements = 0;
    EXPECT_TRUE(bytes_of(*source, field, 400, 80).view(at::kFloat).eq(1).all().item<bool>());
    return dense->elements;
  };
  EXPECT_EQ(read_after(FourBitSettings{}, "m.weight.absmax"), 20 * 64);
  EXPECT_EQ(read_after(Int8Settings{}, "m.weight.SCB"), 20 * 640);
}

TEST(StoredPacked, LooksDenseAndGivesItsBytes) {
  const auto file = io::open_weights(kNf4Folder);
  const auto source = stored_packed(file);
  ASSERT_NE(source, nullptr);
  EXPECT_EQ(source->find(kProjection)->shape, (std::vector<std::int64_t>{64, 64}));
  EXPECT_EQ(source->find(kProjection + ".quant_map"), nullptr);
  EXPECT_EQ(source->find("lm_head.weight")->shape, file->find("lm_head.weight")->shape);
  const auto whole = io::read_tensor(*source, kProjection);
  EXPECT_EQ(whole.scalar_type(), at::kBFloat16);
  auto part = at::empty({100}, at::kFloat);
  source->read(kProjection, 33, part);
  EXPECT_TRUE(at::equal(part.to(at::kBFloat16), whole.view(-1).narrow(0, 33, 100)));
  EXPECT_EQ(stored_packed(source), nullptr);  // nothing is left to unpack
}

/// What the folder holds, with something wrong: the message.
std::string refusal_of(const std::function<void(Tensors&)>& damage) {
  const auto file = io::open_weights(kNf4Folder);
  Tensors tensors;
  for (const auto& info : file->tensors()) tensors[info.name] = io::read_tensor(*file, info.name);
  damage(tensors);
  try {
    stored_packed(io::memory_source({tensors.begin(), tensors.end()}));
  } catch (const DataError& e) {
    return e.what();
  }
  return "";
}

TEST(StoredPacked, DamageIsNamed) {
  const auto state = kProjection + ".quant_state.bitsandbytes__nf4";
  const auto text = [](const std::string& json) {
    auto bytes = at::empty({static_cast<std::int64_t>(json.size())}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), json.data(), json.size());
    return bytes;
  };
  const auto expect = [](const std::function<void(Tensors&)>& damage, const std::string& part) {
    const auto message = refusal_of(damage);
    EXPECT_NE(message.find(part), std::string::npos) << part << "\n" << message;
    EXPECT_TRUE(message.ends_with("Download the folder again, or make it anew from the model that it was packed from"))
        << message;
  };
  const auto expect_state = [&](const std::string& json, const std::string& part) {
    expect([&](Tensors& t) { t[state] = text(json); }, "tensor '" + state + "': " + part);
  };
  EXPECT_EQ(refusal_of([](Tensors&) {}), "");
  expect_state("{\"quant_type\": ", "expected the JSON that bitsandbytes writes, found '{\"quant_type\": '");
  expect_state("{}", "its JSON lacks 'blocksize' (one of 32, 64");
  expect_state(R"({"blocksize": "64"})", "its JSON's 'blocksize' is \"64\"; expected one of 32, 64");
  expect_state(R"({"blocksize": 64.5})", "its JSON's 'blocksize' is 64.5; expected one of 32");
  expect_state(R"({"blocksize": 48})", "its JSON's 'blocksize' is 48; expected one of 32");
  expect_state(R"({"blocksize": 64})", "its JSON lacks 'dtype' (float32, bfloat16 or float16)");
  expect_state(R"({"blocksize": 64, "dtype": "int4"})", "its JSON's 'dtype' is \"int4\"; expected float32");
  expect_state(R"({"blocksize": 64, "dtype": "bfloat16"})", "its JSON lacks 'shape'");
  for (const char* shape : {"[64]", "64", "[64, \"64\"]", "[64, 0]", "[-64, 64]", "[64, 9223372036854775808]"})
    expect_state(std::string(R"({"blocksize": 64, "dtype": "bfloat16", "shape": )") + shape + "}",
                 "its JSON's 'shape' is ");
  expect_state(R"({"quant_type": "fp4", "blocksize": 64})",
               "its JSON's 'quant_type' is \"fp4\"; expected that of its name, nf4");
  const std::string whole = R"({"blocksize": 64, "dtype": "bfloat16", "shape": [64, 64], )";
  expect_state(whole + R"("nested_blocksize": 100})", "its JSON's 'nested_blocksize' is 100; expected one of 32");
  expect_state(whole + R"("nested_blocksize": 256})", "its JSON lacks 'nested_offset' (the mean of the scales)");
  for (const char* offset : {"null", "1e300", "\"0\""})
    expect_state(whole + R"("nested_blocksize": 256, "nested_offset": )" + offset + "}",
                 "its JSON's 'nested_offset' is ");
  expect([&](Tensors& t) { t[state] = text(R"({"blocksize": 64, "dtype": "bfloat16", "shape": [640, 64]})"); },
         "tensor '" + kProjection +
             "': has 2048 bytes of Byte; expected, of a matrix of 640 x 64 in nf4, blocks of 64, "
             "20480 bytes of Byte");
  expect([&](Tensors& t) { t[state] = at::zeros({1 << 17}, at::kByte); }, "has 131072 bytes; expected the JSON");
  expect([&](Tensors& t) { t[kProjection + ".quant_state.bitsandbytes__nf5"] = t[state], t.erase(state); },
         "codes of type 'nf5'; known are nf4 and fp4");
  expect([&](Tensors& t) { t[kProjection + ".quant_state.bitsandbytes__fp4"] = t[state]; }, "'quant_type' is \"nf4\"");
  expect([&](Tensors& t) { t.erase(kProjection); }, "without codes");
  expect([&](Tensors& t) { t.erase(kProjection + ".absmax"); },
         "lacks '" + kProjection + ".absmax' (64 bytes of Byte)");
  expect([&](Tensors& t) { t[kProjection + ".absmax"] = at::zeros({3}, at::kByte); },
         kProjection + ".absmax': has 3 bytes of Byte; expected, of a matrix of 64 x 64");
  expect([&](Tensors& t) { t[kProjection + ".absmax"] = at::zeros({64}, at::kFloat); },
         "has 256 bytes of Float; expected, of a matrix of 64 x 64 in nf4, blocks of 64, double quantisation in blocks "
         "of 256, 64 bytes of Byte");
  expect([&](Tensors& t) { t[kProjection + ".quant_map"] = at::zeros({16}); }, "another table");
  const auto move_map = [](Tensors& t, float by) { t[kProjection + ".nested_quant_map"][200] += by; };
  EXPECT_EQ(refusal_of([&](Tensors& t) { move_map(t, 0x1p-24f); }), "");  // made by another processor
  expect([&](Tensors& t) { move_map(t, 0x1p-12f); }, "another table");
  expect([&](Tensors& t) { t[kProjection + ".nested_quant_map"] = at::zeros({3}); },
         "has 3 values of Float; expected a table of 256");
  expect([&](Tensors& t) { t["model.layers.0.self_attn.q_proj.SCB"] = at::zeros({64}); }, "were they cast?");
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat})
    expect([&](Tensors& t) { t[kProjection] = t[kProjection].to(dtype); }, "which destroys them");
  expect([&](Tensors& t) { t[kProjection] = t[kProjection].narrow(0, 0, 100).contiguous(); }, "has 100 bytes");
}

}  // namespace
}  // namespace tessera::quant
