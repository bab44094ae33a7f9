#pragma once
#include <string>

namespace tessera::tasks {

/// The stem of an English word in lower case: Porter's algorithm (1980) with the deviations of NLTK's PorterStemmer
/// (its mode NLTK_EXTENSIONS).
std::string porter_stem(std::string word);

}  // namespace tessera::tasks
