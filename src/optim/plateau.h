#pragma once
// torch's ReduceLROnPlateau: the rate falls when a metric stops improving.
#include <memory>

#include "optim/schedule_keys.h"
#include "tessera/optim/schedule.h"

namespace tessera::optim {

/// Takes mode, factor, patience, threshold, threshold_mode, cooldown, min_lr, eps.
std::unique_ptr<Schedule> make_plateau(double lr, ScheduleKeys& keys);

}  // namespace tessera::optim
