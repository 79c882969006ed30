// olrun as its users meet it: a child process, its exit status, and one line for each thing that is
// wrong.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tests/catch.h"
#include "tests/integration/tools/child.h"
#include "tests/temporary_folder.h"

using namespace olpager::test;
namespace fs = std::filesystem;

namespace {

// An installation with a library that does nothing and a driver that can only be loaded.
struct Installation : TemporaryFolder {
  std::string olrun = path + "/bin/olrun";
  std::string library = path + "/lib/olpager/libolpager.so";
  std::string links = path + "/lib/olpager";
  std::string driver = path + "/driver/libcuda.so.1";
  std::string runtime = "XDG_RUNTIME_DIR=" + path + "/run";

  Installation() {
    for (const char* folder : {"/bin", "/lib/olpager", "/driver", "/run"})
      fs::create_directories(path + folder);
    fs::copy_file(OLRUN, olrun);
    fs::copy_file(FAKE_DRIVER, library);
    fs::copy_file(FAKE_DRIVER, driver);
    fs::create_symlink("libolpager.so", links + "/libcuda.so.1");
  }

  Outcome run(std::vector<std::string> arguments, std::vector<std::string> environment = {}) const {
    arguments.insert(arguments.begin(), olrun);
    environment.push_back(runtime);
    environment.push_back("LD_LIBRARY_PATH=/somewhere");
    environment.push_back("LD_PRELOAD=");
    return runChild(arguments, environment, path);
  }
};

void checkRefusal(const Outcome& outcome, const std::string& expected, int status = 2) {
  INFO(outcome.err);
  CHECK(outcome.status == status);
  CHECK(outcome.out.empty());
  CHECK(outcome.err.rfind("olrun: ", 0) == 0);
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  CHECK(outcome.err.find(expected) != std::string::npos);
}

}  // namespace

TEST_CASE("olrun gives the program its environment and its own exit status", "[olrun]") {
  const Installation olpager;
  const auto outcome = olpager.run({"--vram",       "64MiB",
                                    "--host",       "25%",
                                    "--reach",      "all",
                                    "--report",     "pool",
                                    "--log",        "error",
                                    "--exportable", "driver",
                                    "--pack",       "off",
                                    "--arenas",     "streamed",
                                    "--driver",     "driver/libcuda.so.1",
                                    "--va-base",    "0x212340000000",
                                    "--va-size",    "1TiB",
                                    "--",           "sh",
                                    "-c",           "env; echo \"$0 $1\"; exit 3",
                                    "-x",           "--vram"});
  CHECK(outcome.status == 3);
  CHECK(outcome.err.empty());
  const auto has = [&](const std::string& line) {
    return ("\n" + outcome.out).find("\n" + line + "\n") != std::string::npos;
  };
  CHECK(has("OL_VRAM=64MiB"));
  CHECK(has("OL_HOST=25%"));
  CHECK(has("OL_REACH=all"));
  CHECK(has("OL_REPORT=pool"));
  CHECK(has("OL_LOG=error"));
  CHECK(has("OL_EXPORTABLE=driver"));
  CHECK(has("OL_PACK=off"));
  CHECK(has("OL_ARENAS=streamed"));
  CHECK(has("OL_DRIVER=" + olpager.driver));
  CHECK(has("OL_VA_BASE=0x212340000000"));
  CHECK(has("OL_VA_SIZE=1TiB"));
  CHECK(has("LD_PRELOAD=" + olpager.library));
  CHECK(has("LD_LIBRARY_PATH=" + olpager.links + ":/somewhere"));
  CHECK(has("TRITON_LIBCUDA_PATH=" + olpager.links));
  CHECK(has("-x --vram"));
}

TEST_CASE("the separator may be left out", "[olrun]") {
  const Installation olpager;
  const auto outcome = olpager.run({"--driver", olpager.driver, "echo", "--vram", "--", "x"});
  CHECK(outcome.status == 0);
  CHECK(outcome.out == "--vram -- x\n");
}

TEST_CASE("a settings file is named by its absolute path", "[olrun]") {
  const Installation olpager;
  olpager.write("my.toml", "driver = '" + olpager.driver + "'\nvram = '64MiB'\n");
  const auto outcome = olpager.run({"--config", "my.toml", "--", "printenv", "OL_CONFIG"});
  CHECK(outcome.status == 0);
  CHECK(outcome.out == olpager.path + "/my.toml\n");
}

TEST_CASE("olrun refuses what can't be right with one line and status 2", "[olrun]") {
  const Installation olpager;
  const std::string driver = olpager.driver;
  checkRefusal(olpager.run({}), "no program given");
  checkRefusal(olpager.run({"--vrma", "8GiB", "--", "true"}), "unknown option --vrma");
  checkRefusal(olpager.run({"--vram"}), "--vram");
  checkRefusal(olpager.run({"--vram", "", "--", "true"}),
               "--vram is given nothing; leave it out, or say what it is to be");
  checkRefusal(olpager.run({"--gpunode", "", "--", "true"}),
               "--gpunode is given nothing; leave it out, or say none");
  checkRefusal(olpager.run({"--gpunode", "127.0.0.1:1", "--stats", "--", "true"}),
               "olpagestat --node 127.0.0.1:1");
  checkRefusal(olpager.run({"--vram", "8 gigs", "--", "true"}),
               "--vram: '8 gigs' is not a size; allowed: ");
  checkRefusal(olpager.run({"--vram", "1MiB", "--", "true"}), "--vram: '1MiB' is below one page");
  checkRefusal(olpager.run({"--vram", "0", "--", "true"}), "--vram: '0'");
  checkRefusal(olpager.run({"--host", "200%", "--", "true"}), "--host: '200%'");
  checkRefusal(olpager.run({"--reach", "some", "--", "true"}),
               "--reach: 'some' is not allowed; allowed: traced, all or learned");
  checkRefusal(olpager.run({"--report", "x", "--", "true"}), "node or pool");
  checkRefusal(olpager.run({"--log", "loud", "--", "true"}), "trace");
  checkRefusal(olpager.run({"--va-base", "0x1001", "--", "true"}), "--va-base: '0x1001'");
  checkRefusal(olpager.run({"--config", "none.toml", "--", "true"}), "none.toml: can't be read");
  olpager.write("bad.toml", "# mine\nvrom = '1GiB'\n");
  checkRefusal(olpager.run({"--config", "bad.toml", "--", "true"}),
               "/bad.toml:2: unknown key 'vrom'");
  checkRefusal(olpager.run({"--", "true"}, {"OL_VRAM=lots", "OL_DRIVER=" + driver}),
               "OL_VRAM: 'lots'");
}

TEST_CASE("olrun refuses a share of VRAM that is below one page", "[olrun]") {
  const Installation olpager;
  const auto with = [&](const char* vram, const char* of) {
    return olpager.run({"--driver", olpager.driver, "--vram", vram, "--", "true"},
                       {std::string("FAKE_VRAM=") + of});
  };
  checkRefusal(with("0.001%", "68719476736"),
               "--vram: 0.001% of the 64GiB of device 0 is below one page (2MiB)");
  CHECK(with("0.004%", "68719476736").status == 0);
  CHECK(with("0.1%", "1073741824").status == 2);
  CHECK(with("1%", "1073741824").status == 0);
  // A driver that does not tell is asked by the program.
  CHECK(olpager.run({"--driver", olpager.driver, "--vram", "0.001%", "--", "true"}).status == 0);
}

TEST_CASE("olrun refuses a driver that can't be used", "[olrun]") {
  const Installation olpager;
  checkRefusal(olpager.run({"--driver", "/nowhere/libcuda.so.1", "--", "true"}),
               "/nowhere/libcuda.so.1");
  const auto text = olpager.write("libtext.so", "no library");
  checkRefusal(olpager.run({"--driver", text, "--", "true"}), text);
  checkRefusal(olpager.run({"--driver", "/lib/x86_64-linux-gnu/libm.so.6", "--", "true"}),
               "no cuInit");
  checkRefusal(olpager.run({"--driver", olpager.library, "--", "true"}), "is olpager itself");
  checkRefusal(olpager.run({"--driver", CRASHING_DRIVER, "--", "true"}), "ends the process");
  checkRefusal(olpager.run({"--driver", "sim", "--", "true"}), "libolsimcuda.so");
  fs::create_directories(olpager.path + "/stubs");
  fs::copy_file(FAKE_DRIVER, olpager.path + "/stubs/libcuda.so");
  checkRefusal(olpager.run({"--driver", "stubs/libcuda.so", "--", "true"}), "stub");
}

TEST_CASE("olrun refuses a range that is taken or has no room", "[olrun]") {
  const Installation olpager;
  // The stack and the libraries lie somewhere in the last 16 TiB of user space.
  checkRefusal(olpager.run({"--driver", olpager.driver, "--va-base", "0x700000000000", "--va-size",
                            "0xfffffe00000", "--", "true"}),
               "is taken");
  checkRefusal(
      olpager.run({"--driver", olpager.driver, "--va-base", "0x7ff000000000", "--", "true"}),
      "end above");
  const rlimit before = [] {
    rlimit limit{};
    getrlimit(RLIMIT_AS, &limit);
    return limit;
  }();
  const auto limited = runChild(
      {"/bin/sh", "-c",
       "ulimit -v 8000000; exec " + olpager.olrun + " --driver " + olpager.driver + " -- true"},
      {olpager.runtime});
  if (before.rlim_cur == RLIM_INFINITY) checkRefusal(limited, "ulimit -v unlimited");
}

TEST_CASE("a program that is not there or can't be run gives a shell's status", "[olrun]") {
  const Installation olpager;
  checkRefusal(olpager.run({"--driver", olpager.driver, "--", "no-such-program"}),
               "no-such-program: no such program on PATH", 127);
  checkRefusal(olpager.run({"--driver", olpager.driver, "--", "./no-such-program"}),
               "no such program", 127);
  const auto text = olpager.write("text", "x");
  checkRefusal(olpager.run({"--driver", olpager.driver, "--", text}), "not an executable", 126);
  checkRefusal(olpager.run({"--driver", olpager.driver, "--", olpager.path}), "not an executable",
               126);
}

TEST_CASE("a script without #! runs, a static program runs with a warning", "[olrun]") {
  const Installation olpager;
  const auto script = olpager.write("script", "echo \"ran $1\"\n");
  fs::permissions(script, fs::perms::owner_all);
  const auto ran = olpager.run({"--driver", olpager.driver, "--", script, "well"});
  CHECK(ran.status == 0);
  CHECK(ran.out == "ran well\n");
  const auto fixed = olpager.run({"--driver", olpager.driver, "--", STATIC_PROGRAM});
  CHECK(fixed.status == 5);
  CHECK(fixed.err.find("statically linked") != std::string::npos);
}

TEST_CASE("an installation that lacks the library says so", "[olrun]") {
  const Installation olpager;
  fs::remove(olpager.library);
  checkRefusal(olpager.run({"--driver", olpager.driver, "--", "true"}), "libolpager.so");
}

TEST_CASE("--stats prints the counters at the end and leaves no file", "[olrun]") {
  const Installation olpager;
  const auto outcome =
      olpager.run({"--stats", "--driver", olpager.driver, "--", COUNTING_PROGRAM, "4711"});
  INFO(outcome.err);
  CHECK(outcome.status == 0);
  CHECK(outcome.out.empty());
  CHECK(outcome.err.find("counting_program  pid ") != std::string::npos);
  CHECK(outcome.err.find("4711") != std::string::npos);
  CHECK(fs::is_empty(olpager.path + "/run/olpager"));

  CHECK(olpager.run({"--stats", "--driver", olpager.driver, "--", "sh", "-c", "exit 4"}).status ==
        4);
  CHECK(
      olpager.run({"--stats", "--driver", olpager.driver, "--", "sh", "-c", "kill -9 $$"}).status ==
      128 + SIGKILL);
}

TEST_CASE("--stats hands signals on to the program", "[olrun]") {
  const Installation olpager;
  // A shell has what it starts in the background ignore SIGINT, and who started the tests may have
  // as well.
  for (const auto& [signal, status] : {std::pair("TERM", 9), std::pair("INT", 128 + SIGINT)}) {
    const auto outcome =
        runChild({"/bin/sh", "-c",
                  "env --default-signal=INT " + olpager.olrun + " --stats --driver " +
                      olpager.driver + " -- " COUNTING_PROGRAM " 1 wait > " + olpager.path +
                      "/out & pid=$!; while ! grep -q ready " + olpager.path +
                      "/out; do sleep 0.05; done; kill -" + signal + " $pid; wait $pid; s=$?; rm " +
                      olpager.path + "/out; exit $s"},
                 {olpager.runtime});
    INFO(signal << outcome.err);
    CHECK(outcome.status == status);
    CHECK(outcome.err.find("launches        1\n") != std::string::npos);
  }
}

TEST_CASE("--check lists gaps with their fixes", "[olrun]") {
  const Installation olpager;
  const auto outcome = olpager.run({"--check", "--driver", olpager.driver});
  CHECK(outcome.status == 1);  // the fake driver has no device
  CHECK(outcome.out.find("ok   library       " + olpager.library) != std::string::npos);
  CHECK(outcome.out.find("GAP  driver") != std::string::npos);
  CHECK(outcome.out.find("RAM") != std::string::npos);
  CHECK(outcome.out.find("This machine has gaps") != std::string::npos);
}

TEST_CASE("help and version are answers, not errors", "[olrun]") {
  const Installation olpager;
  CHECK(olpager.run({"--help"}).status == 0);
  CHECK(olpager.run({"--help"}).out.find("--vram SIZE") != std::string::npos);
  CHECK(olpager.run({"--version"}).out.rfind("olrun 0.", 0) == 0);
}
