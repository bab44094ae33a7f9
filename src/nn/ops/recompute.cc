#include "nn/ops/recompute.h"

#include <ATen/core/grad_mode.h>
#include <torch/custom_class.h>

#include <memory>
#include <utility>

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What the nodes that share an input share. It holds no source: those are saved variables, which autograd lets go.
struct Recipe : torch::CustomClassHolder {
  Recipe(Recompute compute, RecomputeWithGradients with_gradients)
      : compute(std::move(compute)), with_gradients(std::move(with_gradients)) {}
  Recompute compute;
  RecomputeWithGradients with_gradients;
  at::Tensor made;  // between the first and the last of the users' backwards
  int users = 0, served = 0;
};

/// A storage's memory, and how to compute again what is in it.
struct StorageWithRecipe {
  at::DataPtr memory;
  c10::intrusive_ptr<Recipe> recipe;
  std::vector<at::Tensor> sources;
  std::vector<std::int64_t> versions;  // of the sources, then of the tensor
  at::ScalarType dtype;

  static void free(void* self) { delete static_cast<StorageWithRecipe*>(self); }
};

/// Null where x cannot be made again.
const StorageWithRecipe* recipe_of(const at::Tensor& x) {
  if (!x.requires_grad() || !x.is_contiguous() || x.nbytes() != x.storage().nbytes()) return nullptr;
  const auto* held = x.storage().data_ptr().cast_context<StorageWithRecipe>(&StorageWithRecipe::free);
  if (!held || held->dtype != x.scalar_type() || held->versions.back() != x._version()) return nullptr;
  for (std::size_t i = 0; i < held->sources.size(); ++i)
    if (held->versions[i] != held->sources[i]._version()) return nullptr;
  return held;
}

}  // namespace

void set_recipe(const at::Tensor& y, std::vector<at::Tensor> sources, Recompute compute,
                RecomputeWithGradients with_gradients) {
  if (y.numel() == 0 || y.is_inference()) return;
  auto held = std::make_unique<StorageWithRecipe>();
  held->recipe = c10::make_intrusive<Recipe>(std::move(compute), std::move(with_gradients));
  for (auto& s : sources) {
    held->versions.push_back(s._version());
    held->sources.push_back(s.detach());
  }
  held->versions.push_back(y._version());
  held->dtype = y.scalar_type();
  auto* storage = y.storage().unsafeGetStorageImpl();
  void* data = storage->mutable_data();
  const auto device = storage->device();
  held->memory = storage->set_data_ptr(at::DataPtr());
  storage->set_data_ptr_noswap({data, held.release(), &StorageWithRecipe::free, device});
}

void extend_recipe(const at::Tensor& y, const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> then) {
  const auto* held = recipe_of(x);
  if (!held) return;
  set_recipe(y, held->sources, [compute = held->recipe->compute, then = std::move(then)](const auto& sources) {
    return then(compute(sources));
  });
}

at::Tensor recomputed_in_backward(std::vector<at::Tensor> sources, Recompute compute) {
  const auto y = compute(sources);
  if (at::GradMode::is_enabled()) set_recipe(y, std::move(sources), std::move(compute));
  return y;
}

void keep_input(AutogradContext* context, const at::Tensor& x, variable_list& saved) {
  const auto* held = recipe_of(x);
  if (!held) return saved.push_back(x);
  saved.insert(saved.end(), held->sources.begin(), held->sources.end());
  ++held->recipe->users;
  context->saved_data["recipe"] = c10::IValue::make_capsule(held->recipe);
  context->saved_data["sizes"] = x.sizes();
}

at::Tensor kept_input(AutogradContext* context, const variable_list& saved, std::size_t begin,
                      const at::Tensor& gradient) {
  const auto entry = context->saved_data.find("recipe");
  if (entry == context->saved_data.end()) return saved[begin];
  auto& recipe = *c10::static_intrusive_pointer_cast<Recipe>(entry->second.toCapsule());
  if (!recipe.made.defined()) {
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> sources(saved.begin() + static_cast<std::ptrdiff_t>(begin), saved.end());
    const bool gradients_too = recipe.with_gradients && recipe.users == 1 && gradient.defined();
    recipe.made = gradients_too ? recipe.with_gradients(sources, gradient) : recipe.compute(sources);
  }
  const auto x = recipe.made.view(context->saved_data["sizes"].toIntVector());
  if (++recipe.served == recipe.users) {
    recipe.served = 0;
    recipe.made.reset();
  }
  return x;
}

}  // namespace tessera::nn
