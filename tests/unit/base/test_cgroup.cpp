#include "base/cgroup.h"

#include "tests/catch.h"
#include "tests/temporary_folder.h"

using namespace olpager::base;

namespace {

// Folders as those of /sys/fs/cgroup: a slice with a group in it.
struct Groups : olpager::test::TemporaryFolder {
  Groups() { write("slice/group/cgroup.procs", ""); }
  CgroupMemory read(const std::string& name = "slice/group") const {
    return cgroupMemory(path + "/" + name);
  }
};

}  // namespace

TEST_CASE("what is in no cgroup, or in one without limits, has room") {
  const Groups groups;
  CHECK(cgroupMemory("").room() == UINT64_MAX);
  CHECK(groups.read().room() == UINT64_MAX);
  groups.write("slice/group/memory.max", "max");
  groups.write("slice/group/memory.high", "max");
  groups.write("slice/group/memory.current", "100");
  CHECK(!groups.read().limit);
}

TEST_CASE("of a cgroup and those above it the one with the least room counts") {
  const Groups groups;
  groups.write("slice/group/memory.max", "1000");
  groups.write("slice/group/memory.high", "900");
  groups.write("slice/group/memory.current", "500");
  groups.write("slice/group/memory.stat", "anon 300\nactive_file 60\ninactive_file 200");
  CHECK(groups.read().limit == uint64_t{900});
  CHECK(groups.read().current == 300);  // less file pages that can go
  CHECK(groups.read().room() == 600);
  groups.write("slice/memory.max", "5000");
  groups.write("slice/memory.current", "4800");  // others are in it
  CHECK(groups.read().limit == uint64_t{5000});
  CHECK(groups.read().current == 4800);
  CHECK(groups.read().room() == 200);
  groups.write("memory.max", "10000");
  groups.write("memory.current", "9900");
  CHECK(groups.read().room() == 100);
  groups.write("memory.current", "10100");
  CHECK(groups.read().room() == 0);
  groups.write("memory.current", "0");
  CHECK(groups.read("slice/group/").room() == 200);
  CHECK(groups.read("slice/group/not there").room() ==
        200);  // a path of the host's, seen in a container
}

TEST_CASE("of version 1 limit and use have other names") {
  const Groups groups;
  groups.write("slice/group/memory.limit_in_bytes", "9223372036854771712");  // none
  groups.write("slice/group/memory.usage_in_bytes", "700");
  groups.write("slice/group/memory.failcnt", "0");
  CHECK(!groups.read().limit);
  groups.write("slice/group/memory.limit_in_bytes", "1000");
  groups.write("slice/group/memory.stat",
               "inactive_file 1\ntotal_cache 300\ntotal_inactive_file 200");
  groups.write("slice/group/memory.failcnt", "3");
  CHECK(groups.read().limit == uint64_t{1000});
  CHECK(groups.read().current == 500);
  groups.write("slice/memory.limit_in_bytes", "2000");
  groups.write("slice/memory.usage_in_bytes", "1900");
  groups.write("slice/memory.failcnt", "4");
  CHECK(groups.read().room() == 100);
  CHECK(groups.read().throttled == 7);
}

TEST_CASE("times at a limit are those of the cgroup and of those above it") {
  const Groups groups;
  groups.write("slice/group/memory.events", "low 7\nhigh 2\nmax 3\noom 9");
  groups.write("slice/memory.events",
               "low 7\nhigh 200\nmax 300\noom 9");  // with those of others below it
  groups.write("slice/memory.events.local", "low 7\nhigh 20\nmax 30\noom 9");
  CHECK(groups.read().throttled == 55);
}

TEST_CASE("stalls are those of the own cgroup, and of one above it that has a limit") {
  const Groups groups;
  groups.write("slice/group/memory.pressure",
               "some avg10=1.50 avg60=9.00 total=1\nfull avg10=0.50 avg60=9.00 total=1");
  groups.write("slice/memory.pressure",
               "some avg10=12.25 avg60=9.00 total=1\nfull avg10=0.75 avg60=9.00 total=1");
  groups.write("memory.pressure",
               "some avg10=50.00 avg60=9.00 total=1\nfull avg10=40.00 avg60=9.00 total=1");
  groups.write("slice/memory.max", "max");
  CHECK(groups.read().some == 1.5);  // those of the slice may be another group's
  CHECK(groups.read().full == 0.5);
  groups.write("slice/memory.max", "1000");
  CHECK(groups.read().some == 12.25);
  CHECK(groups.read().full == 0.75);
  CHECK(groups.read("not there/of the host").some ==
        50);  // in a container the mount's root is the own one
}

TEST_CASE("the own cgroup is the one that counts memory") {
  const Groups groups;
  const auto own = [&](const std::string& text) {
    groups.write("self/cgroup", text);
    return ownCgroup(groups.path);
  };
  CHECK(own("0::/slice/group") == "/sys/fs/cgroup/slice/group");
  CHECK(own("12:memory:/old\n0::/slice/group") == "/sys/fs/cgroup/memory/old");
  CHECK(own("0::/slice/group\n3:cpu,memory:/old:1") == "/sys/fs/cgroup/memory/old:1");
  CHECK(own("5:cpu,cpuacct:/\n1:name=memory:/old\n0::/slice/group") ==
        "/sys/fs/cgroup/slice/group");
  CHECK(own("5:cpu:/old").empty());
  CHECK(own("nonsense").empty());
  CHECK(ownCgroup("/nowhere").empty());
}
