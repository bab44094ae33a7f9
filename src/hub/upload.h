#pragma once
// A commit of files to a repository on the Hub.
#include <string>
#include <vector>

#include "hub/name.h"
#include "hub/settings.h"

namespace tessera::hub {

struct UploadFile {
  std::string path;  // in the repository
  std::string file;  // here
};

struct Upload {
  std::string id;                 // "org/name", or "name" of the token's account
  std::string revision = "main";  // a branch, which is made where it is missing
  bool is_private = false;        // of a repository that is made now
  std::string message;
  std::vector<UploadFile> files;
};

/// Makes the repository where there is none, sends large files to the Hub's storage (git LFS: whole, or in the parts
/// that the Hub asks for; what it has already is not sent again) and makes one commit of all. Returns the commit's
/// page. Error: what failed, and what the Hub says of it; nothing is committed then.
std::string upload(const Upload& what, const Settings& settings);

}  // namespace tessera::hub
