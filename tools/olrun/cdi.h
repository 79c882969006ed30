// olrun --cdi: a file by which container engines give a container what olrun gives a program.
//
// The file is one of the Container Device Interface, read by Docker, Podman, containerd and CRI-O
// (https://github.com/cncf-tags/container-device-interface, SPEC.md). The file is in JSON, which is
// YAML as well. The cdiVersion is the oldest that has all that the file uses: engines refuse a file
// of a version that is newer than they are, and every newer one takes an older file.
//
// Thread-safety: pure but for files that are looked at.
#pragma once

#include <string>

#include "base/result.h"
#include "base/settings.h"
#include "tools/olrun/environment.h"

namespace olpager::tools {

/// A device's name behind "--device".
inline constexpr const char* kCdiKind = "olpager.dev/client";

/// Paths of this installation; "": it is not there.
struct CdiParts {
  std::string library;      // libolpager.so
  std::string simulator;    // libolsimcuda.so
  std::string nvml_folder;  // of the links to libolnvml.so
};

/// A name as the interface has it: the Error says what is allowed, without the option's name.
Status checkCdiName(const std::string& name);

/// The file's text. `environment`: olrun's own with its options; of it the OL_ variables go along.
/// `settings`: what these and the settings files say. A file that they name has to be there.
Result<std::string> cdiText(const std::string& name, const base::Settings& settings,
                            const Environment& environment, const CdiParts& parts);

/// Writes it so that a reader sees all of it or what was there before. The Error names the file.
Status writeCdi(const std::string& path, const std::string& text);

}  // namespace olpager::tools
