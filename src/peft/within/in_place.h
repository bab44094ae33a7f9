#pragma once
#include <string>

#include "peft/method.h"

namespace tessera::peft {

/// What a method is that trains parameters of the base model in place; the file keeps them under file_name().
class TrainsInPlace {
 public:
  virtual ~TrainsInPlace() = default;
  virtual bool trains(const std::string& parameter) const = 0;
};

/// True for a parameter of the base model that the method trains in place.
inline bool trains_in_place(const PeftMethod& method, const std::string& parameter) {
  const auto* in_place = dynamic_cast<const TrainsInPlace*>(&method);
  return in_place && in_place->trains(parameter);
}

}  // namespace tessera::peft
