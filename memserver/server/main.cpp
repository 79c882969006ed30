// olmemserver: donates memory.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <string>

#include "base/log.h"
#include "base/size.h"
#include "coherence/transport/trust/keys.h"
#include "memserver/server/service.h"

int main(int argc, char** argv) {
  using namespace olpager;
  std::string listen = "127.0.0.1:7070", memory = "64MiB", slab = "4MiB";
  CLI::App app("Donates this machine's memory to sessions elsewhere.", "olmemserver");
  app.add_option("--listen", listen);
  app.add_option("--memory", memory);
  app.add_option("--slab", slab);
  CLI11_PARSE(app, argc, argv);
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  tbb::task_arena arena(4, 0);
  memserver::SlabOptions slabs;
  slabs.bytes = base::parseSize(slab).value();
  memserver::SlabStore store(slabs, arena, [] {});
  store.setTarget(base::parseSize(memory).value());
  if (auto status = store.fill(memserver::SlabKind::kPrivate, [](uint64_t) {}); !status.ok()) {
    base::logError("%s", status.error().message.c_str());
    return 1;
  }
  transport::Options options;
  options.silent_ms = 0;
  auto endpoint = transport::makeEndpoint(options);
  memserver::Service service({}, store, arena, endpoint.value()->makeQueue());
  auto listener =
      endpoint.value()->listen(listen, [&](const transport::PeerInfo& peer) { return service.accept(peer); });
  if (!listener.ok()) {
    base::logError("%s", listener.error().message.c_str());
    return 2;
  }
  fmt::print("listening on {}\n", listener.value()->address());
  std::fflush(stdout);
  int signal = 0;
  sigwait(&ends, &signal);
  return 0;
}
