#pragma once
// How a row of preference data lies in a RowCache: its four pieces of tokens one behind the other; their lengths, the
// label and the margin (as its bits) are the "documents".
#include "data/preference_dataset.h"
#include "data/sft_dataset.h"

namespace tessera::data {

SftRow stored_form(const PreferenceRow& row);

}  // namespace tessera::data
