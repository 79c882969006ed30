// Settings files in TOML: code shared by the library, olmemserver and olgpunode. Everything wrong
// with a file is one line that names it, the place, and where it can be told what should be there.
//
// Thread-safety: no shared state. Nothing throws but std::bad_alloc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace olpager::base {

/// One key of a file, or of a table in it.
struct TomlEntry {
  enum class Kind : uint8_t {
    kText,
    kNumber,  // an integer
    kFlag,
    kList,   // an array of texts and integers, or of nothing
    kTable,  // what it holds is in `inside`
    kOther,  // what no setting takes: a fraction, a date, an array of something else
  };
  Kind kind = Kind::kOther;
  bool texts_only = false;  // of a list: there is no integer in it
  std::string key;          // as it is written
  std::string place;        // "FILE:LINE", of the value
  std::string type;         // TOML's name of it, for messages: "integer"
  /// As a command line would have it: an integer in decimal, a flag as "on" or "off", a list with
  /// commas between; else "".
  std::string text;
  std::vector<TomlEntry> inside;
};

/// All keys of `path`, in the order of their names. A file that is not there is an error where it
/// `must` be, else has no keys.
Result<std::vector<TomlEntry>> readTomlFile(const std::string& path, bool must);

}  // namespace olpager::base
