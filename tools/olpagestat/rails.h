// The rails of links over verbs, and what went over them: for tables, the screen and JSON. Pure
// functions of a copy of the counters.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "pager/counters/counters.h"

namespace olpager::tools {

/// A line for each link: its peer, and what each rail has moved since the link came about:
/// "10.0.0.2:7001: mlx5_0 port 1 in use 12GiB, mlx5_1 port 1 set aside 3MiB".
std::vector<std::string> railLines(const pager::RdmaCounters& rdma);
/// Lines of a program's table; "" where it has no link over verbs, and had none.
std::string railsTable(const pager::RdmaCounters& rdma);
/// The links, an array of objects.
nlohmann::ordered_json linksJson(const pager::RdmaCounters& rdma);

}  // namespace olpager::tools
